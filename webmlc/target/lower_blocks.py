"""Turn blocks into plain statements.

Needs: predicates over loop variables; no reduction without a step (`clear_empty_reductions`).
Guarantees: no `Block`, and what `simplify_function` guarantees. Block axes are replaced by their
bindings. A predicate is an `If` around the block's statements. An `init` runs under the condition
that all reduce axes are zero. The simplification omits a condition that always holds.

before                                             after
    for i, k in T.grid(8, 16):                         for i in range(8):
        with T.block("Y"):                                 for k in range(16):
            vi, vk = T.axis.remap("SR", [i, k])                if k == 0:
            with T.init():                                         Y[i] = 0
                Y[vi] = 0                                      Y[i] = Y[i] + A[i, k]
            Y[vi] = Y[vi] + A[vi, vk]
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr
from webmlc.loops.ir import (
    Block,
    If,
    LoopFunction,
    Stmt,
    map_statements,
    seq,
    substitute_statement,
)
from webmlc.target.scoped import simplify_function


def lower_blocks(function: LoopFunction) -> LoopFunction:
    """Replace every block of `function` by plain statements, inner blocks first, and simplify the
    result under the ranges of its loops.
    """
    body = map_statements(function.body, lambda s: _lower(s) if isinstance(s, Block) else None)
    return simplify_function(replace(function, body=body))


def _lower(block: Block) -> Stmt:
    bindings = block.axis_values()
    body = substitute_statement(block.body, bindings)
    if block.init is not None:
        is_first: Expr = Const(True, DType.bool)
        for axis, binding in block.bound_axes():
            if axis.kind == "reduce":
                is_first = is_first & binding.equals(0)
        body = seq(If(is_first, substitute_statement(block.init, bindings)), body)
    return body if block.predicate is None else If(block.predicate, body)
