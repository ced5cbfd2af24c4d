"""Count the loop iterations that one thread of a GPU kernel runs.

In: a scheduled function, or a lowered one. Out: the iterations of all loops of its busiest thread.
Loops over threads, vectors, and loops that are written out take no iterations of their own.

    for i in T.thread_binding(8, "blockIdx.x"):
        for t in T.thread_binding(64, "threadIdx.x"):
            for j in range(100): ...                       # 100 iterations
"""

from __future__ import annotations

from collections.abc import Mapping

from webmlc.core.bounds import Interval, bounds
from webmlc.core.expr import Const, Expr, Var
from webmlc.core.machine import MAX_BINDING_BYTES
from webmlc.core.rewrite import evaluate, variables
from webmlc.loops.count_work import buffer_bytes
from webmlc.loops.ir import For, If, Let, LoopFunction, Seq, Stmt, child_statements

LONG_ROW = 1 << 18
"""The elements that a symbolic dimension may have where the iterations of a thread are bounded.

Derived: the largest vocabularies of language models have 2¹⁸ tokens. A tensor with 16 such rows of
float32 is as large as a binding that every device has.
"""


def longest_thread(function: LoopFunction) -> int:
    """The most iterations of one thread, if one symbol is `LONG_ROW`, or as large as bindings
    allow, and all other symbols are 1. Each symbol is tried in turn.
    """
    ones = dict.fromkeys((symbol.name for symbol in function.symbols), 1)
    cases = [_lengthened(function, ones, name) for name in ones] or [ones]
    return max(thread_iterations(function, sizes) for sizes in cases)


def _lengthened(function: LoopFunction, ones: Mapping[str, int], name: str) -> dict[str, int]:
    """The sizes with one symbol as long as it may be."""
    size = LONG_ROW
    while size > 1 and _exceeds_bindings(function, {**ones, name: size}):
        size //= 2
    return {**ones, name: size}


def _exceeds_bindings(function: LoopFunction, sizes: Mapping[str, int]) -> bool:
    return any(buffer_bytes(buffer, sizes) > MAX_BINDING_BYTES for buffer in function.params)


def thread_iterations(function: LoopFunction, sizes: Mapping[str, int]) -> int:
    """The iterations of the loops of one thread, at most, with these values of the symbols.

    A loop whose extent depends on other loops counts with its largest extent. A condition counts
    with its longer branch. Nests with workgroups of their own run in different threads.
    """
    ranges = {Var(name): Interval(size, size) for name, size in sizes.items()}
    body = function.body
    while isinstance(body, Let):
        ranges[body.var] = bounds(body.value, ranges)
        body = body.body
    nests = body.statements if isinstance(body, Seq) else (body,)
    counts = [_iterations(nest, sizes, ranges) for nest in nests]
    own_workgroups = all(isinstance(nest, For) and nest.thread for nest in nests)
    return max(counts, default=0) if own_workgroups else sum(counts)


def _iterations(stmt: Stmt, sizes: Mapping[str, int], ranges: dict[Var, Interval]) -> int:
    match stmt:
        case For(var=var, extent=extent, body=body, kind=kind):
            count = _extent(extent, sizes, ranges)
            if count == 0:
                return 0
            inner = _iterations(body, sizes, {**ranges, var: Interval(0, count - 1)})
            if kind == "thread_binding":
                return inner
            return count * inner if kind in ("unrolled", "vectorized") else count * (1 + inner)
        case If():
            return max(_iterations(branch, sizes, ranges) for branch in child_statements(stmt))
        case Let(var=var, value=value, body=body):
            return _iterations(body, sizes, {**ranges, var: bounds(value, ranges)})
    return sum(_iterations(child, sizes, ranges) for child in child_statements(stmt))


def _extent(extent: Expr, sizes: Mapping[str, int], ranges: Mapping[Var, Interval]) -> int:
    """The most iterations of a loop. A select between sizes is decided, not bounded."""
    if isinstance(extent, Const):
        return int(extent.value)
    if all(var.name in sizes for var in variables(extent)):
        return max(0, int(evaluate(extent, sizes)))
    high = bounds(extent, ranges).high
    return max(0, int(min(high, LONG_ROW)))
