"""Nests of a schedule in progress: a reduction with its epilogue, and the loops along its axes.

In: a schedule and a block. Out: the block that finishes the reduction, and the step that every
tiled reduction begins with:

    accumulate_locally(schedule, "C")      # Nest(update="C", result="relu"): C is local now
    axis_loops(schedule, "relu")           # ["i", "j"]: the loop along each axis
"""

from __future__ import annotations

from dataclasses import dataclass

from webmlc.core.expr import Const, Expr, as_int
from webmlc.core.rewrite import variables
from webmlc.loops.ir import Block, Buffer, LoopFunction, Store, blocks, loads, stores
from webmlc.schedule.analysis import fold_of, stride, takes_polynomial
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
    """The only block that reads the results of `update`, if it does so element by element in the
    same order.
    """
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
    """Give a reduction a `local` buffer to accumulate in, and find (or make) the block that reads
    it.
    """
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
    return as_int(schedule.extent(loop))


def innermost(schedule: Schedule, block: str) -> str:
    """The loop right around a block."""
    return schedule.loops(block)[-1]


def product(extents: list[Expr]) -> int | None:
    """The product of extents; `None` if an extent is symbolic."""
    total = 1
    for extent in extents:
        size = as_int(extent)
        if size is None:
            return None
        total *= size
    return total
