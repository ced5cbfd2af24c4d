"""Small linear transforms of tiles: Winograd's.

In: pointwise stages of which each element picks its formula by a short axis (`select(i == 0, ...,
select(i == 1, ...))`), the last one writing the kernel's result. Out: one loop over tiles and over
vectors of channels; under it every stage of a tile, its short axes unrolled, so that each formula
is straight code and intermediate values are registers.

Where the result is planes, each tile writes to all of them. There the loop is over cache lines of
channels:

    for tile, line:
        for b, vector(4): columns[b, 0:6, vector] = formula 0, ..., formula 5
        for i, vector(4): planes[i, 0:6, tile, line, vector] = formula 0, ..., formula 5

Planes that are a multiple of 4 KiB apart share a set of the cache: there the lines are made in a
`local` buffer, and each is copied to its plane as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from webmlc.core.dtypes import DType
from webmlc.core.expr import Call, Const, Expr, Var, as_int
from webmlc.core.machine import Machine
from webmlc.core.rewrite import variables, walk
from webmlc.core.simplify import divides, simplify
from webmlc.loops.ir import Block, Store, expressions, loads
from webmlc.schedule.analysis import fold_of, is_vectorizable
from webmlc.schedule.primitives.prefetch import LINE_BYTES
from webmlc.schedule.rules.wasm.nests import (
    axis_loops,
    extent_of,
    is_parameter,
    written_buffer,
)
from webmlc.schedule.schedule import Schedule

WAY_BYTES = 4096
"""Bytes of one way of the first-level cache: addresses so far apart share a set."""

LINE_ELEMENTS = LINE_BYTES // DType.float32.bytes

FEW_VECTORS = 2
"""Vectors that a loop over them would take longer to count than to transform."""


def schedule_transform(schedule: Schedule, machine: Machine) -> bool:
    """Schedule a kernel of such stages; False where it is something else."""
    *producers, last = schedule.blocks()
    written = written_buffer(schedule.block(last))
    if written is None or not is_parameter(schedule.function, written):
        return False
    if not is_transform(schedule, (*producers, last), machine):
        return False
    transform_tiles(schedule, producers, last, find_loops(schedule, producers, last), machine)
    return True


@dataclass(frozen=True, slots=True)
class TileLoops:
    """The loops of a stage: over whole tiles, within a tile (they pick its formulas), and along
    channels. `planes`: the outermost picks, so that a tile is written to planes.
    """

    tiles: tuple[str, ...]
    short: tuple[str, ...]
    lane: str
    planes: bool


def is_transform(schedule: Schedule, stages: Sequence[str], machine: Machine) -> bool:
    """True where every stage picks its formulas, and channels fill vectors."""
    found = [schedule.block(name) for name in stages]
    if not found or any(fold_of(s) is not None or not _picked(s) for s in found):
        return False
    return (as_int(found[-1].axes[-1].extent) or 1) % machine.lanes == 0


def transform_tiles(
    schedule: Schedule, producers: Sequence[str], last: str, loops: TileLoops, machine: Machine
) -> None:
    """Give each tile its stages, `last` after its producers."""
    tiles, short, lane = list(loops.tiles), list(loops.short), loops.lane
    width = _line(extent_of(schedule, lane) or 0, machine) if loops.planes else machine.lanes
    if width == LINE_ELEMENTS and _alias(schedule, loops):
        own = schedule.loops(last)
        producers, last = [*producers, last], schedule.cache_write(last, "local")
        copied = dict(zip(own, schedule.loops(last), strict=True))
        tiles, short = ([copied[loop] for loop in names] for names in (tiles, short))
        lane = copied[lane]
    across, line = schedule.split(lane, [None, width])
    schedule.reorder(*tiles, across, *short, line)
    for name in reversed(producers):
        schedule.compute_at(name, across)
        schedule.set_scope(name, "local")
    for name in (*producers, last):
        under = schedule.loops(name)
        _finish(schedule, name, under[under.index(across) + 1 :], machine)


def _alias(schedule: Schedule, loops: TileLoops) -> bool:
    """True where the lines that a tile writes to planes share a set of the first-level cache."""
    plane: Expr = Const(DType.float32.bytes)
    for loop in (*loops.tiles, loops.lane):
        plane = plane * schedule.extent(loop)
    return divides(WAY_BYTES, simplify(plane), {})


def _line(extent: int, machine: Machine) -> int:
    """Channels that are transformed together: a cache line of them, or as many vectors as divide
    them evenly.
    """
    widths = [vectors * machine.lanes for vectors in (4, 2, 1)]
    return next(width for width in widths if extent % width == 0)


def _finish(schedule: Schedule, block: str, loops: list[str], machine: Machine) -> None:
    """Order one stage's loops within a tile, and unroll them: all in a tile of one vector, else
    those that pick its formula; of a copy, its line.
    """
    *short, lanes = loops
    picking = [loop for loop in short if _picks(schedule, block, loop)]
    order = [*(loop for loop in short if loop not in picking), *picking]
    unrolled = order
    if extent_of(schedule, lanes) != machine.lanes:
        vector, lanes = schedule.split(lanes, [None, machine.lanes])
        order.insert(len(order) - len(picking), vector)
        unrolled = picking or [vector]
        if (extent_of(schedule, vector) or 0) <= FEW_VECTORS and vector not in unrolled:
            unrolled = [vector, *unrolled]
    schedule.reorder(*order, lanes)
    for loop in unrolled:
        if extent_of(schedule, loop) != 1:
            schedule.unroll(loop)
    if is_vectorizable(schedule.function, block, lanes, machine.lanes):
        schedule.vectorize(lanes)


def find_loops(
    schedule: Schedule, producers: Sequence[str], last: str, fixed: int = 0
) -> TileLoops:
    """The loops of a stage, those split that run along tiles and within them; the outermost `fixed`
    ones are not its own.
    """
    stage = schedule.block(last)
    picked = set(_picked(stage))
    for producer in producers:
        picked |= _read_where_picked(schedule.block(producer), stage)
    tiles: list[str] = []
    short: list[str] = []
    *loops, lane = axis_loops(schedule, last, fixed)
    assert lane is not None
    for loop, axis in zip(loops, stage.axes, strict=False):
        if loop is None:
            continue
        periods = [
            as_int(e.args[1]) for e in picked if isinstance(e, Call) and e.args[0] == axis.var
        ]
        if axis.var in picked:
            short.append(loop)
        elif periods:
            tile, inside = schedule.split(loop, [None, periods[0]])
            tiles.append(tile)
            short.append(inside)
        else:
            tiles.append(loop)
    return TileLoops(tuple(tiles), tuple(short), lane, stage.axes[0].var in picked)


def _picked(block: Block) -> frozenset[Expr]:
    """What picks a formula: axes, or axes modulo a tile, that are compared with all their values
    but the last.
    """
    found: dict[Expr, set[int]] = {}
    for root in expressions(block.body):
        for node in walk(root):
            match node:
                case Call(op="select", args=(Call(op="eq", args=(index, Const() as value)), _, _)):
                    found.setdefault(index, set()).add(as_int(value) or 0)
    sizes = {index: _values(index, block) for index in found}
    return frozenset(
        index for index, size in sizes.items() if size and found[index] == set(range(size - 1))
    )


def _values(index: Expr, block: Block) -> int | None:
    """How many values an axis has, or an axis modulo a literal; `None` for another index."""
    match index:
        case Var():
            return next((as_int(axis.extent) for axis in block.axes if axis.var == index), None)
        case Call(op="floormod", args=(Var(), Const() as size)):
            return as_int(size)
    return None


def _read_where_picked(producer: Block, reader: Block) -> set[Expr]:
    """The indices of `reader` along the dimensions of a producer's buffer that pick its formula."""
    assert isinstance(producer.body, Store)
    stored, picked = producer.body, _picked(producer)
    return {
        index
        for load in loads(reader.body)
        if load.buffer == stored.buffer
        for index, axis in zip(load.indices, stored.indices, strict=True)
        if axis in picked and _values(index, reader) is not None
    }


def _picks(schedule: Schedule, block: str, loop: str) -> bool:
    """True where a loop runs along an axis that picks the block's formula."""
    found = schedule.block(block)
    picked = {v for index in _picked(found) for v in variables(index)}
    return any(
        axis.var in picked and Var(loop) in variables(binding)
        for axis, binding in zip(found.axes, found.bindings, strict=True)
    )
