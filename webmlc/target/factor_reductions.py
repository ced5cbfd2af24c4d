"""Split a reduction in two where one dispatch has too few threads for it.

In: a lowered module for the GPU. Out: the same module, in which a reduction with few results and
many elements became two reductions. The first reduces each of several parts, and the second
combines the results of the parts. `split_kernels` then cuts between the two, because a dispatch
cannot wait for all its workgroups.

    for c, y, x: m[c] += a[y, x, c]   ->   for p, c, y, x: m_rf[p, c] += a[p * 9 + y, x, c]
                                           for c, p: m[c] += m_rf[p, c]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf, isinf, prod

from webmlc.core.bounds import SYMBOL, bounds
from webmlc.core.expr import as_int
from webmlc.core.machine import Gpu
from webmlc.core.rewrite import variables
from webmlc.core.simplify import simplify
from webmlc.graph.ir import Module
from webmlc.loops.ir import Axis, Block, LoopFunction, blocks
from webmlc.loops.name_dimensions import name_dimensions
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.rules import match_kernel
from webmlc.schedule.rules.tiling.nests import axes_of_kind, loops_along
from webmlc.schedule.rules.webgpu.attention.attention import ATTENTION
from webmlc.schedule.rules.webgpu.columns import COLUMNS
from webmlc.schedule.rules.webgpu.contraction import CONTRACTION
from webmlc.schedule.rules.webgpu.reduction import has_adjacent_results
from webmlc.schedule.schedule import Schedule

MAX_SERIAL_ELEMENTS = 1024
"""The elements that one thread may reduce before a reduction is split among more threads. Chosen by
hand: a thread that reduced a 540 x 540 feature map took seconds.
"""
MAX_PARTS = 256
"""The parts of one reduction, at most. Few threads combine the results of the parts, so more parts
would make the second reduction long. Chosen by hand.
"""
_PARTS_PER_LIMIT = 8
"""The parts that a reduction gets for every `MAX_SERIAL_ELEMENTS` elements of a thread. Chosen by
hand.
"""
SEARCHED_PARTS = (1, 4, 16, 64, 256)
"""The numbers of parts that a search tries (chosen by hand, in steps of a factor of four)."""
_FEWEST_ELEMENTS = 8
"""Elements of a part, at least, for a search to try it (chosen by hand)."""
SYMBOLIC_PARTS = 64
"""The parts of a reduction whose length is a symbol, at most. Chosen by hand."""
SERIAL_ROWS = 32
"""The rows that one thread of the rule `columns` may reduce before a reduction is split. Derived: a
second dispatch takes as long as four rounds of eight loads, whose latency is 0.8 us (measured on an
H200).
"""
PART_ROWS = 8
"""The rows of a part that one thread of the rule `columns` reduces. Derived: one round of loads."""


def factor_reductions(module: Module, machine: Gpu) -> Module:
    """needs: naive kernels. guarantees: the same results. On `machine`'s device, no thread reduces
    more than `MAX_SERIAL_ELEMENTS` elements while most of the GPU is idle, and no thread takes more
    iterations than `machine` allows.
    """
    names = _kernels_of(module, machine)
    kernels = {
        n: factor_kernel(k, machine, module.algorithms) if n in names else k
        for n, k in module.kernels.items()
    }
    return replace(module, kernels=kernels)


def reduction_alternatives(module: Module, machine: Gpu) -> dict[str, tuple[str, ...]]:
    """The numbers of parts that each reduction with few results may have, the default one first.

    needs: naive kernels.
    """
    names: dict[str, tuple[str, ...]] = {}
    on_device = _kernels_of(module, machine)
    for kernel in (k for name, k in module.kernels.items() if name in on_device):
        if _shares_reductions(kernel, machine):
            continue
        sharers = _sharers_of_columns(kernel, machine)
        for fold in blocks(kernel.body):
            results, _ = _extent(axes_of_kind(fold, "spatial"))
            elements, is_known = _extent(axes_of_kind(fold, "reduce"))
            if is_known and _threads(fold, results, machine) < machine.filling_threads:
                most = elements // _FEWEST_ELEMENTS
                counts = (n for n in SEARCHED_PARTS if n <= most)
                every = dict.fromkeys((parts_of(fold, machine, sharers), *counts))
                if len(every) > 1:
                    names[_name(fold)] = tuple(map(_parts_name, every))
    return names


def _kernels_of(module: Module, machine: Gpu) -> set[str]:
    """The names of the kernels without a schedule that run on a machine's device."""
    names = {
        node.attributes["kernel"]
        for function in module.functions.values()
        for node in function.nodes
        if node.op == "call_kernel" and node.attributes["device"] == machine.device
    }
    return {name for name in names if not module.kernels[name].is_scheduled}


def _name(fold: Block) -> str:
    """The name of a reduction's class: its loops."""
    sizes = {
        kind: "x".join(str(simplify(a.extent)) for a in axes_of_kind(fold, kind)) or "1"
        for kind in ("reduce", "spatial")
    }
    return f"reduce {sizes['reduce']} to {sizes['spatial']}"


def _parts_name(count: int) -> str:
    return f"{count} part{'s' * (count > 1)}"


def factor_kernel(
    function: LoopFunction, machine: Gpu, algorithms: Mapping[str, str] | None = None
) -> LoopFunction:
    """Split the reductions of one kernel that are too long. `algorithms` names the parts of some
    reductions, where a search chose them.
    """
    if _shares_reductions(function, machine):
        return function
    schedule = Schedule(function)
    sharers = _sharers_of_columns(function, machine)
    least = _least_parts(function, machine)
    for block in list(blocks(function.body)):
        default = parts_of(block, machine, sharers)
        if axes_of_kind(block, "reduce"):
            default = max(default, least)
        count = _chosen_parts(block, default, algorithms or {})
        if count > 1:
            trial = schedule.copy()
            try:
                _factor(trial, block, count)
            except ScheduleError:  # for example: the operator is not associative
                continue
            schedule = trial
    return schedule.function if schedule.trace else function


def _shares_reductions(function: LoopFunction, machine: Gpu) -> bool:
    """True where the threads of a workgroup divide the reductions: in attention, and in a
    contraction with few tiles, unless even a thread's share is too long.
    """
    match = match_kernel(name_dimensions(function).function, machine)
    if match is None:
        return False
    is_contraction = match.rule is CONTRACTION and match.is_bounded
    return match.rule is ATTENTION or (is_contraction and match.default().parts > 1)


def _least_parts(function: LoopFunction, machine: Gpu) -> int:
    """The fewest parts of the depth of a kernel's product, so that no thread takes more iterations
    than the machine allows; 1 where the depth is a symbol.
    """
    match = match_kernel(name_dimensions(function).function, machine)
    if match is None or match.is_bounded or not match.rule.is_product or function.symbols:
        return 1
    return -(-match.iterations // _limit(machine))


def _limit(machine: Gpu) -> int:
    """The iterations that the loops of one thread may take."""
    return machine.thread_iterations or MAX_SERIAL_ELEMENTS


def _sharers_of_columns(function: LoopFunction, machine: Gpu) -> int:
    """The threads of a workgroup that share the rows of a reduction; 1 without sharing."""
    match = match_kernel(name_dimensions(function).function, machine)
    return match.default().down if match is not None and match.rule is COLUMNS else 1


def _chosen_parts(fold: Block, default: int, algorithms: Mapping[str, str]) -> int:
    """The number of parts that a search chose for a reduction, or the default one."""
    if not algorithms:
        return default
    counts = {_parts_name(count): count for count in (default, *SEARCHED_PARTS)}
    return counts.get(algorithms.get(_name(fold), ""), default)


def parts_of(fold: Block, machine: Gpu, sharers: int = 1) -> int:
    """The number of parts for the reduction of a block. It is 1 where the reduction is short, or
    where its results alone fill the GPU and no thread takes too many iterations.

    A thread computes one vector of adjacent results, or `sharers` threads of a workgroup share its
    rows. A result that is not adjacent to others is computed by a workgroup. The length of such a
    reduction may be unknown, unless it `_reduces_whole_tensor`.
    """
    if sharers > 1 and axes_of_kind(fold, "reduce"):
        return _parts_of_columns(fold, machine, sharers)
    reduce_axes = axes_of_kind(fold, "reduce")
    results, _ = _extent(axes_of_kind(fold, "spatial"))
    elements, is_known = _longest(reduce_axes)
    threads = _threads(fold, results, machine)
    if has_adjacent_results(fold):
        share = elements
    else:
        share = elements // machine.workgroup_size
        is_known = is_known or not _reduces_whole_tensor(fold)
    if not reduce_axes or (is_known and share <= MAX_SERIAL_ELEMENTS):
        return 1
    if threads >= machine.filling_threads:
        return -(-share // _limit(machine)) if is_known else 1
    parts = min(MAX_PARTS, -(-machine.filling_threads // threads))
    return (
        min(parts, _PARTS_PER_LIMIT * share // MAX_SERIAL_ELEMENTS)
        if is_known
        else min(parts, SYMBOLIC_PARTS)
    )


def _parts_of_columns(fold: Block, machine: Gpu, sharers: int) -> int:
    """The number of parts of a reduction whose rows are shared by the threads of workgroups."""
    results, _ = _extent(axes_of_kind(fold, "spatial"))
    elements, is_known = _longest(axes_of_kind(fold, "reduce"))
    rows = -(-elements // sharers)
    if is_known and rows <= SERIAL_ROWS:
        return 1
    if _threads(fold, results, machine) >= machine.filling_threads:
        return -(-rows // _limit(machine)) if is_known else 1
    return min(MAX_PARTS, -(-rows // PART_ROWS)) if is_known else SYMBOLIC_PARTS


def _reduces_whole_tensor(fold: Block) -> bool:
    """True where a reduction has one result, or reduces along several symbolic axes.

    One workgroup would leave the GPU idle, and each of its threads might add millions of elements.
    The rows of a softmax, whose number is a symbol, have a workgroup each.
    """
    results, is_known = _extent(axes_of_kind(fold, "spatial"))
    symbols = [a for a in axes_of_kind(fold, "reduce") if as_int(simplify(a.extent)) is None]
    return len(symbols) > 1 or (is_known and results == 1)


def _threads(fold: Block, results: int, machine: Gpu) -> int:
    """The threads that compute some results: a thread for each vector of adjacent results, or a
    workgroup for each result that is not adjacent to others.
    """
    if has_adjacent_results(fold):
        return -(-results // machine.lanes)
    return results * machine.workgroup_size


def _extent(axes: Iterable[Axis]) -> tuple[int, bool]:
    """The product of the extents, with each symbol as 1, and whether all of them are literals."""
    sizes = [as_int(simplify(axis.extent)) for axis in axes]
    return prod(size or 1 for size in sizes), None not in sizes


def _longest(axes: Iterable[Axis]) -> tuple[int, bool]:
    """The largest product that the extents may have, and whether it is bounded. If symbols leave it
    unbounded, the product with each symbolic extent as 1.
    """
    extents = [simplify(axis.extent) for axis in axes]
    ends = [bounds(n, dict.fromkeys(variables(n), SYMBOL)).high for n in extents]
    if any(isinf(end) for end in ends):
        return prod(as_int(n) or 1 for n in extents), False
    return prod(int(end) for end in ends), True


def _factor(schedule: Schedule, fold: Block, count: int) -> None:
    """Reduce in about `count` parts of the longest loop, then combine their results."""
    loops = loops_along(fold, axes_of_kind(fold, "reduce"))
    sizes = {loop: as_int(simplify(schedule.extent(loop))) for loop in loops}
    longest = max(loops, key=lambda loop: sizes[loop] or inf)
    size = sizes[longest]
    if size is not None:
        count = -(-size // -(-size // count))  # so that no part is empty
    part, _ = schedule.split(longest, [count, None])
    schedule.reorder(part, *(loop for loop in schedule.loops(fold.name) if loop != part))
    schedule.rfactor(part, 0 if has_adjacent_results(fold) else -1)
