"""The loops of small linear transforms of tiles, such as Winograd's.

In: stages of linear combinations (`core/combination.py`), where a short axis picks each row of a
combination. Out: the loops of the last stage, with loops over tiles apart from loops within a tile:

    y[h, w, c] = row h % 4 of lines[h // 4, ...]   ->   tiles: h // 4, w // 4; short: h % 4, w % 4
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from webmlc.core.expr import Call, Const, Expr, Var, as_int
from webmlc.core.rewrite import variables
from webmlc.loops.ir import Block, Store, loads
from webmlc.loops.write_out_combinations import combinations
from webmlc.schedule.analysis import fold_of
from webmlc.schedule.rules.tiling.nests import axis_loops, is_parameter, written_buffer
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class TileLoops:
    """The loops of a stage: over whole tiles, within a tile (they pick rows), and along channels.
    `planes`: the outermost picks, so that a tile is written to planes.
    """

    tiles: tuple[str, ...]
    short: tuple[str, ...]
    lane: str
    planes: bool


def is_transform(schedule: Schedule, stages: Sequence[str], lanes: int) -> bool:
    """True if every stage is a linear combination, and channels fill vectors."""
    blocks = [schedule.block(name) for name in stages]
    if not blocks or any(fold_of(b) is not None or not combinations(b.body) for b in blocks):
        return False
    return (as_int(blocks[-1].axes[-1].extent) or 1) % lanes == 0


def stages_of(schedule: Schedule, lanes: int) -> tuple[str, ...] | None:
    """The stages of a kernel, if all are linear combinations and the last stage writes the kernel's
    result; `None` for other kernels.
    """
    stages = tuple(schedule.blocks())
    results = [written_buffer(schedule.block(name)) for name in stages]
    is_output = [buffer and is_parameter(schedule.function, buffer) for buffer in results]
    if None in is_output or any(is_output[:-1]) or not is_output[-1]:
        return None
    return stages if is_transform(schedule, stages, lanes) else None


def find_loops(
    schedule: Schedule, producers: Sequence[str], last: str, fixed: int = 0
) -> TileLoops:
    """The loops of a stage, after loops along tiles are split from loops within tiles. The
    outermost `fixed` loops are not its own.
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
    """The indices that pick rows of the block's combinations: axes, or axes modulo a tile."""
    return frozenset(c.row for c in combinations(block.body) if _is_short(c.row))


def _is_short(index: Expr) -> bool:
    """True for an axis, and for an axis modulo a tile."""
    match index:
        case Var() | Call(op="floormod", args=(Var(), Const())):
            return True
    return False


def _read_where_picked(producer: Block, reader: Block) -> set[Expr]:
    """The indices of `reader` along the dimensions of a producer's buffer that pick its rows."""
    assert isinstance(producer.body, Store)
    stored, picked = producer.body, _picked(producer)
    return {
        index
        for load in loads(reader.body)
        if load.buffer == stored.buffer
        for index, axis in zip(load.indices, stored.indices, strict=True)
        if axis in picked and _is_short(index)
    }


def picks_row(schedule: Schedule, block: str, loop: str) -> bool:
    """True if a loop runs along an axis that picks a row of the block's combination."""
    stage = schedule.block(block)
    picked = {v for index in _picked(stage) for v in variables(index)}
    return any(
        axis.var in picked and Var(loop) in variables(binding)
        for axis, binding in stage.bound_axes()
    )
