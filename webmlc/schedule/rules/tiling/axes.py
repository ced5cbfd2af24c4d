"""The axes and loops of an unscheduled kernel: the loop along each axis.

loops_along(block, axes_of_kind(block, "spatial"))     # ["n", "y", "x"]
fuse_all(schedule, ["n", "y", "x"])                    # one loop over n, y and x
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from webmlc.core.expr import Expr, Var, as_int
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Axis, Block, LoopFunction, blocks, loads, stores
from webmlc.schedule.rules.tiling.cover import divisors
from webmlc.schedule.schedule import Schedule


def loop_of(block: Block, axis: Axis) -> str | None:
    """The loop that runs along an axis of an unscheduled block; `None` if the axis is fixed."""
    for candidate, binding in block.bound_axes():
        if candidate.var == axis.var:
            return binding.name if isinstance(binding, Var) else None
    return None


def loops_along(block: Block, axes: Iterable[Axis]) -> list[str]:
    """The loops along these axes, in their order."""
    return [name for axis in axes if (name := loop_of(block, axis)) is not None]


def axes_of_kind(block: Block, kind: str) -> tuple[Axis, ...]:
    """The spatial, or the reduce axes of a block."""
    return tuple(axis for axis in block.axes if axis.kind == kind)


def result_axes(block: Block) -> tuple[Axis, ...]:
    """The spatial axes of a block, in the order in which they index its result, if each index is a
    single axis.
    """
    axes = {axis.var: axis for axis in axes_of_kind(block, "spatial")}
    indices = (index for store in stores(block.body) for index in store.indices)
    order = [axes[index] for index in indices if isinstance(index, Var) and index in axes]
    return tuple(order) if len(order) == len(axes) else tuple(axes.values())


def size_of(extents: Sequence[Expr]) -> int | None:
    """The product of extents, where all are literals."""
    total = 1
    for extent in extents:
        value = as_int(simplify(extent))
        if value is None:
            return None
        total *= value
    return total


def fuse_all(schedule: Schedule, loops: Sequence[str]) -> str | None:
    """Fuse perfectly nested loops, and return the loop; `None` if there are no loops.

    Loops that run once stay outside: a quotient by a symbolic size would not be known to be 0.
    """
    if not loops:
        return None
    live = [loop for loop in loops if as_int(simplify(schedule.extent(loop))) != 1]
    once = [loop for loop in loops if loop not in live]
    if not live:
        return loops[-1]
    if once:
        schedule.reorder(*once, *live)
    return live[0] if len(live) == 1 else schedule.fuse(*live)


def unroll_factor(extent: Expr, largest: int) -> int:
    """The largest factor up to `largest` that divides a constant extent; 1 for a symbolic
    extent.
    """
    count = as_int(simplify(extent))
    return 1 if count is None else divisors(count, largest)[-1]


def write_out(schedule: Schedule, loop: str, most: int) -> None:
    """Unroll a loop, or the largest part of up to `most` iterations that divides it. The loads of
    written-out iterations do not wait for each other. An unrolled loop stays as it is.
    """
    extent = schedule.extent(loop)
    factor = unroll_factor(extent, most)
    if factor == 1 or schedule.loop(loop).kind != "serial":
        return
    if factor != as_int(simplify(extent)):
        _, loop = schedule.split(loop, [None, factor])
    schedule.unroll(loop)


def written(function: LoopFunction) -> dict[str, list[Block]]:
    """The blocks that write each buffer, in program order."""
    result: dict[str, list[Block]] = {}
    for block in blocks(function.body):
        for name in dict.fromkeys(s.buffer.name for s in stores(block.body)):
            result.setdefault(name, []).append(block)
    return result


def reads(block: Block) -> set[str]:
    """The buffers that a block reads, except the buffers that it folds into."""
    targets = {s.buffer.name for s in stores(block.body)}
    return {load.buffer.name for load in loads(block.body)} - targets
