"""The grid of a kernel: which workgroups and threads its thread loops stand for.

In: a legalised function whose `thread_binding` loops are bound to `blockIdx.*` and `threadIdx.*`.
Out: a `Grid`: the workgroup size, the number of workgroups to dispatch (expressions over the
symbols), and where each section of the body begins among them. A body that is several nests in
sequence (a tiled part and its remainder) becomes one dispatch whose workgroups are shared out, so
no section may read what another writes: a dispatch has no barrier across workgroups.

    for b in T.thread_binding(98, "blockIdx.x"): ...      section 0: workgroups 0 to 97
    for c in T.thread_binding(2, "blockIdx.x"): ...       section 1: workgroups 98 and 99
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from webmlc.core.errors import InternalError
from webmlc.core.expr import Const, Expr, as_int, maximum
from webmlc.core.machine import MAX_INVOCATIONS
from webmlc.core.simplify import prove_equal, simplify
from webmlc.loops.ir import (
    For,
    Let,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    loads,
    seq,
    stores,
    walk_statements,
)

LARGEST_GRID = 65_535
"""Workgroups along one dimension of a dispatch: the default limit of WebGPU."""

_BLOCKS = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
_THREADS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


@dataclass(frozen=True, slots=True)
class Section:
    """Statements that `count` workgroups run, from workgroup `first` on; `blocks` are the extents
    of blockIdx x, y, z.
    """

    body: Stmt
    blocks: tuple[Expr, Expr, Expr]
    first: Expr
    count: Expr


@dataclass(frozen=True, slots=True)
class Grid:
    """A kernel's launch: its sections, its workgroup size, and the workgroups to dispatch.

    `is_linear`: workgroups are numbered through x, then y, in rows of the dispatched x, and those
    past `total` have nothing to do; else blockIdx x, y, z are the dispatched dimensions.
    """

    sections: tuple[Section, ...]
    workgroup_size: tuple[int, int, int]
    workgroups: tuple[Expr, Expr, Expr]
    total: Expr
    is_linear: bool


def grid_of(function: LoopFunction) -> Grid:
    """The grid of a function; raises InternalError where its sections cannot run side by side, or
    need more invocations than a workgroup has.
    """
    lets, nests = _parts(function)
    parts = [nest for _, nest in nests]
    _check_independent(function, parts)
    sections: list[Section] = []
    first: Expr = Const(0)
    for fills, part in nests:
        blocks = _extents(function, part, _BLOCKS)
        count = simplify(blocks[0] * blocks[1] * blocks[2])
        sections.append(Section(_rewrap(lets, seq(fills, part)), blocks, first, count))
        first = simplify(first + count)
    sizes = [_extents(function, part, _THREADS) for part in parts]
    size = tuple(max(_literal(function, s[axis]) for s in sizes) for axis in range(3))
    assert len(size) == 3
    if math.prod(size) > MAX_INVOCATIONS:
        raise InternalError(
            f"webgpu: kernel {function.name}: its sections need workgroups of {size} invocations, "
            f"more than {MAX_INVOCATIONS} together"
        )
    total = first
    direct = [as_int(extent) for extent in sections[0].blocks]
    if len(sections) == 1 and all(d is not None and d <= LARGEST_GRID for d in direct):
        return Grid(tuple(sections), size, sections[0].blocks, total, False)
    count_or_none = as_int(total)
    if count_or_none is not None and count_or_none <= LARGEST_GRID:
        return Grid(tuple(sections), size, (total, Const(1), Const(1)), total, True)
    rows = simplify((total + (LARGEST_GRID - 1)) // LARGEST_GRID)
    if count_or_none is None:
        rows = maximum(rows, 1)
    columns = simplify((total + rows - 1) // rows)
    return Grid(tuple(sections), size, (columns, rows, Const(1)), total, True)


def _parts(function: LoopFunction) -> tuple[tuple[Let, ...], list[tuple[Stmt, Stmt]]]:
    """The lets around the whole body; the nests of thread loops, each with what fills its registers
    before it.
    """
    body = function.body
    lets: list[Let] = []
    while isinstance(body, Let):
        lets.append(body)
        body = body.body
    own = {b.name for b in function.allocations if b.scope == "local"}
    fills: list[Store] = []
    nests: list[tuple[Stmt, Stmt]] = []
    if not any(bindings(body)):
        return tuple(lets), [(Seq(()), body)]  # one thread does it all
    statements = body.statements if isinstance(body, Seq) else (body,)
    for position, stmt in enumerate(statements):
        match stmt:
            case Store(buffer=buffer) if buffer.name in own and position < len(statements) - 1:
                fills.append(stmt)
            case _:
                nests.append((_needed(fills, stmt), stmt))
    return tuple(lets), nests


def _needed(fills: list[Store], nest: Stmt) -> Stmt:
    """Of the stores before a nest those whose registers it reads, directly or not."""
    read = {load.buffer.name for load in loads(nest)}
    kept: list[Store] = []
    for fill in reversed(fills):
        if fill.buffer.name in read:
            kept.append(fill)
            read |= {load.buffer.name for load in loads(fill)}
    return seq(*reversed(kept))


def _rewrap(lets: tuple[Let, ...], body: Stmt) -> Stmt:
    for let in reversed(lets):
        body = Let(let.var, let.value, body)
    return body


def _check_independent(function: LoopFunction, parts: list[Stmt]) -> None:
    written = [{s.buffer.name for s in stores(part)} for part in parts]
    for position, part in enumerate(parts):
        others = set().union(*(w for p, w in enumerate(written) if p != position))
        read = ({load.buffer.name for load in loads(part)} & others) - written[position]
        if read:
            raise InternalError(
                f"webgpu: kernel {function.name}: one of its {len(parts)} top-level loop nests "
                f"reads {min(read)}, which another writes: a dispatch cannot wait for all its "
                "workgroups, so this must be two kernels"
            )


def bindings(root: Stmt) -> Iterator[For]:
    """The thread-bound loops of a statement."""
    return (s for s in walk_statements(root) if isinstance(s, For) and s.kind == "thread_binding")


def _extents(
    function: LoopFunction, part: Stmt, axes: tuple[str, str, str]
) -> tuple[Expr, Expr, Expr]:
    found: dict[str, Expr] = {}
    for loop in bindings(part):
        if loop.thread in axes:
            have = found.setdefault(loop.thread, loop.extent)
            if loop.thread in _BLOCKS and not prove_equal(have, loop.extent):
                raise InternalError(
                    f"webgpu: kernel {function.name}: {loop.thread} has the extents {have} "
                    f"and {loop.extent}"
                )
            if loop.thread in _THREADS:
                found[loop.thread] = simplify(maximum(have, loop.extent))
    one = Const(1)
    return found.get(axes[0], one), found.get(axes[1], one), found.get(axes[2], one)


def _literal(function: LoopFunction, extent: Expr) -> int:
    value = as_int(extent)
    if value is None:
        raise InternalError(f"webgpu: kernel {function.name}: {extent} threads are not a constant")
    return value
