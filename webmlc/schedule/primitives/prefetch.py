"""`prefetch`: the part of a buffer that a loop's body reads is brought into the cache before the
body runs.

for j in range(32):                            for j in range(32):
    for i, k in T.grid(16, 512):                   for l in range(32):
        with T.block("C"):                             with T.block("B_prefetch"):
            C[i, j] += A[i, k] * B[j, k]   ->              B_line[j, 0] = B[j, l * 16]
                                                   for i, k in T.grid(16, 512):
                                                       with T.block("C"):
                                                           C[i, j] += A[i, k] * B[j, k]

One element of each cache line is loaded, without arithmetic between the loads. The loads wait for
memory side by side; with arithmetic between them, only a few would wait at a time (Halide's
`prefetch`; Wasm has no prefetch instruction).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from webmlc.core.expr import Call, Const, Expr, Var, as_int, minimum
from webmlc.core.rewrite import variables
from webmlc.core.simplify import prove_equal, simplify
from webmlc.loops.ir import Axis, Block, Buffer, Stmt, Store, grid, loads, seq
from webmlc.schedule.edit import Edit
from webmlc.schedule.regions import Access, Span, scan, whole, within

LINE_BYTES = 64
"""Bytes of a cache line."""
ONE = Const(1)


def prefetch(edit: Edit, loop: str, buffer: str, times: Expr = ONE) -> str:
    """Before the body of `loop`, load one element of every cache line of `buffer` that an iteration
    reads. The elements go into a register that nobody reads. The loads are repeated `times` times:
    0 times if a prefetch does not pay.

    Returns the new block, `<buffer>_prefetch`. Raises `ScheduleError` if
    nothing under the loop reads the buffer, or if the part that is read is not known. Elements that
    are read only under a condition are fetched in any case, so they must lie in the buffer. If a
    minimum with a size limits all indices of a dimension, it also limits the new block's indices.
    """
    path, around = edit.loop(loop)
    source = next((b.buffer for b in loads(around.body) if b.buffer.name == buffer), None)
    if source is None:
        edit.refuse(f"nothing under loop {loop!r} reads {buffer!r}", loop)
    ranges = edit.ranges(path)
    scanned = scan(around.body, ranges, [buffer])
    accesses, lasts = _without_limits(scanned.accesses, frozenset(edit.function.symbols))
    spans = [span for span in scanned.region(accesses) if span is not None and span.exact]
    limits = whole(source, [None] * len(source.shape))
    guarded = any(access.guarded for access in accesses)
    inside = all(within(*pair, ranges) for pair in zip(spans, limits, strict=False))
    if len(spans) != len(limits) or (guarded and not inside):
        reason = f"it is not known what of {buffer!r} an iteration of loop {loop!r} reads"
        edit.refuse(reason, loop)
    name = edit.block_name(f"{buffer}_prefetch")
    spatial: list[Axis] = []
    reduced: list[Axis] = []
    loops: list[tuple[Var, Expr]] = []
    indices: list[Expr] = []
    if times != ONE:
        loops.append((edit.var(f"{name}_times"), times))
        reduced.append(Axis(edit.var(f"v{name}_times"), times, "reduce"))
    for size, span, step in zip(source.shape, spans, _steps(source, spans), strict=True):
        first = edit.var(f"v{name}_{len(spatial)}")
        spatial.append(Axis(first, size, "spatial"))
        indices.append(first)
        count = simplify(span.width // step + 1, ranges)
        if as_int(count) != 1:
            loops.append((edit.var(name), count))
            reduced.append(Axis(edit.var(f"v{name}_line"), count, "reduce"))
            indices[-1] = first + reduced[-1].var * step
    line = Buffer(edit.name(f"{buffer}_line"), source.shape, source.dtype, "local")
    limited = tuple(_limit(index, last) for index, last in zip(indices, lasts, strict=True))
    store = Store(line, tuple(axis.var for axis in spatial), source[limited])
    firsts = (_limit(span.low, last) for span, last in zip(spans, lasts, strict=True))
    bindings = (*firsts, *(var for var, _ in loops))
    block = Block(name, (*spatial, *reduced), bindings, store)
    body: Stmt = seq(grid(loops, block), around.body)
    edit.put(path, replace(around, body=body), line)
    return name


def _without_limits(
    accesses: Sequence[Access], symbols: frozenset[Var]
) -> tuple[list[Access], list[Expr | None]]:
    """The accesses without the minimums that limit a dimension of all accesses, and the limit of
    each dimension, or `None`.
    """
    indices = [list(access.indices) for access in accesses]
    lasts: list[Expr | None] = []
    for dimension in range(len(indices[0])):
        parts = [_limited(index[dimension], symbols) for index in indices]
        last = parts[0][1]
        if any(part[1] != last for part in parts):
            last = None
        lasts.append(last)
        for index, (value, _) in zip(indices, parts, strict=True):
            index[dimension] = index[dimension] if last is None else value
    changed = zip(accesses, indices, strict=True)
    return [replace(access, indices=tuple(index)) for access, index in changed], lasts


def _limited(index: Expr, symbols: frozenset[Var]) -> tuple[Expr, Expr | None]:
    """The operands of a minimum with a size; the index and `None` if it is none."""
    match index:
        case Call(op="min", args=(a, b)):
            for value, last in ((a, b), (b, a)):
                if set(variables(last)) <= symbols:
                    return value, last
    return index, None


def _limit(index: Expr, last: Expr | None) -> Expr:
    return index if last is None else minimum(index, last)


def _steps(buffer: Buffer, spans: Sequence[Span]) -> list[int]:
    """The distance along each dimension between elements that together touch every line. If whole
    rows lie side by side, a line holds several rows.
    """
    elements = LINE_BYTES // buffer.dtype.bytes
    steps: list[int] = []
    for size, span in zip(reversed(buffer.shape), reversed(spans), strict=True):
        steps.insert(0, max(1, elements))
        row = as_int(size) if prove_equal(span.width + 1, size, {}) else None
        elements = elements // row if row is not None and elements % row == 0 else 1
    return steps
