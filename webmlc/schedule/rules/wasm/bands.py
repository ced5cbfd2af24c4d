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
from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import Struct

from webmlc.core.affine import terms
from webmlc.core.expr import as_int
from webmlc.core.machine import Cpu
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.analysis import contraction_of
from webmlc.schedule.rules.rule import Rule
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.nests import extent_of
from webmlc.schedule.rules.tiling.transforms import TileLoops, find_loops, is_transform
from webmlc.schedule.rules.wasm.contraction import schedule_contraction
from webmlc.schedule.rules.wasm.contraction_facts import (
    ContractionFacts,
    ContractionParameters,
    contraction_facts,
)
from webmlc.schedule.rules.wasm.transform import (
    TransformFacts,
    TransformParameters,
    transform_facts,
)
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Facts:
    """A kernel of two transforms with a product between them. `tiles`: tiles of a row, `None` if
    symbolic; `multiple`: a known divisor of this number; `tile_bytes`: bytes of the planes and the
    products of one tile.
    """

    inputs: TransformFacts
    product: ContractionFacts
    outputs: TransformFacts
    tiles: int | None
    multiple: int
    tile_bytes: int


class Parameters(Struct, frozen=True):
    """The bands, and the parameters of the transforms and of the product."""

    part: int | None
    """Tiles of a part of a row; `None`: rows are bands."""
    inputs: TransformParameters
    product: ContractionParameters
    outputs: TransformParameters


def match(function: LoopFunction, machine: Cpu) -> Facts | None:
    """Matches a product between transforms of tiles."""
    schedule = Schedule(function)
    blocks = schedule.blocks()
    products = [name for name in blocks if contraction_of(schedule.block(name)) is not None]
    if len(products) != 1:
        return None
    (product,) = products
    place = blocks.index(product)
    before, after = blocks[:place], blocks[place + 1 :]
    if not all(is_transform(schedule, stages, machine.lanes) for stages in (before, after)):
        return None
    (*columns, planes), (*lines, last) = before, after
    outputs = transform_facts(schedule, lines, last, machine)
    *_, across = find_loops(schedule, lines, last).tiles
    tiles = extent_of(schedule, across)
    multiple = tiles or math.gcd(*terms(schedule.extent(across)).values())
    sizes = [as_int(axis.extent) or 1 for axis in schedule.block(product).axes]
    rows, width, *_, results, _, _, channels = sizes
    trial = Schedule(function)
    fixed, _ = _place_stages(trial, lines, last, None)
    contraction = contraction_facts(trial, product, machine, fixed)
    if contraction is None:
        return None
    inputs = transform_facts(trial, columns, planes, machine, fixed)
    tile_bytes = 4 * rows * width * (results + channels)
    return Facts(inputs, contraction, outputs, tiles, multiple, tile_bytes)


def space(facts: Facts, machine: Cpu) -> Product[Parameters]:
    """Rows of tiles or equal parts of rows, and the spaces of all stages."""
    least = 2 if facts.tiles is not None else 1
    parts = [n for n in range(least, facts.multiple + 1) if facts.multiple % n == 0]
    return Space.of(
        Parameters,
        part=(None, *parts),
        inputs=facts.inputs.space(machine),
        product=facts.product.space(machine),
        outputs=facts.outputs.space(machine),
    )


def default(facts: Facts, machine: Cpu) -> Parameters:
    """Bands whose planes and products stay in the second-level cache."""
    part = _default_part(facts, machine)
    steps = part if part is not None else facts.tiles
    product = facts.product if steps is None else facts.product.in_blocks(steps)
    return Parameters(
        part,
        facts.inputs.default(machine),
        product.default(machine),
        facts.outputs.default(machine),
    )


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Put all stages under one loop over bands, then schedule each."""
    outputs, inputs = facts.outputs, facts.inputs
    fixed, loops = _place_stages(schedule, outputs.producers, outputs.last, parameters.part)
    planes = find_loops(schedule, inputs.producers, inputs.last, fixed)
    inputs.build_tiles(schedule, planes, parameters.inputs)
    outputs.build_tiles(schedule, loops, parameters.outputs)
    schedule_contraction(schedule, facts.product, parameters.product, fixed)


BANDS = Rule("bands", match, space, default, build)


def _place_stages(
    schedule: Schedule, lines: Sequence[str], last: str, part: int | None
) -> tuple[int, TileLoops]:
    """Compute all stages under the loops over rows of tiles and parts of rows. Return the number of
    these loops, and the loops of the last transform inside of them.
    """
    loops = find_loops(schedule, lines, last)
    *rows, across = loops.tiles
    if part is not None:
        outer, across = schedule.split(across, [None, part])
        rows.append(outer)
    schedule.reorder(*rows, across, *loops.short, loops.lane)
    for name in reversed([name for name in schedule.blocks() if name != last]):
        schedule.compute_at(name, rows[-1])
    return len(rows), replace(loops, tiles=(across,))


def _default_part(facts: Facts, machine: Cpu) -> int | None:
    """Tiles of equal parts of a row; `None` for whole rows. The planes and products of a part fit
    the second-level cache, or come nearest to fitting. A part has at least two register tiles. For
    a symbolic number of tiles, its known divisor.
    """
    if facts.tiles is None:
        return facts.multiple
    room = machine.l2_bytes // facts.tile_bytes
    if facts.tiles <= room:
        return None
    parts = [n for n in range(2 * machine.tile.rows, facts.tiles) if facts.tiles % n == 0]
    return max((n for n in parts if n <= room), default=min(parts, default=None))
