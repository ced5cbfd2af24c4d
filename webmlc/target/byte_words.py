"""Arithmetic on words of four bytes, for targets without an instruction for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from webmlc.core.affine import terms
from webmlc.core.dtypes import DType
from webmlc.core.expr import Broadcast, Call, Cast, Expr, Ramp, call
from webmlc.core.instruction import part_of_word
from webmlc.core.rewrite import containing, rewriter
from webmlc.loops.ir import Load, LoopFunction, map_expressions


def dot_of_bytes(a: Expr, b: Expr, is_signed: bool = False) -> Expr:
    """The dot product of the bytes of `a`, which are signed or not, and the signed bytes of `b`,
    byte by byte.
    """

    def product(n: int) -> Expr:
        left = _signed_byte(a, n) if is_signed else part_of_word(a, n, DType.uint8)
        return left * _signed_byte(b, n)

    return product(0) + product(1) + (product(2) + product(3))


def _signed_byte(word: Expr, position: int) -> Expr:
    if isinstance(word, Broadcast):
        return Broadcast(_signed_byte(word.value, position), word.width)
    return part_of_word(word, position, DType.int8)


def word_of_bytes(numbers: Sequence[Expr]) -> Expr:
    """The word of the lowest bytes of four numbers. The first number gives the lowest bits."""
    word, *upper_bytes = (number & 255 for number in numbers)
    for n, byte in enumerate(upper_bytes, 1):
        word = word | call("shift_left", byte, 8 * n)
    return word


def adjacent_bytes(numbers: Sequence[Expr]) -> Load | None:
    """The load of the first of four numbers, if the numbers are bytes that lie side by side in
    memory. The lanes of vectors may lie anywhere.
    """
    places: list[tuple[Load, Expr]] = []
    for number in numbers:
        match number:
            case Cast(value=Load(buffer=buffer, indices=(index,)) as load) if (
                buffer.dtype in (DType.int8, DType.uint8) and buffer.shape
            ):
                places.append((load, index))
            case _:
                return None
    first, start = places[0]
    if any(load.buffer != first.buffer for load, _ in places):
        return None
    is_adjacent = all(_distance(start, index) == n for n, (_, index) in enumerate(places))
    return first if is_adjacent else None


def _distance(start: Expr, end: Expr) -> int | None:
    """The elements from one index to another, or `None` if they differ by more than a number."""
    match start, end:
        case Ramp(base=first, stride=stride), Ramp(base=last, stride=other) if stride == other:
            return _distance(first, last)
    if start.lanes > 1 or end.lanes > 1:
        return None
    low, high = dict(terms(start)), dict(terms(end))
    distance = high.pop((), 0) - low.pop((), 0)
    return distance if low == high else None


def unpack_bytes(function: LoopFunction) -> LoopFunction:
    """Replace every dot product of words, for adapters without an instruction for it. Then
    `common_subexpressions` unpacks a word once for all products of a tile.

        T.dot_i8(T.broadcast(a, 4), w)  →  T.broadcast(a << 24 >> 24, 4) * (w << 24 >> 24) + ...
    """
    unpack = rewriter(_rule, containing("dot_i8"))
    return replace(function, body=map_expressions(function.body, unpack))


def _rule(node: Expr) -> Expr | None:
    match node:
        case Call(op="dot_i8", args=(a, b)):
            return dot_of_bytes(a, b, is_signed=True)
    return None
