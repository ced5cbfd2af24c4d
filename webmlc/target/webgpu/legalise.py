"""Rewrite every expression that WGSL has no spelling for. Each rule has one reason.

In: a lowered function. Out: an equal function (the interpreter runs it) whose operators
`table.OPERATORS` spells. Rules:

- WGSL integer division truncates, and ours rounds down. Powers of two become shifts and masks,
  which round down. Operands that cannot be negative may use the truncating forms. Other divisions
  are corrected.
- NaN and infinity are tested on the bits, because implementations may assume that no float is NaN
  or infinite.
- The bits of a float decide whether the float minus itself, or divided by itself, is a NaN:
  implementations may replace the difference by 0, and the quotient by 1.
- naga spells `!=` of floats as an ordered comparison, which is false for a NaN. `!(a == b)` is true
  for a NaN.
- A float is compared with 0 by its bits, because implementations may take subnormal numbers for 0.
- Booleans have no order and no arithmetic in WGSL.
- Dot products of bytes and words of bytes are shifts, masks, products and sums.
- A literal operand of a minimum or maximum comes second, so only the first operand can be a NaN.
- The base of a vector access to a vector view becomes `unit * 4`, and the unit is the index.
"""

from __future__ import annotations

import math
from dataclasses import replace

from webmlc.core.affine import is_nonnegative
from webmlc.core.bounds import Ranges
from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import (
    Bitcast,
    Call,
    Cast,
    Const,
    Expr,
    Ramp,
    call,
    literal,
    scalar_of,
    select,
)
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Load, LoopFunction, Stmt, Store, loads_in, map_statements
from webmlc.target import VECTOR_LANES
from webmlc.target.byte_words import dot_of_bytes, word_of_bytes
from webmlc.target.guard_division import truncating_division
from webmlc.target.scoped import map_scoped, rewriter_in_scope, symbol_ranges

_INFINITY_BITS = 0x7F800000
"""The bits of float32's infinity."""


def legalise(function: LoopFunction) -> LoopFunction:
    """Needs the lowered form. Guarantees operators of the table, and bases of the form `unit * 4`
    into memory in vectors.
    """

    with_views = rewriter_in_scope(_view, loads_in)
    legal = rewriter_in_scope(_node)

    def rule(root: Expr, ranges: Ranges) -> Expr:
        return legal(with_views(root, ranges), ranges)

    wrapped = map_statements(function.body, _store_as_load)
    body = map_scoped(wrapped, symbol_ranges(function), rule)
    return replace(function, body=map_statements(body, _unwrap_store))


def _store_as_load(stmt: Stmt) -> Stmt | None:
    """Wrap a store's index in a load, so that the expression rules see the buffer it belongs to."""
    match stmt:
        case Store(buffer=buffer, indices=(Ramp() as index,)) if buffer.in_vectors:
            return replace(stmt, indices=(Load(buffer, (index,)),))
    return None


def _unwrap_store(stmt: Stmt) -> Stmt | None:
    """Undo `_store_as_load`."""
    match stmt:
        case Store(buffer=buffer, indices=(Load(buffer=loaded, indices=indices),)):
            if loaded == buffer and buffer.in_vectors:
                return replace(stmt, indices=indices)
    return None


def _view(node: Expr, ranges: Ranges) -> Expr | None:
    """The load of a vector view with a base of the form `unit * 4`."""
    match node:
        case Load(buffer=buffer, indices=(Ramp(base=base, stride=Const(value=1), width=width),)):
            if buffer.in_vectors:
                unit = simplify(base // VECTOR_LANES, ranges)
                scaled = Call("mul", (unit, Const(VECTOR_LANES)), INDEX)
                return Load(buffer, (Ramp(scaled, Const(1), width),))
    return None


def _node(node: Expr, ranges: Ranges) -> Expr | None:
    """The legal form of a node, or None where it is legal."""
    if not isinstance(node, Call):
        return None
    match node:
        case Call(op="add" | "mul" | "fma", dtype=dtype) if dtype is not DType.bool:
            return None  # first, since most operations are these
        case Call(op="floordiv", args=(a, b)) if a.dtype.is_float:
            return call("floor", call("div", a, b))
        case Call(op="floordiv" | "floormod" as op, args=(a, b)) if a.dtype.is_integer:
            return truncating_division(op, a, b, lambda e: is_nonnegative(e, ranges))
        case Call(op="dot_u8_i8" | "dot_u7_i8", args=(a, b)):
            return dot_of_bytes(a, b)
        case Call(op="word_u8", args=args):
            return word_of_bytes(args)
        case Call(op="isnan", args=(a,)):
            return _magnitude_bits(a) > _INFINITY_BITS
        case Call(op="isinf", args=(a,)):
            return _magnitude_bits(a).equals(_INFINITY_BITS)
        case Call(op="eq" | "ne", args=(a, b)) if a.dtype.is_float and _is_zero(b):
            return call(node.op, _magnitude_bits(a), 0)
        case Call(op="ne", args=(a, b)) if a.dtype.is_float:
            return call("bit_not", call("eq", a, b))
        case Call(op="sub" | "div", args=(a, b), dtype=dtype) if dtype.is_float and a == b:
            is_number = _magnitude_bits(a) < _INFINITY_BITS
            if node.op == "div":
                is_number &= _magnitude_bits(a) > 0
            return select(is_number, literal(int(node.op == "div"), a), math.nan)
        case Call(op="neg", args=(a,)) if a.dtype.is_integer and not a.dtype.is_signed:
            return 0 - a
        case Call(op="sign", args=(a,)) if a.dtype.is_integer and not a.dtype.is_signed:
            return call("min", a, 1)
        case Call(op="min" | "max", args=(a, b)) if is_literal(a) and not is_literal(b):
            return call(node.op, b, a)
        case Call(op="mul" | "min", args=(a, b), dtype=DType.bool):
            return call("bit_and", a, b)
        case Call(op="add" | "max", args=(a, b), dtype=DType.bool):
            return call("bit_or", a, b)
        case Call(op="lt" | "le" | "gt" | "ge" as op, args=(a, b)) if a.dtype is DType.bool:
            return call(op, Cast(a, DType.int32), Cast(b, DType.int32))
    return None


def _magnitude_bits(value: Expr) -> Expr:
    """The bits of a float without its sign."""
    bits = Bitcast(value.astype(DType.float32), DType.uint32)
    return bits & 0x7FFFFFFF


def is_literal(value: Expr) -> bool:
    """True for a constant of any number of lanes."""
    return isinstance(scalar_of(value), Const)


def _is_zero(value: Expr) -> bool:
    """True for a constant 0 of any number of lanes."""
    scalar = scalar_of(value)
    return isinstance(scalar, Const) and scalar.value == 0
