"""Arithmetic on words of four bytes, for targets without an instruction for it."""

from __future__ import annotations

from collections.abc import Sequence

from webmlc.core.expr import Expr, call, literal


def dot_of_bytes(a: Expr, b: Expr) -> Expr:
    """The dot product of the unsigned bytes of `a` and the signed bytes of `b`, byte by byte."""

    def product(n: int) -> Expr:
        unsigned = a if n == 0 else call("shift_right", a, literal(8 * n, a))
        lifted = b if n == 3 else call("shift_left", b, literal(24 - 8 * n, b))
        return (unsigned & literal(255, a)) * call("shift_right", lifted, literal(24, b))

    return product(0) + product(1) + (product(2) + product(3))


def word_of_bytes(numbers: Sequence[Expr]) -> Expr:
    """The word of the lowest bytes of four numbers. The first number gives the lowest bits."""
    word, *upper_bytes = (number & literal(255, number) for number in numbers)
    for n, byte in enumerate(upper_bytes, 1):
        word = word | call("shift_left", byte, literal(8 * n, byte))
    return word
