"""Strassen's products: one register tile of all seven at a time.

In: sums of a right operand's quarters, products of planes with these, and sums of the products as
quarters of the result, each with its epilogue. Out: one loop over pairs of panels (or groups of
them), whose sums stay in the cache; under it one over register tiles of pairs of rows, each with
its seven products and then their sums, while these are in the cache, too:

    panels[7, 48, 96, 8] = ...                 for j in range(48):
    product[7, 99, 384] = planes · panels  ->      panels[7, 96, 8] = ...
    tile[197, 768] = ...                           for i in range(16):
                                                       product[7, 6, 8] = planes · panels
                                                       tile[12, 16] = ...
"""

from __future__ import annotations

from collections.abc import Sequence

from webmlc.core.expr import as_int
from webmlc.core.machine import Machine
from webmlc.core.simplify import divides
from webmlc.loops.ir import For, loads
from webmlc.schedule.analysis import Contraction, contraction_of, is_dear
from webmlc.schedule.rules.wasm.nests import (
    Nest,
    axis_loops,
    blocks_under,
    extent_of,
    product,
    written_buffer,
)
from webmlc.schedule.rules.wasm.threads import ENOUGH_FOR_THREADS
from webmlc.schedule.rules.wasm.tile import Part, cover_rows, make_tile, partition_into, split_off
from webmlc.schedule.rules.wasm.transform import is_transform
from webmlc.schedule.schedule import Schedule


def schedule_strassen(schedule: Schedule, machine: Machine) -> bool:
    """Schedule such a kernel; False where it is something else."""
    blocks = schedule.blocks()
    found = _strassen_product(schedule, blocks, machine)
    if found is None:
        return False
    panels, products, last = blocks
    *loops, row, column = axis_loops(schedule, last)
    assert row is not None and column is not None
    batch, rows = [loop for loop in loops if loop is not None], schedule.extent(row)
    pair, odd = schedule.split(row, [None, 2])
    factors = [None, *_group(found, machine), 2, machine.tile.columns]
    across, *several, right, lane = schedule.split(column, factors)
    vector, lane = schedule.split(lane, [None, machine.lanes])
    schedule.reorder(across, *batch, pair, *several, vector, odd, right, lane)
    if divides(2, rows):  # pairs of all lines of an image are one loop
        fixed = [loop for loop in batch if extent_of(schedule, loop) is not None]
        schedule.reorder(*[loop for loop in batch if loop not in fixed], *fixed, pair)
        pair = schedule.fuse(*fixed, pair)
    total = schedule.cache_write(products, "local")
    schedule.compute_at(total, *(several or [pair]))
    schedule.compute_at(products, schedule.loops(total)[-1])
    schedule.compute_at(panels, across)
    _vectorize(schedule, lane, odd, right, *(() if is_dear(schedule.block(last)) else (vector,)))
    _sum_panels(schedule, panels, machine)
    parts = cover_rows(schedule.extent(pair), machine, widens=False)
    for loop, part in zip(partition_into(schedule, pair, parts), parts, strict=True):
        _multiply(schedule, loop, part, machine)
    return True


def _group(found: Contraction, machine: Machine) -> list[int]:
    """How many pairs of panels multiply a tile of the planes while it is in the cache, as a factor
    to split by: of planes that outgrow the second-level cache, as many as have their sums in half
    of it and leave enough for threads.
    """
    planes, panels = found.left.buffer, found.right.buffer
    size, sums = (product(list(buffer.shape)) for buffer in (planes, panels))
    pairs = as_int(panels.shape[1])
    if not pairs or not sums or (size is not None and size * 4 <= machine.l2_bytes):
        return []
    most = min(machine.l2_bytes // (2 * 4 * sums // pairs), pairs // ENOUGH_FOR_THREADS)
    return [n for n in range(2, most + 1) if pairs % n == 0][-1:]


def _strassen_product(
    schedule: Schedule, blocks: Sequence[str], machine: Machine
) -> Contraction | None:
    """The product, where its right operand and its results are picked from sums."""
    if len(blocks) != 3 or not is_transform(schedule, [blocks[0], blocks[2]], machine):
        return None
    panels, products, last = map(schedule.block, blocks)
    found, read = contraction_of(products), {load.buffer for load in loads(last.body)}
    if found is None or not found.batch or found.right.buffer != written_buffer(panels):
        return None
    *_, row, _ = axis_loops(schedule, blocks[2])
    is_static = row is not None and extent_of(schedule, row) is not None
    return found if is_static and written_buffer(products) in read else None


def _vectorize(schedule: Schedule, lane: str, *unrolled: str) -> None:
    """Make a vector of one loop, and straight code of others."""
    for loop in unrolled:
        schedule.unroll(loop)
    schedule.vectorize(lane)


def _sum_panels(schedule: Schedule, panels: str, machine: Machine) -> None:
    """Read each vector of the quarters once for all sums."""
    *_, plane, depth, lane = schedule.loops(panels)
    vector, lane = schedule.split(lane, [None, machine.lanes])
    schedule.reorder(depth, vector, plane, lane)
    _vectorize(schedule, lane, vector, plane)


def _multiply(schedule: Schedule, loop: str, part: Part, machine: Machine) -> None:
    """Make tiles of a loop over pairs of rows: all products of a tile, then their sums; those of a
    group of panels one after the other.
    """
    rows = split_off(schedule, loop, part.size)[1] if part.size > 1 else None
    if rows is not None:
        inside = schedule.loop(rows).body
        if isinstance(inside, For):
            schedule.reorder(inside.var.name, rows)
        rows, _ = schedule.fission(rows)
    update, result = blocks_under(schedule, rows or loop)[:2]
    plane, columns = schedule.loops(result)[-2:]
    if rows is not None:
        schedule.reorder(plane, rows, columns)
    make_tile(schedule, Nest(update, result), rows, columns, machine)
