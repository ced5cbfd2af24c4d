"""Attention of one row by a workgroup of a GPU, whose threads keep results in registers.

The softmax is online, as in `shared_row.py`, but a step has several keys for each thread. A thread
keeps the logits of its keys, its part of the sum of exponentials, and its part of one vector of the
result. So there are fewer steps in which threads wait for memory and for each other. Four threads
multiply the query by one key: their loads lie side by side.

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

from webmlc.core.expr import as_int
from webmlc.schedule.rules.tiling.axes import write_out
from webmlc.schedule.rules.webgpu.attention.facts import Facts, Loops, key_product
from webmlc.schedule.rules.webgpu.attention.parameters import RegisterRow
from webmlc.schedule.rules.webgpu.attention.shared_row import Steps, step_of
from webmlc.schedule.rules.webgpu.reduction import Tree, fold_together
from webmlc.schedule.rules.webgpu.rows import clear_first, producers_of
from webmlc.schedule.schedule import Schedule

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
        """Let each thread find its largest logit, and all threads together the largest logit of the
        step.
        """
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
        """Give the parts of the products of a turn to threads: neighbours get the parts of one
        key.
        """
        schedule = self.schedule
        schedule.compute_at(block, turn)
        elements = schedule.reduce_loops(block)
        key, part = self.inner_loops(block, turn, *elements)[-2:]
        repeat, key = schedule.split(key, [None, self.threads // self.key_threads])
        schedule.reorder(key, part, repeat, *elements)
        copy = schedule.cache_write(block, "local")
        schedule.reverse_compute_at(copy, repeat)
        schedule.set_scope(copy, "shared")
        clear_first(schedule, block)
        count = prod(as_int(schedule.extent(loop)) or 1 for loop in elements)
        for loop in elements:
            self.unroll(loop)
        write_out(schedule, repeat, self.row.unrolled // count)
        schedule.bind(schedule.fuse(key, part), "threadIdx.x")

    def share_keys(self, block: str) -> tuple[str, str]:
        """Give each key of a step of a block to a thread, in turn; returns the loops over turns and
        threads.
        """
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
