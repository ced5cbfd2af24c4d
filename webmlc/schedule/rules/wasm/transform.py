"""Small linear transforms of tiles: Winograd's.

In: pointwise stages of which each element picks its formula by a short axis (`select(i == 0, ...,
select(i == 1, ...))`), the last one writing the kernel's result. Out: one loop over tiles and over
vectors of channels; under it every stage of a tile, its short axes unrolled, so that each formula
is straight code and intermediate values are registers.
"""

from __future__ import annotations

from webmlc.core.expr import Call, Const, Expr, Var, as_int
from webmlc.core.machine import Machine
from webmlc.core.rewrite import variables, walk
from webmlc.loops.ir import Block, Store, expressions, loads
from webmlc.schedule.analysis import fold_of, is_vectorizable
from webmlc.schedule.rules.wasm.nests import extent_of, is_parameter, written_buffer
from webmlc.schedule.schedule import Schedule


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
    across, lanes = schedule.split(lane, [None, machine.lanes])
    schedule.reorder(*outer, across, *short, lanes)
    for name in reversed(producers):
        schedule.compute_at(name, across)
        schedule.set_scope(name, "local")
        loops = schedule.loops(name)
        own = loops[loops.index(across) + 1 :]
        first = [loop for loop in own[:-1] if not _picks(schedule, name, loop)]
        rest = [loop for loop in own[:-1] if loop not in first]
        schedule.reorder(*first, *rest, own[-1])
        _finish(schedule, name, (*first, *rest), own[-1], machine)
    _finish(schedule, last, short, lanes, machine)
    return True


def _finish(
    schedule: Schedule, block: str, short: list[str] | tuple[str, ...], lanes: str, machine: Machine
) -> None:
    for loop in short:
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
