"""Attention of a tile of rows by a workgroup, in steps of keys.

The softmax is online (`primitives/roll_maximum.py`). In a step, each thread computes the logits of
a few rows and keys in registers. Some threads find the maximum of a row each, then all store
exponentials, and each adds the values of a few rows in one vector. So a key is read once for a few
rows, not once for each.

    for step in range(ceil(n / 64)):
        for t in 64 threads: l[4 rows, 4 keys] = q · k                   (shared)
        for t in 16 threads: m, scale = max(m, max(l)), exp(m before - m)
        for t in 64 threads: e[:, t] = exp(l[:, t] - m)                  (shared)
        for t in 64 threads: s[t] = s[t] * scale + sum(e) of a part      (shared)
        for t in 64 threads: p[4 rows, vector] = p * scale + e · v       (shared)
    y[i, d] = p[i, d] / sum(s)
"""

from __future__ import annotations

from dataclasses import dataclass

from webmlc.schedule.rules.tiling.cover import divisors, unroll_factor
from webmlc.schedule.rules.tiling.nests import extent_of, fuse_all
from webmlc.schedule.rules.webgpu.attention.facts import (
    LOGIT_ROWS,
    CopiedTile,
    Facts,
    Loops,
    PlainTile,
    RegisterRow,
    SharedRow,
    fits,
    memory_of,
    row_memory,
)
from webmlc.schedule.rules.webgpu.rows import clear_first, producers_of
from webmlc.schedule.rules.webgpu.threads import put_in_shared_memory
from webmlc.schedule.schedule import Schedule

HEIGHTS = (8, 16)
"""The rows that a tile may have: 16 rows of 64 elements fill most of a workgroup's memory."""
MOST_THREADS = 64
"""The most threads of a tile's workgroup, equal to `workgroup_size` of all machines."""
SMALL_ROW = SharedRow(MOST_THREADS)
"""A single row that has no more threads than a tile: one shader computes tiles and rows, so its
workgroups have memory for both.
"""
FEWEST_THREADS = 32
"""The fewest threads of a tile's workgroup: adapters run at least 32 threads in lockstep."""


def tile_threads(
    facts: Facts,
    height: int,
    logit_rows: int = LOGIT_ROWS,
    row: SharedRow | RegisterRow = SMALL_ROW,
) -> int | None:
    """The threads that compute a tile, which are also the keys of a step; `None` if there are too
    few threads, if threads cannot share the tile's logits, or if the memory of a workgroup does not
    hold the tile and a single `row`.
    """
    if height % logit_rows:
        return None
    groups = [n for n in divisors(height, height) if n * facts.vectors <= MOST_THREADS]
    threads = max(groups, default=0) * facts.vectors
    if threads < FEWEST_THREADS or threads % (height // logit_rows):
        return None
    part = height * (threads // height)
    scalars = (height * threads, height * threads, part, part, *[height] * 4)
    tile = memory_of(facts, height * facts.columns, scalars)
    if not fits(facts, tile, row_memory(facts, row)):
        return None
    return None if step_keys(facts, height, threads, logit_rows) is None else threads


def step_keys(facts: Facts, height: int, threads: int, logit_rows: int) -> int | None:
    """The keys of a step: one key a thread, or fewer if keys are few. There are at least two steps,
    because a loop of one step would vanish; `None` if there are too few keys.
    """
    most = height // logit_rows
    counts = [threads * n // most for n in reversed(divisors(most, most))]
    return next((keys for keys in counts if facts.keys is None or facts.keys > keys), None)


def schedule_tile(schedule: Schedule, facts: Facts, loops: Loops, tile: PlainTile) -> None:
    """Give each tile of rows to a workgroup. All blocks are under the loops over rows and batch."""
    height, logit_rows = tile.rows, tile.logit_rows
    threads = tile_threads(facts, height, logit_rows)
    keys = None if threads is None else step_keys(facts, height, threads, logit_rows)
    assert threads is not None and keys is not None
    batch, tiles, depth = begin_tiles(schedule, facts, loops, height)
    parts = max(divisors(keys, max(1, threads // height)))
    work = Tile(schedule, facts, tile, threads, keys, depth, parts)
    step = work.roll()
    work.share_logits(step)
    work.share_maximum(step)
    work.share_sums()
    work.share_result()
    schedule.bind(batch, "blockIdx.x")
    schedule.bind(tiles, "blockIdx.y")


def begin_tiles(
    schedule: Schedule, facts: Facts, loops: Loops, height: int
) -> tuple[str, str, int]:
    """Put each tile of rows under its own loop. Returns the loop over batches, the loop over tiles
    outside of it, and the number of loops around a tile.
    """
    assert loops.row is not None
    tiles, row = schedule.split(loops.row, [None, height])
    schedule.reorder(tiles, *loops.batch, row)
    schedule.fission(row)
    batch = fuse_all(schedule, loops.batch)
    return batch, tiles, schedule.loops(facts.final).index(batch) + 1


@dataclass(slots=True)
class Tile:
    """The schedule of a tile, in steps of `keys` keys. The loops of a block inside the workgroup
    begin at `depth`. The names are the blocks of a step.
    """

    schedule: Schedule
    facts: Facts
    tile: PlainTile | CopiedTile
    threads: int
    keys: int
    depth: int
    parts: int
    """The parts of a step that threads fold for themselves, for each row."""
    largest: str = ""
    """The maximum of a step."""
    sum_of_step: str = ""
    """The sum of the exponentials of a part of a step."""
    sums: str = ""
    """The sums of the exponentials of a part of all steps."""
    product_of_step: str = ""
    """The product with the values of a step."""

    def inner(self, block: str) -> list[str]:
        """The loops of a block inside the workgroup."""
        return self.schedule.loops(block)[self.depth :]

    def roll(self) -> str:
        """Cut the keys into steps, and roll the maximum; returns the loop over steps."""
        schedule, facts = self.schedule, self.facts
        row, key = self.inner(facts.maximum)
        step, key = schedule.split(key, [None, self.keys])
        schedule.reorder(step, row, key)
        self.largest = schedule.rfactor(step, -1)
        maximum = self.step_outside(facts.maximum)
        row, key = self.inner(facts.exponentials)
        exponentials, key = schedule.split(key, [None, self.keys])
        schedule.reorder(exponentials, row, key)
        row, key = self.inner(facts.total)
        step, key, part = schedule.split(key, [None, self.keys // self.parts, self.parts])
        schedule.reorder(step, row, part, key)
        self.sums = schedule.rfactor(part, -1)
        self.sum_of_step = schedule.rfactor(step, -1)
        sums = self.step_outside(self.sums)
        row, column, key = self.inner(facts.product)
        product, key = schedule.split(key, [None, self.keys])
        schedule.reorder(product, row, column, key)
        self.product_of_step = schedule.rfactor(product, -1)
        products = self.step_outside(facts.product)
        loops = (maximum, exponentials, step, sums, product, products)
        step, before, scale = schedule.roll_maximum(facts.maximum, *loops)
        for block in (before, scale, facts.maximum, facts.exponentials, self.sums, facts.product):
            schedule.set_scope(block, "shared")
        for block in (before, scale):
            schedule.bind(schedule.loops(block)[-1], "threadIdx.x")
        return step

    def step_outside(self, block: str) -> str:
        """Put the loop over steps around the other loops of a block; returns the loop."""
        (step,) = self.schedule.reduce_loops(block)
        self.schedule.reorder(step, *(loop for loop in self.inner(block) if loop != step))
        return step

    def share_logits(self, step: str) -> None:
        """Give each thread the logits of a few rows and keys, which it keeps in registers."""
        schedule, facts = self.schedule, self.facts
        schedule.compute_at(self.largest, step)
        schedule.compute_at(facts.logits, step)
        schedule.set_scope(facts.logits, "shared")
        row, key = self.inner(facts.logits)[1:]
        rows, row = schedule.split(row, [None, self.tile.logit_rows])
        count = self.tile.rows // self.tile.logit_rows * self.keys // self.threads
        keys, key = schedule.split(key, [None, count])
        schedule.reorder(rows, keys, key, row)
        thread = schedule.fuse(rows, keys)
        for block in producers_of(schedule.function, schedule.block(facts.logits)):
            schedule.compute_at(block.name, thread)
            schedule.set_scope(block.name, "local")
            self.fold_in_registers(block.name, thread)
        schedule.unroll(key)
        schedule.unroll(row)
        schedule.bind(thread, "threadIdx.x")

    def fold_in_registers(self, block: str, thread: str) -> None:
        """Run a product around all of its results that a thread has."""
        schedule = self.schedule
        reduced = schedule.reduce_loops(block)
        if not reduced:
            return
        loops = schedule.loops(block)
        results = [loop for loop in loops[loops.index(thread) + 1 :] if loop not in reduced]
        schedule.reorder(*reduced, *reversed(results))
        init = schedule.decompose_reduction(block, reduced[0])
        factor = unroll_factor(schedule.extent(reduced[-1]), self.tile.steps)
        if factor > 1:
            steps, inner = schedule.split(reduced[-1], [None, factor])
            *outer, last = reversed(results)
            schedule.reorder(steps, *outer, inner, last)  # the end of the keys is tested once
            schedule.unroll(inner)
        for loop in (*results, *schedule.loops(init)[-len(results) :]):
            schedule.unroll(loop)

    def share_maximum(self, step: str) -> None:
        """Let threads fold parts of the rows of a step, then one thread the maximum of each row."""
        schedule = self.schedule
        row, partial = self.divide_maximum()
        own_row, key, part = self.inner(partial)[1:]
        schedule.reorder(own_row, part, key)
        put_in_shared_memory(schedule, partial, part)
        clear_first(schedule, partial)
        self.unroll(key)
        schedule.bind(schedule.fuse(own_row, part), "threadIdx.x")
        self.bind_maximum(row)

    def divide_maximum(self) -> tuple[str, str]:
        """Divide the maximum of each row of a step into the maximums of its parts. Returns the loop
        over rows, and the block of the parts.
        """
        schedule = self.schedule
        row = schedule.loops(self.facts.maximum)[-1]
        *_, key = self.inner(self.largest)
        _, part = schedule.split(key, [None, self.parts])
        partial = schedule.rfactor(part, -1)
        schedule.compute_at(self.largest, row)
        schedule.set_scope(self.largest, "local")
        clear_first(schedule, self.largest)
        return row, partial

    def bind_maximum(self, row: str) -> None:
        """Give the maximum of each row to a thread."""
        self.schedule.bind(row, "threadIdx.x")
        self.schedule.bind(self.inner(f"{self.facts.maximum}_init")[-1], "threadIdx.x")

    def share_sums(self) -> None:
        """Give each key of a step, and each part of a row, to a thread."""
        schedule, facts = self.schedule, self.facts
        row, key = self.inner(facts.exponentials)[1:]
        schedule.reorder(key, row)
        schedule.unroll(row)
        schedule.bind(key, "threadIdx.x")
        thread = schedule.fuse(*self.inner(self.sums)[1:])
        schedule.compute_at(self.sum_of_step, thread)
        schedule.set_scope(self.sum_of_step, "local")
        clear_first(schedule, self.sum_of_step)
        self.unroll(schedule.reduce_loops(self.sum_of_step)[-1])
        schedule.bind(thread, "threadIdx.x")
        schedule.bind(schedule.fuse(*self.inner(f"{self.sums}_init")), "threadIdx.x")
        schedule.set_scope(facts.total, "shared")
        clear_first(schedule, facts.total)
        schedule.bind(self.inner(facts.total)[0], "threadIdx.x")

    def share_result(self) -> None:
        """Give each thread one vector of a few rows of the result."""
        schedule, facts = self.schedule, self.facts
        product = self.share_vectors(facts.product)
        self.share_vectors(f"{facts.product}_init")
        self.share_vectors(facts.final)
        schedule.compute_at(self.product_of_step, product)
        schedule.set_scope(self.product_of_step, "local")
        (key,) = schedule.reduce_loops(self.product_of_step)
        loops = schedule.loops(self.product_of_step)
        results = [loop for loop in loops[loops.index(product) + 1 :] if loop != key]
        schedule.reorder(key, *results)
        init = schedule.decompose_reduction(self.product_of_step, key)
        self.unroll(key, self.tile.steps)
        for block in (init, self.product_of_step):
            self.write_out(schedule.loops(block)[-len(results) :])

    def share_vectors(self, block: str) -> str:
        """Give the vectors of a few rows each to threads; returns the loop over threads."""
        schedule, facts = self.schedule, self.facts
        row, column = self.inner(block)[-2:]
        groups = self.threads // facts.vectors
        rows, row = schedule.split(row, [None, self.tile.rows // groups])
        vector, lane = schedule.split(column, [None, facts.lanes])
        schedule.reorder(rows, vector, row, lane)
        thread = schedule.fuse(rows, vector)
        self.write_out([row, lane])
        schedule.bind(thread, "threadIdx.x")
        return thread

    def write_out(self, loops: list[str]) -> None:
        """Write out rows, and make vectors of columns."""
        *rows, lane = loops
        for row in rows:
            self.schedule.unroll(row)
        if self.facts.lanes > 1:
            self.schedule.vectorize(lane)

    def unroll(self, loop: str, most: int = 16) -> None:
        """Write a loop out, up to `most` iterations."""
        factor = unroll_factor(self.schedule.extent(loop), most)
        if factor != extent_of(self.schedule, loop):
            _, loop = self.schedule.split(loop, [None, factor])
        self.schedule.unroll(loop)
