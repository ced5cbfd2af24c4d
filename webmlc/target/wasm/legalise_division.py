"""Replace integer division that rounds down by WASM's, which rounds towards zero.

Needs: the strength-reduced form. Guarantees: no scalar signed `floordiv` or `floormod`, and no
`min`, `max`, `abs`, `neg` or `bit_not` of integers, for which WASM has no instructions. A division
stays one instruction where the dividend cannot be negative. By a power of two it becomes a shift or
a mask in any case.

before                                             after (i in [0, 55])
    A[i // 7]                                          A[T.truncdiv(i, 7)]
    A[(i - 1) % 8]                                     A[(i - 1) & 7]
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.bounds import Ranges, bounds
from webmlc.core.expr import Call, Const, Expr, as_expr, as_int, call, select
from webmlc.core.rewrite import rewrite
from webmlc.target.scoped import map_scoped, symbol_ranges
from webmlc.target.wasm.reduce_strength import StrengthReduced


def legalise_division(reduced: StrengthReduced) -> StrengthReduced:
    """Rewrite every scalar integer expression that WASM has no instruction for."""
    function = reduced.function
    body = map_scoped(function.body, symbol_ranges(function), _legalise)
    return replace(reduced, function=replace(function, body=body))


def _legalise(expr: Expr, ranges: Ranges) -> Expr:
    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Call) or node.lanes > 1 or not node.dtype.is_integer:
            return None
        match node:
            case Call(op="floordiv" | "floormod" as op, args=(a, b)) if node.dtype.is_signed:
                return _divide(op, a, b, ranges)
            case Call(op="min", args=(a, b)):
                return select(call("lt", a, b), a, b)
            case Call(op="max", args=(a, b)):
                return select(call("gt", a, b), a, b)
            case Call(op="neg", args=(a,)):
                return Call("sub", (as_expr(0, a.dtype), a), a.dtype)
            case Call(op="abs", args=(a,)):
                return select(call("lt", a, 0), Call("sub", (as_expr(0, a.dtype), a), a.dtype), a)
            case Call(op="bit_not", args=(a,)):
                return Call("bit_xor", (a, as_expr(-1, a.dtype)), a.dtype)
        return None

    return rewrite(expr, rule)


def _divide(op: str, a: Expr, b: Expr, ranges: Ranges) -> Expr:
    """The rounded-down quotient or remainder, by instructions that round towards zero."""
    divisor = as_int(b)
    dtype = a.dtype
    if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0:
        if op == "floordiv":
            return Call("shift_right", (a, Const(divisor.bit_length() - 1, dtype)), dtype)
        return Call("bit_and", (a, Const(divisor - 1, dtype)), dtype)
    if bounds(a, ranges).low >= 0 and bounds(b, ranges).low >= 0:
        return Call("truncdiv" if op == "floordiv" else "truncmod", (a, b), dtype)
    remainder = Call("truncmod", (a, b), dtype)
    zero = Const(0, dtype)
    has_other_sign = call("lt", Call("bit_xor", (remainder, b), dtype), zero)
    needs_correction = call("ne", remainder, zero) & has_other_sign
    if op == "floordiv":
        quotient = Call("truncdiv", (a, b), dtype)
        return select(needs_correction, Call("sub", (quotient, Const(1, dtype)), dtype), quotient)
    return select(needs_correction, Call("add", (remainder, b), dtype), remainder)
