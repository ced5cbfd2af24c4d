"""Run the loop that stores a register tile one row at a time, instead of unrolling it.

Needs: vectors are expanded, unrolled loops are not, buffers have rank 1. Guarantees the same
results. An unrolled loop becomes serial if it reads the rows of local arrays that a serial loop
computed. Each iteration reads the first row, and then all rows move down by one. So indices of
local arrays remain literals, and the arrays remain registers.

before                                          after
    for i in T.unrolled(8):                         for i in range(8):
        C[T.ramp(p + i * 32, 1, 4)] =                   C[T.ramp(p + i * 32, 1, 4)] =
            Y[T.ramp(i * 4, 1, 4)]                          Y[T.ramp(0, 1, 4)]
                                                        Y[T.ramp(0, 1, 4)] = Y[T.ramp(4, 1, 4)]
                                                        ...
                                                        Y[T.ramp(24, 1, 4)] = Y[T.ramp(28, 1, 4)]

A software adapter compiles a load or store of a vector for 2 to 5 ms, and a move of registers for
much less. The moves take little time beside the loop that computed the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from webmlc.core.affine import split_linear
from webmlc.core.bounds import Interval, Ranges, bounds
from webmlc.core.expr import Const, Expr, Ramp, Var, as_int
from webmlc.core.rewrite import rewriter, substitute, variables
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    Buffer,
    For,
    If,
    Let,
    Load,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    accessed_buffers,
    loads,
    map_children,
    map_expressions,
    seq,
    stores,
    walk_statements,
)
from webmlc.target import VECTOR_LANES
from webmlc.target.scalar_replacement import private_buffers

FEWEST_ROWS = 3
"""The fewest rows for which a loop is worth its moves (derived: two rows are as much text as one
row and its moves)."""


def roll_epilogues(function: LoopFunction) -> LoopFunction:
    """Return `function` with serial loops over the rows of register tiles that it stores."""
    serial = (s for s in walk_statements(function.body) if isinstance(s, For))
    computed = {s.buffer for loop in serial if loop.kind == "serial" for s in stores(loop)}
    tiles = private_buffers(function) & computed
    return replace(function, body=_rolled(function.body, tiles, frozenset())) if tiles else function


def _rolled(root: Stmt, tiles: frozenset[Buffer], later: frozenset[Buffer]) -> Stmt:
    """Roll the loops outside serial loops, if no `later` statement accesses their tiles."""
    match root:
        case Seq(statements=statements):
            after = [*_accessed_after(statements, later)]
            return seq(*(_rolled(s, tiles, a) for s, a in zip(statements, after, strict=True)))
        case Let() | If(otherwise=None) | For(kind="thread_binding"):
            return map_children(root, lambda child: _rolled(child, tiles, later))
        case For(kind="unrolled", extent=Const(value=int() as rows)) if rows >= FEWEST_ROWS:
            return _rolled_loop(root, rows, tiles - later)
    return root


def _accessed_after(
    statements: Sequence[Stmt], later: frozenset[Buffer]
) -> Iterator[frozenset[Buffer]]:
    """The buffers that are accessed after each statement of a sequence."""
    after = [later]
    for stmt in reversed(statements[1:]):
        after.append(after[-1] | accessed_buffers(stmt))
    return reversed(after)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The elements of a row of a tile, and the lanes of a register."""

    elements: int
    lanes: int

    def moves(self, tile: Buffer, rows: int) -> list[Stmt]:
        """Move all rows but the first one down."""
        places = range(0, (rows - 1) * self.elements, self.lanes)
        return [
            Store(tile, self._register(to), Load(tile, self._register(to + self.elements)))
            for to in places
        ]

    def _register(self, first: int) -> tuple[Expr]:
        """The index of the register that begins at an element."""
        return (Const(first) if self.lanes == 1 else Ramp(Const(first), Const(1), self.lanes),)


def _rolled_loop(loop: For, rows: int, tiles: frozenset[Buffer]) -> Stmt:
    """The serial loop; the loop itself if it stores to a local array, or does not read local arrays
    row by row.
    """
    if any(store.buffer.scope == "local" for store in stores(loop.body)):
        return loop
    inner = (s for s in walk_statements(loop.body) if isinstance(s, For))
    ranges = {f.var: Interval(0, (as_int(f.extent) or 1) - 1) for f in inner}
    tile_rows: dict[Buffer, _Rows] = {}
    for load in loads(loop.body):
        if load.buffer.scope != "local" or loop.var not in variables(load):
            continue
        row = _row(load.indices[0], loop.var, ranges)
        is_alike = row is not None and tile_rows.setdefault(load.buffer, row) == row
        if load.buffer not in tiles or not is_alike:
            return loop
    if not tile_rows:
        return loop

    def in_first_row(node: Expr) -> Expr | None:
        match node:
            case Load(buffer=buffer, indices=(index,)) if buffer in tile_rows:
                return Load(buffer, (simplify(substitute(index, {loop.var: Const(0)})),))
        return None

    body = map_expressions(loop.body, rewriter(in_first_row))
    moves = [move for tile, row in tile_rows.items() for move in row.moves(tile, rows)]
    return replace(loop, kind="serial", body=seq(body, *moves))


def _row(index: Expr, var: Var, ranges: Ranges) -> _Rows | None:
    """The rows that a loop over `var` reads one after the other; None for any other index."""
    match index:
        case Ramp(base=base, stride=Const(value=1), width=width) if width == VECTOR_LANES:
            lanes = VECTOR_LANES
        case Ramp():
            return None
        case _:
            base, lanes = index, 1
    parts = split_linear(base, var)
    if parts is None:
        return None
    offset, step = parts[0], as_int(parts[1])
    if step is None or step < lanes or step % lanes:
        return None
    within = bounds(offset, ranges)
    return _Rows(step, lanes) if within.low >= 0 and within.high <= step - lanes else None
