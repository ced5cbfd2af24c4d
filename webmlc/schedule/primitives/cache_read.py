"""`cache_read`: a block reads a buffer through a copy of a nearer scope, made by a new block.

for i, j in T.grid(64, 8):                     for i_1, j_1 in T.grid(64, 8):
    with T.block("C"):                             with T.block("A_shared"):
        C[i, j] = A[i, j] * 2             ->           A_shared[i_1, j_1] = A[i_1, j_1]
                                               for i, j in T.grid(64, 8):
                                                   with T.block("C"):
                                                       C[i, j] = A_shared[i, j] * 2
"""

from __future__ import annotations

from webmlc.core.expr import Const, Expr, Var
from webmlc.core.rewrite import rewrite
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    Axis,
    Block,
    Buffer,
    For,
    Load,
    LoopFunction,
    Scope,
    Store,
    loads,
    map_expressions,
    seq,
    stores,
)
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.nest import Part, nest_block
from webmlc.schedule.regions import Span, scan, whole
from webmlc.schedule.tree import (
    Path,
    block_names,
    fresh,
    path_to_block,
    ranges_along,
    replace_last,
    used_names,
)
from webmlc.schedule.update import with_body


def cache_read(
    function: LoopFunction, block: str, buffer: str, scope: Scope
) -> tuple[LoopFunction, str]:
    """Let `block` read `buffer` through a copy of `scope`, made before the outermost loop around
    the block under which nothing writes the buffer.

    The copy has the buffer's shape; only the region that the block reads is copied. Returns the
    function and the copying block's name, `<buffer>_<scope>`. Raises `ScheduleError` if the
    block does not read the buffer, or writes it.
    """
    path, reader = path_to_block(function, "cache_read", block)
    source = next((load.buffer for load in loads(reader) if load.buffer.name == buffer), None)
    if source is None:
        reason = f"block {block!r} does not read {buffer!r}"
        raise ScheduleError("cache_read", reason, function, block)
    if any(store.buffer == source for store in stores(reader)):
        reason = f"block {block!r} writes {buffer!r}"
        raise ScheduleError("cache_read", reason, function, block)
    taken_names = used_names(function)
    cache = Buffer(fresh(f"{buffer}_{scope}", taken_names), source.shape, source.dtype, scope)
    root = _root(path, source)
    ranges = ranges_along(function, root[:-1])
    scan_result = scan(root[-1], ranges, [buffer])
    accesses = [a for a in scan_result.accesses if a.block == block and not a.writes]
    guarded = any(access.guarded for access in accesses)
    name = fresh(cache.name, block_names(function))
    axes = tuple(
        Axis(Var(fresh(f"v{name}_{d}", taken_names)), size, "spatial")
        for d, size in enumerate(source.shape)
    )
    indices = tuple(axis.var for axis in axes)
    copy = Block(name, axes, indices, Store(cache, indices, source[indices]))
    parts = {
        axis.var: Part(span, None if span.exact and not guarded else _all(axis.extent))
        for axis, span in zip(axes, whole(source, scan_result.region(accesses)), strict=True)
    }
    nest = nest_block(copy, parts, taken_names, ranges)
    swapped = map_expressions(reader, lambda e: _redirect(e, source, cache))
    after = replace_last(path[len(root) - 1 :], swapped)
    body = replace_last(root, seq(nest, after))
    return with_body(function, body, (*function.allocations, cache)), name


def _root(path: Path, buffer: Buffer) -> Path:
    """The path to the outermost loop around the block under which nothing writes `buffer`."""
    best = len(path)
    for length in range(len(path) - 1, 0, -1):
        stmt = path[length - 1]
        if isinstance(stmt, Block):
            break
        if isinstance(stmt, For):
            if any(store.buffer == buffer for store in stores(stmt)):
                break
            best = length
    return path[:best]


def _all(extent: Expr) -> Span:
    return Span(Const(0), simplify(extent - 1))


def _redirect(expr: Expr, source: Buffer, cache: Buffer) -> Expr:
    def rule(node: Expr) -> Expr | None:
        match node:
            case Load(buffer=buffer, indices=indices) if buffer == source:
                return Load(cache, indices)
        return None

    return rewrite(expr, rule)
