"""Attention of one row by a workgroup, in steps of keys.

The softmax is online (`primitives/roll_maximum.py`). In a step of a **shared row**, each thread
computes the logit of one key. All threads find the maximum, and store exponentials. Then each
thread adds values to one vector of the result, for one part of the keys. At the end, the parts are
added, and divided by the sum of the exponentials:

    for step in range(ceil(n / 64)):
        for t in 64 threads: l[t] = q[i] · k[step * 64 + t]              (shared)
        m, scale = max(m, max(l)), exp(m before - m)                     in every thread
        for t in 64 threads: e[t] = exp(l[t] - m)                        (shared)
                             s[t] = s[t] * scale + e[t]                  (shared)
        for t in 64 threads: p[t] = p[t] * scale + sum(e * v) of a part  (shared)
    y[i, d] = sum(p[:, d]) / sum(s)

On a GPU, threads keep results in registers, and a step of a **register row** has several keys for
each thread. A thread keeps the logits of its keys, its part of the sum of exponentials, and its
part of one vector of the result. So there are fewer steps in which threads wait for memory and for
each other. Four threads multiply the query by one key: their loads lie side by side.

    for step in range(ceil(n / 512)):
        for turn in range(2):
            for t in 256 threads: for u in range(4):                           (shared)
                S[64 u + t // 4, t % 4] = q[i] · k[step * 512 + ...] for each fourth vector
            for t in 256 threads: l[turn] = sum(S[t, :])                       (registers)
        for t in 256 threads: M[t] = max(l)                                    (shared)
        m, scale = max(m, max(M)), exp(m before - m)                           in every thread
        for t in 256 threads: e[t], e[256 + t] = exp(l - m)                    (shared)
                              s = s * scale + e[t] + e[256 + t]                (registers)
        for t in 256 threads: p = p * scale + sum(e * v) of a part             (registers)
    y[i, d] = sum(p) / sum(s)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from webmlc.schedule.rules.tiling.cover import divisors, write_out
from webmlc.schedule.rules.tiling.nests import extent_of, fuse_all
from webmlc.schedule.rules.webgpu.attention.facts import (
    Facts,
    Loops,
    RegisterRow,
    SharedRow,
    key_product,
)
from webmlc.schedule.rules.webgpu.reduction import Tree, fold_together, share_out
from webmlc.schedule.rules.webgpu.rows import clear_first, producers_of
from webmlc.schedule.rules.webgpu.threads import put_in_shared_memory
from webmlc.schedule.schedule import Schedule


def schedule_row(schedule: Schedule, facts: Facts, loops: Loops, row: SharedRow) -> None:
    """Give each row to a workgroup. All blocks are under the loops over rows and batch."""
    parts, keys = step_of(facts, row.workgroup)
    Steps(schedule, facts, row, parts, keys).place(loops)


def step_of(facts: Facts, workgroup: int) -> tuple[int, int]:
    """The parts and the keys of a step, one for each thread. There are at least two steps, because
    a loop of one step would vanish.
    """
    parts = min(workgroup // facts.vectors, workgroup // 2)
    keys = workgroup // parts * parts
    if facts.keys is None or facts.keys > keys:
        return parts, keys
    half = (facts.keys + 1) // 2
    parts = max(1, min(parts, half // 2))
    return parts, half // parts * parts


@dataclass(slots=True)
class Steps:
    """The schedule of a row, in steps of `keys` keys; threads add values for each of `parts` parts
    of a step. The loops of a block inside the workgroup begin at `depth`. The names are the blocks
    of a step.
    """

    schedule: Schedule
    facts: Facts
    row: SharedRow | RegisterRow
    parts: int
    keys: int
    depth: int = 0
    largest: str = ""
    """The maximum of a step."""
    sums: str = ""
    """The sums of exponentials, one for each thread."""
    product: str = ""
    """The products of the parts of a step."""
    products: str = ""
    """The products of the parts of all steps."""

    @property
    def threads(self) -> int:
        """The threads that have keys."""
        return self.keys

    def place(self, loops: Loops) -> None:
        """Give each row to a workgroup. All blocks are under the loops over rows and batch."""
        schedule = self.schedule
        batch = fuse_all(schedule, loops.batch)
        self.depth = schedule.loops(self.facts.final).index(batch) + 1
        step = self.roll()
        self.share_logits(step)
        self.share_sums()
        self.share_result(list(loops.columns))
        schedule.bind(batch, "blockIdx.x")
        if loops.row is not None:
            schedule.bind(loops.row, "blockIdx.y")

    def roll(self) -> str:
        """Cut the keys into steps, and roll the maximum; returns the loop over steps."""
        schedule, facts = self.schedule, self.facts
        (loop,) = schedule.reduce_loops(facts.maximum)
        step, _ = schedule.split(loop, [None, self.keys])
        self.largest = schedule.rfactor(step, -1)
        (maximum,) = schedule.reduce_loops(facts.maximum)
        exponentials, _ = schedule.split(schedule.loops(facts.exponentials)[-1], [None, self.keys])
        sums = self.factor_sums()
        product, products = self.factor_product()
        results = self.shared_results()
        loops = (maximum, exponentials, *sums, product, products)
        step, before, scale = schedule.roll_maximum(facts.maximum, *loops)
        for block in (self.largest, facts.maximum, before, scale):
            schedule.set_scope(block, "local")
        for block in (facts.exponentials, *results):
            schedule.set_scope(block, "shared")
        return step

    def factor_sums(self) -> list[str]:
        """Divide the sum of exponentials among threads. Returns the loops over steps around the
        sums of a step, if a thread has several keys of a step, and around all sums.
        """
        (loop,) = self.schedule.reduce_loops(self.facts.total)
        _, key = self.schedule.split(loop, [None, self.keys])
        self.sums = self.schedule.rfactor(key, -1)
        return self.schedule.reduce_loops(self.sums)

    def shared_results(self) -> tuple[str, str]:
        """The blocks that put the sums and products of threads where all threads see them."""
        return self.sums, self.products

    def factor_product(self) -> tuple[str, str]:
        """Cut the product into parts of steps. Returns the loops over steps around the products of
        a step and around all products.
        """
        schedule, facts = self.schedule, self.facts
        dimension = len(schedule.block(facts.product).axes) - 2
        (loop,) = schedule.reduce_loops(facts.product)
        step, part, key = self.split_parts(loop)
        schedule.reorder(step, part, key, *self.inner_loops(facts.product, step, part, key))
        self.products = schedule.rfactor(part, dimension)
        self.product = schedule.rfactor(step, dimension + 1)
        (products,) = schedule.reduce_loops(self.products)
        schedule.reorder(products, *self.inner_loops(self.products, products))
        return step, products

    def split_parts(self, loop: str) -> tuple[str, ...]:
        """Cut a loop over keys into steps, parts and the keys of a part, which lie together."""
        return self.schedule.split(loop, [None, self.parts, self.keys // self.parts])

    def inner_loops(self, block: str, *others: str) -> list[str]:
        """The loops of a block inside the loop over rows, but for `others`."""
        return [loop for loop in self.schedule.loops(block)[self.depth :] if loop not in others]

    def share_logits(self, step: str) -> None:
        """Give each key of a step to a thread, and let all threads find the largest logit."""
        schedule, facts = self.schedule, self.facts
        schedule.compute_at(self.largest, step)
        schedule.compute_at(facts.logits, step)
        schedule.set_scope(facts.logits, "shared")
        thread = schedule.loops(facts.logits)[-1]
        for block in producers_of(schedule.function, schedule.block(facts.logits)):
            schedule.compute_at(block.name, thread)
            schedule.set_scope(block.name, "local")
            clear_first(schedule, block.name)
            for loop in schedule.reduce_loops(block.name):
                self.unroll(loop)
        schedule.bind(thread, "threadIdx.x")
        self.fold_together(self.largest, self.keys)

    def share_sums(self) -> None:
        """Give each exponential, and each vector of a product of a part, to a thread."""
        for block in (self.facts.exponentials, self.sums, f"{self.sums}_init"):
            self.schedule.bind(self.schedule.loops(block)[-1], "threadIdx.x")
        self.share_vectors(f"{self.products}_init")
        self.add_part(self.share_vectors(self.products))

    def share_vectors(self, block: str) -> str:
        """Give each vector of a product of a part to a thread; returns the loop over threads."""
        schedule, lanes = self.schedule, self.facts.lanes
        columns, part = schedule.loops(block)[-2:]
        vector, lane = schedule.split(columns, [None, lanes])
        schedule.reorder(part, vector, lane)
        thread = schedule.fuse(part, vector)
        schedule.bind(thread, "threadIdx.x")
        if lanes > 1:
            schedule.vectorize(lane)
        return thread

    def add_part(self, thread: str) -> None:
        """Add the values of a part of a step in the thread that has its vector."""
        schedule, facts = self.schedule, self.facts
        schedule.compute_at(self.product, thread)
        schedule.set_scope(self.product, "local")
        (key,) = schedule.reduce_loops(self.product)
        loops = schedule.loops(self.product)
        schedule.reorder(key, *loops[loops.index(thread) + 1 : -1])
        init = schedule.decompose_reduction(self.product, key)
        self.unroll(key)
        if facts.lanes > 1:
            for block in (init, self.product):
                schedule.vectorize(schedule.loops(block)[-1])

    def share_result(self, columns: list[str]) -> None:
        """Add the parts, and give the elements of the row to threads."""
        schedule, facts = self.schedule, self.facts
        for block in (facts.total, facts.product):
            schedule.set_scope(block, "local")
        share_out(schedule, facts.final, columns, self.row.workgroup)
        turn = schedule.loops(facts.final)[-1]
        schedule.compute_at(facts.product, turn)
        clear_first(schedule, facts.product)
        (part,) = schedule.reduce_loops(facts.product)
        write_out(schedule, part, self.row.fold_steps)
        self.fold_together(facts.total, self.threads)

    def fold_together(self, block: str, count: int) -> None:
        """Let the threads fold `count` results. Their number divides it: a step reads nothing of
        the next step. Subgroups fold all at once.
        """
        tree = Tree(count, count)
        if not self.facts.has_subgroups:
            tree = Tree(*self.fold_tree(count), self.row.fold_steps)
        fold_together(self.schedule, block, tree)

    def fold_tree(self, count: int) -> tuple[int, int]:
        """The threads that fold `count` results, and the results that each thread folds. If the
        results are few, every thread folds all results.
        """
        radix = self.row.radix
        if count <= radix:
            return count, count
        threads = next(n for n in divisors(count, count) if n * radix >= count)
        return threads, threads if threads < 2 * radix else radix

    def unroll(self, loop: str) -> None:
        """Write a loop out, up to `unrolled` iterations."""
        write_out(self.schedule, loop, self.row.unrolled)


KEY_THREADS = (1, 2, 4)
"""Threads that may share the product of a query and a key."""


def key_threads_of(facts: Facts, workgroup: int) -> tuple[int, ...]:
    """The numbers of threads that can share a key evenly, beside other keys of a step."""
    _, threads = step_of(facts, workgroup)
    vectors = facts.key_vectors or 1
    return tuple(n for n in KEY_THREADS if vectors % n == 0 and threads % n == 0)


def schedule_register_row(schedule: Schedule, facts: Facts, loops: Loops, row: RegisterRow) -> None:
    """Give each row to a workgroup. Each thread keeps the logits of `row.keys` keys of a step, or
    of fewer if keys are few. All blocks are under the loops over rows and batch.
    """
    parts, threads = step_of(facts, row.workgroup)
    fewer = facts.keys is not None and (facts.keys - 1) // threads
    turns = min(row.keys, fewer or row.keys)
    steps = RegisterSteps(schedule, facts, row, parts, threads * turns)
    steps.keys_per_thread, steps.key_threads = turns, row.key_threads
    steps.place(loops)


@dataclass(slots=True)
class RegisterSteps(Steps):
    """The schedule of a row, in steps of `keys_per_thread` keys for each thread."""

    keys_per_thread: int = 1
    key_threads: int = 1
    """Threads that share the product of the query and a key."""
    sum_of_step: str = ""
    """The sums of the exponentials of a step, one for each thread."""
    sums_copy: str = ""
    """The copy of the sums of all threads to workgroup memory."""
    products_copy: str = ""
    """The copy of the products of all parts to workgroup memory."""

    @property
    def threads(self) -> int:
        """The threads that have keys."""
        return self.keys // self.keys_per_thread

    def factor_sums(self) -> list[str]:
        """See `Steps`."""
        if self.keys_per_thread == 1:
            return Steps.factor_sums(self)
        schedule = self.schedule
        (loop,) = schedule.reduce_loops(self.facts.total)
        step, _, thread = schedule.split(loop, [None, self.keys_per_thread, self.threads])
        self.sums = schedule.rfactor(thread, -1)
        self.sum_of_step = schedule.rfactor(step, -1)
        (total,) = schedule.reduce_loops(self.sums)
        schedule.reorder(total, *self.inner_loops(self.sums, total))
        return [step, total]

    def shared_results(self) -> tuple[str, str]:
        """Copies, as threads keep their sums and products in registers."""
        self.sums_copy = self.schedule.cache_write(self.sums, "local")
        self.products_copy = self.schedule.cache_write(self.products, "local")
        return self.sums_copy, self.products_copy

    def share_logits(self, step: str) -> None:
        """Let each thread keep the logits of its keys, and find their maximum."""
        schedule, facts = self.schedule, self.facts
        part = self.factor_score()
        schedule.compute_at(self.largest, step)
        schedule.compute_at(facts.logits, step)
        schedule.set_scope(facts.logits, "shared" if self.keys_per_thread == 1 else "local")
        turn, thread = self.share_keys(facts.logits)
        for block in producers_of(schedule.function, schedule.block(facts.logits)):
            if block.name == part:
                self.share_parts(part, turn)
                continue
            schedule.compute_at(block.name, thread)
            schedule.set_scope(block.name, "local")
            clear_first(schedule, block.name)
            for loop in schedule.reduce_loops(block.name):
                self.unroll(loop)
        self.fold_maximum()

    def fold_maximum(self) -> None:
        """Let each thread find its largest logit, and all threads the largest of the step."""
        if self.keys_per_thread == 1:
            self.fold_together(self.largest, self.keys)
            return
        threads, radix = self.fold_tree(self.threads)
        radix = max(radix, self.threads // threads)
        at_once = self.facts.has_subgroups
        tree = Tree(self.threads, radix, self.row.fold_steps, at_once=at_once)
        fold_together(self.schedule, self.largest, tree)

    def factor_score(self) -> str | None:
        """Divide the product of the query and a key among `key_threads` threads; returns the block
        of its parts, if there are several.
        """
        schedule = self.schedule
        if self.key_threads == 1:
            return None
        score = key_product(schedule, self.facts)
        assert score is not None
        (element,) = schedule.reduce_loops(score.block)
        _, part, _ = schedule.split(element, [None, self.key_threads, self.facts.lanes])
        return schedule.rfactor(part, -1)

    def share_parts(self, block: str, turn: str) -> None:
        """Give the products of a turn to threads: neighbours get the parts of one key."""
        schedule = self.schedule
        schedule.compute_at(block, turn)
        elements = schedule.reduce_loops(block)
        key, part = self.inner_loops(block, turn, *elements)[-2:]
        repeat, key = schedule.split(key, [None, self.threads // self.key_threads])
        schedule.reorder(key, part, repeat, *elements)
        put_in_shared_memory(schedule, block, repeat)
        clear_first(schedule, block)
        count = prod(extent_of(schedule, loop) or 1 for loop in elements)
        for loop in elements:
            self.unroll(loop)
        write_out(schedule, repeat, self.row.unrolled // count)
        schedule.bind(schedule.fuse(key, part), "threadIdx.x")

    def share_keys(self, block: str) -> tuple[str, str]:
        """Share the keys of a step among threads; returns the loops over turns and threads."""
        schedule = self.schedule
        turn, thread = schedule.split(schedule.loops(block)[-1], [None, self.threads])
        schedule.unroll(turn)
        schedule.bind(thread, "threadIdx.x")
        return turn, thread

    def share_sums(self) -> None:
        """Give exponentials, and a vector of a product of a part, to each thread."""
        schedule, facts = self.schedule, self.facts
        self.share_keys(facts.exponentials)
        if self.sum_of_step:
            schedule.compute_at(self.sum_of_step, schedule.loops(self.sums)[-1])
            schedule.set_scope(self.sum_of_step, "local")
            clear_first(schedule, self.sum_of_step)
            schedule.unroll(schedule.reduce_loops(self.sum_of_step)[-1])
        for block in (self.sums, self.sums_copy, f"{self.sums}_init"):
            schedule.bind(schedule.loops(block)[-1], "threadIdx.x")
        for block in (self.products_copy, f"{self.products}_init"):
            self.share_vectors(block)
        self.add_part(self.share_vectors(self.products))

    def split_parts(self, loop: str) -> tuple[str, ...]:
        """Cut a loop over keys into steps, parts and the keys of a part, which lie apart."""
        step, key, part = self.schedule.split(loop, [None, self.keys // self.parts, self.parts])
        return step, part, key
