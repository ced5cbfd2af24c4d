"""Nests of a schedule in progress: a reduction with its epilogue, and the loops along its axes.

In: a schedule and a block. Out: the block that finishes the reduction, and the step that every
tiled reduction begins with:

    accumulate_locally(schedule, "C")      # Nest(update="C", result="relu"): C is local now
    axis_loops(schedule, "relu")           # ["i", "j"]: the loop along each axis
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from webmlc.core.expr import Const, Expr, Var, as_int
from webmlc.core.rewrite import variables
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Axis, Block, Buffer, Load, LoopFunction, Store, blocks, loads, stores
from webmlc.schedule.analysis import contraction_of, fold_of, stride, takes_polynomial
from webmlc.schedule.primitives.roll_maximum import exponential_of
from webmlc.schedule.schedule import Schedule
from webmlc.schedule.tree import outer_blocks


@dataclass(frozen=True, slots=True)
class Nest:
    """A reduction and the block that passes its results on: its epilogue, or a plain copy.

    If the epilogue is expensive, the block `copy` first takes the results out of registers, so that
    the epilogue may run in a loop over them.
    """

    update: str
    result: str
    copy: str | None = None

    @property
    def unrolled(self) -> tuple[str, ...]:
        """The blocks whose tile lives in registers."""
        return (self.update, self.copy or self.result)


def written_buffer(block: Block) -> Buffer | None:
    """The only buffer that a block writes; `None` if there are several."""
    written = {store.buffer for store in stores(block.body)}
    return next(iter(written)) if len(written) == 1 else None


def is_parameter(function: LoopFunction, buffer: Buffer) -> bool:
    """True for a buffer of the caller's."""
    return any(buffer.name == parameter.name for parameter in function.params)


def readers(function: LoopFunction, buffer: Buffer) -> list[Block]:
    """The blocks, other than its writers, that read `buffer`."""
    return [
        block
        for block in blocks(function.body)
        if any(load.buffer == buffer for load in loads(block.body))
        and all(store.buffer != buffer for store in stores(block.body))
    ]


def epilogue_of(function: LoopFunction, update: Block) -> Block | None:
    """The only block that reads results of `update`, if element by element in its order."""
    buffer = written_buffer(update)
    if buffer is None or is_parameter(function, buffer):
        return None
    consumers = readers(function, buffer)
    if len(consumers) != 1 or fold_of(consumers[0]) is not None:
        return None
    (reader,) = consumers
    if not isinstance(reader.body, Store):
        return None
    axes = tuple(axis.var for axis in reader.axes)
    if any(axis.kind == "reduce" for axis in reader.axes) or len(axes) != len(buffer.shape):
        return None
    if any(axis.extent != size for axis, size in zip(reader.axes, buffer.shape, strict=True)):
        return None
    read = [load.indices for load in loads(reader.body) if load.buffer == buffer]
    return reader if all(_is_own_element(indices, reader) for indices in read) else None


def only_fold(schedule: Schedule) -> str | None:
    """The fold of a kernel that is a fold alone, or a fold with its epilogue."""
    first, *others = (schedule.block(name) for name in schedule.blocks())
    if fold_of(first) is None or len(others) > 1:
        return None
    is_whole = not others or epilogue_of(schedule.function, first) == others[0]
    return first.name if is_whole else None


def _is_own_element(indices: tuple[Expr, ...], block: Block) -> bool:
    """True if each index is the block's axis, or 0 for an axis of one value."""
    return all(
        index == axis.var or (as_int(index) == 0 and as_int(axis.extent) == 1)
        for index, axis in zip(indices, block.axes, strict=True)
    )


def accumulate_locally(schedule: Schedule, update: str) -> Nest:
    """Let a reduction accumulate in a `local` buffer, and find (or make) its reader."""
    epilogue = epilogue_of(schedule.function, schedule.block(update))
    if epilogue is None:
        return Nest(update, schedule.cache_write(update, "local"))
    schedule.set_scope(update, "local")
    copy = schedule.cache_write(update, "local") if takes_polynomial(epilogue) else None
    return Nest(update, epilogue.name, copy)


def compute_results_at(schedule: Schedule, nest: Nest, loop: str) -> None:
    """Compute the operands of the nest's result block under its loop."""
    if nest.copy is not None:
        schedule.compute_at(nest.copy, loop)
    schedule.compute_at(nest.update, loop)


def order(schedule: Schedule, *loops: str | None) -> None:
    """Put loops in this order; `None` stands for a loop that is missing."""
    present = [loop for loop in loops if loop is not None]
    if len(present) > 1:
        schedule.reorder(*present)


def axis_loops(schedule: Schedule, block: str, fixed: int = 0) -> list[str | None]:
    """The loop along each axis of a block, under the outermost `fixed` loops that are not its own;
    `None` where an axis has one value, or no loop of its own.
    """
    shared = set(schedule.loops(block)[:fixed])
    result: list[str | None] = []
    for binding in schedule.block(block).bindings:
        inner = [v for v in variables(binding) if v.name not in shared]
        along = len(inner) == 1 and stride(binding, inner[0], {}) == Const(1)
        result.append(inner[0].name if along and (binding == inner[0] or fixed) else None)
    return result


def blocks_under(schedule: Schedule, loop: str) -> list[str]:
    """The blocks under a loop, in program order."""
    return [block.name for block in outer_blocks(schedule.loop(loop).body)]


def extent_of(schedule: Schedule, loop: str) -> int | None:
    """The iterations of a loop; `None` if symbolic."""
    return as_int(simplify(schedule.extent(loop)))


def innermost(schedule: Schedule, block: str) -> str:
    """The loop right around a block."""
    return schedule.loops(block)[-1]


def product(extents: Iterable[Expr]) -> Expr:
    """The product of extents."""
    return prod(extents, start=Const(1))


def size_of(extents: Iterable[Expr]) -> int | None:
    """The product of extents; `None` if it is symbolic."""
    return as_int(simplify(product(extents)))


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


def live_axes(axes: Iterable[Axis]) -> list[Axis]:
    """The axes that have several values."""
    return [axis for axis in axes if as_int(simplify(axis.extent)) != 1]


def joined_axes(axes: Sequence[Axis], joins: Callable[[Axis, Axis], bool]) -> int:
    """How many of the last axes are one: each of them joins the next axis."""
    count = min(1, len(axes))
    while 0 < count < len(axes) and joins(axes[-count - 1], axes[-count]):
        count += 1
    return count


def result_axes(block: Block) -> tuple[Axis, ...]:
    """The spatial axes of a block in the order of its result's indices, if each is an axis."""
    axes = {axis.var: axis for axis in axes_of_kind(block, "spatial")}
    indices = (index for store in stores(block.body) for index in store.indices)
    order = [axes[index] for index in indices if isinstance(index, Var) and index in axes]
    return tuple(order) if len(order) == len(axes) else tuple(axes.values())


def fuse_all(schedule: Schedule, loops: Sequence[str]) -> str:
    """Fuse perfectly nested loops, and return the loop.

    Loops that run once stay outside: a quotient by a symbolic size would not be known to be 0.
    """
    live = [loop for loop in loops if as_int(simplify(schedule.extent(loop))) != 1]
    once = [loop for loop in loops if loop not in live]
    if not live:
        return loops[-1]
    if once:
        schedule.reorder(*once, *live)
    return live[0] if len(live) == 1 else schedule.fuse(*live)


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


class SoftmaxBlocks(NamedTuple):
    """The names of the blocks of logits, of the maximum, of exponentials relative to the maximum,
    of the sum of exponentials, and of the sums of their products with other values.
    """

    logits: str
    maximum: str
    exponentials: str
    total: str
    product: str


def softmax_blocks(every: Mapping[str, Block]) -> SoftmaxBlocks | None:
    """The blocks of the only softmax in a kernel; `None` if there is no softmax, if a buffer has
    several writers, or if other blocks read the exponentials.
    """
    exponentials = [name for name, block in every.items() if exponential_of(block) is not None]
    writers = {store.buffer.name: name for name, b in every.items() for store in stores(b.body)}
    if len(exponentials) != 1 or len(writers) != len(every):
        return None
    operands = exponential_of(every[exponentials[0]])
    if operands is None or not isinstance(operands[0], Load):
        return None
    logits, maximum = (writers.get(load.buffer.name) for load in (operands[0], operands[1]))
    readers = [b for b in every.values() if exponentials[0] in {writers.get(n) for n in reads(b)}]
    products = [b.name for b in readers if contraction_of(b) is not None]
    folds = {b.name: fold_of(b) for b in readers}
    totals = [name for name, fold in folds.items() if fold and isinstance(fold.value, Load)]
    if logits is None or maximum is None or (len(readers), len(products), len(totals)) != (2, 1, 1):
        return None
    return SoftmaxBlocks(logits, maximum, exponentials[0], totals[0], products[0])
