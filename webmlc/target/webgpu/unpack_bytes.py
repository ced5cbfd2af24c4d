"""Multiply words of bytes byte by byte, for adapters without an instruction for it.

Needs: vectors and registers. Guarantees: no `dot_i8`. Each byte of an operand becomes a separate
value. The pass `common_subexpressions` then unpacks a word once for all products of a tile.

    T.dot_i8(T.broadcast(a, 4), w)  →  T.broadcast(a << 24 >> 24, 4) * (w << 24 >> 24) + ...
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.expr import Call, Expr
from webmlc.core.rewrite import rewriter
from webmlc.loops.ir import LoopFunction, map_expressions
from webmlc.target.byte_words import dot_of_bytes


def unpack_bytes(function: LoopFunction) -> LoopFunction:
    """Replace every dot product of words."""
    return replace(function, body=map_expressions(function.body, rewriter(_rule)))


def _rule(node: Expr) -> Expr | None:
    match node:
        case Call(op="dot_i8", args=(a, b)):
            return dot_of_bytes(a, b, is_signed=True)
    return None
