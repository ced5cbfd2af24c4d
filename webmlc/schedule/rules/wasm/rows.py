"""Stages that meet in rows: softmax, layer norm, reductions over the contiguous axis.

In: a function of several stages. Out: one loop over rows with every stage of a row inside it, so
that a row stays in the first-level cache and its statistics in registers; sums along the contiguous
axis run in four vectors that are added at the end.
"""

from __future__ import annotations

from webmlc.core.expr import as_int
from webmlc.core.machine import Machine
from webmlc.core.rewrite import variables
from webmlc.loops.ir import Load, loads
from webmlc.schedule.analysis import (
    fold_of,
    is_dear,
    is_vectorizable,
    operations,
    reads_evenly,
    value_nodes,
)
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.rules.wasm.nests import (
    accumulate_locally,
    epilogue_of,
    extent_of,
    innermost,
    is_parameter,
    written_buffer,
)
from webmlc.schedule.rules.wasm.pointwise import fuse_even, schedule_pointwise
from webmlc.schedule.rules.wasm.tile import vectorize_columns
from webmlc.schedule.rules.wasm.window import schedule_window
from webmlc.schedule.schedule import Schedule

SUMS = 8
"""Vectors of sums of neighbours that are reduced together: enough to be in flight."""
SHORT_ROW = 64
"""Reductions shorter than this run in two vectors: four take as long to add up as they save."""


def schedule_rows(schedule: Schedule, machine: Machine) -> Schedule | None:
    """Put all stages under common loops over rows; `None` where they share no rows."""
    function = schedule.function
    outputs = [
        name
        for name in schedule.blocks()
        if (buffer := written_buffer(schedule.block(name))) and is_parameter(function, buffer)
    ]
    if len(outputs) != 1 or outputs[0] != schedule.blocks()[-1]:
        return None
    anchor = outputs[0]
    if fold_of(schedule.block(anchor)) is not None:
        anchor = schedule.cache_write(anchor, "local")
    gathered, depth = _gather(schedule, anchor)
    if depth == 0:
        return None
    return schedule_stages(gathered, machine, depth)


def schedule_dear_epilogue(schedule: Schedule, machine: Machine) -> bool:
    """Reduce a row of elements, one after the other, then run their dear epilogue in vectors along
    it; False where there is no such epilogue.
    """
    update, *rest = schedule.blocks()
    epilogue = epilogue_of(schedule.function, schedule.block(update))
    if epilogue is None or rest != [epilogue.name] or not is_dear(epilogue):
        return False
    loops = [loop for loop in schedule.loops(rest[0]) if extent_of(schedule, loop) != 1]
    if len(loops) < 2:
        return False
    *outer, column = loops
    size = extent_of(schedule, column)
    if size is None or size < machine.lanes:
        return False
    if not is_vectorizable(schedule.function, rest[0], column, machine.lanes):
        return False
    nest = accumulate_locally(schedule, update)
    assert nest.copy is not None
    schedule.compute_at(nest.copy, outer[-1])
    schedule.compute_at(update, innermost(schedule, nest.copy))
    fixed = schedule.loops(nest.result).index(outer[-1]) + 1
    if not schedule_fold(schedule, update, machine, innermost(schedule, nest.copy)):
        return False
    schedule_pointwise(schedule, nest.result, machine, fixed)
    return True


def schedule_stages(schedule: Schedule, machine: Machine, fixed: int = 0) -> Schedule:
    """Schedule every stage by itself, under `fixed` loops that they share.

    Where a primitive refuses a step (the extents of symbolic shapes may be too intricate for its
    proofs), a stage's loops are taken as they are, or left alone.
    """
    for name in schedule.blocks():
        for fuse in (True, False):
            trial = schedule.copy()
            try:
                schedule_stage(trial, name, machine, fixed, fuse)
            except ScheduleError:
                continue
            schedule = trial
            break
    return schedule


def schedule_stage(
    schedule: Schedule, block: str, machine: Machine, fixed: int, fuse: bool = True
) -> None:
    """Schedule one stage under `fixed` loops; `fuse`: make one loop of those that step evenly."""
    if fold_of(schedule.block(block)) is None:
        schedule_pointwise(schedule, block, machine, fixed, fuse)
        return
    shared = schedule.loops(block)[:fixed]
    around = next((n for n in reversed(shared) if extent_of(schedule, n) != 1), None)
    if around is not None and around != shared[-1]:
        schedule.reorder(*shared[shared.index(around) + 1 :], around)
    if not schedule_fold(schedule, block, machine, around):
        schedule_window(schedule, block, machine, fixed)


def _gather(schedule: Schedule, anchor: str) -> tuple[Schedule, int]:
    """Every producer moved under a loop of `anchor`: the innermost one that makes nothing twice.

    Returns the schedule and how many loops are shared; zero where there is no such loop. What one
    iteration stores must be of known size, or live where its result will: pointwise values are
    then computed twice. A result that is one row in all gets a loop of one iteration for it.
    """
    limit = operations(schedule.function) * 1.05
    has_symbols = any(as_int(d) is None for b in schedule.function.allocations for d in b.shape)
    found = _innermost_gathering(schedule, anchor, limit)
    if found is None and has_symbols:
        inlined = schedule.copy()
        for producer in _producers(schedule, anchor):
            if fold_of(schedule.block(producer)) is None:
                inlined.compute_inline(producer)
        found = _innermost_gathering(inlined, anchor, limit * 2)
        if found is None:
            _put_rows_first(inlined, anchor)
            found = _innermost_gathering(inlined, anchor, limit * 2)
        if found is None:
            inlined.reorder(inlined.add_unit_loop(anchor), *inlined.loops(anchor)[:-1])
            found = _innermost_gathering(inlined, anchor, limit * 2)
    return found or (schedule, 0)


def _producers(schedule: Schedule, anchor: str) -> list[str]:
    return [name for name in reversed(schedule.blocks()) if name != anchor]


def _put_rows_first(schedule: Schedule, anchor: str) -> None:
    """Let the loops of `anchor` that no reduction needs as a whole stand outside the others."""
    loops = schedule.loops(anchor)
    block = schedule.block(anchor)
    used: set[str] = set(loops)
    for load in loads(block.body):
        if any(load.buffer == buffer for buffer in schedule.function.allocations):
            names = {v.name for index in load.indices for v in variables(index)}
            axes = zip(block.axes, block.bindings, strict=True)
            used &= {str(binding) for axis, binding in axes if axis.var.name in names}
    schedule.reorder(*[p for p in loops if p in used], *[p for p in loops if p not in used])


def _innermost_gathering(
    schedule: Schedule, anchor: str, limit: float
) -> tuple[Schedule, int] | None:
    """The schedule with all producers under the innermost loop that costs at most `limit`."""
    loops = schedule.loops(anchor)
    producers = _producers(schedule, anchor)
    for depth in range(len(loops), 0, -1):
        trial = schedule.copy()
        try:
            for producer in producers:
                trial.compute_at(producer, loops[depth - 1])
        except ScheduleError:
            continue
        if operations(trial.function) <= limit and _has_room(trial, anchor, producers, depth):
            for producer in producers:
                _keep_near(trial, producer)
            return trial, depth
    return None


def _has_room(schedule: Schedule, anchor: str, producers: list[str], depth: int) -> bool:
    """True where what each producer stores in one iteration of the shared loops has a known size,
    or takes the place of what `anchor` will write there.
    """
    for producer in producers:
        reduced = schedule.reduce_loops(producer)
        own = [loop for loop in schedule.loops(producer)[depth:] if loop not in reduced]
        if any(extent_of(schedule, loop) is None for loop in own):
            try:
                schedule.reuse_buffer(producer, anchor)
            except ScheduleError:
                return False
    return True


def _keep_near(schedule: Schedule, producer: str) -> None:
    """Keep what a reduction makes for one row in registers."""
    buffer = written_buffer(schedule.block(producer))
    if fold_of(schedule.block(producer)) is not None and buffer and buffer.scope == "global":
        schedule.set_scope(producer, "local")


def schedule_fold(
    schedule: Schedule, update: str, machine: Machine, around: str | None = None
) -> bool:
    """Reduce along the contiguous axis in vectors; False where nothing contiguous is reduced.

    `around` is a loop right around it, some neighbours of which may be reduced together.
    """
    reduced = schedule.reduce_loops(update)
    inner = schedule.loops(update)[-len(reduced) :] if reduced else []
    if not reduced or inner != reduced or not reads_evenly(schedule.function, update, reduced[-1]):
        return False
    last = fuse_even(schedule, update, reduced)[-1] if len(reduced) > 1 else reduced[-1]
    size = extent_of(schedule, last)
    lanes = machine.lanes
    outer = [loop for loop in schedule.reduce_loops(update) if loop != last]
    together = _neighbours(schedule, update, around, size, machine)
    apart = together == 1 and _run_beside_each_other(schedule, outer, size, machine)
    width = lanes * (2 if apart or (size is not None and size < SHORT_ROW) else 4)
    width = lanes * (SUMS // together) if together > 1 else width
    if size is not None and size < 2 * width:
        return False
    if size is None and outer:
        return _fold_runs(schedule, update, outer, machine)
    neighbour = schedule.split(around, [None, together])[1] if around and together > 1 else None
    if size is None or size % width:
        # The rests of all runs together, or one would be added before the total is initialised.
        if outer:
            schedule.reorder(last, *outer)
        schedule.partition(last, schedule.extent(last) // width * width)
        if outer:
            schedule.reorder(*outer, last)
    if extent_of(schedule, last) == width:
        lane = last
    else:
        _, lane = schedule.split(last, [None, width])
    partial = schedule.rfactor(lane, -1)
    schedule.set_scope(partial, "local")
    runs = _runs_apart(schedule, partial) if apart else []
    vectors, lane = schedule.split(schedule.reduce_loops(update)[-1], [None, lanes])
    vector = schedule.rfactor(lane, -1)
    blocks = [*runs, partial, vector, schedule.cache_write(vector, "local")]
    each = [] if neighbour is None else schedule.fission(neighbour)
    if each:
        at = schedule.loops(partial).index(next(n for n in schedule.loops(partial) if n in each))
        own, *steps = schedule.loops(partial)[at:-1]
        schedule.reorder(*steps, own, schedule.loops(partial)[-1])
    for sums, loops in ((partial, schedule.reduce_loops(partial)), (vector, [vectors])):
        blocks += [schedule.decompose_reduction(sums, loops[0])] if loops else []
    if each:
        each.append(schedule.loops(blocks[-2])[at])
    for block in blocks:
        vectorize_columns(schedule, block, schedule.loops(block)[-1], machine)
    schedule.unroll(vectors)
    final = schedule.reduce_loops(update)[-1]
    schedule.decompose_reduction(update, final)
    for loop in (final, *each):
        schedule.unroll(loop)
    return True


def _fold_runs(schedule: Schedule, update: str, outer: list[str], machine: Machine) -> bool:
    """Reduce every run of symbolic length in vectors of its own, then add up what the runs give: no
    sum is longer than a run, or than there are runs.
    """
    run = schedule.fuse(*outer) if len(outer) > 1 else outer[0]
    partial = schedule.rfactor(run, -1)
    (total,) = schedule.reduce_loops(update)
    schedule.compute_at(partial, total)
    schedule.set_scope(partial, "local")
    schedule.decompose_reduction(update, total)
    return schedule_fold(schedule, partial, machine)


def _neighbours(
    schedule: Schedule, update: str, around: str | None, size: int | None, machine: Machine
) -> int:
    """How many iterations of the loop around a fold are reduced together: as many as divide it and
    keep their sums in registers, where they share one of the values that are loaded; else 1.
    """
    if around is None or size is None:
        return 1
    block = schedule.block(update)
    axes = zip(block.axes, block.bindings, strict=True)
    own = {axis.var for axis, b in axes if around in {v.name for v in variables(b)}}
    fold = fold_of(block)
    read = [] if fold is None else [n for n in value_nodes(fold.value) if isinstance(n, Load)]
    shared = [n for n in read if not any(own & variables(i) for i in n.indices)]
    extent = extent_of(schedule, around) or 1
    fitting = [n for n in (4, 2) if extent % n == 0 and 2 * SUMS // n * machine.lanes <= size]
    return fitting[0] if own and fitting and 0 < len(shared) < len(read) else 1


def _run_beside_each_other(
    schedule: Schedule, outer: list[str], size: int | None, machine: Machine
) -> bool:
    """True for a few runs of whole pairs of vectors, which are walked side by side: a pair of sums
    each in registers.
    """
    if len(outer) != 1 or size is None or size % (2 * machine.lanes):
        return False
    count = extent_of(schedule, outer[0])
    return count is not None and 2 * count < machine.vector_registers


def _runs_apart(schedule: Schedule, partial: str) -> list[str]:
    """Give each run sums of its own, so that more are in flight, and make the loop over runs the
    inner one; returns the blocks that fill them.
    """
    outer, run = schedule.reduce_loops(partial)
    lane = schedule.loops(partial)[-1]
    sums = schedule.rfactor(outer, 0)
    schedule.set_scope(sums, "local")
    schedule.reorder(run, outer, lane)
    start = schedule.decompose_reduction(sums, run)
    for block in (start, sums):
        schedule.unroll(schedule.loops(block)[-2])
    return [start, sums]
