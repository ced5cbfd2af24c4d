"""Count the bytes that a loop nest brings into a cache, level by level.

In: a loop function with constant extents, and the size of a cache. Out: bytes. The model is that of
tiled loops (Wolf and Lam, "A data locality optimizing algorithm", 1991): if the cache lines that
one iteration of a loop touches fit, its next iterations find them, and the loop brings in each of
its lines once. If they do not fit, each iteration brings in the lines of the loops inside. The
model knows no conflicts between lines.

    cache_traffic(tir.Schedule(mm_relu).function, 32 << 10)
"""

from __future__ import annotations

from math import prod

from webmlc.core.bounds import bounds
from webmlc.core.expr import as_int
from webmlc.loops.ir import Buffer, For, LoopFunction, Stmt, child_statements
from webmlc.schedule.regions import Access, Scan, Span, scan
from webmlc.schedule.tree import Intervals

LINE_BYTES = 64
"""The bytes of a cache line of today's processors."""
REGISTER_BYTES = 15 * 16
"""The bytes of the vector registers that V8 may use: a smaller temporary needs no memory."""


def cache_traffic(function: LoopFunction, cache_bytes: int) -> int:
    """The bytes that one run brings into a cache of this size."""
    memory = {*function.params, *_in_memory(function)}
    return _brought(function.body, {}, 1, cache_bytes, memory)


def _in_memory(function: LoopFunction) -> list[Buffer]:
    """The temporaries that do not fit into registers, where their scope says so."""
    return [
        b
        for b in function.allocations
        if b.scope != "local" or _live_bytes(function.body, b, {}) > REGISTER_BYTES
    ]


def _live_bytes(stmt: Stmt, buffer: Buffer, ranges: Intervals) -> int:
    """The bytes of a buffer in the innermost loop that holds all its accesses."""
    users = [c for c in child_statements(stmt) if _touches(c, buffer)]
    if len(users) == 1:
        return _live_bytes(users[0], buffer, ranges)
    return _elements(buffer, scan(stmt, ranges, [buffer.name])) * buffer.dtype.bytes


def _touches(stmt: Stmt, buffer: Buffer) -> bool:
    return bool(scan(stmt, {}, [buffer.name]).accesses)


def _brought(
    stmt: Stmt, ranges: Intervals, times: int, cache_bytes: int, memory: set[Buffer]
) -> int:
    """The bytes that `times` executions of a statement bring in."""
    children = child_statements(stmt)
    reused = stmt.body if isinstance(stmt, For) else stmt
    if not children or _line_bytes(reused, ranges, memory) <= cache_bytes:
        return _line_bytes(stmt, ranges, memory) * times
    count = as_int(stmt.extent) if isinstance(stmt, For) else 1
    assert count is not None, "the extents of the loops are numbers"
    return sum(_brought(c, ranges, times * count, cache_bytes, memory) for c in children)


def _line_bytes(stmt: Stmt, ranges: Intervals, memory: set[Buffer]) -> int:
    """The bytes of the cache lines that one execution touches."""
    scanned = scan(stmt, ranges)
    buffers = {access.buffer for access in scanned.accesses} & memory
    return sum(_lines(buffer, scanned) * LINE_BYTES for buffer in buffers)


def _lines(buffer: Buffer, scanned: Scan) -> int:
    *outer, inner = _sizes(buffer, scanned)
    return prod(outer) * -(-inner * buffer.dtype.bytes // LINE_BYTES)


def _elements(buffer: Buffer, scanned: Scan) -> int:
    return prod(_sizes(buffer, scanned))


def _sizes(buffer: Buffer, scanned: Scan) -> list[int]:
    """The number of indices of each dimension that the accesses reach."""
    accesses: list[Access] = [a for a in scanned.accesses if a.buffer == buffer]
    spans: tuple[Span | None, ...] = scanned.region(accesses)
    extents = [as_int(extent) for extent in buffer.shape]
    return [
        extent if span is None else min(extent, int(bounds(span.width, scanned.ranges).high) + 1)
        for span, extent in zip(spans, extents, strict=True)
        if extent is not None
    ]
