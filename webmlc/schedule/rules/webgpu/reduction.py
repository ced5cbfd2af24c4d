"""Long reductions: softmax, normalisations, sums along one axis or along all.

A workgroup computes a row of the last block. For each reduction that the row needs, every thread
folds each 64th element by itself. A tree folds the threads' partial results in workgroup memory. On
machines with subgroups, one loop over all partial results replaces the tree: the threads of each
subgroup share its iterations (`target/webgpu/subgroup_folds.py`). Then the threads share out the
elements of the row. Where barriers are slow and short rows are many, each row has a thread. If
symbols decide the length of rows, the kernel has both forms, and a run launches one form.

    m[i] = max(x[i, :]); y[i, :] = x[i, :] - m[i]
    ->  for i (workgroups):  for t in 64 threads: p[t] = max(x[i, t::64])
                             for u in 8 threads: q[u] = max(p[u::8])
                             m = max(q)                                       in every thread
                             for t in 64 threads: y[i, t::64] = x[i, t::64] - m
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from webmlc.core.bounds import SYMBOL
from webmlc.core.expr import Const, Expr, as_int, maximum, minimum
from webmlc.core.machine import MAX_INVOCATIONS, Gpu
from webmlc.core.rewrite import variables
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Block, LoopFunction, blocks, loads
from webmlc.schedule.analysis import axis_ranges, flat_index, stride
from webmlc.schedule.rules.rule import Rule, accepts
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.cover import write_out
from webmlc.schedule.rules.tiling.nests import (
    axes_of_kind,
    blocks_under,
    extent_of,
    fuse_all,
    live_axes,
    loop_of,
    product,
    reads,
    result_axes,
    size_of,
    written,
)
from webmlc.schedule.rules.webgpu.rows import clear_first, inline_stages, producers_of, row_axes
from webmlc.schedule.rules.webgpu.threads import put_in_shared_memory, workgroup_sizes
from webmlc.schedule.schedule import Schedule

STEPS = (1, 2, 4, 8, 16)
"""Elements that a thread may read at once: several independent loads take about as long as one
load."""
FEW_ROWS = 8
"""The fewest rows for which each row gets a thread, not a workgroup, where barriers are slow: the
lanes of two cores with four lanes each (derived)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A kernel whose blocks lead to one last block through long reductions. On machines with
    subgroups, a subgroup folds the partial results of a workgroup's threads at once. `are_short`: 1
    for the sizes at which each row has a thread, 0 for other sizes; `None` if no size has such
    rows.
    """

    function: LoopFunction
    has_subgroups: bool = False
    are_short: Expr | None = None


class Parameters(Struct, frozen=True):
    """How a workgroup folds a row."""

    workgroup: int
    """Threads that fold a row together."""
    radix: int
    """Results that one thread folds at each level of the tree."""
    steps: int = 1
    """Elements that a thread reads at once, at most."""


def match(function: LoopFunction, machine: Gpu) -> Facts | None:
    """Matches where all blocks lead to one last block through long reductions. Where barriers are
    slow, the rows are few, or may be longer than a thread folds.
    """
    schedule = Schedule(function)
    if not accepts(lambda: inline_stages(schedule)):
        return None
    inlined = schedule.function
    folds = [b for b in blocks(inlined.body) if axes_of_kind(b, "reduce")]
    if not any(is_long(fold, machine) for fold in folds) or any(map(has_adjacent_results, folds)):
        return None
    outputs = {b.name for b in function.output_params()}
    shared = set(written(inlined)) & outputs
    if any(shared & reads(b) for b in blocks(inlined.body)):
        return None  # an output that others read has to stay whole
    if not accepts(lambda: _final(schedule.copy())):
        return None  # a scan folds into the result itself
    final = schedule.block(_final(schedule))
    producers = [block.name for block in producers_of(schedule.function, final)]
    if {final.name, *producers} != set(schedule.blocks()):
        return None
    rows = row_axes(schedule.function, final)
    axes = axes_of_kind(final, "spatial")
    are_short: Expr | None = None
    if machine.has_slow_barriers:
        turns = [axes_of_kind(fold, "reduce") for fold in folds]
        turns.append(tuple(axis for axis in axes if axis.var not in rows))
        row_count = product(axis.extent for axis in axes if axis.var in rows)
        lengths = (product(axis.extent for axis in turn) for turn in turns)
        are_short = _are_short(row_count, sum(lengths, Const(0)), machine)
        if as_int(are_short) == 1:
            return None  # a thread for each row
        are_short = None if as_int(are_short) == 0 else are_short
    return Facts(function, "subgroups" in machine.features, are_short)


def _are_short(rows: Expr, length: Expr, machine: Gpu) -> Expr:
    """1 if there are many short rows, else 0. A row is short if one thread computes it in no more
    iterations than the machine allows. If only the number of rows is a symbol, the rows count as
    many.
    """
    ranges = dict.fromkeys(variables(rows) | variables(length), SYMBOL)
    limit = machine.thread_iterations
    fit = Const(1) if limit is None else minimum(maximum(limit + 1 - length, 0), 1)
    if as_int(simplify(fit, ranges)) == 1 and as_int(simplify(rows, ranges)) is None:
        return Const(1)
    return simplify(fit * minimum(rows // FEW_ROWS, 1), ranges)


def space(_facts: Facts, machine: Gpu) -> Product[Parameters]:
    """The threads, the levels of their tree, and the elements that a thread reads at once."""
    return Space.of(Parameters, workgroup=workgroup_sizes(machine), radix=(4, 8, 16), steps=STEPS)


def default(facts: Facts, machine: Gpu) -> Parameters:
    """The machine's threads for a row, and its tree. Each thread has at least two elements. On a
    GPU, a row gets more threads if a thread would have more elements than it folds fast by itself.
    """
    extents = [
        size_of([axis.extent for axis in axes_of_kind(block, "reduce")]) or machine.row_threads * 2
        for block in blocks(facts.function.body)
        if axes_of_kind(block, "reduce")
    ]
    is_long = machine.reads_lines and max(extents) > machine.row_threads * machine.short_fold
    most = MAX_INVOCATIONS if is_long else machine.row_threads
    threads = [n for n in workgroup_sizes(machine) if n <= most]
    short = [n for n in threads if 2 * n <= max(extents)]
    workgroup = max(short, default=threads[0])
    return Parameters(workgroup, machine.fold_radix, machine.fold_steps)


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Give each row to a workgroup."""
    inline_stages(schedule)
    last = _final(schedule)
    final = schedule.block(last)
    producers = [block.name for block in producers_of(schedule.function, final)]
    rows = row_axes(schedule.function, final)
    spatial = axes_of_kind(final, "spatial")
    outer = [n for a in spatial if a.var in rows and (n := loop_of(final, a)) is not None]
    inner = [n for a in spatial if a.var not in rows and (n := loop_of(final, a)) is not None]
    unit = schedule.add_unit_loop(last)
    schedule.reorder(unit, *outer, *inner)
    group = fuse_all(schedule, [unit, *outer])
    for name in producers:
        schedule.compute_at(name, group)
        schedule.set_scope(name, "local")
    if facts.are_short is not None:
        _give_short_rows_to_threads(schedule, unit, group, facts.are_short, parameters.workgroup)
    share_out(schedule, last, inner, parameters.workgroup, parameters.steps)
    workgroup, radix, steps = parameters.workgroup, parameters.radix, parameters.steps
    for name in producers:
        fold_together(schedule, name, Tree(workgroup, radix, steps, at_once=facts.has_subgroups))
    schedule.bind(group, "blockIdx.x")


def _give_short_rows_to_threads(
    schedule: Schedule, unit: str, row: str, are_short: Expr, size: int
) -> None:
    """Copy the nest under `unit` for sizes at which rows are short, and give each iteration of the
    copy of its loop `row` to a thread. A run leaves one of the two nests without workgroups.
    """
    names = blocks_under(schedule, unit)
    long, short = schedule.partition(unit, 1 - are_short)
    group, thread = schedule.split(short.loops[row], [None, size])
    for name in names[:-1]:
        clear_first(schedule, short.blocks[name])
    schedule.bind(group, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    for part in (long, short):
        schedule.bind(part.loop, "blockIdx.y")


def _final(schedule: Schedule) -> str:
    """The block that writes the result: the last block, or a copy of its fold."""
    last = schedule.blocks()[-1]
    is_fold = bool(axes_of_kind(schedule.block(last), "reduce"))
    return schedule.cache_write(last, "local") if is_fold else last


def is_long(fold: Block, machine: Gpu) -> bool:
    """True for a reduction of many elements, or of a symbolic number."""
    extent = size_of([axis.extent for axis in axes_of_kind(fold, "reduce")])
    return extent is None or extent >= machine.short_fold


def has_adjacent_results(fold: Block) -> bool:
    """True if neighbouring results are folded from neighbouring elements: threads that have a
    result each read memory in order.
    """
    reduced = {axis.var for axis in axes_of_kind(fold, "reduce")}
    axes = live_axes(result_axes(fold))
    if not axes:
        return False
    ranges = axis_ranges(fold)
    indices = [flat_index(load.buffer, load.indices) for load in loads(fold.body)]
    folded = [index for index in indices if variables(index) & reduced]
    return any(stride(index, axes[-1].var, ranges) == Const(1) for index in folded)


def share_out(schedule: Schedule, block: str, loops: list[str], size: int, steps: int = 1) -> None:
    """Give the elements of a row to threads in turn, with up to `steps` written out."""
    if not loops:
        schedule.bind(schedule.add_unit_loop(block), "threadIdx.x")
        return
    row = fuse_all(schedule, loops)
    turn, thread = schedule.split(row, [None, min(size, extent_of(schedule, row) or size)])
    schedule.reorder(thread, turn)
    write_out(schedule, turn, steps)
    schedule.bind(thread, "threadIdx.x")


@dataclass(frozen=True, slots=True)
class Tree:
    """How the `size` threads of a workgroup fold together: each thread folds alone, then a tree
    folds the results. At each level of the tree, a thread folds `radix` results. If `at_once`, one
    loop replaces the tree. With a `width`, the workgroup has rows of `width` threads. Up to `steps`
    iterations of a thread are written out.
    """

    size: int
    radix: int
    steps: int = 1
    width: int | None = None
    at_once: bool = False


def fold_together(schedule: Schedule, fold: str, tree: Tree) -> None:
    """Let the threads of a workgroup fold together; every thread has the result."""
    loops = schedule.reduce_loops(fold)
    if not loops:
        return  # each thread reads the only element
    size = tree.size
    loop = fuse_all(schedule, loops)
    while (extent_of(schedule, loop) or size) > tree.radix:
        _, part = schedule.split(loop, [None, size])
        partial = schedule.rfactor(part, -1)
        _fold_apart(schedule, partial, part, tree.width, tree.steps)
        loop = schedule.loops(fold)[-1]
        if tree.at_once:
            break
        size = max(1, size // tree.radix)
    clear_first(schedule, fold)
    if not tree.at_once:
        write_out(schedule, loop, tree.steps)


def _fold_apart(schedule: Schedule, partial: str, part: str, width: int | None, steps: int) -> None:
    """Each thread, an iteration of `part`, folds in a register and puts that where all see it."""
    loops = schedule.loops(partial)
    schedule.reorder(part, loops[loops.index(part) - 1])
    put_in_shared_memory(schedule, partial, part)
    clear_first(schedule, partial)
    write_out(schedule, schedule.reduce_loops(partial)[-1], steps)
    if width is not None:
        row, part = schedule.split(part, [None, width])
        schedule.bind(row, "threadIdx.y")
    schedule.bind(part, "threadIdx.x")


REDUCTION = Rule("reduction", match, space, default, build, needs_proof=True)
