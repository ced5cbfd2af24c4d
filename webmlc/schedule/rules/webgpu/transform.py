"""Small linear transforms of tiles: Winograd's.

In: stages of linear combinations (`core/combination.py`). A short axis picks each row of a
combination, and the last stage writes the kernel's result. Out: a thread for each tile and each
channel, or each vector of channels. The thread computes all stages of its tile. Their short axes
are unrolled, so that intermediate values are registers:

    planes[i, j, y, x, c] = row j of columns[y, x, ..., i, c]
    ->  thread y, x, c: 36 inputs; columns = 36 sums of them; 36 sums of columns -> planes[..., c]
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from webmlc.core.machine import Gpu
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.analysis import is_vectorizable
from webmlc.schedule.rules.rule import Rule
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.transforms import find_loops, picks_row, stages_of
from webmlc.schedule.rules.webgpu.threads import bind_threads, workgroup_sizes
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Facts:
    """A kernel of transforms of tiles: its stages. The last stage writes the result."""

    stages: tuple[str, ...]
    lanes: int


class Parameters(Struct, frozen=True):
    """How tiles become threads."""

    workgroup: int
    """Invocations of a workgroup."""
    is_vectorized: bool
    """Whether a thread computes a vector of channels of its tile, or one channel."""


def match(function: LoopFunction, machine: Gpu) -> Facts | None:
    """Matches stages of linear combinations. The last stage writes the kernel's result."""
    stages = stages_of(Schedule(function), machine.lanes)
    return None if stages is None else Facts(stages, machine.lanes)


def space(_facts: Facts, machine: Gpu) -> Product[Parameters]:
    """All sizes of workgroups, with and without vectors."""
    return Space.of(Parameters, workgroup=workgroup_sizes(machine), is_vectorized=(False, True))


def default(_facts: Facts, machine: Gpu) -> Parameters:
    """One channel a thread. Vectors of all intermediate values would take too many
    registers, and a shader four times as long to compile on a software adapter. The threads of a
    GPU read a line together.
    """
    return Parameters(machine.workgroup_size, is_vectorized=False)


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Give each thread all stages of its tile."""
    *producers, last = facts.stages
    loops = find_loops(schedule, producers, last)
    outer, vector = [*loops.tiles, loops.lane], list[str]()
    if parameters.is_vectorized:
        outer[-1], lane = schedule.split(loops.lane, [None, facts.lanes])
        vector = [lane]
    schedule.reorder(*outer, *loops.short, *vector)
    thread = bind_threads(schedule, outer, parameters.workgroup)
    assert thread is not None
    for name in reversed(producers):
        schedule.compute_at(name, thread)
        schedule.set_scope(name, "local")
    for name in facts.stages:
        under = schedule.loops(name)
        inner = under[under.index(thread) + 1 :]
        if parameters.is_vectorized and is_vectorizable(
            schedule.function, name, inner[-1], facts.lanes
        ):
            schedule.vectorize(inner.pop())
        _unroll(schedule, name, inner)


def _unroll(schedule: Schedule, block: str, loops: list[str]) -> None:
    """Unroll a stage of a tile. Loops that pick its row are innermost: the rows share sums."""
    order = sorted(loops, key=lambda loop: picks_row(schedule, block, loop))
    if len(order) > 1:
        schedule.reorder(*order)
    for loop in order:
        schedule.unroll(loop)


TRANSFORM = Rule("transform", match, space, default, build)
