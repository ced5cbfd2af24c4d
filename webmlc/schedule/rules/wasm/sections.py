"""Attention to sections of the keys, for rows that fill no register tile: the rows of one token.

In: a kernel of scores, a softmax along the keys of a section, and the product with their values,
for each row and each section. Out: one loop over sections, which threads share, with all stages
under it. Heads that share keys are rows of the register tiles, so a key is read once for all:

    for t, h, s, j, d: scores[t, h, s, j] += ...     for s in T.parallel(n):
    ... softmax ...                                      for t:
    for t, h, s, d, j: product[t, h, s, d] += ...  ->        for j, g: sums[0:3, 0:3, 0:4] += ...
                                                             for h, j: scores[h, j:j+8] = ...
                                                             ... softmax ...
                                                             for g, d: product[0:3, d:d+8] += ...

Scores are dot products along contiguous elements. A tile of scores is heads times keys. Each sum is
a vector, whose elements are added afterwards, for several keys side by side. A tile of the product
is heads times elements. It stays in registers for all keys of the section, which are in the cache
by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from webmlc.core.expr import Call, Const, Var, as_int
from webmlc.core.machine import Cpu
from webmlc.core.rewrite import variables
from webmlc.loops.ir import Axis, Block, LoopFunction, loads
from webmlc.schedule.analysis import Contraction, contraction_of, fold_of
from webmlc.schedule.rules.rule import Rule, accepts
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.cover import divisors
from webmlc.schedule.rules.tiling.nests import (
    accumulate_locally,
    compute_results_at,
    epilogue_of,
    extent_of,
    live_axes,
    loop_of,
    softmax_blocks,
    written_buffer,
)
from webmlc.schedule.rules.tiling.tile import Reduction, make_tile, vectorize_columns
from webmlc.schedule.rules.wasm.stages import Stages, find_stages
from webmlc.schedule.schedule import Schedule

MOST_HEADS = 8
"""The most heads of a register tile: each head has a sum for each key or vector (chosen by
hand)."""
UNROLLED = 2
"""The vectors of a key that one iteration of the scores multiplies by default, and the keys whose
values one iteration of the product multiplies. The steps of an iteration share the increments of
pointers (an estimate)."""
MOST_VALUES = 12
"""Keys whose values one iteration multiplies, at most (chosen by hand)."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The loops of the block of scores: over rows (`None` if there is one row), heads, sections,
    and keys. `shared` heads read the same keys. A section has `keys` keys, and a head has `size`
    elements.
    """

    row: str | None
    head: str
    section: str
    key: str
    shared: int
    keys: int
    size: int


@dataclass(frozen=True, slots=True)
class Facts:
    """A kernel of attention to sections.

    `scores` and `product` are the blocks of the products, `operands` the buffers of the values and
    the keys, and `stages` the other blocks. The loops
    `around` all blocks are the loops over sections and over rows.
    """

    scores: str
    product: str
    operands: tuple[str, ...]
    stages: Stages
    around: tuple[str, ...]
    layout: Layout
    lanes: int


class Parameters(Struct, frozen=True):
    """The register tiles, the stages between them, and how threads share the sections."""

    heads: int
    """Heads of the tiles of both products."""
    keys: int
    """Keys of a tile of scores."""
    unrolled: int
    """Vectors of a key that one iteration multiplies."""
    vectors: int
    """Vectors of a head in a tile of the product."""
    values: int
    """Keys whose values one iteration multiplies."""
    takes_turns: bool
    """Whether each of these keys has a tile of the product of its own, so that sums wait less for
    each other."""
    stages: tuple[Any, ...]
    is_fetched: bool
    """Whether keys and values come from memory at once, before a section begins."""
    is_shared: bool
    """Whether threads share the sections."""


def match(function: LoopFunction, machine: Cpu) -> Facts | None:
    """Matches attention to sections of a constant number of keys."""
    schedule = Schedule(function)
    every = {name: schedule.block(name) for name in schedule.blocks()}
    names = softmax_blocks(every)
    if names is None:
        return None
    first, *others = every
    layout, products = _layout(every[first]), {first, names.product}
    read = {load.buffer for load in loads(every[names.logits].body)}
    if layout is None or written_buffer(every[first]) not in read:
        return None
    if layout.size % machine.lanes:
        return None
    gathered = schedule.copy()
    around = [loop for loop in (layout.section, layout.row) if loop is not None]
    if not accepts(lambda: _gather(gathered, first, around)):
        return None
    ends = (epilogue_of(gathered.function, gathered.block(name)) for name in products)
    tiled = products | {block.name for block in ends if block is not None}
    stages = find_stages(
        gathered, machine, len(around), tuple(name for name in others if name not in tiled)
    )
    contractions = (contraction_of(every[name]) for name in (names.product, first))
    operands = tuple(c.right.buffer.name for c in contractions if c is not None)
    return Facts(first, names.product, operands, stages, tuple(around), layout, machine.lanes)


def _layout(scores: Block) -> Layout | None:
    """The loops of a block of scores; `None` of another block."""
    contraction = contraction_of(scores)
    if contraction is None or len(contraction.batch) != 1 or len(contraction.columns) != 2:
        return None
    section, key = contraction.columns
    rows = live_axes(contraction.rows)
    (head,), size = contraction.batch, as_int(contraction.reduced[-1].extent)
    row = loop_of(scores, rows[0]) if len(rows) == 1 else None
    heads, sections, along = (loop_of(scores, axis) for axis in (head, section, key))
    keys, shared = as_int(key.extent), _heads_of_a_key(contraction, head)
    if len(rows) > 1 or heads is None or sections is None or along is None:
        return None
    if keys is None or size is None or shared is None:
        return None
    return Layout(row, heads, sections, along, shared, keys, size)


def _heads_of_a_key(contraction: Contraction, head: Axis) -> int | None:
    """How many heads of queries read the same keys: the number by which their index is divided."""
    indices = [i for i in contraction.right.indices if head.var in variables(i)]
    match indices:
        case [Call(op="floordiv", args=(Var() as var, Const() as size))] if var == head.var:
            heads = as_int(head.extent)
            count = as_int(size)
            return count if heads and count and heads % count == 0 else None
        case [Var()]:
            return 1
    return None


def space(facts: Facts, machine: Cpu) -> Product[Parameters]:
    """Tiles that fit the registers, and the spaces of the stages between the products."""
    layout, registers = facts.layout, machine.vector_registers
    vectors = layout.size // facts.lanes
    return (
        Space.of(
            Parameters,
            heads=divisors(layout.shared, MOST_HEADS),
            keys=divisors(layout.keys, registers),
            unrolled=divisors(vectors, 2 * UNROLLED),
            vectors=divisors(vectors, registers),
            values=divisors(layout.keys, MOST_VALUES),
            takes_turns=(False, True),
            stages=facts.stages.space(machine),
            is_fetched=(False, True),
            is_shared=(False, True),
        )
        .where(
            "the tile of scores fits the registers",
            lambda heads, keys: _registers(heads, keys) <= registers,
        )
        .where(
            "the tiles of the product fit the registers",
            lambda heads, vectors, values, takes_turns: (
                _registers(heads, vectors, values if takes_turns else 1) <= registers
            ),
        )
    )


def default(facts: Facts, machine: Cpu) -> Parameters:
    """The largest tiles that fit the registers, and the values of a few keys at a time. Keys and
    values are fetched before a section begins: one after the other, not in the order of the tiles.
    With 1,060 keys of 3 heads of 64 bfloat16 elements that come from memory, a layer takes 154
    instead of 193 microseconds (measured in Chromium on a Zen 4 core). Values take turns if this
    fits the registers: a token of SmolLM2-135M with 1,060 keys takes 2 % less time.
    """
    layout, registers = facts.layout, machine.vector_registers
    vectors = layout.size // facts.lanes
    heads = divisors(layout.shared, MOST_HEADS)[-1]
    keys, width = (
        next(n for n in reversed(divisors(of, registers)) if _registers(heads, n) <= registers)
        for of in (layout.keys, vectors)
    )
    values = divisors(layout.keys, UNROLLED)[-1]
    return Parameters(
        heads=heads,
        keys=keys,
        unrolled=divisors(vectors, UNROLLED)[-1],
        vectors=width,
        values=values,
        takes_turns=_registers(heads, width, values) <= registers,
        stages=facts.stages.default(machine),
        is_fetched=True,
        is_shared=True,
    )


def _registers(heads: int, others: int, tiles: int = 1) -> int:
    """Vector registers of `tiles` tiles of `heads` × `others`: one register for each sum, the
    shorter side held whole, and one register for the longer side, which is streamed.
    """
    return tiles * heads * others + min(heads, others) + 1


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Put all stages under the loops over sections and rows, then schedule each."""
    _gather(schedule, facts.scores, facts.around)
    _tile_scores(schedule, facts, parameters)
    facts.stages.build(schedule, parameters.stages)
    _tile_product(schedule, facts, parameters)
    if parameters.is_fetched:
        for operand in facts.operands:
            block = schedule.prefetch(facts.around[0], operand, Const(1))
            for loop in schedule.loops(block)[2:]:
                schedule.unroll(loop)
    if parameters.is_shared:
        schedule.parallel(facts.around[0])


SECTIONS = Rule("attention to sections", match, space, default, build, needs_proof=True)


def _gather(schedule: Schedule, first: str, around: Sequence[str]) -> None:
    """Compute all blocks under the loops over sections and rows, like the first block."""
    names = schedule.blocks()
    inside = [loop for loop in schedule.loops(first) if loop not in around]
    schedule.reorder(*around, *inside)
    for name in names:
        if name != first:
            schedule.reverse_compute_at(name, around[-1])
    for name in names:
        if fold_of(schedule.block(name)) is not None:
            schedule.set_scope(name, "local")


def _split_heads(schedule: Schedule, loop: str, facts: Facts, heads: int) -> tuple[str, ...]:
    """Split a loop over heads: over the heads of keys, over tiles of a group, and over a tile."""
    return schedule.split(loop, [None, facts.layout.shared // heads, heads])


def _tile_scores(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Sum the scores of some heads and keys side by side, each in a vector. The shorter side of a
    tile stays in registers while the longer side is streamed. All heads read a key before the next
    key. Then sum the elements of the vectors, with several keys side by side.
    """
    heads, keys, scores = parameters.heads, parameters.keys, facts.scores
    *groups, head = _split_heads(schedule, facts.layout.head, facts, heads)
    tile, key = schedule.split(facts.layout.key, [None, keys])
    pair = (head, key) if keys <= heads else (key, head)
    schedule.reorder(tile, *groups, *pair)
    (element,) = schedule.reduce_loops(scores)
    _, unrolled, lane = schedule.split(element, [None, parameters.unrolled, facts.lanes])
    vectors = schedule.rfactor(lane, -1)
    schedule.set_scope(vectors, "local")
    outer = [loop for loop in (tile, *groups) if extent_of(schedule, loop) != 1]
    for loop in reversed((tile, *groups, *pair)):
        schedule.fission(loop)
    copy = schedule.cache_write(vectors, "local")
    fixed = len(facts.around) + len(outer)
    schedule.compute_at(vectors, schedule.loops(copy)[fixed - 1])
    reduced = schedule.reduce_loops(vectors)
    schedule.reorder(*reduced, *_tile_loops(schedule, vectors, fixed))
    starts = [schedule.decompose_reduction(vectors, loop) for loop in reduced[:1]]
    if unrolled in reduced:
        schedule.unroll(unrolled)
    for block in (*starts, vectors, copy):
        *loops, lane = _tile_loops(schedule, block, fixed)
        schedule.vectorize(lane)
        for loop in loops:
            schedule.unroll(loop)
    _add_lanes(schedule, facts)


def _tile_loops(schedule: Schedule, block: str, fixed: int) -> list[str]:
    """The loops of a block over a register tile, under `fixed` others."""
    reduced = schedule.reduce_loops(block)
    return [loop for loop in schedule.loops(block)[fixed:] if loop not in reduced]


def _add_lanes(schedule: Schedule, facts: Facts) -> None:
    """Sum the elements of each vector of scores, and compute the logits of the sums."""
    nest = accumulate_locally(schedule, facts.scores)
    key = schedule.loops(nest.result)[-1]
    _, key = schedule.split(key, [None, divisors(facts.layout.keys, 2 * facts.lanes)[-1]])
    compute_results_at(schedule, nest, schedule.loops(nest.result)[-2])
    *_, key, lane = schedule.loops(facts.scores)
    schedule.reorder(lane, key)
    start = schedule.decompose_reduction(facts.scores, lane)
    schedule.unroll(lane)
    for block in dict.fromkeys((start, facts.scores, *nest.unrolled, nest.result)):
        loop = schedule.loops(block)[-1]
        vectorize_columns(schedule, block, loop, facts.lanes, gathers=True)


def _tile_product(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Sum a few vectors of the values of all keys, for a few heads, in registers."""
    product = facts.product
    nest = accumulate_locally(schedule, product)
    head, column = schedule.loops(nest.result)[len(facts.around) :]
    *groups, head = _split_heads(schedule, head, facts, parameters.heads)
    columns, column = schedule.split(column, [None, parameters.vectors * facts.lanes])
    schedule.reorder(*groups, columns, head, column)
    compute_results_at(schedule, nest, column)
    if parameters.takes_turns:
        turns = Reduction(parameters.values)
        make_tile(schedule, nest, head, column, facts.lanes, turns)
        return
    _, unrolled = schedule.split(schedule.reduce_loops(product)[-1], [None, parameters.values])
    make_tile(schedule, nest, head, column, facts.lanes)
    schedule.unroll(unrolled)
