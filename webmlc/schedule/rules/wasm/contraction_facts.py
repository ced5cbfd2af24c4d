"""The facts of a contraction: the role of each axis, and the sizes of its operands.

In: a block that multiplies and adds. The outermost loops around it may not be its own. Out:
`ContractionFacts`, from which its space, its default and its schedule follow:

    Y[n, y, x, o] += A[n, y * 2 + r, x * 2 + s, k] * B[o // 8, r, s, k, o % 8]

    rows: n, y, x (of which x can be a tile's rows), column: o, depth: r * s * k
"""

from __future__ import annotations

from dataclasses import dataclass

from webmlc.core.expr import Call, Const, Expr, Var, as_int
from webmlc.core.machine import Cpu
from webmlc.core.rewrite import rewrite, variables
from webmlc.loops.ir import Axis, Block, Buffer
from webmlc.schedule.analysis import (
    Contraction,
    axis_ranges,
    collapses,
    contraction_of,
    flat_index,
    lane_stride,
)
from webmlc.schedule.rules.tiling.nests import Nest, accumulate_locally, axis_loops, product
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class RowAxis:
    """An axis of rows by its position among the spatial axes. `extent`: the number of its values;
    `steps`: the iterations of the loop along it. These are fewer if a loop that is not the
    contraction's own picks a block of rows, and 1 if there is no loop.
    """

    position: int
    extent: Expr
    steps: Expr


@dataclass(frozen=True, slots=True)
class ContractionFacts:
    """A contraction with its epilogue.

    `group_size`: the channels of a group, if groups have their own axis; `group`: the position of
    the axis of groups, and the number of groups. `rows`: the axes of rows that run more than once,
    outermost first. The last `joinable` of these axes can be one loop. `others`: the positions of
    all other axes but the column. `depth`: products of each sum, 0 if symbolic. `panel_bytes`: the
    size of the right operand if it comes in packed panels of a known number, else 0; `panel_width`
    and `element_bytes`: the size of its last dimension and of its elements. `is_streamed`: whether
    the panels outgrow the second-level cache. `owns_rows`: whether all loops are its own.
    """

    update: str
    group_size: int | None
    group: tuple[int, Expr] | None
    rows: tuple[RowAxis, ...]
    joinable: int
    others: tuple[int, ...]
    column: int
    column_extent: Expr
    depth: int
    right: str
    panel_bytes: int
    panel_width: int
    element_bytes: int
    is_streamed: bool
    owns_rows: bool
    lanes: int
    panel: int

    def panel_size(self, columns: int) -> int:
        """Bytes of a panel of `columns` columns, 0 if symbolic."""
        return self.depth * columns * self.element_bytes


def contraction_facts(
    schedule: Schedule, update: str, machine: Cpu, fixed: int = 0
) -> ContractionFacts | None:
    """The facts of the contraction `update`; `None` if it is no contraction, or has no lanes.

    The outermost `fixed` loops around it are not its own.
    """
    trial = schedule.copy()
    contraction = contraction_of(trial.block(update))
    if contraction is None:
        return None
    group_size = None if contraction.columns else _group_size(contraction)
    if not contraction.columns and group_size is None:
        return None
    if group_size is None and not _has_lanes(trial.block(update), contraction, machine.lanes):
        return None
    nest = start_nest(trial, update, group_size)
    block, result = trial.block(update), trial.block(nest.result)
    contraction = contraction_of(block)
    if contraction is None or not contraction.columns:
        return None
    if group_size is not None and not _has_lanes(block, contraction, machine.lanes):
        return None
    spatial = [axis for axis in block.axes if axis.kind == "spatial"]
    positions = {axis.var: position for position, axis in enumerate(spatial)}
    loops = axis_loops(trial, nest.result, fixed)
    live = [axis for axis in contraction.rows if as_int(axis.extent) != 1]
    column, batch = contraction.columns[-1], contraction.batch
    has_group = group_size is not None and bool(batch)
    group = (positions[batch[-1].var], batch[-1].extent) if has_group else None
    skipped = {*(axis.var for axis in live), column.var}
    right = contraction.right.buffer
    panel_bytes = _panel_bytes(right, machine)
    return ContractionFacts(
        update,
        group_size,
        group,
        tuple(_row_axis(trial, axis, positions[axis.var], loops) for axis in live),
        _joinable(live, positions, block, result),
        tuple(positions[axis.var] for axis in spatial if axis.var not in skipped),
        positions[column.var],
        column.extent,
        product([axis.extent for axis in contraction.reduced]) or 0,
        right.name,
        panel_bytes,
        as_int(right.shape[-1]) or 0,
        right.dtype.bytes,
        panel_bytes > machine.l2_bytes,
        fixed == 0,
        machine.lanes,
        machine.tile.columns,
    )


def start_nest(schedule: Schedule, update: str, group_size: int | None) -> Nest:
    """Let a contraction accumulate in a `local` buffer, and give its groups an axis."""
    contraction = contraction_of(schedule.block(update))
    nest = accumulate_locally(schedule, update)
    if group_size is not None and contraction is not None:
        _split_groups(schedule, nest, contraction.batch[-1], group_size)
    return nest


def _row_axis(schedule: Schedule, axis: Axis, position: int, loops: list[str | None]) -> RowAxis:
    loop = loops[position]
    return RowAxis(position, axis.extent, Const(1) if loop is None else schedule.extent(loop))


def _joinable(rows: list[Axis], positions: dict[Var, int], update: Block, result: Block) -> int:
    """How many of the last axes of rows can be one loop."""
    count = min(1, len(rows))
    while 0 < count < len(rows):
        outer, inner = rows[-count - 1], rows[-count]
        if not _can_join(outer, inner, positions, update, result):
            break
        count += 1
    return count


def _panel_bytes(right: Buffer, machine: Cpu) -> int:
    """The bytes of packed panels; 0 if symbolic, or if the operand is not packed."""
    size = product(list(right.shape))
    is_packed = as_int(right.shape[-1]) == machine.tile.columns
    return size * right.dtype.bytes if is_packed and size is not None else 0


def _group_size(contraction: Contraction) -> int | None:
    """Output channels of a group, if the last axis runs along channels and their group picks the
    left operand; `None` for another contraction.
    """
    if not contraction.batch:
        return None
    channel = contraction.batch[-1].var
    sizes: set[int | None] = set()

    def group(node: Expr) -> Expr | None:
        match node:
            case Call(op="floordiv", args=(Var() as var, Const() as size)) if var == channel:
                sizes.add(as_int(size))
                return Const(0)
        return None

    if any(channel in variables(rewrite(index, group)) for index in contraction.left.indices):
        return None
    extent, size = as_int(contraction.batch[-1].extent), next(iter(sizes))
    return size if len(sizes) == 1 and size and extent and extent % size == 0 else None


def _split_groups(schedule: Schedule, nest: Nest, channel: Axis, size: int) -> None:
    """Give groups and the channels of a group an axis and a loop each."""
    spatial = [axis for axis in schedule.block(nest.update).axes if axis.kind == "spatial"]
    position = spatial.index(channel)
    writers = [nest.update] if nest.copy is None else [nest.update, nest.copy]
    loops = [axis_loops(schedule, block)[position] for block in (*writers, nest.result)]
    for writer in writers:
        schedule.split_dimension(writer, position, size)
    for loop in loops:
        assert loop is not None
        schedule.split(loop, [None, size])


def _has_lanes(block: Block, contraction: Contraction, lanes: int) -> bool:
    """True if the last column axis runs along vectors of the right operand, and is the result's
    last.
    """
    axis = contraction.columns[-1]
    spatial = [a for a in block.axes if a.kind == "spatial" and as_int(a.extent) != 1]
    if not spatial or spatial[-1] != axis:
        return False
    index = flat_index(contraction.right.buffer, contraction.right.indices)
    return lane_stride(index, axis.var, lanes, axis_ranges(block)) == 1


def _can_join(
    outer: Axis, inner: Axis, positions: dict[Var, int], update: Block, result: Block
) -> bool:
    """True if two row axes are one in memory, for the reduction and for its result block."""
    first, second = positions[outer.var], positions[inner.var]
    if second != first + 1 or not collapses(outer, inner, update):
        return False
    return collapses(result.axes[first], result.axes[second], result)
