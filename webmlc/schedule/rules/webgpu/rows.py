"""Reductions of any form, several of them in a row: softmax, normalisations, poolings over odd
axes.

The last block's result is cut along the axes that index the reductions' results (its rows); one
thread computes what its row needs, by itself, in registers. This is also the rule that answers for
every kernel that one dispatch can compute.

    m[i] = max(x[i, :]); s[i] = sum(exp(x[i, :] - m[i])); y[i, j] = exp(x[i, j] - m[i]) / s[i]
    ->  one thread for each i
"""

from __future__ import annotations

from webmlc.core.expr import Var, as_int
from webmlc.core.machine import Machine
from webmlc.core.rewrite import variables
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Block, LoopFunction, blocks, loads, stores
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.rules.webgpu.nests import (
    axes_of_kind,
    bind_threads,
    extent_of,
    loop_of,
    loops_along,
    reads,
    written,
)
from webmlc.schedule.schedule import Schedule

MOST_REGISTERS = 256
"""Elements of temporaries that a thread keeps to itself."""


def rows(function: LoopFunction, machine: Machine) -> Schedule | None:
    """Answers where all blocks lead to one last block (or to several that share nothing)."""
    schedule = Schedule(function)
    function = inline_stages(schedule)
    made = written(function)
    read = {name for block in blocks(function.body) for name in reads(block)}
    outputs = {b.name for b in function.params[len(function.params) - function.outputs :]}
    finals = [b for b in blocks(function.body) if not {s.buffer.name for s in stores(b)} & read]
    if any(set(made) & outputs & reads(b) for b in blocks(function.body)):
        return None  # an output that others read has to stay whole
    owner: dict[str, str] = {}
    for final in finals:
        for producer in producers_of(function, final):
            if owner.setdefault(producer.name, final.name) != final.name:
                return None
    for final in finals:
        _schedule_rows(schedule, final, machine)
    return schedule


def inline_stages(schedule: Schedule) -> LoopFunction:
    """Compute pointwise temporaries where they are read: a thread has no room for a row of them."""
    parameters = {b.name for b in schedule.function.params}
    for block in list(blocks(schedule.function.body)):
        own = {s.buffer.name for s in stores(block)}
        if not own & parameters and not axes_of_kind(block, "reduce"):
            schedule.compute_inline(block.name)
    return schedule.function


def producers_of(function: LoopFunction, block: Block) -> list[Block]:
    """The blocks whose results `block` needs, consumers before producers."""
    made = written(function)
    found: dict[str, Block] = {}
    needed = reads(block)
    for candidate in reversed(list(blocks(function.body))):
        if candidate.name != block.name and {s.buffer.name for s in stores(candidate)} & needed:
            found[candidate.name] = candidate
            needed |= reads(candidate) & set(made)
    return list(found.values())


def row_axes(function: LoopFunction, block: Block) -> frozenset[Var]:
    """The axes of a block that index what other blocks made."""
    made = set(written(function)) - {s.buffer.name for s in stores(block)}
    return frozenset(
        var
        for load in loads(block)
        if load.buffer.name in made
        for index in load.indices
        for var in variables(index)
    )


def _schedule_rows(schedule: Schedule, final: Block, machine: Machine) -> None:
    function = schedule.function
    spatial = axes_of_kind(final, "spatial")
    chosen = row_axes(function, final)
    if not producers_of(function, final):
        chosen = frozenset(axis.var for axis in spatial)
    outer = [n for a in spatial if a.var in chosen and (n := loop_of(final, a)) is not None]
    inner = [n for a in spatial if a.var not in chosen and (n := loop_of(final, a)) is not None]
    producers = producers_of(function, final)
    reduced = loops_along(final, axes_of_kind(final, "reduce"))
    if reduced and any(as_int(simplify(schedule.extent(loop))) is None for loop in inner):
        why = "one thread would need registers for a row of unknown length"
        raise ScheduleError("rows", why, function, final.name)
    if outer:
        schedule.reorder(*outer, *inner, *reduced)
    thread = bind_threads(schedule, outer, machine.workgroup_size)
    if thread is None and producers:
        raise ScheduleError("rows", "one thread would need whole temporaries", function, final.name)
    for producer in producers:
        assert thread is not None
        schedule.compute_at(producer.name, thread)
        size = own_elements(schedule, producer.name, thread)
        if size is None or size > MOST_REGISTERS:
            why = f"one thread would need {size or 'an unknown number of'} registers"
            raise ScheduleError("rows", why, function, producer.name)
        schedule.set_scope(producer.name, "local")
    for producer in producers:
        clear_first(schedule, producer.name)
    if axes_of_kind(final, "reduce"):
        accumulate_in_register(schedule, final.name, thread)


def own_elements(schedule: Schedule, name: str, thread: str) -> int | None:
    """How many results of a block one thread makes; None where a symbol decides."""
    loops = schedule.loops(name)
    block = schedule.block(name)
    along = {v.name for a, b in zip(block.axes, block.bindings, strict=True)
             if a.kind == "spatial" for v in variables(b)}  # fmt: skip
    below = [loop for loop in loops[loops.index(thread) + 1 :] if loop in along]
    return extent_of([schedule.extent(loop) for loop in below])


def clear_first(schedule: Schedule, fold: str) -> None:
    """Clear the result of a reduction before its loops, not in their first iteration."""
    loops = schedule.reduce_loops(fold)
    if loops:
        schedule.decompose_reduction(fold, loops[0])


def accumulate_in_register(schedule: Schedule, block: str, thread: str | None) -> None:
    """Fold in a register rather than in the output's memory."""
    copy = schedule.cache_write(block, "local")
    if thread is not None:
        schedule.reverse_compute_at(copy, thread)
