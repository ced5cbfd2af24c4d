"""Small linear transforms of tiles: Winograd's.

In: stages of linear combinations (`core/combination.py`). A short axis picks each row of a
combination, and the last stage writes the kernel's result. Out: one loop over tiles and vectors of
channels. Under it, every stage of a tile with its short axes unrolled: each row's sum is straight
code, and intermediate values are registers.

If the result is planes, each tile writes to all planes. The loop is then over cache lines of
channels:

    for tile, line:
        for b, vector(4): columns[b, 0:6, vector] = row 0, ..., row 5
        for i, vector(4): planes[i, 0:6, tile, line, vector] = row 0, ..., row 5

Planes that are a multiple of 4 KiB apart share a set of the cache. Their lines are made in a
`local` buffer, and each line is copied to its plane as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr
from webmlc.core.machine import Cpu
from webmlc.core.simplify import divides, simplify
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.analysis import is_vectorizable
from webmlc.schedule.primitives.prefetch import LINE_BYTES
from webmlc.schedule.rules.rule import rule_of
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.nests import extent_of
from webmlc.schedule.rules.tiling.transforms import (
    TileLoops,
    find_loops,
    picks_row,
    stages_of,
)
from webmlc.schedule.schedule import Schedule

LINE_ELEMENTS = LINE_BYTES // DType.float32.bytes
"""Elements of a cache line."""
FEW_VECTORS = 2
"""The most vectors of a loop that is unrolled, by default: the counter would cost more than the
body (measured on basic_pitch, with forms for long windows)."""


class TransformParameters(Struct, frozen=True):
    """The parameters of transforms of tiles."""

    channels: int
    """Channels that are transformed together."""
    has_lines: bool
    """Whether a tile's lines are computed in a `local` buffer and copied to their planes whole."""
    few_vectors: int
    """The most vectors of channels whose loop is unrolled."""


@dataclass(frozen=True, slots=True)
class TransformFacts:
    """Stages that transform tiles, of `channels` channels. `planes`: whether the result is planes;
    `plane_bytes`: the distance between planes.
    """

    producers: tuple[str, ...]
    last: str
    channels: int
    planes: bool
    plane_bytes: Expr
    lanes: int

    def space(self, machine: Cpu) -> Product[TransformParameters]:
        """Whole vectors of channels, up to a cache line."""
        return Space.of(
            TransformParameters,
            channels=self._widths(machine),
            has_lines=(False, True) if self.planes else (False,),
            few_vectors=(1, FEW_VECTORS, 4),
        )

    def default(self, machine: Cpu) -> TransformParameters:
        """One vector, or a cache line of each plane if the line divides the channels. Planes that
        share a set of the first-level cache get whole lines.
        """
        channels = self._widths(machine)[-1] if self.planes else machine.lanes
        aliases = divides(machine.way_bytes, self.plane_bytes, {})
        has_lines = self.planes and channels == LINE_ELEMENTS and aliases
        return TransformParameters(channels, has_lines, FEW_VECTORS)

    def _widths(self, machine: Cpu) -> tuple[int, ...]:
        """Whole vectors that divide the channels, up to a cache line."""
        widths = (vectors * machine.lanes for vectors in (1, 2, 4))
        return tuple(width for width in widths if self.channels % width == 0)

    def build(self, schedule: Schedule, parameters: TransformParameters) -> None:
        """Give each tile its stages."""
        self.build_tiles(schedule, find_loops(schedule, self.producers, self.last), parameters)

    def build_tiles(
        self, schedule: Schedule, loops: TileLoops, parameters: TransformParameters
    ) -> None:
        """Give each tile its stages, the last after its producers."""
        producers, last = self.producers, self.last
        tiles, short, lane = list(loops.tiles), list(loops.short), loops.lane
        if parameters.has_lines:
            names = schedule.loops(last)
            producers, last = (*producers, last), schedule.cache_write(last, "local")
            copied = dict(zip(names, schedule.loops(last), strict=True))
            tiles, short = ([copied[loop] for loop in group] for group in (tiles, short))
            lane = copied[lane]
        across, line = schedule.split(lane, [None, parameters.channels])
        schedule.reorder(*tiles, across, *short, line)
        for name in reversed(producers):
            schedule.compute_at(name, across)
            schedule.set_scope(name, "local")
        for name in (*producers, last):
            under = schedule.loops(name)
            inner = under[under.index(across) + 1 :]
            _finish(schedule, name, inner, self.lanes, parameters.few_vectors)


def transform_facts(
    schedule: Schedule, producers: Sequence[str], last: str, machine: Cpu, fixed: int = 0
) -> TransformFacts:
    """The facts of the transform of `last` and its producers, under `fixed` loops not its own."""
    trial = schedule.copy()
    loops = find_loops(trial, producers, last, fixed)
    plane: Expr = Const(DType.float32.bytes)
    for loop in (*loops.tiles, loops.lane):
        plane = plane * trial.extent(loop)
    channels = extent_of(trial, loops.lane) or 0
    return TransformFacts(
        tuple(producers), last, channels, loops.planes, simplify(plane), machine.lanes
    )


def _finish(schedule: Schedule, block: str, loops: list[str], lanes: int, few_vectors: int) -> None:
    """Order one stage's loops within a tile, and unroll some. In a tile of one vector, all loops
    are unrolled; else only the loops that pick a row. In a copy, the loop over the line is
    unrolled.
    """
    *short, line = loops
    picking = [loop for loop in short if picks_row(schedule, block, loop)]
    order = [*(loop for loop in short if loop not in picking), *picking]
    unrolled = order
    if extent_of(schedule, line) != lanes:
        vector, line = schedule.split(line, [None, lanes])
        order.insert(len(order) - len(picking), vector)
        unrolled = picking or [vector]
        if (extent_of(schedule, vector) or 0) <= few_vectors and vector not in unrolled:
            unrolled = [vector, *unrolled]
    schedule.reorder(*order, line)
    for loop in unrolled:
        if extent_of(schedule, loop) != 1:
            schedule.unroll(loop)
    if is_vectorizable(schedule.function, block, line, lanes):
        schedule.vectorize(line)


def match(function: LoopFunction, machine: Cpu) -> TransformFacts | None:
    """Matches stages of linear combinations. The last stage writes the kernel's result."""
    schedule = Schedule(function)
    stages = stages_of(schedule, machine.lanes)
    if stages is None:
        return None
    *producers, last = stages
    return transform_facts(schedule, producers, last, machine)


TRANSFORM = rule_of("transform", match)
