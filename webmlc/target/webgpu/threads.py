"""Compute the grid of a kernel: the workgroups and threads that its thread loops stand for.

In: a legalised function whose `thread_binding` loops are bound to `blockIdx.*` and `threadIdx.*`.
Out: a `Grid`. It holds the workgroup size, the number of workgroups to dispatch (expressions of the
symbols), and the first workgroup of each section of the body. A body may be several nests in
sequence, such as a tiled part and its remainder. It becomes one dispatch, whose workgroups are
divided among the nests. No section may read the results of another section, because a dispatch has
no barrier across workgroups.

    for b in T.thread_binding(98, "blockIdx.x"): ...      section 0: workgroups 0 to 97
    for c in T.thread_binding(2, "blockIdx.x"): ...       section 1: workgroups 98 and 99
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from webmlc.core.errors import InternalError
from webmlc.core.expr import Const, Expr, Var, as_int, maximum
from webmlc.core.machine import MAX_INVOCATIONS
from webmlc.core.simplify import prove_equal, simplify
from webmlc.loops.ir import (
    For,
    Let,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    distinct_loads,
    seq,
    stores,
    walk_statements,
)
from webmlc.target.scoped import join_lets

LARGEST_GRID = 65_535
"""The workgroups along one dimension of a dispatch, at most: the default limit of WebGPU."""

_BLOCKS = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
_THREADS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


@dataclass(frozen=True, slots=True)
class Section:
    """The statements that `count` workgroups run, starting with workgroup `first`. `blocks` are the
    extents of blockIdx.x, y and z.
    """

    body: Stmt
    blocks: tuple[Expr, Expr, Expr]
    first: Expr
    count: Expr


@dataclass(frozen=True, slots=True)
class Grid:
    """The launch of a kernel: its sections, its workgroup size, and the workgroups to dispatch.

    If the grid `is_linear`, workgroups are numbered along x, then y, in rows of the dispatched x.
    Workgroups from `total` on are idle. Else blockIdx.x, y and z are the dispatched dimensions.
    """

    sections: tuple[Section, ...]
    workgroup_size: tuple[int, int, int]
    workgroups: tuple[Expr, Expr, Expr]
    total: Expr
    is_linear: bool

    @property
    def optional(self) -> dict[int, Expr]:
        """The sections that some sizes may leave without workgroups: their counts, by position."""
        if len(self.sections) == 1:
            return {}
        counts = enumerate(section.count for section in self.sections)
        return {position: count for position, count in counts if as_int(count) is None}


def grid_of(function: LoopFunction) -> Grid:
    """The grid of a function. Raises InternalError where its sections cannot run side by side, or
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
        sections.append(Section(join_lets([*lets, fills, part]), blocks, first, count))
        first = simplify(first + count)
    sizes = [_extents(function, part, _THREADS) for part in parts]
    size = tuple(max(_constant_extent(function, s[axis]) for s in sizes) for axis in range(3))
    assert len(size) == 3
    if math.prod(size) > MAX_INVOCATIONS:
        raise InternalError(
            f"webgpu: kernel {function.name}: its sections need workgroups of {size} invocations, "
            f"more than {MAX_INVOCATIONS} together"
        )
    total = first
    block_counts = [as_int(extent) for extent in sections[0].blocks]
    if len(sections) == 1 and all(d is not None and d <= LARGEST_GRID for d in block_counts):
        return Grid(tuple(sections), size, sections[0].blocks, total, False)
    constant_total = as_int(total)
    if constant_total is not None and constant_total <= LARGEST_GRID:
        return Grid(tuple(sections), size, (total, Const(1), Const(1)), total, True)
    rows = simplify((total + (LARGEST_GRID - 1)) // LARGEST_GRID)
    if constant_total is None:
        rows = maximum(rows, 1)
    columns = simplify((total + rows - 1) // rows)
    return Grid(tuple(sections), size, (columns, rows, Const(1)), total, True)


def _parts(
    function: LoopFunction,
) -> tuple[list[tuple[Var, Expr]], list[tuple[Stmt, Stmt]]]:
    """The lets around the whole body, and the nests of thread loops. Each nest comes with the
    stores before it that fill its registers.
    """
    body = function.body
    lets: list[tuple[Var, Expr]] = []
    while isinstance(body, Let):
        lets.append((body.var, body.value))
        body = body.body
    local_names = {b.name for b in function.allocations if b.scope == "local"}
    fills: list[Store] = []
    nests: list[tuple[Stmt, Stmt]] = []
    if not any(bindings(body)):
        return lets, [(Seq(()), body)]  # a single thread runs the body
    statements = body.statements if isinstance(body, Seq) else (body,)
    for position, stmt in enumerate(statements):
        match stmt:
            case Store(buffer=buffer) if (
                buffer.name in local_names and position < len(statements) - 1
            ):
                fills.append(stmt)
            case _:
                nests.append((_needed_stores(fills, stmt), stmt))
    return lets, nests


def _needed_stores(fills: list[Store], nest: Stmt) -> Stmt:
    """The stores before a nest whose registers the nest reads, directly or through other stores."""
    if not fills:
        return Seq(())
    names_read = {load.buffer.name for load in distinct_loads(nest)}
    needed: list[Store] = []
    for fill in reversed(fills):
        if fill.buffer.name in names_read:
            needed.append(fill)
            names_read |= {load.buffer.name for load in distinct_loads(fill)}
    return seq(*reversed(needed))


def _check_independent(function: LoopFunction, parts: list[Stmt]) -> None:
    """Raise InternalError where one nest reads a buffer that another writes."""
    names_written = [{s.buffer.name for s in stores(part)} for part in parts]
    for position, part in enumerate(parts):
        written_elsewhere = set().union(*(w for p, w in enumerate(names_written) if p != position))
        names_read = {load.buffer.name for load in distinct_loads(part)} - names_written[position]
        conflicts = names_read & written_elsewhere
        if conflicts:
            raise InternalError(
                f"webgpu: kernel {function.name}: one of its {len(parts)} top-level loop nests "
                f"reads {min(conflicts)}, which another writes: a dispatch cannot wait for all its "
                "workgroups, so this must be two kernels"
            )


def bindings(root: Stmt) -> Iterator[For]:
    """The thread-bound loops of a statement."""
    return (s for s in walk_statements(root) if isinstance(s, For) and s.kind == "thread_binding")


def _extents(
    function: LoopFunction, part: Stmt, axes: tuple[str, str, str]
) -> tuple[Expr, Expr, Expr]:
    """The extents of the thread loops of a nest along three axes; 1 for an axis without a loop."""
    extents: dict[str, Expr] = {}
    for loop in bindings(part):
        if loop.thread in axes:
            extent = extents.setdefault(loop.thread, loop.extent)
            if loop.thread in _BLOCKS and not prove_equal(extent, loop.extent):
                raise InternalError(
                    f"webgpu: kernel {function.name}: {loop.thread} has the extents {extent} "
                    f"and {loop.extent}"
                )
            if loop.thread in _THREADS:
                extents[loop.thread] = simplify(maximum(extent, loop.extent))
    one = Const(1)
    return extents.get(axes[0], one), extents.get(axes[1], one), extents.get(axes[2], one)


def _constant_extent(function: LoopFunction, extent: Expr) -> int:
    """The value of an extent that must be a literal."""
    value = as_int(extent)
    if value is None:
        raise InternalError(f"webgpu: kernel {function.name}: {extent} threads are not a constant")
    return value


Rewrite = Callable[[Stmt, frozenset[Var]], Stmt]
"""A rewriting of the work of a workgroup. The variables have a value where the work starts."""


def map_sections(function: LoopFunction, rewrite: Rewrite) -> Stmt:
    """The body of a lowered kernel, with the work of each workgroup rewritten."""
    return _map(function.body, rewrite, frozenset(function.symbols))


def _map(stmt: Stmt, rewrite: Rewrite, scope: frozenset[Var]) -> Stmt:
    match stmt:
        case Seq(statements=statements):
            return seq(*(_map(child, rewrite, scope) for child in statements))
        case Let(var=var, body=body):
            return replace(stmt, body=_map(body, rewrite, scope | {var}))
        case For(thread=str() as thread, var=var, body=body) if thread.startswith("blockIdx"):
            inside = scope | {var}
            if isinstance(body, For) and (body.thread or "").startswith("blockIdx"):
                return replace(stmt, body=_map(body, rewrite, inside))
            return replace(stmt, body=rewrite(body, inside))
    return stmt
