"""A fold that is not a matrix product: pooling, depthwise convolution, sums along any axes.

A thread computes 4 adjacent elements of the result (channels), and a few neighbours along the axis
before, which share loads. Short windows are unrolled. If 4 adjacent elements read differently, as
in groups of 34 channels, a thread of a software adapter computes two adjacent elements.

    Y[n, y, x, c] = max(Y, X[n, y * 2 + ky, x * 2 + kx, c])   ->   for each y, x / 4, c / 4: 3 · 3 ·
    4 loads of a vec4
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from webmlc.core.machine import WORD_BYTES, Gpu
from webmlc.loops.ir import LoopFunction, Store, blocks
from webmlc.schedule.analysis import accesses, has_vector_types
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.rules.rule import Rule
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.cover import divisors
from webmlc.schedule.rules.tiling.nests import axes_of_kind, extent_of, result_axes, size_of
from webmlc.schedule.rules.webgpu.fold_tile import (
    attach_epilogue,
    fold_with_followers,
    run_tile,
)
from webmlc.schedule.rules.webgpu.pointwise import lane_steps
from webmlc.schedule.rules.webgpu.threads import bind_threads, workgroup_sizes
from webmlc.schedule.schedule import Schedule

SHORT_WINDOW = 12
"""Elements of the largest window that is unrolled by default: 3x3, and 12 of a row. Longer windows
would make long shaders if unrolled (an estimate, as old as the rule)."""
LARGEST_WINDOW = 32
"""Elements of the largest window that may be unrolled: 5x5 and a few more."""
NEIGHBOURS = 4
"""Neighbours along a row that a thread computes by default (an estimate, as old as the rule)."""
MOST_NEIGHBOURS = 8
"""Neighbours along a row that a thread may compute: their sums are registers."""
PAIR = 2
"""Adjacent results that share loads if vectors do not."""
FEW_RESULTS = 512
"""With fewer vectors of results, a thread folds a long window to a single result by default: an
integrated GPU has about a thousand lanes (`core/adapters.py`), and vectors would leave most lanes
idle."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A fold with its epilogue. `window`: the elements of a window, `None` if symbolic; `row`: the
    results along the axis before the last, 1 if neighbours share no loads; `results`: the number of
    results, `None` if symbolic; `has_vectors`: whether the results along the last axis make whole
    vectors; `has_pairs`: whether a thread of a long window computes pairs of results, which share
    loads; `has_words`: whether all elements are words of four bytes.
    """

    fold: str
    window: int | None
    row: int
    results: int | None
    has_vectors: bool
    lanes: int
    has_pairs: bool = False
    has_words: bool = True


class Parameters(Struct, frozen=True):
    """How the results become threads."""

    workgroup: int
    """Invocations of a workgroup."""
    is_vectorized: bool
    """Whether a thread computes a vector of adjacent results, or one result."""
    neighbours: int
    """Vectors, or single results, along a row that a thread computes."""
    is_unrolled: bool
    """Whether the window is unrolled."""


def match(function: LoopFunction, machine: Gpu) -> Facts | None:
    """Matches one reduction with a pointwise epilogue."""
    fold = fold_with_followers(function)
    if fold is None or not axes_of_kind(fold, "spatial"):
        return None
    schedule = Schedule(function)
    try:
        spatial, reduced = attach_epilogue(schedule, fold.name)
    except ScheduleError:  # the epilogue reads another element than the finished one
        return None
    if not spatial or not reduced:
        return None
    is_vector = isinstance(fold.body, Store) and has_vector_types(fold)
    axis = result_axes(fold)[-1].var
    steps = lane_steps(fold, axis, machine.lanes) if is_vector else None
    last = extent_of(schedule, spatial[-1])
    has_vectors = steps is not None and last is not None and last % machine.lanes == 0
    row = extent_of(schedule, spatial[-2]) if len(spatial) > 2 else 1
    window = size_of([schedule.extent(loop) for loop in reduced])
    results = size_of([schedule.extent(loop) for loop in spatial])
    near = 1 if row is None else row
    can_pair = not machine.reads_lines and last is not None and last % PAIR == 0
    has_pairs = can_pair and 0 in (lane_steps(fold, axis, PAIR) or ())
    accessed = [access for block in blocks(function.body) for access in accesses(block)]
    return Facts(
        fold.name,
        window,
        near,
        results,
        has_vectors,
        machine.lanes,
        has_pairs,
        has_words=all(access.buffer.dtype.bytes == WORD_BYTES for access in accessed),
    )


def space(facts: Facts, machine: Gpu) -> Product[Parameters]:
    """Workgroups, vectors and their neighbours, and whether the window is unrolled."""
    can_unroll = facts.window is not None and facts.window <= LARGEST_WINDOW
    return Space.of(
        Parameters,
        workgroup=workgroup_sizes(machine),
        is_vectorized=(False, True) if facts.has_vectors else (False,),
        neighbours=divisors(facts.row, MOST_NEIGHBOURS),
        is_unrolled=(False, True) if can_unroll else (False,),
    )


def default(facts: Facts, machine: Gpu) -> Parameters:
    """Threads compute vectors if the results make vectors; for a long window, there must also be
    enough vectors. A short window is unrolled, and neighbours share its loads. Neighbours also
    share the loads of a long window if a thread is fastest by itself and enough threads are left.
    Where four threads run at once, they load four adjacent words in one access, so that each
    computes single results. Single elements of a word would be stored one after the other.
    """
    is_short = facts.window is not None and facts.window <= SHORT_WINDOW
    are_few = facts.results is not None and facts.results < FEW_RESULTS * facts.lanes
    has_vectors = facts.has_vectors and (is_short or not are_few)
    neighbours = divisors(facts.row, NEIGHBOURS)[-1] if is_short and has_vectors else 1
    if not is_short and not machine.reads_lines and facts.results is not None:
        width = PAIR if facts.has_pairs else 1
        threads = facts.results // (facts.lanes if has_vectors else width)
        counts = divisors(facts.row, MOST_NEIGHBOURS)
        neighbours = max(n for n in counts if n == 1 or threads // n >= machine.product_threads)
    if is_short and facts.has_words and "quads" in machine.features:
        has_vectors = False
    return Parameters(machine.workgroup_size, has_vectors, neighbours, is_short)


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Give each thread its vectors and the window's loops around them."""
    spatial, reduced = attach_epilogue(schedule, facts.fold)
    outer, neighbour, pair, lanes = list(spatial), list[str](), list[str](), list[str]()
    if parameters.is_vectorized:
        outer[-1], *lanes = schedule.split(spatial[-1], [None, facts.lanes])
    elif facts.has_pairs and not parameters.is_unrolled:
        outer[-1], *pair = schedule.split(spatial[-1], [None, PAIR])
    if parameters.neighbours > 1:
        outer[-2], *neighbour = schedule.split(outer[-2], [None, parameters.neighbours])
    unrolled = [*neighbour, *pair]
    schedule.reorder(*outer, *unrolled, *lanes)
    thread = bind_threads(schedule, outer, parameters.workgroup)
    assert thread is not None
    if parameters.is_unrolled:
        for loop in reduced:
            schedule.unroll(loop)
    run_tile(schedule, facts.fold, unrolled, lanes, reduced)


WINDOW = Rule("window", match, space, default, build)
