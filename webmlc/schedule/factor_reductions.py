"""Reductions too long for the threads that one dispatch gives them become two.

In: a lowered module for the GPU. Out: the same module, in which a reduction of few results and many
elements is one of its parts, side by side, and one of the parts' results; `split_kernels` then cuts
between them, for a dispatch cannot wait for all its workgroups.

    for c, y, x: m[c] += a[y, x, c]   ->   for p, c, y, x: m_rf[p, c] += a[p * 9 + y, x, c]
                                           for c, p: m[c] += m_rf[p, c]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf, prod

from webmlc.core.expr import as_int
from webmlc.core.machine import Machine
from webmlc.core.simplify import simplify
from webmlc.graph.ir import Module
from webmlc.loops.ir import Axis, Block, LoopFunction, blocks
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.rules.tiling.axes import axes_of_kind, loops_along
from webmlc.schedule.rules.webgpu.reduction import has_adjacent_results
from webmlc.schedule.schedule import Schedule

LONG = 1024
"""Elements that one thread may fold before others should help."""
MOST_PARTS = 256
"""Parts of a reduction: their results are folded in turn, by few threads again."""
_SHARES = 8
"""Parts for each `LONG` elements of a thread."""
UNKNOWN_PARTS = 64
"""Parts of a reduction whose length is a symbol."""


def factor_reductions(module: Module, machine: Machine) -> Module:
    """needs: naive kernels. guarantees: the same results; on `machine`'s device, no reduction in
    which a thread would fold more than `LONG` elements while most of the GPU has nothing to do.
    """
    used = {
        node.attributes["kernel"]
        for function in module.functions.values()
        for node in function.nodes
        if node.op == "call_kernel" and node.attributes["device"] == machine.name
    }
    kernels = {n: factor_kernel(k, machine) if n in used else k for n, k in module.kernels.items()}
    return replace(module, kernels=kernels)


def factor_kernel(function: LoopFunction, machine: Machine) -> LoopFunction:
    """Factor the reductions of one kernel that are too long."""
    schedule = Schedule(function)
    for block in list(blocks(function.body)):
        count = parts_of(block, machine)
        if count > 1:
            trial = schedule.copy()
            try:
                _factor(trial, block, count)
            except ScheduleError:  # no associative operator, or one tied to what it reads
                continue
            schedule = trial
    return schedule.function if schedule.trace else function


def parts_of(fold: Block, machine: Machine) -> int:
    """In how many parts a block should reduce: 1 where it is short, or its results fill the GPU.

    Of results that lie side by side a thread has one vector, of others a workgroup has one.
    """
    reduced = axes_of_kind(fold, "reduce")
    results, _ = _extent(axes_of_kind(fold, "spatial"))
    elements, is_known = _extent(reduced)
    if has_adjacent_results(fold):
        threads, share = -(-results // machine.lanes), elements
    else:
        threads, share = results * machine.workgroup_size, elements // machine.workgroup_size
        is_known = True  # a workgroup copes with any length
    if not reduced or threads >= machine.filling_threads or (is_known and share <= LONG):
        return 1
    wanted = min(MOST_PARTS, -(-machine.filling_threads // threads))
    return min(wanted, _SHARES * share // LONG) if is_known else min(wanted, UNKNOWN_PARTS)


def _extent(axes: Iterable[Axis]) -> tuple[int, bool]:
    """The product of the extents, symbols as 1, and whether there are none."""
    sizes = [as_int(simplify(axis.extent)) for axis in axes]
    return prod(size or 1 for size in sizes), None not in sizes


def _factor(schedule: Schedule, fold: Block, count: int) -> None:
    """Reduce in about `count` parts of the longest loop, then their results."""
    loops = loops_along(fold, axes_of_kind(fold, "reduce"))
    sizes = {loop: as_int(simplify(schedule.extent(loop))) for loop in loops}
    longest = max(loops, key=lambda loop: sizes[loop] or inf)
    size = sizes[longest]
    if size is not None:
        count = -(-size // -(-size // count))  # none of them empty
    part, _ = schedule.split(longest, [count, None])
    schedule.reorder(part, *(loop for loop in schedule.loops(fold.name) if loop != part))
    schedule.rfactor(part, 0 if has_adjacent_results(fold) else -1)
