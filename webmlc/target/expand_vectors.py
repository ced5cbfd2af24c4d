"""Turn vectorized loops into vector expressions.

Needs: rank-1 buffers, canonical indices. Guarantees: no `vectorized` loop. Each store inside one
became stores of `VECTOR_LANES` elements, and scalar stores for the remainder of the extent. The
control flow around the stores is unchanged. Some loops have no such form: their extent is symbolic,
a condition or bound depends on the lane, an index is not affine in it, or no lane holds the dtype.
They become `unrolled` up to `_MAX_UNROLLED` iterations, else `serial`.

before                                  after
    for v in T.vectorized(8):               C[T.ramp(i * 8, 1, 4)] = B[T.ramp(0, 1, 4)]
        C[i * 8 + v] = B[v]                 C[T.ramp(i * 8 + 4, 1, 4)] = B[T.ramp(4, 1, 4)]
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.affine import depends, split_linear
from webmlc.core.bounds import Interval, bounds
from webmlc.core.dtypes import INDEX, LANE_TYPES, DType
from webmlc.core.expr import Bitcast, Broadcast, Call, Cast, Const, Expr, Ramp, Var, as_int
from webmlc.core.instruction import InstructionCall
from webmlc.core.rewrite import substitute, walk
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    For,
    If,
    Let,
    Load,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    expressions,
    map_children,
    seq,
    substitute_statement,
)
from webmlc.target import VECTOR_LANES
from webmlc.target.common_subexpressions import certain_reads, memory_loads
from webmlc.target.quarter_powers import FEW_ROUNDINGS, is_quarters
from webmlc.target.scoped import Scope, inside, symbol_ranges

_MAX_UNROLLED = 16
"""The iterations up to which a loop without a vector form is unrolled instead of run serially.
Chosen by hand.
"""
_BOOL_LANES = frozenset({"bit_and", "bit_or", "bit_xor", "bit_not", "eq", "ne", "min", "max"})
"""The operators that vectors of booleans have."""
_INTEGER_LANES = frozenset(
    {"add", "sub", "mul", "fma", "pow", "min", "max", "neg", "abs", "sign", "select"}
    | {"bit_and", "bit_or", "bit_xor", "bit_not", "shift_left", "shift_right"}
    | {"eq", "ne", "lt", "le", "gt", "ge"}
    | {"dot_u8_i8", "dot_u7_i8", "dot_i8", "dot_i16", "word_u8"}
    | {"even_i8", "odd_i8", "odd_u8"}
)
"""The operators that vectors of integers have."""

_NARROW = frozenset({DType.bool, DType.int8, DType.uint8, DType.int16, DType.uint16})
"""The types whose lanes are wider than their elements: 32-bit lanes hold the wrapped values."""


class _NotVectorizable(Exception):
    """The loop has no vector form; the caller unrolls it or makes it serial."""


def expand_vectors(function: LoopFunction, widens_instructions: bool = False) -> LoopFunction:
    """Expand every vectorized loop of `function`. If a target `widens_instructions`, it applies an
    instruction of scalars to vectors.
    """
    body = _visit(function.body, symbol_ranges(function), widens_instructions)
    return replace(function, body=body)


def _visit(stmt: Stmt, scope: Scope, widens: bool) -> Stmt:
    """Expand the loops in a statement, inner loops first."""
    inner = inside(stmt, scope)
    new = map_children(stmt, lambda child: _visit(child, inner, widens))
    if isinstance(new, For) and new.kind == "vectorized":
        return _expand(new, inner, widens)
    return new


def _expand(loop: For, scope: Scope, widens: bool) -> Stmt:
    """The vector form of a vectorized loop. A loop without a vector form is unrolled or serial."""
    extent = as_int(loop.extent)
    try:
        if extent is None or extent < VECTOR_LANES:
            raise _NotVectorizable
        return _Expander(loop.var, extent, scope, widens).statement(loop.body, {})
    except _NotVectorizable:
        is_short = extent is not None and extent <= _MAX_UNROLLED
        return replace(loop, kind="unrolled" if is_short else "serial")


class _Expander:
    """The expansion of one loop over the variable `var`."""

    def __init__(self, var: Var, extent: int, scope: Scope, widens: bool) -> None:
        self.var = var
        self.scope = scope
        self.widens_instructions = widens
        vector_end = extent // VECTOR_LANES * VECTOR_LANES
        self.vectors = range(0, vector_end, VECTOR_LANES)
        self.scalars = range(vector_end, extent)
        self.vectors_of: dict[tuple[int, int], tuple[Expr, Expr]] = {}

    def statement(self, stmt: Stmt, lets: dict[Var, Expr]) -> Stmt:
        """The vector form of a statement. Bindings that depend on the lane are in `lets` and are
        substituted.
        """
        match stmt:
            case Seq() | For() | If():
                if any(depends(substitute(e, lets), self.var) for e in expressions(stmt)):
                    raise _NotVectorizable
                return map_children(stmt, lambda child: self.statement(child, lets))
            case Let(var=var, value=value, body=body):
                value = substitute(value, lets)
                if depends(value, self.var):
                    return self.statement(body, {**lets, var: value})
                return Let(var, value, self.statement(body, lets))
            case Store():
                new = substitute_statement(stmt, lets)
                assert isinstance(new, Store)
                return self.store(new)
        raise _NotVectorizable

    def store(self, store: Store) -> Stmt:
        """The vector stores of a store, then the scalar stores of the remainder."""
        if not depends(store.indices[0], self.var) or store.buffer.dtype not in LANE_TYPES:
            raise _NotVectorizable
        pieces: list[Stmt] = []
        for start in self.vectors:
            value = self.vector(store.value, start)
            index = self.index(store.indices[0], start)
            pieces.append(Store(store.buffer, (index,), value, store.stage))
        pieces.extend(substitute_statement(store, {self.var: Const(lane)}) for lane in self.scalars)
        return seq(*pieces)

    def index(self, index: Expr, start: int) -> Expr:
        """A scalar index where the index does not depend on the lane, else a ramp."""
        split = split_linear(index, self.var)
        if split is None:
            lanes = Interval(start, start + VECTOR_LANES - 1)
            split = split_linear(simplify(index, {**self.scope, self.var: lanes}), self.var)
            if split is None:
                raise _NotVectorizable
        base, stride = split
        if stride == Const(0):
            return base
        if depends(stride, self.var):
            raise _NotVectorizable
        return Ramp(simplify(base + stride * start, self.scope), stride, VECTOR_LANES)

    def vector(self, expr: Expr, start: int) -> Expr:
        """The vector of the values of `expr` in the lanes from `start` on. Equal parts share one
        vector.
        """
        entry = self.vectors_of.get((id(expr), start))
        if entry is None:
            entry = expr, self.make_vector(expr, start)
            self.vectors_of[id(expr), start] = entry
        return entry[1]

    def make_vector(self, expr: Expr, start: int) -> Expr:
        """Build the vector that `vector` caches. Raises `_NotVectorizable` if no vector exists."""
        if not depends(expr, self.var):
            return Broadcast(expr, VECTOR_LANES)
        if expr.dtype not in LANE_TYPES:
            raise _NotVectorizable
        match expr:
            case Var():
                return Ramp(Const(start), Const(1), VECTOR_LANES)
            case Load(buffer=buffer, indices=(index,)):
                if buffer.dtype not in LANE_TYPES:
                    raise _NotVectorizable
                lane_index = self.index(index, start)
                load = Load(buffer, (lane_index,))
                return load if lane_index.lanes > 1 else Broadcast(load, VECTOR_LANES)
            case Call(op="select", args=(condition, then, otherwise)):
                arms = (self.vector(then, start), self.vector(otherwise, start))
                if not depends(condition, self.var):
                    return Call("select", (condition, *arms), expr.dtype)
                self.check_guarded(expr, condition)
                return Call("select", (self.vector(condition, start), *arms), expr.dtype)
            case Call(op="pow" | "unsigned_pow", args=(_, exponent), dtype=dtype) if not _has_power(
                exponent, dtype
            ):
                raise _NotVectorizable  # a general power needs float64
            case Call(op=op, args=args) if not _has_lanes(op, args[-1].dtype):
                raise _NotVectorizable  # no vector instruction exists
            case Call(op="shift_left" | "shift_right", args=(_, by)) if depends(by, self.var):
                raise _NotVectorizable  # a vector shift has one amount for all lanes
            case Call(op=op, args=args, dtype=dtype):
                if dtype is DType.bool and args[-1].dtype is DType.bool:
                    self.check_guarded(expr, expr)
                return Call(op, tuple(self.vector(a, start) for a in args), dtype)
            case InstructionCall(instruction=instruction, args=args):
                if instruction.lanes == 1 and not self.widens_instructions:
                    raise _NotVectorizable
                return InstructionCall(instruction, tuple(self.vector(a, start) for a in args))
            case Cast(value=value, dtype=dtype):
                return Cast(self.vector(value, start), dtype)
            case Bitcast(value=value, dtype=dtype):
                if {value.dtype, dtype} <= _NARROW:  # the lanes are wider: wrap the value
                    return Cast(self.vector(value, start), dtype)
                return Bitcast(self.vector(value, start), dtype)
        raise _NotVectorizable

    def check_guarded(self, expr: Expr, condition: Expr) -> None:
        """Refuse loads that may be out of bounds in a lane where `condition` rules them out."""
        # The left side of an index test guards the loads on its right.
        always_read = frozenset() if compares_indices(condition) else certain_reads(condition)
        if not all(load in always_read or self.is_in_bounds(load) for load in memory_loads(expr)):
            raise _NotVectorizable

    def is_in_bounds(self, load: Load) -> bool:
        """True where the load is certain to lie inside its buffer."""
        (index,), (size,) = load.indices, load.buffer.shape
        distance_past_end = bounds(simplify(index - size, self.scope), self.scope)
        return bounds(index, self.scope).low >= 0 and distance_past_end.high < 0


def _has_lanes(op: str, dtype: DType) -> bool:
    """True where an operator has a form for all lanes at once, after the targets' `legalise`.

    Remainders of floats have no such form: they must be exact, so they are computed in float64.
    """
    if dtype is DType.bool:
        return op in _BOOL_LANES
    if dtype.is_integer:
        return op in _INTEGER_LANES
    return op not in ("floormod", "truncmod")


def _has_power(exponent: Expr, dtype: DType) -> bool:
    """True where `legalise` expands the power into products and square roots of lanes."""
    if not isinstance(exponent, Const):
        return False
    return exponent.value in FEW_ROUNDINGS if dtype.is_float else is_quarters(exponent)


def compares_indices(condition: Expr) -> bool:
    """True where part of a condition compares indices without reading memory."""
    return any(
        isinstance(n, Call) and n.dtype is DType.bool and n.args[0].dtype == INDEX
        for n in walk(condition)
        if not memory_loads(n)
    )
