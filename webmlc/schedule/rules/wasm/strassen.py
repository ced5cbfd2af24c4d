"""Strassen's products: one register tile of all seven products at a time.

In: sums of a right operand's quarters, products of planes with these sums, and sums of the products
as quarters of the result, each with its epilogue. Out: one loop over pairs of panels (or groups of
pairs), whose sums stay in the cache. Under it, a loop over register tiles of pairs of rows. Each
tile has its seven products, then their sums while the products are in the cache:

    panels[7, 48, 96, 8] = ...                 for j in range(48):
    product[7, 99, 384] = planes · panels  ->      panels[7, 96, 8] = ...
    tile[197, 768] = ...                           for i in range(16):
                                                       product[7, 6, 8] = planes · panels
                                                       tile[12, 16] = ...
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from webmlc.core.expr import Expr, as_int
from webmlc.core.machine import Cpu
from webmlc.core.simplify import divides
from webmlc.loops.ir import For, LoopFunction, loads
from webmlc.schedule.analysis import Contraction, contraction_of, takes_polynomial
from webmlc.schedule.rules.rule import Rule
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.cover import Part, cover, divisors, partition_into, split_off
from webmlc.schedule.rules.tiling.nests import (
    Nest,
    axis_loops,
    extent_of,
    size_of,
    written_buffer,
)
from webmlc.schedule.rules.tiling.tile import Reduction, make_tile
from webmlc.schedule.rules.tiling.transforms import is_transform
from webmlc.schedule.rules.wasm.tile_costs import UNROLLED_STEPS, tile_height
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Facts:
    """A kernel of sums of panels, products, and sums of products. `pairs`: pairs of panels, `None`
    if symbolic; `sums_bytes`: bytes of the sums of all panels, 0 if symbolic; `planes_bytes`: bytes
    of the left operand, `None` if symbolic; `rows`: pairs of rows that are multiplied, with all
    lines of an image in one loop.
    """

    pairs: int | None
    sums_bytes: int
    planes_bytes: int | None
    rows: Expr
    lanes: int
    panel: int


class Parameters(Struct, frozen=True):
    """The tiles of the products, and the group of panels that stays in the cache."""

    rows: int
    """Pairs of rows of a register tile."""
    steps: int
    """Steps that one iteration of the products' reduction takes, at most."""
    group: int
    """Pairs of panels that multiply a tile of the planes while it is in the cache."""


def match(function: LoopFunction, machine: Cpu) -> Facts | None:
    """Matches a product between sums of quarters."""
    schedule = Schedule(function)
    contraction = _strassen_product(schedule, machine.lanes)
    if contraction is None:
        return None
    planes, panels = contraction.left.buffer, contraction.right.buffer
    planes_size, sums = (size_of(list(buffer.shape)) for buffer in (planes, panels))
    trial = schedule.copy()
    pair, _ = _nest(trial, 1, machine.tile.columns, machine.lanes)
    return Facts(
        as_int(panels.shape[1]),
        4 * (sums or 0),
        None if planes_size is None else 4 * planes_size,
        trial.extent(pair),
        machine.lanes,
        machine.tile.columns,
    )


def space(facts: Facts, machine: Cpu) -> Product[Parameters]:
    """Register tiles, and groups that leave at least two for threads."""
    return Space.of(
        Parameters,
        rows=tuple(range(1, machine.tile.rows + 1)),
        steps=(1, 2, UNROLLED_STEPS),
        group=divisors(facts.pairs, max(1, facts.pairs // 2)) if facts.pairs else (1,),
    )


def default(facts: Facts, machine: Cpu) -> Parameters:
    """If the planes outgrow the second-level cache, a group has several pairs of panels: their sums
    fill at most half of the cache, and enough groups are left for threads.
    """
    group, outgrows = 1, facts.planes_bytes is None or facts.planes_bytes > machine.l2_bytes
    if facts.pairs and facts.sums_bytes and outgrows:
        fitting = machine.l2_bytes // (2 * facts.sums_bytes // facts.pairs)
        largest = min(fitting, facts.pairs // machine.parallel_iterations)
        group = divisors(facts.pairs, max(1, largest))[-1]
    rows = tile_height(facts.rows, machine, widens=False)
    return Parameters(rows, UNROLLED_STEPS, group)


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Make a loop over panels, and in it one over tiles, each with products and their sums."""
    pair, nest = _nest(schedule, parameters.group, facts.panel, facts.lanes)
    parts = cover(schedule.extent(pair), parameters.rows)
    for copy, part in partition_into(schedule, pair, parts):
        part_nest = copy.with_blocks(nest)
        _multiply(schedule, part_nest, copy.loop, part, facts.lanes, parameters.steps)


def _nest(schedule: Schedule, group: int, panel: int, lanes: int) -> tuple[str, Nest]:
    """Nest sums, products and their sums; returns the loop over rows, and the product's nest."""
    panels, products, last = schedule.blocks()
    *loops, row, column = axis_loops(schedule, last)
    assert row is not None and column is not None
    batch, rows = [loop for loop in loops if loop is not None], schedule.extent(row)
    pair, odd = schedule.split(row, [None, 2])
    groups = [group] if group > 1 else []
    across, *several, right, lane = schedule.split(column, [None, *groups, 2, panel])
    vector, lane = schedule.split(lane, [None, lanes])
    schedule.reorder(across, *batch, pair, *several, vector, odd, right, lane)
    if divides(2, rows):  # pairs of all lines of an image are one loop
        fixed = [loop for loop in batch if extent_of(schedule, loop) is not None]
        schedule.reorder(*[loop for loop in batch if loop not in fixed], *fixed, pair)
        pair = schedule.fuse(*fixed, pair)
    total = schedule.cache_write(products, "local")
    schedule.compute_at(total, *(several or [pair]))
    schedule.compute_at(products, schedule.loops(total)[-1])
    schedule.compute_at(panels, across)
    unrolled = () if takes_polynomial(schedule.block(last)) else (vector,)
    _vectorize(schedule, lane, odd, right, *unrolled)
    _sum_panels(schedule, panels, lanes)
    return pair, Nest(products, total)


def _strassen_product(schedule: Schedule, lanes: int) -> Contraction | None:
    """The product, where its right operand and its results are picked from sums."""
    blocks = schedule.blocks()
    if len(blocks) != 3 or not is_transform(schedule, [blocks[0], blocks[2]], lanes):
        return None
    panels, products, last = map(schedule.block, blocks)
    contraction, read = contraction_of(products), {load.buffer for load in loads(last.body)}
    if contraction is None or not contraction.batch:
        return None
    if contraction.right.buffer != written_buffer(panels):
        return None
    *_, row, _ = axis_loops(schedule, blocks[2])
    is_static = row is not None and extent_of(schedule, row) is not None
    return contraction if is_static and written_buffer(products) in read else None


def _vectorize(schedule: Schedule, lane: str, *unrolled: str) -> None:
    """Make a vector of one loop, and straight code of the `unrolled` loops."""
    for loop in unrolled:
        schedule.unroll(loop)
    schedule.vectorize(lane)


def _sum_panels(schedule: Schedule, panels: str, lanes: int) -> None:
    """Read each vector of the quarters once for all sums."""
    *_, plane, depth, lane = schedule.loops(panels)
    vector, lane = schedule.split(lane, [None, lanes])
    schedule.reorder(depth, vector, plane, lane)
    _vectorize(schedule, lane, vector, plane)


def _multiply(
    schedule: Schedule, nest: Nest, loop: str, part: Part, lanes: int, steps: int
) -> None:
    """Make tiles of a loop over pairs of rows: all products of a tile, then their sums. The tiles
    of a group of panels follow one after the other.
    """
    rows = split_off(schedule, loop, part.size)[1] if part.size > 1 else None
    if rows is not None:
        inside = schedule.loop(rows).body
        if isinstance(inside, For):
            schedule.reorder(inside.var.name, rows)
        rows, _ = schedule.fission(rows)
    plane, columns = schedule.loops(nest.result)[-2:]
    if rows is not None:
        schedule.reorder(plane, rows, columns)
    make_tile(schedule, nest, rows, columns, lanes, Reduction(steps=steps))


STRASSEN = Rule("strassen", match, space, default, build)
