"""Pointwise stages: elementwise, broadcast, gather, transpose, the parts of Concat and Pad.

In: a block without a reduction under serial loops of its own. Out: loops that step evenly through
memory are fused. A block that stores contiguously is vectorized, even if its loads are strided. A
permutation is blocked so that both sides stay in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from msgspec import Struct

from webmlc.core.affine import split_linear
from webmlc.core.expr import Call, Const, Var, as_int
from webmlc.core.machine import Cpu
from webmlc.core.rewrite import substitute
from webmlc.core.simplify import prove_equal
from webmlc.loops.ir import For, LoopFunction, Store
from webmlc.schedule.analysis import (
    accesses,
    conditions,
    free_values,
    is_vectorizable,
    lane_stride,
    only_moves,
    stride,
)
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.cover import Part, cover_columns, partition_into, split_off
from webmlc.schedule.rules.tiling.nests import extent_of
from webmlc.schedule.rules.tiling.tile import vectorize_columns
from webmlc.schedule.schedule import Schedule
from webmlc.schedule.tree import cached_by_identity, path_to_block, ranges_along

VECTORS = 2
"""Vectors of one iteration of the main loop, by default: enough to pay for the loop's own
instructions (an estimate, as old as the rule)."""
BLOCK = 16
"""Rows and columns of a block of a transpose, by default: the elements of one cache line."""
MOST_PARTS = 16
"""The most operands of a Concat that get a loop each, by default (measured on PP-OCR and
basic_pitch, whose Concats took a third of the time)."""


class PointwiseParameters(Struct, frozen=True):
    """The parameters of one pointwise block."""

    vectors: int
    """Vectors of one iteration of the main loop."""
    block: int
    """Rows and columns of a block of a transpose; 1: rows are walked whole."""
    short_columns: int
    """Columns of a permuted panel that are unrolled, at most: each keeps a pointer."""
    most_parts: int
    """Parts of a Concat that have loops of their own, at most."""


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A pointwise block. `fuses`: loops that step evenly through memory become one loop."""

    block: str
    lanes: int
    fuses: bool = True

    def space(self, _machine: Cpu) -> Product[PointwiseParameters]:
        """The parameters to choose from."""
        return Space.of(
            PointwiseParameters,
            vectors=(1, VECTORS, 4, 8),
            block=(1, 8, BLOCK, 32),
            short_columns=(self.lanes - 1, BLOCK - 1),
            most_parts=(1, MOST_PARTS),
        )

    def default(self, _machine: Cpu) -> PointwiseParameters:
        """The same parameters on all machines: these blocks wait for memory."""
        return PointwiseParameters(VECTORS, BLOCK, BLOCK - 1, MOST_PARTS)

    def build(self, schedule: Schedule, parameters: PointwiseParameters, fixed: int = 0) -> None:
        """Schedule the block; the outermost `fixed` loops around it are not its own."""
        block, lanes = self.block, self.lanes
        loops = schedule.loops(block)[fixed:]
        if self.fuses and loops:
            loops = fuse_even(schedule, block, loops)
        loops = [loop for loop in loops if extent_of(schedule, loop) != 1]
        if not loops:
            return
        ends = _ends(schedule, block, loops[-1], lanes)
        if not 1 < len(ends) <= parameters.most_parts:
            _schedule_lanes(schedule, block, loops, lanes, parameters)
            return
        parts = [Part(end - begin, Const(1)) for begin, end in pairwise((0, *ends))]
        for copy, part in partition_into(schedule, loops[-1], parts):
            if part.size > 1:
                piece = copy.blocks.get(block, block)
                _schedule_lanes(schedule, piece, [copy.loop], lanes, parameters)


def _ends(schedule: Schedule, block: str, loop: str, lanes: int) -> list[int]:
    """Where along `loop` the parts of a Concat end; empty if a block is vectorized as it is."""
    extent, reader = extent_of(schedule, loop), schedule.block(block)
    if (
        extent is None
        or not isinstance(reader.body, Store)
        or is_vectorizable(schedule.function, block, loop, lanes, "loads")
    ):
        return []
    values = reader.axis_values()
    ends = {extent}
    for condition in conditions(reader):
        match condition:
            case Call(op="lt", args=(left, right)):
                split = split_linear(substitute(right - left, values), Var(loop))
                if split is not None and split[1] == Const(-1):
                    ends.add(as_int(split[0]) or extent)
    return sorted(end for end in ends if 0 < end <= extent)


def _schedule_lanes(
    schedule: Schedule,
    block: str,
    loops: list[str],
    lanes: int,
    parameters: PointwiseParameters,
) -> None:
    """Vectorize the last loop of a block if possible."""
    last, other = loops[-1], None
    if not is_vectorizable(schedule.function, block, last, lanes):
        other = _contiguous_elsewhere(schedule, block, loops)
        if other is not None:
            last = _block_transpose(schedule, other, last, parameters.block)
    columns = extent_of(schedule, last)
    if (
        other is not None
        and columns is not None
        and columns < lanes
        and _vectorize_rows(schedule, block, other, lanes)
    ):
        return
    if is_vectorizable(schedule.function, block, last, lanes, "loads"):
        width = parameters.vectors * lanes
        parts = cover_columns(schedule.extent(last), width, width, lanes)
        for copy, part in partition_into(schedule, last, parts):
            _, lane = split_off(schedule, copy.loop, part.size)
            if lane is not None:
                piece = copy.blocks.get(block, block)
                vectorize_columns(schedule, piece, lane, lanes, gathers=True)
    elif other is not None and columns is not None and columns <= parameters.short_columns:
        # A panel: each column keeps a pointer, so that no code tests for the column.
        schedule.unroll(last)


def _vectorize_rows(schedule: Schedule, block: str, rows: str, lanes: int) -> bool:
    """Make vectors of the rows of a permutation that has fewer columns than a vector has lanes.
    Loads are contiguous along rows; elements are stored one by one. Return False if vectors are
    impossible or do not pay: a block that only moves elements is faster one by one.
    """
    if (
        extent_of(schedule, rows) is None
        or schedule.loops(block)[-2] != rows
        or only_moves(schedule.block(block))
        or not is_vectorizable(schedule.function, block, rows, lanes, "stores")
    ):
        return False
    parts = cover_columns(schedule.extent(rows), lanes, lanes, lanes)
    for copy, part in partition_into(schedule, rows, parts):
        column = schedule.loops(copy.blocks.get(block, block))[-1]
        _, row = split_off(schedule, copy.loop, part.size)
        if row is not None:
            schedule.reorder(column, row)
            (schedule.vectorize if part.size == lanes else schedule.unroll)(row)
        schedule.unroll(column)
    return True


def fuse_even(schedule: Schedule, block: str, loops: list[str]) -> list[str]:
    """Fuse neighbouring loops wherever every access steps through memory as one loop would."""
    groups: list[list[str]] = [[loops[-1]]]
    for loop in reversed(loops[:-1]):
        inner = next((name for name in groups[0] if extent_of(schedule, name) != 1), loop)
        if steps_evenly(schedule, block, loop, inner):
            groups[0].insert(0, loop)
        else:
            groups.insert(0, [loop])
    return [schedule.fuse(*group) if len(group) > 1 else group[0] for group in groups]


def steps_evenly(schedule: Schedule, block: str, outer: str, inner: str) -> bool:
    """True if one step of `outer` moves every access as far as a whole run of `inner`."""
    return _steps_evenly(schedule.function, block, outer, inner)


@cached_by_identity(maxsize=1024)
def _steps_evenly(function: LoopFunction, block: str, outer: str, inner: str) -> bool:
    """Cached: asked once to match a kernel and once to schedule it."""
    schedule = Schedule(function)
    if not isinstance(schedule.loop(outer).body, For):
        return False
    if outer == inner or extent_of(schedule, outer) == 1:
        return True
    path, stage = path_to_block(schedule.function, "fuse_even", block)
    ranges = ranges_along(schedule.function, path)
    values = stage.axis_values()
    extent = schedule.extent(inner)
    for access in accesses(stage):
        index = substitute(access.index, values)
        big, small = stride(index, Var(outer), ranges), stride(index, Var(inner), ranges)
        if big is None or small is None or not prove_equal(big, small * extent, ranges):
            return False
    direct = {str(value) for value in free_values(stage)}
    return not any(
        axis.var.name in direct and str(binding) in (outer, inner)
        for axis, binding in stage.bound_axes()
    )


def _contiguous_elsewhere(schedule: Schedule, block: str, loops: list[str]) -> str | None:
    """The loop along which a load is contiguous, if the stores are along the last loop."""
    path, stage = path_to_block(schedule.function, "transpose", block)
    ranges = ranges_along(schedule.function, path)
    values = stage.axis_values()
    for access in accesses(stage):
        if access.is_store:
            continue
        index = substitute(access.index, values)
        if lane_stride(index, Var(loops[-1]), 4, ranges) in (0, 1):
            continue
        for loop in reversed(loops[:-1]):
            if stride(index, Var(loop), ranges) == Const(1):
                return loop
    return None


def _block_transpose(schedule: Schedule, rows: str, columns: str, block: int) -> str:
    """Walk blocks of `rows` x `columns`, where `block` divides both: each line of memory is touched
    in one block. Returns the loop over columns.
    """
    sizes = [extent_of(schedule, loop) for loop in (rows, columns)]
    if block == 1 or any(size is None or size % block for size in sizes):
        return columns
    row_blocks, row = schedule.split(rows, [None, block])
    column_blocks, column = schedule.split(columns, [None, block])
    schedule.reorder(row_blocks, column_blocks, row, column)
    return column
