"""A Winograd convolution by rows of tiles: the planes of a row stay in the second-level cache.

In: the transform of inputs, the product and the transform of outputs as stages of one kernel. Out:
one loop over rows of tiles, or over equal parts of them, with all stages under it:

    columns, planes[8, 8, 38, 38, 64] = ...       for row, part in T.grid(38, 2):
    product[8, 8, 38, 38, 64] = planes · w   ->       columns, planes[8, 8, 19, 64] = ...
    lines, tile[224, 224, 64] = ...                   product[8, 8, 19, 64] = planes · w
                                                      lines, tile[6, 114, 64] = ...
"""

from __future__ import annotations

import math
from dataclasses import replace

from webmlc.core.affine import terms
from webmlc.core.expr import as_int
from webmlc.core.machine import Machine
from webmlc.loops.ir import Block
from webmlc.schedule.analysis import contraction_of
from webmlc.schedule.rules.wasm.contraction import schedule_contraction
from webmlc.schedule.rules.wasm.nests import extent_of
from webmlc.schedule.rules.wasm.transform import (
    find_loops,
    is_transform,
    transform_tiles,
)
from webmlc.schedule.schedule import Schedule


def schedule_bands(schedule: Schedule, machine: Machine) -> bool:
    """Schedule such a kernel; False where it is something else."""
    blocks = schedule.blocks()
    products = [name for name in blocks if contraction_of(schedule.block(name)) is not None]
    if len(products) != 1:
        return False
    (product,) = products
    place = blocks.index(product)
    before, after = blocks[:place], blocks[place + 1 :]
    if not (is_transform(schedule, before, machine) and is_transform(schedule, after, machine)):
        return False
    (*columns, planes), (*lines, last) = before, after
    found = find_loops(schedule, lines, last)
    *rows, across = found.tiles
    part = _part(schedule, across, schedule.block(product), machine)
    if part is not None:
        outer, across = schedule.split(across, [None, part])
        rows.append(outer)
    schedule.reorder(*rows, across, *found.short, found.lane)
    for name in reversed(blocks[:-1]):
        schedule.compute_at(name, rows[-1])
    inputs = find_loops(schedule, columns, planes, len(rows))
    transform_tiles(schedule, columns, planes, inputs, machine)
    outputs = replace(found, tiles=(across,))
    transform_tiles(schedule, lines, last, outputs, machine)
    return schedule_contraction(schedule, product, machine, len(rows))


def _part(schedule: Schedule, across: str, product: Block, machine: Machine) -> int | None:
    """Tiles of equal parts of a row: as many as have their planes and products in the second-level
    cache, or as come nearest, two register tiles at least; `None` for whole rows. Of a symbolic
    number, what it is a multiple of.
    """
    tiles = extent_of(schedule, across)
    if tiles is None:
        return math.gcd(*terms(schedule.extent(across)).values())
    sizes = [as_int(axis.extent) or 1 for axis in product.axes]
    rows, columns, *_, outputs, _, _, channels = sizes
    most = machine.l2_bytes // (4 * rows * columns * (outputs + channels))
    if tiles <= most:
        return None
    parts = [n for n in range(2 * machine.tile.rows, tiles) if tiles % n == 0]
    return max((n for n in parts if n <= most), default=min(parts, default=None))
