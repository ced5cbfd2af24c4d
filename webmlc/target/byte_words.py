"""Arithmetic on words of four bytes, for targets without an instruction for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from webmlc.core.expr import Broadcast, Call, Expr, call
from webmlc.core.rewrite import rewriter
from webmlc.loops.ir import LoopFunction, map_expressions


def dot_of_bytes(a: Expr, b: Expr, is_signed: bool = False) -> Expr:
    """The dot product of the bytes of `a`, which are signed or not, and the signed bytes of `b`,
    byte by byte.
    """

    def product(n: int) -> Expr:
        left = _signed_byte(a, n) if is_signed else _unsigned_byte(a, n)
        return left * _signed_byte(b, n)

    return product(0) + product(1) + (product(2) + product(3))


def _unsigned_byte(word: Expr, position: int) -> Expr:
    shifted = word if position == 0 else call("shift_right", word, 8 * position)
    return shifted & 255


def _signed_byte(word: Expr, position: int) -> Expr:
    if isinstance(word, Broadcast):
        return Broadcast(_signed_byte(word.value, position), word.width)
    lifted = call("shift_left", word, 24 - 8 * position) if position < 3 else word
    return call("shift_right", lifted, 24)


def word_of_bytes(numbers: Sequence[Expr]) -> Expr:
    """The word of the lowest bytes of four numbers. The first number gives the lowest bits."""
    word, *upper_bytes = (number & 255 for number in numbers)
    for n, byte in enumerate(upper_bytes, 1):
        word = word | call("shift_left", byte, 8 * n)
    return word


def unpack_bytes(function: LoopFunction) -> LoopFunction:
    """Replace every dot product of words, for adapters without an instruction for it. Then
    `common_subexpressions` unpacks a word once for all products of a tile.

        T.dot_i8(T.broadcast(a, 4), w)  →  T.broadcast(a << 24 >> 24, 4) * (w << 24 >> 24) + ...
    """
    return replace(function, body=map_expressions(function.body, rewriter(_rule)))


def _rule(node: Expr) -> Expr | None:
    match node:
        case Call(op="dot_i8", args=(a, b)):
            return dot_of_bytes(a, b, is_signed=True)
    return None
