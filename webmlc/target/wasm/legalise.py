"""Everything that WASM cannot say becomes what it can.

Needs: vectors and registers made, before `common_subexpressions`. Guarantees: only operators of
`table.py`, `select` and `fma`; no float16 or bfloat16, no arithmetic on small integers, no
conversion to or from bool but by comparison; products that are added are `fma` (vectors of
float32). One rule, one reason:

before                                             after
    T.exp(x)                                           2^n · polynomial(r)
    c + a * b                                          T.fma(a, b, c)
    T.cast(m, "float32")        (m is bool)            T.select(m, 1.0, 0.0)
    T.max(x, 0.0)               (vectors)              T.select(x < 0.0, 0.0, x)    `f32x4.pmax`
    T.isnan(x)                                         x != x
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from webmlc.core.dtypes import DType
from webmlc.core.expr import Bitcast, Broadcast, Call, Cast, Const, Expr, Var, call, select
from webmlc.core.rewrite import rewrite
from webmlc.loops.ir import (
    Buffer,
    Let,
    Load,
    LoopFunction,
    Stmt,
    Store,
    map_expressions,
    map_statements,
)
from webmlc.target.common_subexpressions import is_guarded
from webmlc.target.expand_vectors import compares_indices
from webmlc.target.wasm import approximations, float64
from webmlc.target.wasm.approximations import literal
from webmlc.target.wasm.small_types import (
    SMALL_FLOATS,
    SMALL_INTEGERS,
    bits_of,
    decode,
    encode,
    storage,
)

_MOST_MULTIPLIED = 16


def legalise(function: LoopFunction) -> LoopFunction:
    """Rewrite every expression of `function`."""
    body = map_expressions(function.body, lambda e: rewrite(e, _rule))
    if uses_small_floats(function):
        return _store_as_bits(replace(function, body=body))
    return replace(function, body=body)


def uses_small_floats(function: LoopFunction) -> bool:
    """True where a buffer of `function` holds float16 or bfloat16."""
    return any(b.dtype in SMALL_FLOATS for b in (*function.params, *function.allocations))


def _rule(node: Expr) -> Expr | None:
    match node:
        case Call(op=op, args=args) if args[-1].dtype in SMALL_INTEGERS and op != "select":
            return _in_int32(node)
        case Call(args=args) if args[-1].dtype in SMALL_FLOATS and node.op != "select":
            return _in_float32(node)
        case Call():
            return _call(node)
        case Cast(value=value, dtype=dtype):
            return _cast(value, dtype)
    return None


def _in_int32(node: Call) -> Expr:
    wide = Call(node.op, tuple(a.astype(DType.int32) for a in node.args), DType.int32)
    if node.dtype is DType.bool:
        return Call(node.op, wide.args, DType.bool)
    legal = _call(wide)
    return Cast(wide if legal is None else legal, node.dtype)


def _in_float32(node: Call) -> Expr:
    args = tuple(rewrite(a.astype(DType.float32), _rule) for a in node.args)
    result = DType.bool if node.dtype is DType.bool else DType.float32
    wide = Call(node.op, args, result)
    found = _call(wide)
    legal = wide if found is None else found
    return legal if result is DType.bool else Cast(legal, node.dtype)


def _call(node: Call) -> Expr | None:
    args, dtype = node.args, node.args[-1].dtype
    match node:
        case Call(op="add", args=(a, b)) if dtype is DType.float32 and node.lanes > 1:
            return _multiply_add(a, b)
        case Call(op="min" | "max" as op, args=(a, b)) if dtype is DType.float32 and node.lanes > 1:
            return _limit(op, a, b)
        case Call(op="isnan", args=(a,)):
            return call("ne", a, a)
        case Call(op="isinf", args=(a,)):
            return call("eq", call("abs", a), literal(math.inf, a))
        case Call(op="pow", args=(a, b)):
            return _power(a, b)
        case Call(op="sign", args=(a,)) if dtype.is_float:
            zero = literal(0.0, a)
            unsigned = select(call("gt", a, zero), literal(1.0, a), a)  # zeros and NaN stay
            return select(call("lt", a, zero), literal(-1.0, a), unsigned)
        case Call(op="floormod", args=(a, b)) if dtype.is_float:
            remainder = a - call("trunc", a / b) * b
            wrong = call("lt", remainder * b, literal(0.0, a))
            return select(wrong, remainder + b, remainder)
        case Call(op="truncmod", args=(a, b)) if dtype.is_float:
            return a - call("trunc", a / b) * b
        case Call(op="floordiv", args=(a, b)) if dtype.is_float:
            return call("floor", a / b)
        case Call(op="truncdiv", args=(a, b)) if dtype.is_float:
            return call("trunc", a / b)
        case Call(op="bit_and", args=(a, b)) if dtype is DType.bool and node.lanes == 1:
            # Both sides of `&` are evaluated: what an index test on the left guards must not be.
            if compares_indices(a) and is_guarded(b, a):
                return select(a, b, Const(False, DType.bool))
        case Call(op="min" | "max" as op) if dtype is DType.bool:
            return Call("bit_and" if op == "min" else "bit_or", args, DType.bool)
        case Call(op="neg", args=(a,)) if dtype.is_integer and node.lanes == 1:
            return Call("sub", (Const(0, dtype), a), dtype)
        case Call(op=op) if dtype is DType.float32 and op in approximations.APPROXIMATIONS:
            return rewrite(approximations.APPROXIMATIONS[op](args[0]), _contract)
        case Call(op=op) if dtype is DType.float64 and op in float64.APPROXIMATIONS:
            return float64.APPROXIMATIONS[op](args[0])
        case Call(op=op) if dtype is DType.float64 and op in approximations.APPROXIMATIONS:
            # No float64 form: the float32 one, to float32's precision.
            narrow = approximations.APPROXIMATIONS[op](Cast(args[0], DType.float32))
            return Cast(narrow, DType.float64)
    return None


def _contract(node: Expr) -> Expr | None:
    match node:
        case Call(op="add", args=(a, b), dtype=DType.float32) if node.lanes > 1:
            return _multiply_add(a, b)
        case Call(op="min" | "max" as op, args=(a, b), dtype=DType.float32) if node.lanes > 1:
            return _limit(op, a, b)
    return None


def _limit(op: str, a: Expr, b: Expr) -> Expr | None:
    """min or max with a literal as the comparison that `pmin` and `pmax` make: NaN stays NaN."""
    for x, limit in ((a, b), (b, a)):
        if is_number(limit):
            below = call("lt", x, limit) if op == "max" else call("lt", limit, x)
            return select(below, limit, x)
    return None


def is_number(expr: Expr) -> bool:
    """True for a broadcast literal that is not NaN."""
    match expr:
        case Broadcast(value=Const(value=value)):
            return not math.isnan(value)
    return False


def _multiply_add(a: Expr, b: Expr) -> Expr | None:
    """a + b as `fma` where one of them is a product."""
    for one, other in ((b, a), (a, b)):
        match one:
            case Call(op="mul", args=(x, y)):
                return Call("fma", (x, y, other), DType.float32)
    return None


def _power(a: Expr, b: Expr) -> Expr | None:
    """a^b: small integers multiply, quarters are square roots, else float64."""
    exponent = b.value if isinstance(b, Broadcast) else b
    if isinstance(exponent, Const):
        value = float(exponent.value)
        if value == 0.5 and a.dtype.is_float:
            return call("sqrt", a)
        if value == -0.5 and a.dtype.is_float:
            return literal(1.0, a) / call("sqrt", a)
        if value.is_integer() and 0 <= value <= _MOST_MULTIPLIED:
            return float64.integer_power(a, int(value))
        if (value * 4).is_integer() and 0 < value <= _MOST_MULTIPLIED and a.dtype.is_float:
            return _quarter_power(a, int(value * 4))
        if (value * 4).is_integer() and -_MOST_MULTIPLIED <= value < 0 and a.dtype.is_float:
            return literal(1.0, a) / _quarter_power(a, -int(value * 4))
    if a.lanes > 1:
        return None
    if a.dtype.is_integer:
        wide = float64.power(a.astype(DType.float64), b.astype(DType.float64))
        return Cast(call("round", wide), a.dtype)
    return float64.power(a, b)


def _quarter_power(a: Expr, quarters: int) -> Expr:
    """a^(quarters/4), by repeated squaring and square roots."""
    root = call("sqrt", a)
    parts = [float64.integer_power(a, quarters // 4)] if quarters >= 4 else []
    parts += [root] if quarters & 2 else []
    parts += [call("sqrt", root)] if quarters & 1 else []
    result = parts[0]
    for part in parts[1:]:
        result = Call("mul", (result, part), a.dtype)
    return result


def _cast(value: Expr, dtype: DType) -> Expr | None:
    have = value.dtype
    if have == dtype:
        return value
    if dtype is DType.bool:
        wide = value.astype(DType.float32) if have in SMALL_FLOATS else value
        return call("ne", rewrite(wide, _rule), literal(0, wide))
    if have is DType.bool:
        if dtype in SMALL_FLOATS:
            return select(value, Const(1.0, dtype), Const(0.0, dtype))
        if value.lanes > 1 or dtype.is_float or dtype.bytes == 8:
            return select(value, literal(1, value, dtype), literal(0, value, dtype))
        return None
    if have in SMALL_FLOATS and dtype is not DType.float32:
        return Cast(Cast(value, DType.float32), dtype)
    if dtype in SMALL_FLOATS and have is not DType.float32:
        return Cast(Cast(value, DType.float32), dtype)
    return None


# -- 16-bit floats as bits -----------------------------------------------------------------------


def _store_as_bits(function: LoopFunction) -> LoopFunction:
    """Small floats in buffers, variables and values become uint16."""

    def buffer(b: Buffer) -> Buffer:
        return replace(b, dtype=storage(b.dtype))

    def expr(node: Expr) -> Expr | None:
        match node:
            case Const(value=value, dtype=dtype) if dtype in SMALL_FLOATS:
                return bits_of(float(value), dtype)
            case Var(name=name, dtype=dtype) if dtype in SMALL_FLOATS:
                return Var(name, DType.uint16)
            case Load(buffer=b, indices=indices) if b.dtype in SMALL_FLOATS:
                return Load(buffer(b), indices)
        return None

    def convert(root: Expr) -> Expr:
        """Bottom-up, with the original types at hand: `Cast` says between which formats."""
        done: dict[Expr, Expr] = {}
        stack: list[tuple[Expr, bool]] = [(root, False)]
        while stack:
            node, expanded = stack.pop()
            if node in done:
                continue
            children = node.children()
            if children and not expanded:
                stack.append((node, True))
                stack.extend((c, False) for c in children)
                continue
            done[node] = _as_bits(node, tuple(done[c] for c in children), expr)
        return done[root]

    def stmt(node: Stmt) -> Stmt | None:
        match node:
            case Store(buffer=b, indices=indices, value=value):
                return Store(buffer(b), indices, value)
            case Let(var=var, value=value, body=body) if var.dtype in SMALL_FLOATS:
                return Let(Var(var.name, DType.uint16), value, body)
        return None

    return replace(
        function,
        params=tuple(buffer(b) for b in function.params),
        allocations=tuple(buffer(b) for b in function.allocations),
        body=map_statements(map_expressions(function.body, convert), stmt),
    )


def _as_bits(node: Expr, children: tuple[Expr, ...], leaf: Callable[[Expr], Expr | None]) -> Expr:
    match node:
        case Cast(value=value, dtype=dtype) if value.dtype in SMALL_FLOATS:
            return rewrite(decode(children[0], value.dtype), _rule)
        case Cast(dtype=dtype) if dtype in SMALL_FLOATS:
            return rewrite(encode(children[0], dtype), _rule)
        case Bitcast(dtype=dtype) if dtype in SMALL_FLOATS or node.value.dtype in SMALL_FLOATS:
            return Cast(children[0], storage(dtype)) if dtype.is_integer else children[0]
        case Call(op="select", dtype=dtype) if dtype in SMALL_FLOATS:
            return Call("select", children, DType.uint16)
    rebuilt = node.rebuild(children) if children else node
    replaced = leaf(rebuilt)
    return rebuilt if replaced is None else replaced
