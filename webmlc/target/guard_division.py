"""Define integer division by zero, which is 0 as in numpy, and division of the lowest number by -1,
which wraps.

Needs: the lowered form, with small types widened. Guarantees: no integer `floordiv`, `floormod`,
`truncdiv` or `truncmod` whose divisor may be 0 at run time, and no signed quotient by -1, where
WASM traps. Literal divisors stay as they are. So does index arithmetic over loop variables and
dimensions: where a dimension is 0, its loop runs no iteration.

before                                             after
    Y[i] = A[i] % B[i]                                 Y[i] = A[i] % select(B[i] == 0, 1, B[i])
    Y[i] = truncdiv(A[i], B[i])                        special = B[i] == 0 or B[i] == -1
                                                       Y[i] = select(special, A[i] * B[i],
                                                           truncdiv(A[i], select(special, 1, B[i])))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from webmlc.core.bounds import SYMBOL, bounds
from webmlc.core.dtypes import INDEX
from webmlc.core.expr import Call, Const, Expr, Var, as_int, call, literal, scalar_of, select
from webmlc.core.rewrite import bottom_up, rewrite, rewriter, variables
from webmlc.loops.ir import For, LoopFunction, loads_in, map_expressions, walk_statements

_QUOTIENTS = frozenset({"floordiv", "truncdiv"})
_REMAINDERS = frozenset({"floormod", "truncmod"})
_DIVISIONS = _QUOTIENTS | _REMAINDERS


def guard_division(function: LoopFunction) -> LoopFunction:
    """Guard every division of values; leave index arithmetic as it is."""
    loop_variables = {s.var for s in walk_statements(function.body) if isinstance(s, For)}
    index_variables = frozenset({*function.symbols, *loop_variables})

    def rule(node: Expr) -> Expr | None:
        match node:
            case Call(op=op, args=(a, b), dtype=dtype) if dtype.is_integer:
                if op in _DIVISIONS and not _is_index(b, index_variables):
                    return _guarded(op, a, b)
        return None

    return replace(function, body=map_expressions(function.body, rewriter(rule, _divides)))


@bottom_up()
def _divides(root: Expr) -> bool:
    """True if some part of an expression divides integers by anything but a positive literal."""
    match root:
        case Call(op=op, args=(_, b), dtype=dtype) if op in _DIVISIONS and dtype.is_integer:
            divisor = as_int(b)
            if divisor is None or divisor < 1:
                return True
    return any(map(_divides, root.children))


def guard_size(size: Expr) -> Expr:
    """A size outside all loops. A division by a symbol that is 0 gives 0 there."""
    ranges = dict.fromkeys(variables(size), SYMBOL)

    def rule(node: Expr) -> Expr | None:
        match node:
            case Call(op=op, args=(a, b)) if op in _DIVISIONS:
                return None if bounds(b, ranges).low > 0 else _guarded(op, a, b)
        return None

    return rewrite(size, rule)


def _is_index(divisor: Expr, index_variables: frozenset[Var]) -> bool:
    """True for index arithmetic: no part of the divisor is a value loaded from memory."""
    return (
        not isinstance(divisor, Const)
        and divisor.dtype == INDEX
        and not loads_in(divisor)
        and variables(divisor) <= index_variables
    )


def _guarded(op: str, a: Expr, b: Expr) -> Expr | None:
    """The guarded form of a division, or None where the literal divisor needs no guard."""
    divisor = as_int(b)
    zero, one = literal(0, b), literal(1, b)
    if divisor is not None:
        if divisor == 0:
            return zero
        return Call("sub", (zero, a), a.dtype) if divisor == -1 and op in _QUOTIENTS else None
    is_special = call("eq", b, zero)
    if op in _QUOTIENTS and b.dtype.is_signed:
        is_special = is_special | call("eq", b, literal(-1, b))
    result = Call(op, (a, select(is_special, one, b)), a.dtype)
    if op in _REMAINDERS:
        return result
    return select(is_special, Call("mul", (a, b), a.dtype), result)


def truncating_division(op: str, a: Expr, b: Expr, is_nonnegative: Callable[[Expr], bool]) -> Expr:
    """A rounded-down quotient or remainder of integers, by operators that truncate. By a power of
    two it becomes a shift or a mask. It is one operator if no operand is negative.
    """
    divisor, is_quotient = as_int(scalar_of(b)), op == "floordiv"
    if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0:
        if is_quotient:
            return call("shift_right", a, divisor.bit_length() - 1)
        return call("bit_and", a, divisor - 1)
    remainder = Call("truncmod", (a, b), a.dtype)
    quotient = Call("truncdiv", (a, b), a.dtype)
    if not a.dtype.is_signed or (is_nonnegative(b) and is_nonnegative(a)):
        return quotient if is_quotient else remainder
    # Only a remainder is corrected whose sign differs from the divisor's, so no sum overflows.
    is_short = call("ne", remainder, 0) & (call("bit_xor", remainder, b) < 0)
    if is_quotient:
        return select(is_short, quotient - 1, quotient)
    return select(is_short, remainder + b, remainder)
