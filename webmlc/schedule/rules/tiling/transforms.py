"""The loops of small linear transforms of tiles, such as Winograd's.

In: stages of linear combinations (`core/combination.py`), where a short axis picks each row of a
combination. Out: the loops of the last stage, with loops over tiles apart from loops within a tile:

    y[h, w, c] = row h % 4 of lines[h // 4, ...]   ->   tiles: h // 4, w // 4; short: h % 4, w % 4

Tiles may interleave. The row is then a digit of the axis between two digits of the tile:

    y[w, c] = row w // 2 % 4 of ...                ->   tiles: w // 8, w % 2; short: w // 2 % 4
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
    digits = {digit.axis: digit for digit in map(_digit, picked) if digit is not None}
    for loop, axis in zip(loops, stage.axes, strict=False):
        if loop is None:
            continue
        if axis.var in picked:
            short.append(loop)
        elif (digit := digits.get(axis.var)) is not None:
            steps = [digit.step] if digit.step > 1 else []
            tile, inside, *phases = schedule.split(loop, [None, digit.period, *steps])
            tiles += [tile, *phases]
            short.append(inside)
        else:
            tiles.append(loop)
    return TileLoops(tuple(tiles), tuple(short), lane, stage.axes[0].var in picked)


def _picked(block: Block) -> frozenset[Expr]:
    """The indices that pick rows of the block's combinations: axes, or digits of axes."""
    return frozenset(c.row for c in combinations(block.body) if _is_short(c.row))


def _is_short(index: Expr) -> bool:
    """True for an axis, and for a digit of an axis."""
    return isinstance(index, Var) or _digit(index) is not None


@dataclass(frozen=True, slots=True)
class _Digit:
    """A digit of an axis, `axis // step % period`, or `axis // step - axis // (step · period) ·
    period` in canonical form.
    """

    axis: Var
    step: int
    period: int


def _digit(index: Expr) -> _Digit | None:
    """The digit that an index in canonical form is. `None` for other indices."""
    match index:
        case Call(op="floormod", args=(Var() as axis, Const(value=int() as period))):
            return _Digit(axis, 1, period)
        case Call(
            op="sub",
            args=(
                Call(op="floordiv", args=(Var() as axis, Const(value=int() as step))),
                Call(
                    op="mul",
                    args=(
                        Call(op="floordiv", args=(Var() as whole, Const(value=int() as product))),
                        Const(value=int() as period),
                    ),
                ),
            ),
        ) if axis == whole and product == step * period:
            return _Digit(axis, step, period)
    return None


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
