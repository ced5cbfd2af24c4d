"""Write powers by multiples of 1/4 as products and square roots.

Needs: the lowered form. Guarantees: no `unsigned_pow` by a literal of `FEW_ROUNDINGS`. The target's
`legalise` rewrites other powers: their bases may have a sign, which a root would keep.

before                                             after
    T.unsigned_pow(X[i], 0.75)                         T.sqrt(X[i]) * T.sqrt(T.sqrt(X[i]))
    T.unsigned_pow(X[i], -0.25)                        1.0 / T.sqrt(T.sqrt(X[i]))
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.expr import Call, Const, Expr, call, literal, scalar_of
from webmlc.core.rewrite import containing, rewriter
from webmlc.loops.ir import LoopFunction, map_expressions

FEW_ROUNDINGS = frozenset({0, 1, 2, 3, 4, -1, 0.5, 1.5, 2.5, -0.5, 0.25, 0.75, 1.25, -0.25})
"""The exponents for which products and square roots of float32 are accurate enough: 2 units in the
last place, and 2.4 for 0.75. Computing that one in float64 would cost local response normalisation
its vectors. Measured by `tests/target/test_approximations.py`.
"""


def expand_unsigned_powers(function: LoopFunction) -> LoopFunction:
    """Expand every power of a base without a sign."""
    expand = rewriter(_rule, containing("unsigned_pow"))
    return replace(function, body=map_expressions(function.body, expand))


def _rule(node: Expr) -> Expr | None:
    match node:
        case Call(op="unsigned_pow", args=(base, exponent)):
            value = scalar_of(exponent)
            if isinstance(value, Const) and value.value in FEW_ROUNDINGS:
                return quarter_power(base, int(value.value * 4))
    return None


def is_quarters(exponent: Const) -> bool:
    """True for a small multiple of 1/4: products and square roots compute the power."""
    return abs(exponent.value) <= 16 and float(exponent.value * 4).is_integer()


def quarter_power(a: Expr, quarters: int) -> Expr:
    """a^(quarters/4), by repeated squaring and square roots."""
    if quarters < 0:
        return literal(1.0, a) / quarter_power(a, -quarters)
    root = call("sqrt", a)
    parts = [integer_power(a, quarters // 4)] if quarters >= 4 or quarters == 0 else []
    parts += [root] if quarters & 2 else []
    parts += [call("sqrt", root)] if quarters & 1 else []
    result = parts[0]
    for part in parts[1:]:
        result = Call("mul", (result, part), a.dtype)
    return result


def integer_power(a: Expr, exponent: int) -> Expr:
    """a^exponent for a small non-negative exponent, by repeated squaring."""
    result: Expr | None = None
    square = a
    while exponent:
        if exponent & 1:
            result = square if result is None else Call("mul", (result, square), a.dtype)
        square = Call("mul", (square, square), a.dtype)
        exponent >>= 1
    return literal(1.0, a) if result is None else result
