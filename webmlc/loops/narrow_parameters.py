"""Store some float32 parameters of a kernel as halves.

needs: a naive kernel. guarantees: the same computation in float32, whose operands are widened where
they are loaded, and whose results are rounded where they are stored. A reduction keeps its sums in
a float32 buffer until they are complete. before → after (A, Y):

    Y[i] = Y[i] + A[i, k] * B[k]     sums[i] = sums[i] + float32(A[i, k]) * B[k]
                                     Y[i] = float16(sums[i])
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from webmlc.core.dtypes import DType
from webmlc.core.expr import Cast, Expr, Var
from webmlc.core.rewrite import rewriter
from webmlc.loops.ir import (
    Axis,
    Block,
    Buffer,
    Load,
    LoopFunction,
    Stmt,
    Store,
    blocks,
    grid,
    loads,
    loads_in,
    map_expressions,
    map_statements,
    replace_buffers,
    seq,
    stores,
)


def narrow_parameters(function: LoopFunction, names: Iterable[str]) -> LoopFunction:
    """The kernel with halves in the place of these float32 parameters."""
    chosen = frozenset(names)
    narrow = {b: replace(b, dtype=DType.float16) for b in function.params if b.name in chosen}
    if not narrow:
        return function
    read = {load.buffer for load in loads(function.body)}
    outputs = function.output_params()
    folded = [b for b in outputs if b in narrow and (b in read or _is_folded(function, b))]
    sums = {b: replace(b, name=_unused(function, f"{b.name}_sums")) for b in folded}
    body = replace_buffers(function.body, sums)
    body = _narrowed(body, {b: half for b, half in narrow.items() if b not in sums})
    copies = [_copy(function, total, narrow[output]) for output, total in sums.items()]
    return replace(
        function,
        params=tuple(narrow.get(b, b) for b in function.params),
        allocations=(*function.allocations, *sums.values()),
        body=seq(body, *copies),
    )


def _is_folded(function: LoopFunction, buffer: Buffer) -> bool:
    """True if a reduction writes a buffer."""
    return any(
        store.buffer == buffer
        for block in blocks(function.body)
        if any(axis.kind == "reduce" for axis in block.axes)
        for store in stores(block)
    )


def _unused(function: LoopFunction, name: str) -> str:
    """A name that no buffer and no block of the function has."""
    used = {b.name for b in (*function.params, *function.allocations)}
    used |= {block.name for block in blocks(function.body)}
    while name in used:
        name = f"{name}_"
    return name


def _narrowed(body: Stmt, narrow: dict[Buffer, Buffer]) -> Stmt:
    """Widen the values that are loaded from these buffers, and round the values that are stored."""

    def load(node: Expr) -> Expr | None:
        match node:
            case Load(buffer=buffer, indices=indices) if buffer in narrow:
                return Cast(Load(narrow[buffer], indices), DType.float32)
        return None

    def store(stmt: Stmt) -> Stmt | None:
        match stmt:
            case Store(buffer=buffer, indices=indices, value=value) if buffer in narrow:
                return Store(narrow[buffer], indices, Cast(value, DType.float16), stmt.stage)
        return None

    return map_statements(map_expressions(body, rewriter(load, loads_in)), store)


def _copy(function: LoopFunction, source: Buffer, target: Buffer) -> Stmt:
    """Round a whole buffer."""
    name = _unused(function, f"{target.name}_half")
    loops = tuple(Var(f"{name}_{axis}") for axis in range(len(source.shape)))
    axes = tuple(
        Axis(Var(f"v_{v.name}"), n, "spatial") for v, n in zip(loops, source.shape, strict=True)
    )
    element = tuple(axis.var for axis in axes)
    store = Store(target, element, Cast(Load(source, element), DType.float16))
    return grid(zip(loops, source.shape, strict=True), Block(name, axes, loops, store))
