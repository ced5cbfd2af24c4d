"""Attention to sections of the keys, of rows that fill no register tile: that of one token.

In: a kernel of scores, a softmax along the keys of a section, and the product with their values,
for each row and each section. Out: one loop over sections, which threads share, with all stages
under it. Heads that share keys are rows of the register tiles, so a key is read once for all:

    for t, h, s, j, d: scores[t, h, s, j] += ...     for s in T.parallel(n):
    ... softmax ...                                      for t:
    for t, h, s, d, j: product[t, h, s, d] += ...  ->        for j, g: scores[0:3, 0:3] += ...
                                                             ... softmax ...
                                                             for j, g: product[0:3, 0:8] += ...

Scores are dot products along contiguous elements. Their tile is one of heads times keys, and each
sum is a vector. The tile of the product is one of heads times elements. Both products read all
heads of a few keys before the next keys, so they walk through memory in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from webmlc.core.expr import Call, Const, Var, as_int
from webmlc.core.machine import Machine
from webmlc.core.rewrite import variables
from webmlc.loops.ir import Axis, Block, LoopFunction, stores
from webmlc.schedule.analysis import Contraction, contraction_of, fold_of
from webmlc.schedule.rules.rule import Rule, accepts, proven
from webmlc.schedule.rules.space import Space
from webmlc.schedule.rules.tiling.axes import loop_of, reads
from webmlc.schedule.rules.tiling.cover import divisors
from webmlc.schedule.rules.tiling.nests import Nest
from webmlc.schedule.rules.tiling.softmax_blocks import softmax_blocks
from webmlc.schedule.rules.tiling.tile import make_tile
from webmlc.schedule.rules.wasm.stages import (
    StageFacts,
    StageParameters,
    default_stage,
    schedule_stage,
    stage_facts,
    stages_space,
)
from webmlc.schedule.schedule import Schedule

MOST_HEADS = 8
"""Heads of a register tile, at most: each has a sum for each key or vector (chosen by hand)."""
UNROLLED = 2
"""Vectors of a key that one iteration multiplies, by default: more share the increments of the
pointers (an estimate)."""
MOST_VALUES = 12
"""Keys whose values are added in registers, at most: each has a pointer (chosen by hand)."""


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

    `scores` and `product` are the blocks of the products, and `stages` the others. The loops
    `around` all are those over sections and over rows.
    """

    function: LoopFunction
    scores: str
    product: str
    stages: tuple[StageFacts, ...]
    around: tuple[str, ...]
    layout: Layout
    lanes: int


@dataclass(frozen=True, slots=True)
class Parameters:
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
    """Keys whose values are added in registers before they are added in memory."""
    stages: tuple[StageParameters, ...]
    is_fetched: bool
    """Whether keys and values come from memory at once, before a section begins."""
    is_shared: bool
    """Whether threads share the sections."""


def match(function: LoopFunction, machine: Machine) -> Facts | None:
    """Matches attention to sections of a constant number of keys."""
    schedule = Schedule(function)
    every = {name: schedule.block(name) for name in schedule.blocks()}
    names = softmax_blocks(every)
    if names is None:
        return None
    first, *others = every
    layout, products = _layout(every[first]), {first, names.product}
    if layout is None or first not in _sources(every, names.logits):
        return None
    if layout.size % machine.lanes:
        return None
    gathered = schedule.copy()
    around = [loop for loop in (layout.section, layout.row) if loop is not None]
    if not accepts(lambda: _gather(gathered, first, around)):
        return None
    stages = stage_facts(
        gathered, machine, len(around), tuple(name for name in others if name not in products)
    )
    facts = Facts(function, first, names.product, stages, tuple(around), layout, machine.lanes)
    return facts if accepts(lambda: build(facts, default(facts, machine))) else None


def _sources(every: Mapping[str, Block], reader: str) -> set[str]:
    """The blocks that write what a block reads."""
    read = reads(every[reader])
    return {name for name, b in every.items() if read & {s.buffer.name for s in stores(b.body)}}


def _layout(scores: Block) -> Layout | None:
    """The loops of a block of scores; `None` of another block."""
    contraction = contraction_of(scores)
    if contraction is None or len(contraction.batch) != 1 or len(contraction.columns) != 2:
        return None
    section, key = contraction.columns
    rows = [axis for axis in contraction.rows if as_int(axis.extent) != 1]
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


def space(facts: Facts, machine: Machine) -> Space:
    """Tiles that fit the registers, and what the stages between the products may have."""
    layout, registers = facts.layout, machine.vector_registers
    vectors = layout.size // facts.lanes
    parts = (
        Space.of(
            heads=divisors(layout.shared, MOST_HEADS),
            keys=divisors(layout.keys, registers),
            unrolled=divisors(vectors, 2 * UNROLLED),
            vectors=divisors(vectors, registers),
            values=divisors(layout.keys, MOST_VALUES),
            is_fetched=(False, True),
            is_shared=(False, True),
        )
        .where(
            "the tile of scores fits the registers",
            lambda heads, keys: _registers(heads, keys) <= registers,
        )
        .where(
            "the tile of the product fits the registers",
            lambda heads, vectors: _registers(heads, vectors) <= registers,
        )
    )
    stages = stages_space(facts.stages, machine).under("stages")
    return proven(parts + stages, build, facts, default(facts, machine))


def default(facts: Facts, machine: Machine) -> Parameters:
    """The largest tiles that fit the registers, and as many keys of values as leave room for the
    weights of all heads: six keys instead of two take 16 % longer (measured with 9 heads that share
    3 heads of 64 elements, 1056 keys from memory, one thread).
    """
    layout, registers = facts.layout, machine.vector_registers
    vectors = layout.size // facts.lanes
    heads = divisors(layout.shared, MOST_HEADS)[-1]
    keys, width = (
        next(n for n in reversed(divisors(of, registers)) if _registers(heads, n) <= registers)
        for of in (layout.keys, vectors)
    )
    spare = registers - heads * width - min(heads, width)
    return Parameters(
        heads=heads,
        keys=keys,
        unrolled=divisors(vectors, UNROLLED)[-1],
        vectors=width,
        values=divisors(layout.keys, max(2, spare // heads))[-1],
        stages=tuple(default_stage(stage, machine) for stage in facts.stages),
        is_fetched=True,
        is_shared=True,
    )


def _registers(heads: int, others: int) -> int:
    """The registers of a tile of heads, and of keys or vectors of values: its sums, what there is
    of those that are fewer, and one of what there is of the others.
    """
    return heads * others + min(heads, others) + 1


def build(facts: Facts, parameters: Parameters) -> Schedule:
    """Put all stages under the loops over sections and rows, then schedule each."""
    schedule = Schedule(facts.function)
    _gather(schedule, facts.scores, facts.around)
    _tile_scores(schedule, facts, parameters)
    fixed = len(facts.around)
    for stage, chosen in zip(facts.stages, parameters.stages, strict=True):
        schedule_stage(schedule, stage, chosen, facts.lanes, fixed)
    _tile_product(schedule, facts, parameters)
    if parameters.is_fetched:
        for product in (facts.product, facts.scores):
            _fetch(schedule, facts, product)
    if parameters.is_shared:
        schedule.parallel(facts.around[0])
    return schedule


SECTIONS = Rule("attention to sections", match, space, default, build)


def _gather(schedule: Schedule, first: str, around: Sequence[str]) -> None:
    """Compute all blocks under the loops over sections and rows, as the first one is."""
    names = schedule.blocks()
    inside = [loop for loop in schedule.loops(first) if loop not in around]
    schedule.reorder(*around, *inside)
    for name in names:
        if name != first:
            schedule.reverse_compute_at(name, around[-1])
    for name in names:
        if fold_of(schedule.block(name)) is not None:
            schedule.set_scope(name, "local")


def _split_heads(schedule: Schedule, loop: str, facts: Facts, heads: int) -> list[str]:
    """Split a loop over heads: over the heads of keys, over tiles of a group, and over a tile."""
    return schedule.split(loop, [None, facts.layout.shared // heads, heads])


def _tile_scores(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Sum the scores of some heads and keys side by side, each in a vector. Those of which there
    are fewer stay in registers for all of the others. All heads read a key before the next one.
    """
    heads, keys, scores = parameters.heads, parameters.keys, facts.scores
    *groups, head = _split_heads(schedule, facts.layout.head, facts, heads)
    tile, key = schedule.split(facts.layout.key, [None, keys])
    pair = (head, key) if keys <= heads else (key, head)
    schedule.reorder(tile, *groups, *pair)
    (element,) = schedule.reduce_loops(scores)
    _, unrolled, lane = schedule.split(element, [None, parameters.unrolled, facts.lanes])
    vectors = schedule.rfactor(lane, -1)
    copies = [schedule.cache_write(block, "local") for block in (vectors, scores)]
    schedule.set_scope(vectors, "local")
    for loop in reversed(pair):
        schedule.fission(loop)
    *_, outer, inner, step, unrolled, lane = schedule.loops(vectors)
    schedule.reorder(step, unrolled, outer, inner, lane)
    start = schedule.decompose_reduction(vectors, step)
    schedule.unroll(unrolled)
    for block in (start, vectors, copies[0]):
        schedule.vectorize(schedule.loops(block)[-1])
    (lane,) = schedule.reduce_loops(scores)
    schedule.decompose_reduction(scores, lane)
    schedule.unroll(lane)
    for block in (start, vectors, copies[0], scores):
        for loop in schedule.loops(block)[-3:-1]:
            schedule.unroll(loop)


def _tile_product(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Sum vectors of the values of a few keys for some heads in registers, then add them to what
    other keys gave. The values of these keys are read in order, for all heads.
    """
    product = facts.product
    head, column, key = schedule.loops(product)[len(facts.around) :]
    keys, _ = schedule.split(key, [None, parameters.values])
    part = schedule.rfactor(keys, 0)
    for loop in (column, head):
        schedule.fission(loop)
    head, column, keys = schedule.loops(product)[len(facts.around) :]
    *groups, head = _split_heads(schedule, head, facts, parameters.heads)
    columns, column = schedule.split(column, [None, parameters.vectors * facts.lanes])
    schedule.reorder(keys, *groups, columns, head, column)
    start = schedule.decompose_reduction(product, keys)
    schedule.compute_at(part, column)
    unrolled = schedule.reduce_loops(part)
    make_tile(schedule, Nest(part, product), head, column, facts.lanes)
    for key in unrolled:
        schedule.unroll(key)
    schedule.vectorize(schedule.split(schedule.loops(start)[-1], [None, facts.lanes])[-1])


def _fetch(schedule: Schedule, facts: Facts, product: str) -> None:
    """Bring the keys or the values of a section into the cache before it begins."""
    contraction = contraction_of(Schedule(facts.function).block(product))
    assert contraction is not None
    block = schedule.prefetch(facts.around[0], contraction.right.buffer.name, Const(1))
    for loop in schedule.loops(block)[2:]:
        schedule.unroll(loop)
