"""Compare shapes whose sizes may be symbolic.

In: two shapes. Out: whether they are equal, certainly or by a guess that costs little where it is
wrong.

    (n, 4), (n, 4)        same
    (n + 1, 4), (m, 4)    may be the same
    (n, 4), (n, 8)        differ
"""

from __future__ import annotations

from collections.abc import Sequence

from webmlc.core.expr import Expr, as_int
from webmlc.core.simplify import prove_equal


def is_same(shape: Sequence[Expr], other: Sequence[Expr]) -> bool:
    """True for shapes that are certainly equal."""
    return len(shape) == len(other) and all(map(prove_equal, shape, other))


def may_be_same(shape: Sequence[Expr], other: Sequence[Expr]) -> bool:
    """True if the shapes are equal, or if only symbolic sizes before the last one differ in form.
    Such sizes are taken as equal: a wrong guess only repeats cheap work, if one of the two sizes is
    1.
    """
    if len(shape) != len(other):
        return False
    pairs = [pair for pair in zip(shape, other, strict=True) if not prove_equal(*pair)]
    last = not shape or prove_equal(shape[-1], other[-1])
    return last and all(as_int(size) is None for pair in pairs for size in pair)
