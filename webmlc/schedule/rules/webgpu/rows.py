"""A thread for each row: reductions of any form, and updates in order.

The last block's result is cut along the axes that index the reductions' results (its rows). One
thread computes all values of its row by itself, in registers. This is also the rule for every other
kernel that one dispatch can compute.

    m[i] = max(x[i, :]); s[i] = sum(exp(x[i, :] - m[i])); y[i, j] = exp(x[i, j] - m[i]) / s[i]
    ->  one thread for each i
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from webmlc.core.expr import Var
from webmlc.core.machine import Gpu
from webmlc.core.rewrite import variables
from webmlc.loops.ir import Block, LoopFunction, blocks, loads, stores
from webmlc.schedule.analysis import is_update
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.rules.rule import Rule, accepts
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.nests import (
    axes_of_kind,
    extent_of,
    loop_of,
    loops_along,
    reads,
    size_of,
    written,
)
from webmlc.schedule.rules.webgpu.threads import bind_threads, workgroup_sizes
from webmlc.schedule.schedule import Schedule


class Workgroup(Struct, frozen=True):
    """The parameters of a rule that only has threads to choose."""

    workgroup: int
    """Invocations of a workgroup; fewer where the kernel has no more."""


def space(_facts: Any, machine: Gpu) -> Product[Workgroup]:
    """The sizes of workgroups that every device can run."""
    return Space.of(Workgroup, workgroup=workgroup_sizes(machine))


def default(_facts: Any, machine: Gpu) -> Workgroup:
    """The machine's workgroup."""
    return Workgroup(machine.workgroup_size)


@dataclass(frozen=True, slots=True)
class Facts:
    """A kernel whose blocks lead to `finals`: blocks whose results no other block reads."""

    finals: tuple[str, ...]


def match(function: LoopFunction, machine: Gpu) -> Facts | None:
    """Matches if all blocks lead to one last block, or to several last blocks that share nothing,
    and a thread has room for the values of its row.
    """
    schedule = Schedule(function)
    if not accepts(lambda: inline_stages(schedule)):
        return None
    finals = _separate_finals(schedule.function)
    if finals is None:
        return None
    facts = Facts(finals)
    has_room = accepts(lambda: _place_all(schedule, facts, machine.workgroup_size, machine))
    return facts if has_room else None


def build(schedule: Schedule, facts: Facts, parameters: Workgroup) -> None:
    """Give each row to a thread."""
    inline_stages(schedule)
    _place_all(schedule, facts, parameters.workgroup)


def _separate_finals(function: LoopFunction) -> tuple[str, ...] | None:
    """The names of the blocks whose results no block reads; `None` if two such blocks need the same
    block, or if an output that other blocks read must stay whole.
    """
    writers = written(function)
    read = {name for block in blocks(function.body) for name in reads(block)}
    outputs = {b.name for b in function.output_params()}
    if any(set(writers) & outputs & reads(block) for block in blocks(function.body)):
        return None
    finals = [b for b in blocks(function.body) if not {s.buffer.name for s in stores(b)} & read]
    owner: dict[str, str] = {}
    for final in finals:
        for producer in producers_of(function, final):
            if owner.setdefault(producer.name, final.name) != final.name:
                return None
    return tuple(final.name for final in finals)


def inline_stages(schedule: Schedule) -> LoopFunction:
    """Compute pointwise temporaries where they are read: threads have no room for rows."""
    parameters = {b.name for b in schedule.function.params}
    for block in list(blocks(schedule.function.body)):
        results = {s.buffer.name for s in stores(block)}
        if not results & parameters and not axes_of_kind(block, "reduce"):
            schedule.compute_inline(block.name)
    return schedule.function


def producers_of(function: LoopFunction, block: Block) -> list[Block]:
    """The blocks whose results `block` needs, consumers before producers."""
    writers = written(function)
    producers: dict[str, Block] = {}
    needed = reads(block)
    for candidate in reversed(list(blocks(function.body))):
        if candidate.name != block.name and {s.buffer.name for s in stores(candidate)} & needed:
            producers[candidate.name] = candidate
            needed |= reads(candidate) & set(writers)
    return list(producers.values())


def row_axes(function: LoopFunction, block: Block) -> frozenset[Var]:
    """The axes of a block that index the results of other blocks."""
    results = set(written(function)) - {s.buffer.name for s in stores(block)}
    return frozenset(
        var
        for load in loads(block)
        if load.buffer.name in results
        for index in load.indices
        for var in variables(index)
    )


def _place_all(
    schedule: Schedule, facts: Facts, workgroup: int, machine: Gpu | None = None
) -> None:
    """Compute all values that the rows of each last block need in the threads of these rows.

    Raises `ScheduleError` if a primitive refuses, or if a thread of `machine` has no room.
    """
    finals = [schedule.block(final) for final in facts.finals]
    threads = [_place(schedule, block, workgroup, machine) for block in finals]
    if any(threads):
        for block, thread in zip(finals, threads, strict=True):
            if thread is None and axes_of_kind(block, "reduce"):
                why = "one thread would reduce a whole tensor beside the threads of another result"
                raise ScheduleError("rows", why, schedule.function, block.name)


def _place(schedule: Schedule, final: Block, workgroup: int, machine: Gpu | None) -> str | None:
    """Compute all values that the rows of one last block need in the threads of these rows. Return
    the loop of the threads, or None if a single thread computes the block.
    """
    function = schedule.function
    spatial = axes_of_kind(final, "spatial")
    rows = row_axes(function, final)
    producers = producers_of(function, final)
    if not producers:
        rows = frozenset(axis.var for axis in spatial)
    outer = [n for a in spatial if a.var in rows and (n := loop_of(final, a)) is not None]
    inner = [n for a in spatial if a.var not in rows and (n := loop_of(final, a)) is not None]
    reduced = loops_along(final, axes_of_kind(final, "reduce"))
    if reduced and any(extent_of(schedule, loop) is None for loop in inner):
        why = "one thread would need registers for a row of unknown length"
        raise ScheduleError("rows", why, function, final.name)
    if outer:
        schedule.reorder(*outer, *inner, *reduced)
    thread = bind_threads(schedule, outer, workgroup)
    if thread is None and producers:
        raise ScheduleError("rows", "one thread would need whole temporaries", function, final.name)
    for producer in producers:
        assert thread is not None
        schedule.compute_at(producer.name, thread)
        if machine is not None:
            _require_room(schedule, producer.name, thread, machine)
        schedule.set_scope(producer.name, "local")
    for producer in producers:
        clear_first(schedule, producer.name)
    if axes_of_kind(final, "reduce"):
        copy = schedule.cache_write(final.name, "local")  # no sum in the output's memory
        if thread is not None:
            schedule.reverse_compute_at(copy, thread)
    return thread


def _require_room(schedule: Schedule, producer: str, thread: str, machine: Gpu) -> None:
    """Raise `ScheduleError` if a thread cannot keep the values that a producer computes for it."""
    loops = schedule.loops(producer)
    axes = schedule.block(producer).bound_axes()
    along = {v.name for axis, b in axes if axis.kind == "spatial" for v in variables(b)}
    below = [loop for loop in loops[loops.index(thread) + 1 :] if loop in along]
    size = size_of([schedule.extent(loop) for loop in below])
    if size is None or size > machine.private_elements:
        why = f"one thread would need {size or 'an unknown number of'} registers"
        raise ScheduleError("rows", why, schedule.function, producer)


def clear_first(schedule: Schedule, fold: str) -> None:
    """Clear the result of a reduction before its loops, not in their first iteration."""
    loops = schedule.reduce_loops(fold)
    if loops:
        schedule.decompose_reduction(fold, loops[0])


ROWS = Rule("rows", match, space, default, build)


def match_updates(function: LoopFunction, machine: Gpu) -> Block | None:
    """Matches a kernel of one block that updates elements: scans, scatters."""
    block, *others = blocks(function.body)
    return block if not others and is_update(block) else None


def build_updates(schedule: Schedule, block: Block, parameters: Workgroup) -> None:
    """Give each slice to a thread, which runs the updates of the slice in order. If the updates are
    independent, each update is a slice:

        for b, r: Y[b * 256 + r] = Y[b * 256 + r - 1] + X[b * 256 + r]  ->  one thread for each b
    """
    slices = loops_along(block, axes_of_kind(block, "spatial"))
    if bind_threads(schedule, slices, parameters.workgroup) is None:
        schedule.bind(schedule.add_unit_loop(block.name), "threadIdx.x")


UPDATES = Rule("updates", match_updates, space, default, build_updates)
