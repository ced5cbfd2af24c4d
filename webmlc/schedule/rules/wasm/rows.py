"""Stages that share rows: softmax, layer norm, reductions over the contiguous axis.

In: a function of several stages. Out: one loop over rows with every stage of a row inside it, so
that a row stays in the first-level cache and its statistics in registers:

    for i, j: m[i] = max(m[i], x[i, j])            for i in T.parallel(197):
    for i, j: e[i, j] = exp(x[i, j] - m[i])   ->       for j: m = max(m, x[i, j])
    ...                                                for j: e[j] = exp(x[i, j] - m)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from webmlc.core.expr import as_int
from webmlc.core.machine import Cpu
from webmlc.core.rewrite import variables
from webmlc.loops.ir import LoopFunction, loads
from webmlc.schedule.analysis import fold_of, operations
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.rules.rule import rule_of
from webmlc.schedule.rules.space import Product
from webmlc.schedule.rules.tiling.nests import extent_of, is_parameter, written_buffer
from webmlc.schedule.rules.wasm.stages import Stages, find_stages
from webmlc.schedule.schedule import Schedule
from webmlc.schedule.trace import Trace

REPEATED = 1.05
"""The most operations of gathered stages, as a multiple of the operations of all stages: a few
edges may be computed twice (an estimate, as old as the rule)."""
REPEATED_INLINE = 2.0
"""The same limit if pointwise stages of symbolic size are computed where they are read: this saves
memory whose size is known only at run time."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Stages that share rows. `gathering`: the steps that put all stages under loops over rows."""

    gathering: Trace
    stages: Stages

    def space(self, machine: Cpu) -> Product[tuple[Any, ...]]:
        """The parameters of each stage."""
        return self.stages.space(machine)

    def default(self, machine: Cpu) -> tuple[Any, ...]:
        """The parameters that each stage has without a search."""
        return self.stages.default(machine)

    def build(self, schedule: Schedule, parameters: tuple[Any, ...]) -> None:
        """Gather the stages of a row, and schedule each."""
        schedule.follow(self.gathering)
        self.stages.build(schedule, parameters)


def match(function: LoopFunction, machine: Cpu) -> Rows | None:
    """Matches stages, with a reduction among them, that share rows."""
    schedule = Schedule(function)
    if all(fold_of(schedule.block(name)) is None for name in schedule.blocks()):
        return None
    gathered, shared = _gather_rows(schedule)
    return Rows(gathered.trace, find_stages(gathered, machine, shared)) if shared else None


ROWS = rule_of("rows", match, needs_proof=True)


def _gather_rows(schedule: Schedule) -> tuple[Schedule, int]:
    """Put all stages under common loops over rows; returns the schedule and how many loops they
    share, 0 if they share none.
    """
    outputs = [
        name
        for name in schedule.blocks()
        if (buffer := written_buffer(schedule.block(name)))
        and is_parameter(schedule.function, buffer)
    ]
    if len(outputs) > 1:
        return _gather_forward(schedule)
    if len(outputs) != 1 or outputs[0] != schedule.blocks()[-1]:
        return schedule, 0
    anchor = outputs[0]
    if fold_of(schedule.block(anchor)) is not None:
        anchor = schedule.cache_write(anchor, "local")
    return _gather(schedule, anchor)


def _gather_forward(schedule: Schedule) -> tuple[Schedule, int]:
    """Put the stages of several results under the outermost loops of the first stage: the fewest
    loops that leave no loop of symbolic size inside. Returns the schedule and the number of shared
    loops.
    """
    first, *others = schedule.blocks()
    reduced = schedule.reduce_loops(first)
    loops = [loop for loop in schedule.loops(first) if loop not in reduced]
    symbolic = [n for n, loop in enumerate(loops, 1) if extent_of(schedule, loop) is None]
    depth = max(symbolic, default=1)
    if depth > len(loops):
        return schedule, 0
    gathered = schedule.copy()
    try:
        for name in others:
            gathered.reverse_compute_at(name, loops[depth - 1])
    except ScheduleError:
        return schedule, 0
    for name in (first, *others):
        buffer = written_buffer(gathered.block(name))
        if buffer is not None and not is_parameter(gathered.function, buffer):
            _keep_near(gathered, name)
    return gathered, depth


def _gather(schedule: Schedule, anchor: str) -> tuple[Schedule, int]:
    """Move every producer under the innermost loop of `anchor` that computes nothing twice.

    Returns the schedule and the number of shared loops; zero if there is no such loop. An iteration
    stores values of known size, or values that lie in the memory of its result; pointwise values
    are then computed twice. A result of a single row gets a loop of one iteration for this.
    """
    limit = operations(schedule.function) * REPEATED
    generous = operations(schedule.function) * REPEATED * REPEATED_INLINE
    has_symbols = any(as_int(d) is None for b in schedule.function.allocations for d in b.shape)
    gathered = _innermost_gathering(schedule, anchor, limit)
    if gathered is None and has_symbols:
        inlined = schedule.copy()
        for producer in _producers(schedule, anchor):
            if fold_of(schedule.block(producer)) is None:
                inlined.compute_inline(producer)
        gathered = _innermost_gathering(inlined, anchor, generous)
        if gathered is None:
            _put_rows_first(inlined, anchor)
            gathered = _innermost_gathering(inlined, anchor, generous)
        if gathered is None:
            inlined.reorder(inlined.add_unit_loop(anchor), *inlined.loops(anchor)[:-1])
            gathered = _innermost_gathering(inlined, anchor, generous)
    return gathered or (schedule, 0)


def _producers(schedule: Schedule, anchor: str) -> list[str]:
    return [name for name in reversed(schedule.blocks()) if name != anchor]


def _put_rows_first(schedule: Schedule, anchor: str) -> None:
    """Move the loops of `anchor` that no reduction needs as a whole outside the other loops."""
    loops = schedule.loops(anchor)
    block = schedule.block(anchor)
    used: set[str] = set(loops)
    for load in loads(block.body):
        if any(load.buffer == buffer for buffer in schedule.function.allocations):
            names = {v.name for index in load.indices for v in variables(index)}
            axes = block.bound_axes()
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
    """True if the values that each producer stores in one iteration of the shared loops have a
    known size, or can lie in the memory that `anchor` writes later.
    """
    for producer in producers:
        reduced = schedule.reduce_loops(producer)
        inner = [loop for loop in schedule.loops(producer)[depth:] if loop not in reduced]
        if any(extent_of(schedule, loop) is None for loop in inner):
            try:
                schedule.reuse_buffer(producer, anchor)
            except ScheduleError:
                return False
    return True


def _keep_near(schedule: Schedule, producer: str) -> None:
    """Keep a reduction's results for one row in registers."""
    buffer = written_buffer(schedule.block(producer))
    if fold_of(schedule.block(producer)) is not None and buffer and buffer.scope == "global":
        schedule.set_scope(producer, "local")
