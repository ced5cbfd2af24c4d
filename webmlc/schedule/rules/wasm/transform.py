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

from webmlc.core.expr import Call, Const, Expr, Var, as_int
from webmlc.core.machine import Machine
from webmlc.core.rewrite import variables, walk
from webmlc.core.simplify import divides, simplify
from webmlc.loops.ir import Block, Buffer, Store, expressions, loads
from webmlc.schedule.analysis import fold_of, is_vectorizable
from webmlc.schedule.primitives.prefetch import LINE_BYTES
from webmlc.schedule.rules.wasm.nests import extent_of, is_parameter, written_buffer
from webmlc.schedule.schedule import Schedule

WAY_BYTES = 4096
"""Bytes of one way of the first-level cache: addresses so far apart share a set."""

FEW_VECTORS = 2
"""Vectors that a loop over them would take longer to count than to transform."""


def schedule_transform(schedule: Schedule, machine: Machine) -> bool:
    """Schedule a kernel of such stages; False where it is something else."""
    *producers, last = schedule.blocks()
    stages = [schedule.block(name) for name in (*producers, last)]
    if not producers or any(fold_of(s) is not None or not _picked(s) for s in stages):
        return False
    written = written_buffer(stages[-1])
    if written is None or not is_parameter(schedule.function, written):
        return False
    picked = set(_picked(stages[-1]))
    for producer in stages[:-1]:
        picked |= _read_where_picked(producer, stages[-1])
    outer, short, lane = _tile(schedule, last, picked)
    if (extent_of(schedule, lane) or 1) % machine.lanes:
        return False
    writes_planes = stages[-1].axes[0].var in picked
    width = _line(extent_of(schedule, lane) or 0, machine) if writes_planes else machine.lanes
    if width * written.dtype.bytes == LINE_BYTES and _alias(written):
        loops = schedule.loops(last)
        producers, last = [*producers, last], schedule.cache_write(last, "local")
        copied = dict(zip(loops, schedule.loops(last), strict=True))
        outer, short = [copied[loop] for loop in outer], [copied[loop] for loop in short]
        lane = copied[lane]
    across, line = schedule.split(lane, [None, width])
    schedule.reorder(*outer, across, *short, line)
    for name in reversed(producers):
        schedule.compute_at(name, across)
        schedule.set_scope(name, "local")
    for name in (*producers, last):
        loops = schedule.loops(name)
        _finish(schedule, name, loops[loops.index(across) + 1 :], machine)
    return True


def _alias(planes: Buffer) -> bool:
    """True where the lines that a tile writes to planes share a set of the first-level cache."""
    plane: Expr = Const(planes.dtype.bytes)
    for size in planes.shape[2:]:
        plane = plane * size
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


def _tile(schedule: Schedule, block: str, picked: set[Expr]) -> tuple[list[str], list[str], str]:
    """The loops of a block over whole tiles, within a tile (those that pick formulas), and along
    channels.
    """
    outer: list[str] = []
    short: list[str] = []
    *loops, lane = schedule.loops(block)
    for loop, axis in zip(loops, schedule.block(block).axes, strict=False):
        periods = [
            as_int(e.args[1]) for e in picked if isinstance(e, Call) and e.args[0] == axis.var
        ]
        if axis.var in picked:
            short.append(loop)
        elif periods:
            tile, inside = schedule.split(loop, [None, periods[0]])
            outer.append(tile)
            short.append(inside)
        else:
            outer.append(loop)
    return outer, short, lane


def _picked(block: Block) -> frozenset[Expr]:
    """What picks a formula: axes, or axes modulo a tile, that are compared with literals."""
    found: set[Expr] = set()
    for root in expressions(block.body):
        for node in walk(root):
            match node:
                case Call(op="select", args=(Call(op="eq", args=(index, Const())), _, _)):
                    if _is_short(index):
                        found.add(index)
    return frozenset(found)


def _is_short(index: Expr) -> bool:
    """True for an axis, or an axis modulo a literal."""
    match index:
        case Var() | Call(op="floormod", args=(Var(), Const())):
            return True
    return False


def _read_where_picked(producer: Block, reader: Block) -> set[Expr]:
    """The indices of `reader` along the dimensions of a producer's buffer that pick its formula."""
    assert isinstance(producer.body, Store)
    stored, picked = producer.body, _picked(producer)
    return {
        index
        for load in loads(reader.body)
        if load.buffer == stored.buffer
        for index, axis in zip(load.indices, stored.indices, strict=True)
        if axis in picked and _is_short(index)
    }


def _picks(schedule: Schedule, block: str, loop: str) -> bool:
    """True where a loop runs along an axis that picks the block's formula."""
    found = schedule.block(block)
    picked = {v for index in _picked(found) for v in variables(index)}
    return any(
        axis.var in picked and Var(loop) in variables(binding)
        for axis, binding in zip(found.axes, found.bindings, strict=True)
    )
