"""Attention: scores, softmax and the product with the values, a block of rows at a time.

In: a contraction, stages that keep its shape or reduce its columns, and a contraction of their
results, which the last block writes. Out: one loop over blocks of rows with all stages under it.
The scores of a block stay in the second-level cache, and no other scores exist:

    scores[1500, 1500] = q · k                    for block in T.parallel(125):
    p[1500, 1500] = softmax(scores)          ->       scores[12, 1500] = q[block] · k
    out[1500, 64] = p · v                             p[12, 1500] = softmax(scores)
                                                      out[block] = p · v
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from webmlc.core.expr import as_int
from webmlc.core.machine import Cpu
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.analysis import contraction_of
from webmlc.schedule.rules.rule import Rule
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.cover import divisors
from webmlc.schedule.rules.tiling.nests import axis_loops, epilogue_of, extent_of, live_axes
from webmlc.schedule.rules.wasm.contraction import schedule_contraction
from webmlc.schedule.rules.wasm.contraction_facts import (
    ContractionFacts,
    ContractionParameters,
    contraction_facts,
)
from webmlc.schedule.rules.wasm.stages import Stages, find_stages
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Facts:
    """A kernel of two products with a softmax between them. `row`: the loop over rows, of `rows`
    iterations; `columns`: scores of a row; `stages`: the blocks between the products.
    """

    row: str
    rows: int
    columns: int
    scores: ContractionFacts
    values: ContractionFacts
    stages: Stages


class Parameters(Struct, frozen=True):
    """The blocks of rows, and the parameters of the products and of the stages between them."""

    block_rows: int
    """Rows whose scores exist at once."""
    scores: ContractionParameters
    values: ContractionParameters
    stages: tuple[Any, ...]


def match(function: LoopFunction, machine: Cpu) -> Facts | None:
    """Matches two products with a softmax between them, of rows that have blocks."""
    schedule = Schedule(function)
    *producers, last = schedule.blocks()
    products = [name for name in producers if contraction_of(schedule.block(name)) is not None]
    if len(products) != 2 or products[0] != producers[0]:
        return None
    product = contraction_of(schedule.block(products[1]))
    logits, result = (epilogue_of(schedule.function, schedule.block(name)) for name in products)
    if product is None or result is None or result.name != last:
        return None
    spatial = [axis for axis in schedule.block(products[1]).axes if axis.kind == "spatial"]
    row_axes = live_axes(product.rows)
    columns = as_int(product.reduced[-1].extent)
    if len(row_axes) != 1 or columns is None:
        return None
    row = axis_loops(schedule, last)[spatial.index(row_axes[0])]
    rows = None if row is None else extent_of(schedule, row)
    if row is None or rows is None:
        return None
    block = _block_rows(rows, columns, machine)
    if block is None:
        return None
    fixed = _place_stages(schedule, row, block)
    between = tuple(
        name
        for name in producers
        if name not in products and (logits is None or name != logits.name)
    )
    stages = find_stages(schedule, machine, fixed, between)
    scores, values = (contraction_facts(schedule, name, machine, fixed) for name in products)
    if scores is None or values is None:
        return None
    return Facts(row, rows, columns, scores, values, stages)


def space(facts: Facts, machine: Cpu) -> Product[Parameters]:
    """Blocks of rows, and the spaces of the products and of the stages between them."""
    tile, chosen = machine.tile.rows, _block_rows(facts.rows, facts.columns, machine)
    blocks = [
        height
        for height in divisors(facts.rows, facts.rows)
        if height == chosen or height % tile == 0 or height <= 2 * tile
    ]
    return Space.of(
        Parameters,
        block_rows=tuple(blocks),
        scores=facts.scores.space(machine),
        values=facts.values.space(machine),
        stages=facts.stages.space(machine),
    )


def default(facts: Facts, machine: Cpu) -> Parameters:
    """Blocks whose scores stay in the second-level cache."""
    block = _block_rows(facts.rows, facts.columns, machine)
    assert block is not None
    scores, values = (
        product.in_blocks(block).default(machine) for product in (facts.scores, facts.values)
    )
    return Parameters(block, scores, values, facts.stages.default(machine))


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Put all stages under one loop over blocks of rows, then schedule each."""
    fixed = _place_stages(schedule, facts.row, parameters.block_rows)
    facts.stages.build(schedule, parameters.stages)
    schedule_contraction(schedule, facts.scores, parameters.scores, fixed)
    schedule_contraction(schedule, facts.values, parameters.values, fixed)


ATTENTION = Rule("attention", match, space, default, build, needs_proof=True)


def _place_stages(schedule: Schedule, row: str, block_rows: int) -> int:
    """Compute all stages under a loop over blocks of rows; returns how many loops they share."""
    *producers, last = schedule.blocks()
    block, _ = schedule.split(row, [None, block_rows])
    for name in reversed(producers):
        schedule.compute_at(name, block)
    return schedule.loops(last).index(block) + 1


def _block_rows(rows: int, columns: int, machine: Cpu) -> int | None:
    """The height of a block: the largest divisor of the rows, preferably of whole tiles, whose
    scores and exponentials take at most half of the second-level cache.
    """
    tile, room = machine.tile.rows, machine.l2_bytes // 2 // (2 * 4 * columns)
    heights = [height for height in range(tile, room + 1) if rows % height == 0]
    return max(heights, key=lambda height: (height % tile == 0, height), default=None)
