"""Sums along outer axes: means of feature maps, sums of columns.

Neighbouring results (columns) are folded from neighbouring elements, over many rows. A workgroup
computes a few columns. Its threads stand side by side over the columns, so that they read lines of
memory, and below each other over the rows. Each thread folds every `down`th row in registers, with
several loads in flight. The threads of a column put their results into workgroup memory, where a
tree folds them, level by level. The threads of the last level also run the epilogue.

    for c: { for r: m[c] += x[r, c]; y[c] = m[c] / n }
    ->  for c / 16 (workgroups):  for t in 64, u in 4 threads: p[t, u] = sum(x[t::64, 4 * u : +4])
                                  for s in 16, u in 4 threads: q[s, u] = sum(p[s::16, u])
                                  for v in 4, u in 4 threads:  w[v, u] = sum(q[v::4, u])
                                  for u in 4 threads:          y[4 * u : +4] = sum(w[:, u]) / n
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from msgspec import Struct

from webmlc.core.expr import as_int
from webmlc.core.machine import MAX_INVOCATIONS, Gpu
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Block, LoopFunction, Store
from webmlc.schedule.analysis import has_vector_types
from webmlc.schedule.rules.rule import Rule
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.cover import divisors
from webmlc.schedule.rules.tiling.nests import (
    axes_of_kind,
    extent_of,
    fuse_all,
    live_axes,
    loops_along,
    result_axes,
    size_of,
)
from webmlc.schedule.rules.webgpu.fold_tile import (
    attach_epilogue,
    fold_with_followers,
    run_tile,
)
from webmlc.schedule.rules.webgpu.pointwise import lane_steps
from webmlc.schedule.rules.webgpu.reduction import has_adjacent_results
from webmlc.schedule.rules.webgpu.threads import bind_groups, put_in_shared_memory
from webmlc.schedule.rules.webgpu.window import SHORT_WINDOW
from webmlc.schedule.schedule import Schedule

ACROSS = 4
"""Threads side by side by default: as vectors, they read 64 bytes of a row, a line of most GPUs."""
NARROW_ACROSS = 2
"""Threads side by side where wider workgroups would be few. Derived: GPUs load sectors of 32 bytes,
and twice the workgroups with half the rows for each thread take half as long."""
FEW_WORKGROUPS = 32
"""Workgroups that are few: integrated GPUs have up to 16 cores, and each core runs two or more
workgroups (an estimate)."""
MOST_ACROSS = 32
"""Vectors of a row that a workgroup folds, at most."""
DOWN = (4, 8, 16, 32, 64, 128)
"""Threads below each other to choose from."""
MOST_STEPS = 8
"""The most rows that a thread loads before it adds them, by default: their loads are in flight
together. A load takes 0.8 us (measured on an H200, whose threads took 664 us for 784 rows each, one
by one)."""
ROWS_EACH = 2
"""Rows that a thread folds at least by default (an estimate: a barrier costs less than a load)."""
MANY_ROWS = 256
"""From this many rows, threads share rows even if the columns alone fill the GPU: the threads of a
column read more memory at once than a single thread does (an estimate)."""
MOST_SYMBOLS = 1
"""Symbolic sizes of a result that has few columns: a batch. The pixels of a feature map have two,
and are many (an estimate)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A fold with its epilogue. `rows`: the elements of a column, `None` if symbolic; `results`:
    the number of columns, with each symbol as 1; `vectors`: the number of vectors of neighbouring
    columns, 0 if columns do not make whole vectors.
    """

    fold: str
    rows: int | None
    results: int
    vectors: int
    lanes: int


class Parameters(Struct, frozen=True):
    """How a workgroup folds its columns."""

    across: int
    """Threads side by side. Each folds a vector of columns, or one column."""
    down: int
    """Threads that fold the rows of a column together."""
    is_vectorized: bool
    """Whether a thread folds a vector of columns."""
    steps: int
    """Rows of a thread in each iteration of its loop."""
    radix: int
    """Results that one thread folds at each level of the tree."""


def match(function: LoopFunction, machine: Gpu) -> Facts | None:
    """Matches a reduction of few neighbouring results with a pointwise epilogue, if a thread of
    the rule `window` would not have all its loads in flight.
    """
    fold = fold_with_followers(function)
    if fold is None or not machine.reads_lines or not has_adjacent_results(fold):
        return None
    rows = size_of([axis.extent for axis in axes_of_kind(fold, "reduce")])
    if rows is not None and (
        rows <= SHORT_WINDOW or (rows < MANY_ROWS and _are_many(fold, machine))
    ):
        return None
    extents = [as_int(simplify(axis.extent)) for axis in result_axes(fold)]
    columns = [n for n in extents if n != 1][-1]
    is_vector = isinstance(fold.body, Store) and has_vector_types(fold) and extents[-1] == columns
    steps = lane_steps(fold, result_axes(fold)[-1].var, machine.lanes) if is_vector else None
    has_vectors = steps is not None and columns is not None and columns % machine.lanes == 0
    vectors = columns // machine.lanes if has_vectors and columns is not None else 0
    results = prod(n or 1 for n in extents)
    return Facts(fold.name, rows, results, vectors, machine.lanes)


def _are_many(fold: Block, machine: Gpu) -> bool:
    """True if a thread for each vector of results fills the GPU."""
    extents = [as_int(simplify(axis.extent)) for axis in axes_of_kind(fold, "spatial")]
    if extents.count(None) > MOST_SYMBOLS:
        return True
    return prod(n or 1 for n in extents) >= machine.filling_threads * machine.lanes


def space(facts: Facts, _machine: Gpu) -> Product[Parameters]:
    """The shape of a workgroup, and how its threads load and fold."""
    return (
        Space.of(
            Parameters,
            across=tuple(sorted({2, 4, 8, 16, 32} | set(_widths(facts)))),
            down=DOWN,
            is_vectorized=(False, True) if facts.vectors else (False,),
            steps=(2, 4, MOST_STEPS),
            radix=(4, 8, 16),
        )
        .where(
            "every device runs workgroups of this size",
            lambda across, down: across * down <= MAX_INVOCATIONS,
        )
        .where(
            "workgroups have whole vectors",
            lambda across, is_vectorized: not is_vectorized or across in _widths(facts),
        )
        .where(
            "threads have rows to fold",
            lambda down: facts.rows is None or down * ROWS_EACH <= facts.rows,
        )
    )


def _widths(facts: Facts) -> tuple[int, ...]:
    """The numbers of vectors that divide the columns into workgroups without a remainder."""
    return divisors(facts.vectors, MOST_ACROSS) if facts.vectors else ()


def default(facts: Facts, machine: Gpu) -> Parameters:
    """Threads fold vectors if a workgroup has several vectors, or the only vector of the result.
    The threads below each other are as many as leave `ROWS_EACH` rows to each. The loads in flight
    are no more than the rows of a thread need.
    """
    widths = [n for n in _widths(facts) if n > 1 or facts.vectors == 1]
    are_few = facts.results < FEW_WORKGROUPS * ACROSS * facts.lanes
    width = NARROW_ACROSS if are_few else ACROSS
    across = min(widths, key=lambda n: abs(n - width), default=width * facts.lanes)
    most = MAX_INVOCATIONS // across
    if facts.rows is not None:
        most = min(most, facts.rows // ROWS_EACH)
    down = max(n for n in DOWN if n <= most)
    steps = MOST_STEPS
    while facts.rows is not None and steps > 2 and down * steps // 2 >= facts.rows:
        steps //= 2
    return Parameters(across, down, bool(widths), steps, machine.fold_radix)


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Give each thread its columns and its rows, and let a tree fold the threads' results."""
    spatial, reduced = attach_epilogue(schedule, facts.fold)
    column = _column_loop(schedule, facts.fold)
    outer = [loop for loop in spatial if loop != column]
    lane: list[str] = []
    if parameters.is_vectorized:
        column, *lane = schedule.split(column, [None, facts.lanes])
    groups, across = schedule.split(column, [None, parameters.across])
    tile = [across, *lane]
    schedule.reorder(*outer, groups, *tile)
    partials = _factor(schedule, facts.fold, reduced, parameters)
    # The last level of the tree and the epilogue stay in one nest.
    together = [name for name in schedule.blocks() if name not in partials]
    for loop in reversed(tile):
        schedule.fission(loop, together)
    for name in partials:
        _fold_apart(schedule, name, len(tile))
    levels = schedule.reduce_loops(facts.fold)
    for loop in levels:
        schedule.unroll(loop)
    loops = schedule.loops(facts.fold)
    across, *lane = loops[loops.index(groups) + 1 :][: len(tile)]
    schedule.bind(across, "threadIdx.x")
    run_tile(schedule, facts.fold, [], lane, levels)
    bind_groups(schedule, [*outer, groups])


def _column_loop(schedule: Schedule, fold: str) -> str:
    """The loop over the columns: the innermost one of the result that has several iterations."""
    block = schedule.block(fold)
    return loops_along(block, live_axes(result_axes(block)))[-1]


def _factor(schedule: Schedule, fold: str, reduced: list[str], parameters: Parameters) -> list[str]:
    """Divide a fold into levels of a tree; returns the blocks of all but the last level."""
    rows = fuse_all(schedule, reduced)
    size = parameters.down
    count = extent_of(schedule, rows)
    is_one_turn = count is not None and count <= size * parameters.steps
    widths = [size] if is_one_turn else [parameters.steps, size]
    *_, part = schedule.split(rows, [None, *widths])
    partials = [schedule.rfactor(part, 0)]
    while size > parameters.radix:
        size //= parameters.radix
        (level,) = schedule.reduce_loops(fold)
        _, part = schedule.split(level, [None, size])
        partials.append(schedule.rfactor(part, 0))
    return partials


def _fold_apart(schedule: Schedule, partial: str, depth: int) -> None:
    """Let each thread fold its part in registers, and put the result where all threads see it.
    `depth` loops over columns are around the part.
    """
    reduced = schedule.reduce_loops(partial)
    loops = schedule.loops(partial)
    part = loops[-1]
    tile = loops[: loops.index(reduced[0])][-depth:]
    schedule.reorder(part, *tile, *reduced)
    put_in_shared_memory(schedule, partial, tile[-1])
    schedule.unroll(reduced[-1])
    schedule.bind(part, "threadIdx.y")
    across, *lane = tile
    schedule.bind(across, "threadIdx.x")
    run_tile(schedule, partial, [], lane, reduced)


COLUMNS = Rule("columns", match, space, default, build, needs_proof=True)
