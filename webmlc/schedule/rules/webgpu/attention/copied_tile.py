"""Attention of a tile of rows by a workgroup of a GPU, whose threads keep results in registers.

The softmax is online, as in `plain_tile.py`. But the keys of a step are copied to workgroup memory,
some elements of each key at a time: adjacent threads then read adjacent keys from memory. A thread
computes the logits of a few rows and keys and keeps these logits: it finds their maximum and stores
their exponentials. The sums of the values also stay in registers, from the first step to the last.
This is the tiling of FlashAttention-2 (Dao, 2023).

    for step in range(ceil(n / 64)):
        for c in range(4): S = k[64 keys, 16 c to 16 c + 16]            (shared)
                           for t in 96 threads: l[4 rows, 4 keys] += q · S       (registers)
        for t in 96 threads: M[4 rows, t] = max(l)                      (shared)
        for t in 24 threads: m, scale = max(m, max(M)), exp(m before - m)
        for t in 96 threads: e = exp(l - m)                             (shared)
        for t in 96 threads: s[4 rows, t] = s * scale + sum(e)          (shared)
        for t in 96 threads: p[4 rows, vector] = p * scale + e · v      (registers)
    y[i, d] = p[i, d] / sum(s)
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from webmlc.core.machine import MAX_INVOCATIONS
from webmlc.schedule.rules.tiling.cover import divisors
from webmlc.schedule.rules.tiling.nests import extent_of, fuse_all
from webmlc.schedule.rules.webgpu.attention.facts import (
    VECTOR,
    CopiedTile,
    Facts,
    Loops,
    Memory,
    RegisterRow,
    SharedRow,
    covers,
    fits,
    key_product,
    row_memory,
)
from webmlc.schedule.rules.webgpu.attention.plain_tile import Tile, begin_tiles
from webmlc.schedule.rules.webgpu.rows import clear_first, producers_of
from webmlc.schedule.rules.webgpu.threads import put_in_shared_memory
from webmlc.schedule.schedule import Schedule

KEYS = 4
"""Keys of the logits that a thread computes together: with four rows, 16 sums in registers take
eight vectors of a step of four elements."""
GROUPS = 16
"""The most groups of `KEYS` keys: the threads that share the rows of a thread."""
FEWEST_GROUPS = 8
"""The fewest groups of keys to which a step is shortened so that steps divide the keys."""
STAGES = (8, 4, 2)
"""Vectors of each key that may be copied at once."""
STEP_KEYS = 8
"""The cost of the barriers of a step, in keys (an estimate)."""
GUARDED = 1.25
"""The factor by which steps cost more if the last step has fewer keys: each key is then compared
with the number of keys (an estimate)."""
HEIGHTS = (8, 16, 24, 32)
"""The rows that a tile may have: with four rows to a thread, 32 to 128 threads."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A tile in steps of `groups * KEYS` keys, whose `threads` share the result."""

    tile: CopiedTile
    groups: int
    threads: int

    @property
    def keys(self) -> int:
        """The keys of a step."""
        return self.groups * KEYS


def shape_of(
    facts: Facts, tile: CopiedTile, row: SharedRow | RegisterRow | None = None
) -> Shape | None:
    """The shape of a tile. `None` if a workgroup has fewer threads, if its memory does not hold the
    tile beside a single `row`, or if the kernel has no such tiles.
    """
    vectors, height = facts.key_vectors, tile.rows
    if not facts.copies_keys or vectors is None or vectors % tile.stage or height % tile.logit_rows:
        return None
    if facts.rows is None and tile.stage == vectors:
        return None  # whole keys are one run of memory, where a row would have no gap
    groups = _key_groups(facts)
    most = height // tile.logit_rows * GROUPS
    if groups is None or not facts.vectors <= most <= MAX_INVOCATIONS:
        return None
    threads = max(n for n in divisors(height, height) if n * facts.vectors <= most) * facts.vectors
    shape = Shape(tile, groups, threads)
    has_single_rows = row is not None and not covers(facts, tile)
    left_over = row_memory(facts, row) if row is not None and has_single_rows else Memory()
    return shape if fits(facts, _memory(facts, shape), left_over) else None


def longest_stage(
    facts: Facts, row: SharedRow | RegisterRow, tile: CopiedTile
) -> CopiedTile | None:
    """The tile with the most vectors of a key that can be copied at once, if there is one."""
    tiles = (replace(tile, stage=stage) for stage in STAGES)
    return next((tile for tile in tiles if shape_of(facts, tile, row) is not None), None)


def _key_groups(facts: Facts) -> int | None:
    """The number of key groups in a step that takes the least time. There are at least two steps,
    because a loop of one step would vanish.
    """
    if facts.keys is None:
        return GROUPS
    costs = []
    for groups in range(FEWEST_GROUPS, GROUPS + 1):
        size = groups * KEYS
        steps = -(-facts.keys // size)
        guard = GUARDED if facts.keys % size else 1
        if steps > 1:
            costs.append((steps * (size + STEP_KEYS) * guard, -groups))
    return -min(costs)[1] if costs else None


def _memory(facts: Facts, shape: Shape) -> Memory:
    """The memory of a tile: keys padded by a vector each, exponentials padded by one element a row,
    two results for each row of each group, and four values for each row. Narrow keys also take 32
    bits there.
    """
    tile = shape.tile
    copied = shape.keys * (tile.stage + 1) * VECTOR
    results = tile.rows * shape.groups
    rows = [tile.rows] * 4
    scalars = (tile.rows * (shape.keys + 1), results, results, *rows)
    return Memory((), scalars, copied) if facts.has_narrow_keys else Memory((copied,), scalars)


def schedule_copied_tile(schedule: Schedule, facts: Facts, loops: Loops, shape: Shape) -> None:
    """Give each tile of rows to a workgroup. All blocks are under the loops over rows and batch."""
    assert loops.row is not None
    tile, groups = shape.tile, shape.groups
    batch, tiles, depth = begin_tiles(schedule, facts, loops, tile.rows)
    work = _RegisterTile(schedule, facts, tile, shape.threads, shape.keys, depth, parts=groups)
    step = work.roll()
    schedule.set_scope(facts.product, "local")
    work.keep_logits(step, tile.stage)
    work.keep_maximum()
    work.keep_sums()
    work.share_result()
    schedule.bind(batch, "blockIdx.x")
    schedule.bind(tiles, "blockIdx.y")


class _RegisterTile(Tile):
    """The schedule of a tile whose threads keep their logits. A thread has the logits of some rows,
    and of one key of each part.
    """

    def share(self, row: str, part: str, *others: str) -> str:
        """Give the rows of a thread, and a part of the keys, to each thread; returns the loop over
        threads. `others` are loops inside.
        """
        schedule = self.schedule
        rows, inner = schedule.split(row, [None, self.tile.logit_rows])
        schedule.reorder(rows, part, *others, inner)
        thread = schedule.fuse(rows, part)
        for loop in (*others, inner):
            if extent_of(schedule, loop) is not None:
                schedule.unroll(loop)
        schedule.bind(thread, "threadIdx.x")
        return thread

    def share_keys(self, block: str) -> str:
        """Share the rows and keys of a step of a block without reductions."""
        row, key = self.inner(block)[1:]
        key, part = self.schedule.split(key, [None, self.parts])
        return self.share(row, part, key)

    def keep_logits(self, step: str, stage: int) -> None:
        """Let each thread keep the logits of its rows and keys, and copy the keys first."""
        schedule, facts = self.schedule, self.facts
        product = key_product(schedule, facts)
        assert product is not None
        score = product.block
        schedule.compute_at(self.largest, step)
        schedule.compute_at(facts.logits, step)
        schedule.compute_at(score, step)
        self.multiply(score, product.keys.name, stage)
        thread = self.share_keys(facts.logits)
        for block in producers_of(schedule.function, schedule.block(facts.logits)):
            if not set(schedule.loops(block.name)) >= {step}:
                schedule.compute_at(block.name, thread)
                schedule.set_scope(block.name, "local")
        for block_name in (score, facts.logits):
            schedule.set_scope(block_name, "local")

    def multiply(self, score: str, operand: str, stage: int) -> None:
        """Multiply queries by keys, some elements of each key at a time."""
        schedule = self.schedule
        (element,) = schedule.reduce_loops(score)
        row, key = [loop for loop in self.inner(score)[1:] if loop != element]
        chunk, vector, lane = schedule.split(element, [None, stage, self.facts.lanes])
        schedule.reorder(chunk, row, key, vector, lane)
        init = schedule.decompose_reduction(score, chunk)
        copy = schedule.cache_read(score, operand, "shared")
        schedule.compute_at(copy, chunk)
        self.copy_keys(copy, chunk, stage)
        self.share_keys(init)
        key, part = schedule.split(key, [None, self.parts])
        rows, row = schedule.split(row, [None, self.tile.logit_rows])
        schedule.reorder(rows, part, vector, key, lane, row)
        for loop in (vector, key, lane, row):
            schedule.unroll(loop)
        schedule.bind(schedule.fuse(rows, part), "threadIdx.x")

    def copy_keys(self, copy: str, chunk: str, stage: int) -> None:
        """Let threads copy `stage` vectors of each key of a step in equal shares."""
        schedule, lanes = self.schedule, self.facts.lanes
        dimension = len(schedule.block(copy).axes) - 1
        schedule.split_dimension(copy, dimension, lanes)
        loops = schedule.loops(copy)
        *around, element = loops[loops.index(chunk) + 1 :]
        vector, lane = schedule.split(element, [None, lanes])
        vectors = fuse_all(schedule, [*around, vector])
        threads = divisors(self.keys * stage, self.threads)[-1]
        turn, thread = schedule.split(vectors, [None, threads])
        schedule.reorder(thread, turn, lane)
        schedule.unroll(turn)
        schedule.vectorize(lane)
        schedule.bind(thread, "threadIdx.x")

    def keep_maximum(self) -> None:
        """Let each thread find the maximum of its logits in a row, then one thread the row's."""
        schedule = self.schedule
        row, partial = self.divide_maximum()
        self.unroll(schedule.reduce_loops(self.largest)[-1])
        own_row, key, part = self.inner(partial)[1:]
        rows, own_row = schedule.split(own_row, [None, self.tile.logit_rows])
        schedule.reorder(rows, part, own_row, key)
        put_in_shared_memory(schedule, partial, own_row)
        clear_first(schedule, partial)
        schedule.unroll(key)
        schedule.unroll(own_row)
        schedule.bind(schedule.fuse(rows, part), "threadIdx.x")
        self.bind_maximum(row)

    def keep_sums(self) -> None:
        """Let each thread store the exponentials of its logits, and add them."""
        schedule, facts = self.schedule, self.facts
        self.share_keys(facts.exponentials)
        row, part = self.inner(self.sums)[1:]
        rows, row = schedule.split(row, [None, self.tile.logit_rows])
        schedule.reorder(rows, part, row)
        schedule.compute_at(self.sum_of_step, row)
        schedule.set_scope(self.sum_of_step, "local")
        clear_first(schedule, self.sum_of_step)
        self.unroll(schedule.reduce_loops(self.sum_of_step)[-1])
        schedule.unroll(row)
        schedule.bind(schedule.fuse(rows, part), "threadIdx.x")
        row, part = self.inner(f"{self.sums}_init")
        self.share(row, part)
        schedule.set_scope(facts.total, "shared")
        clear_first(schedule, facts.total)
        schedule.bind(self.inner(facts.total)[0], "threadIdx.x")
