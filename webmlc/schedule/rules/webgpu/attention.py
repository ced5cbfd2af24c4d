"""Attention over a number of keys that only a run knows: a workgroup for each row of each head.

The keys come in steps, and the softmax is online (`primitives/roll_maximum.py`). In a step, each
thread computes the logit of one key. All threads find the maximum, and store exponentials. Then
each thread adds values to one vector of the result, for one part of the keys. At the end, the parts
are added, and divided by the sum of the exponentials.

    m[i] = max(l[i, :]); e = exp(l - m); s[i] = sum(e[i, :]); p[i, d] = sum(e[i, :] * v[:, d])
    ->  for i (workgroups):
            for step in range(ceil(n / 64)):
                for t in 64 threads: l[t] = q[i] · k[step * 64 + t]              (shared)
                m, scale = max(m, max(l)), exp(m before - m)                     in every thread
                for t in 64 threads: e[t] = exp(l[t] - m)                        (shared)
                                     s[t] = s[t] * scale + e[t]                  (shared)
                for t in 64 threads: p[t] = p[t] * scale + sum(e * v) of a part  (shared)
            y[i, d] = sum(p[:, d]) / sum(s)
"""

from __future__ import annotations

from dataclasses import dataclass

from webmlc.core.expr import Var, as_int
from webmlc.core.machine import Machine
from webmlc.core.rewrite import variables
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Block, LoopFunction, blocks, loads, stores
from webmlc.schedule.rules.rule import Rule, accepts
from webmlc.schedule.rules.space import Space
from webmlc.schedule.rules.tiling.axes import axes_of_kind, fuse_all, loop_of, unroll_factor
from webmlc.schedule.rules.tiling.cover import divisors
from webmlc.schedule.rules.tiling.softmax_blocks import softmax_blocks
from webmlc.schedule.rules.webgpu.reduction import fold_together, share_out
from webmlc.schedule.rules.webgpu.rows import clear_first, producers_of
from webmlc.schedule.rules.webgpu.threads import workgroup_sizes
from webmlc.schedule.schedule import Schedule

RADIX = 8
"""Results of threads that one thread folds at each level of a tree: 64 threads take two levels (as
in `reduction.py`)."""
MAX_UNROLLED = 64
"""Iterations of a loop that are written out: drivers count and bound each iteration of others (an
estimate: the elements of most heads)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The blocks of a kernel of attention, by what they compute: the `final` one divides a product
    with the values by the sum of the exponentials. `columns`: elements of a row of the result;
    `lanes`: those that one thread computes.
    """

    function: LoopFunction
    logits: str
    maximum: str
    exponentials: str
    total: str
    product: str
    final: str
    columns: int
    lanes: int


@dataclass(frozen=True, slots=True)
class Parameters:
    """How a workgroup computes a row."""

    workgroup: int
    """Threads, and keys of a step, at most."""


def match(function: LoopFunction, machine: Machine) -> Facts | None:
    """Matches a softmax along a symbolic number of keys, and its product with the values."""
    every = {block.name: block for block in blocks(function.body)}
    names = softmax_blocks(every)
    final = list(every.values())[-1]
    if names is None or axes_of_kind(final, "reduce") or final.name in names:
        return None
    product = every[names[-1]]
    keys, columns = (axes_of_kind(product, kind)[-1].extent for kind in ("reduce", "spatial"))
    size = as_int(simplify(columns))
    if as_int(simplify(keys)) is not None or size is None:
        return None
    lanes = machine.lanes if size % machine.lanes == 0 else 1
    facts = Facts(function, *names, final.name, size, lanes)
    is_narrow = 2 * _vectors(facts) <= max(workgroup_sizes(machine))
    return facts if is_narrow and accepts(lambda: build(facts, default(facts, machine))) else None


def space(facts: Facts, machine: Machine) -> Space:
    """Threads: enough for two parts of a step."""
    sizes = (size for size in workgroup_sizes(machine) if size >= 2 * _vectors(facts))
    return Space.of(workgroup=tuple(sizes))


def default(facts: Facts, machine: Machine) -> Parameters:
    """The machine's workgroup, or the next one that has enough threads."""
    needed = max(machine.workgroup_size, 2 * _vectors(facts))
    return Parameters(min(size for size in workgroup_sizes(machine) if size >= needed))


def _vectors(facts: Facts) -> int:
    """The vectors of a row of the result, each of which one thread computes."""
    return facts.columns // facts.lanes


def build(facts: Facts, parameters: Parameters) -> Schedule:
    """Give each row to a workgroup, in steps of keys."""
    schedule = Schedule(facts.function)
    group, inner = _place_rows(schedule, facts)
    parts = min(parameters.workgroup // _vectors(facts), parameters.workgroup // 2)
    steps = _Steps(schedule, facts, parts, keys=parameters.workgroup // parts * parts)
    loop = steps.roll()
    steps.share_logits(loop)
    steps.share_sums()
    steps.share_result(inner, parameters.workgroup)
    schedule.bind(group, "blockIdx.x")
    return schedule


ATTENTION = Rule("attention", match, space, default, build)


def _place_rows(schedule: Schedule, facts: Facts) -> tuple[str, list[str]]:
    """Compute all blocks in a loop over the rows; returns it, and the loops along a row."""
    final = schedule.block(facts.final)
    (total,) = (s.buffer.name for s in stores(schedule.block(facts.total).body))
    along = {
        var
        for load in loads(final)
        if load.buffer.name == total
        for index in load.indices
        for var in variables(index)
    }
    outer, inner = _loops_of(final, along, True), _loops_of(final, along, False)
    producers = [block.name for block in producers_of(schedule.function, final)]
    unit = schedule.add_unit_loop(facts.final)
    schedule.reorder(unit, *outer, *inner)
    group = fuse_all(schedule, [unit, *outer])
    assert group is not None
    for name in producers:
        schedule.compute_at(name, group)
    return group, inner


def _loops_of(block: Block, along: set[Var], inside: bool) -> list[str]:
    """The loops of a block along some of its spatial axes, or along the others."""
    axes = [a for a in axes_of_kind(block, "spatial") if (a.var in along) is inside]
    return [loop for axis in axes if (loop := loop_of(block, axis)) is not None]


@dataclass(slots=True)
class _Steps:
    """The schedule of a row, in steps of `keys` keys; threads add values for each of `parts` parts
    of a step. The names are those of the blocks that a step has.
    """

    schedule: Schedule
    facts: Facts
    parts: int
    keys: int
    largest: str = ""
    """The maximum of a step."""
    sums: str = ""
    """The sums of exponentials, one for each thread."""
    product: str = ""
    """The products of the parts of a step."""
    products: str = ""
    """The products of the parts of all steps."""

    def roll(self) -> str:
        """Cut the keys into steps, and roll the maximum; returns the loop over steps."""
        schedule, facts = self.schedule, self.facts
        (loop,) = schedule.reduce_loops(facts.maximum)
        step, _ = schedule.split(loop, [None, self.keys])
        self.largest = schedule.rfactor(step, -1)
        (maximum,) = schedule.reduce_loops(facts.maximum)
        exponentials, _ = schedule.split(schedule.loops(facts.exponentials)[-1], [None, self.keys])
        (loop,) = schedule.reduce_loops(facts.total)
        _, key = schedule.split(loop, [None, self.keys])
        self.sums = schedule.rfactor(key, -1)
        product, products = self.factor_product()
        (total,) = schedule.reduce_loops(self.sums)
        loops = (maximum, exponentials, total, product, products)
        step, before, scale = schedule.roll_maximum(facts.maximum, *loops)
        for block in (self.largest, facts.maximum, before, scale):
            schedule.set_scope(block, "local")
        for block in (facts.exponentials, self.sums, self.products):
            schedule.set_scope(block, "shared")
        return step

    def factor_product(self) -> tuple[str, str]:
        """Cut the product into parts of steps; returns the loops over steps of the products of a
        step and of all of them.
        """
        schedule, facts = self.schedule, self.facts
        dimension = len(schedule.block(facts.product).axes) - 2
        (loop,) = schedule.reduce_loops(facts.product)
        step, part, key = schedule.split(loop, [None, self.parts, self.keys // self.parts])
        schedule.reorder(step, part, key, *self.inner_loops(facts.product, step, part, key))
        self.products = schedule.rfactor(part, dimension)
        self.product = schedule.rfactor(step, dimension + 1)
        (products,) = schedule.reduce_loops(self.products)
        schedule.reorder(products, *self.inner_loops(self.products, products))
        return step, products

    def inner_loops(self, block: str, *others: str) -> list[str]:
        """The loops of a block inside the loop over rows, but for `others`."""
        return [loop for loop in self.schedule.loops(block)[2:] if loop not in others]

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
        self.fold_together(self.largest)

    def share_sums(self) -> None:
        """Give each exponential, and each vector of a product of a part, to a thread."""
        schedule, facts = self.schedule, self.facts
        for block in (facts.exponentials, self.sums, f"{self.sums}_init"):
            schedule.bind(schedule.loops(block)[-1], "threadIdx.x")
        for block in (self.products, f"{self.products}_init"):
            columns, part = schedule.loops(block)[-2:]
            vector, lane = schedule.split(columns, [None, facts.lanes])
            schedule.reorder(part, vector, lane)
            thread = schedule.fuse(part, vector)
            schedule.bind(thread, "threadIdx.x")
            if facts.lanes > 1:
                schedule.vectorize(lane)
        self.add_part(schedule.loops(self.products)[-2])

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

    def share_result(self, columns: list[str], workgroup: int) -> None:
        """Add the parts, and give the elements of the row to threads."""
        schedule, facts = self.schedule, self.facts
        for block in (facts.total, facts.product):
            schedule.set_scope(block, "local")
        share_out(schedule, facts.final, columns, workgroup)
        turn = schedule.loops(facts.final)[-1]
        schedule.compute_at(facts.product, turn)
        clear_first(schedule, facts.product)
        self.fold_together(facts.total)

    def fold_together(self, block: str) -> None:
        """Let the threads fold what they have for each key of a step. Their number divides the
        keys: a step reads nothing of the next one.
        """
        threads = next(n for n in divisors(self.keys, self.keys) if n * RADIX >= self.keys)
        fold_together(self.schedule, block, threads, threads if threads < 2 * RADIX else RADIX)

    def unroll(self, loop: str) -> None:
        """Write a loop out, or as much of it as `MAX_UNROLLED` allows."""
        factor = unroll_factor(self.schedule.extent(loop), MAX_UNROLLED)
        if factor != as_int(self.schedule.extent(loop)):
            _, loop = self.schedule.split(loop, [None, factor])
        self.schedule.unroll(loop)
