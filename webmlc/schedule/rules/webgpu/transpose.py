"""Transposes: a pointwise block that reads an operand across its lines.

The elements beside each other in the result are far apart in the operand, so that threads which
write a line would each read another line. Here a workgroup copies a square tile of the operand to
its memory, along the lines of the operand, and reads the tile across.

    for i, j: Y[j, i] = X[i, j]   ->   for tile (workgroups):
                                           for t in threads: S[32 i, 32 j] = X   (along j)
                                           for t in threads: Y[32 j, 32 i] = S   (along i)
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from webmlc.core.expr import Const, as_int
from webmlc.core.machine import MAX_INVOCATIONS, Gpu
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Axis, LoopFunction, Store, blocks, loads
from webmlc.schedule.analysis import axis_ranges, flat_index, stride
from webmlc.schedule.rules.rule import Rule
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.nests import axes_of_kind, fuse_all, loop_of
from webmlc.schedule.rules.webgpu.threads import bind_groups
from webmlc.schedule.schedule import Schedule

TILE = 32
"""Rows and columns of a tile, by default: a line of 128 bytes of both buffers (derived)."""
ROWS = 8
"""Rows of a tile that the threads of a workgroup copy at once, by default (chosen by hand)."""
SHORTEST = 16
"""Elements along both axes below which a tile is not worth it (derived: half a line)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A pointwise block, the operand that it reads across, the axis along the lines of the operand
    and that along the lines of the result.
    """

    operand: str
    along_operand: Axis
    along_result: Axis


class Parameters(Struct, frozen=True):
    """The tile of a workgroup."""

    tile: int
    """Rows and columns of a tile."""
    rows: int
    """Rows that the threads of a workgroup copy at once."""


def match(function: LoopFunction, machine: Gpu) -> Facts | None:
    """Matches one pointwise block that reads one operand across its lines."""
    every = list(blocks(function.body))
    if not machine.reads_lines or len(every) != 1:
        return None
    (block,) = every
    if axes_of_kind(block, "reduce") or not isinstance(block.body, Store):
        return None
    ranges = axis_ranges(block)
    result = flat_index(block.body.buffer, block.body.indices)
    axes = [axis for axis in axes_of_kind(block, "spatial") if _length(axis) >= SHORTEST]
    along_result = [axis for axis in axes if stride(result, axis.var, ranges) == Const(1)]
    if len(along_result) != 1:
        return None
    crossed = {}
    for load in loads(block):
        index = flat_index(load.buffer, load.indices)
        steps = {axis: stride(index, axis.var, ranges) for axis in axes}
        if steps[along_result[0]] in (Const(0), Const(1)):
            continue
        lines = [axis for axis, step in steps.items() if step == Const(1)]
        if len(lines) != 1 or load.buffer.name in crossed:
            return None
        crossed[load.buffer.name] = lines[0]
    if len(crossed) != 1:
        return None
    ((operand, along_operand),) = crossed.items()
    return Facts(operand, along_operand, along_result[0])


def _length(axis: Axis) -> int:
    """The elements along an axis, 0 if symbolic."""
    return as_int(simplify(axis.extent)) or 0


def space(_facts: Facts, _machine: Gpu) -> Product[Parameters]:
    """Square tiles. A workgroup copies some rows of a tile at once."""
    return Space.of(Parameters, tile=(16, TILE), rows=(4, ROWS, 16)).where(
        "every device runs workgroups of this size",
        lambda tile, rows: tile * rows <= MAX_INVOCATIONS,
    )


def default(_facts: Facts, _machine: Gpu) -> Parameters:
    """Tiles of whole lines."""
    return Parameters(TILE, ROWS)


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Give each tile to a workgroup."""
    (name,) = schedule.blocks()
    block = schedule.block(name)
    row, column = (loop_of(block, axis) for axis in (facts.along_operand, facts.along_result))
    assert row is not None and column is not None
    row_tiles, row = schedule.split(row, [None, parameters.tile])
    column_tiles, column = schedule.split(column, [None, parameters.tile])
    batch = [n for n in schedule.loops(name) if n not in (row_tiles, row, column_tiles, column)]
    outer = [*batch, row_tiles, column_tiles]
    schedule.reorder(*outer, row, column)
    group = bind_groups(schedule, outer)
    copy = schedule.cache_read(name, facts.operand, "shared")
    schedule.compute_at(copy, group)
    loops = schedule.loops(copy)
    _share(schedule, loops[loops.index(group) + 1 :], parameters)
    _share(schedule, [row, column], parameters)


def _share(schedule: Schedule, loops: list[str], parameters: Parameters) -> None:
    """Give the elements of a tile to the threads: each line to threads beside each other."""
    *rows, column = loops
    row = fuse_all(schedule, rows)
    turn, thread = schedule.split(row, [None, parameters.rows])
    schedule.reorder(thread, column, turn)
    schedule.bind(thread, "threadIdx.y")
    schedule.bind(column, "threadIdx.x")
    schedule.unroll(turn)


TRANSPOSE = Rule("transpose", match, space, default, build, needs_proof=True)
