"""Expressions: one small language for dimensions, indices and scalar arithmetic.

Every dimension is an expression (`3`, `n`, `2*n + 1`); a static shape consists of constants. The
nodes are `Const`, `Var`, `Call` (a row of `SCALAR_OPERATORS`), `Cast`, `Bitcast`, and for vectors
`Ramp` and `Broadcast`. Later stages add leaves that read memory (`graph.compute.Read`,
`loops.ir.Load`). Nodes are immutable. Equal nodes are one object (`core.interning`), so `is`, `==`
and the tables of passes compare structure at once.

    >>> n = Var("n")
    >>> str((n * 2 + 1) // 4)
    '(n * 2 + 1) // 4'
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.interning import interned
from webmlc.core.scalar_operators import SCALAR_OPERATORS

Number = int | float | bool


class Expr:
    """The base of all expressions. `dtype` is the element type, and `lanes` the number of elements
    in the value: 1 for a scalar. `children` are the sub-expressions, in order. They are no method,
    because traversals read them millions of times.
    """

    __slots__ = ("__weakref__", "lanes")
    dtype: DType
    lanes: int
    children: tuple[Expr, ...] = ()

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        """Copy this node with other children: the same number of children, in the same order."""
        assert not children
        return self

    def __add__(self, other: Operand) -> Expr:
        return call_binary("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return call_binary("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return call_binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return call_binary("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return call_binary("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return call_binary("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return call_binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return call_binary("div", other, self)

    def __floordiv__(self, other: Operand) -> Expr:
        return call_binary("floordiv", self, other)

    def __rfloordiv__(self, other: Operand) -> Expr:
        return call_binary("floordiv", other, self)

    def __mod__(self, other: Operand) -> Expr:
        return call_binary("floormod", self, other)

    def __and__(self, other: Operand) -> Expr:
        return call_binary("bit_and", self, other)

    def __or__(self, other: Operand) -> Expr:
        return call_binary("bit_or", self, other)

    def __invert__(self) -> Expr:
        return call("bit_not", self)

    def __neg__(self) -> Expr:
        return call("neg", self)

    def __lt__(self, other: Operand) -> Expr:
        return call_binary("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return call_binary("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return call_binary("gt", self, other)

    def __ge__(self, other: Operand) -> Expr:
        return call_binary("ge", self, other)

    def equals(self, other: Operand) -> Expr:
        """The boolean expression `self == other` (`==` itself compares structure)."""
        return call_binary("eq", self, other)

    def astype(self, dtype: DType) -> Expr:
        """Convert the value, as numpy's `astype` does."""
        return self if dtype == self.dtype else Cast(self, dtype)

    def __bool__(self) -> bool:
        raise TypeError(
            f"an expression has no truth value: {self}. Python's max, min, if, and, and or need "
            "one. Use max, min or if_then_else of te or T, and equals instead of =="
        )

    def __str__(self) -> str:
        from webmlc.core.expr_text import print_expr

        return print_expr(self)


set_lanes = vars(Expr)["lanes"].__set__
"""Sets the slot of a frozen node. Faster than `object.__setattr__`, which looks the slot up."""


def widest(children: tuple[Expr, ...]) -> int:
    """The most lanes of some expressions. A value that is computed from them has this width."""
    lanes = 1
    for child in children:
        if child.lanes > lanes:
            lanes = child.lanes
    return lanes


Operand = Expr | int | float | bool


@interned
@dataclass(frozen=True, slots=True, eq=False)
class Const(Expr):
    """A literal of a dtype. A float keeps its Python value; its uses round it to the dtype."""

    value: Number
    dtype: DType = INDEX

    @staticmethod
    def identity(value: Number, dtype: DType = INDEX) -> tuple[object, ...]:
        if dtype is INDEX and type(value) is int:  # first, since most literals are indices
            return (value, dtype)
        if dtype.is_float:  # its text distinguishes 0.0 from -0.0, and equates NaNs
            return (repr(float(value)), dtype)
        return (bool(value) if dtype is DType.bool else int(value), dtype)

    def __post_init__(self) -> None:
        set_lanes(self, 1)
        if self.dtype is INDEX and type(self.value) is int:
            return
        if self.dtype.is_float:
            object.__setattr__(self, "value", float(self.value))
        elif self.dtype is DType.bool:
            object.__setattr__(self, "value", bool(self.value))
        else:
            object.__setattr__(self, "value", int(self.value))


@interned
@dataclass(frozen=True, slots=True, eq=False)
class Var(Expr):
    """A variable: a loop index, a block axis, a symbolic dimension or a let.

    Names are unique in a function.
    """

    name: str
    dtype: DType = INDEX

    def __post_init__(self) -> None:
        set_lanes(self, 1)


Leaf = Const | Var
"""Expressions without operands. It has a name because `Const | Var` takes longer to build than a
test with it takes.
"""


@interned
@dataclass(frozen=True, slots=True, eq=False)
class Call(Expr):
    """A scalar operator applied to arguments. Build it with `call`, which checks them."""

    op: str
    args: tuple[Expr, ...]
    dtype: DType

    def __post_init__(self) -> None:
        set_lanes(self, widest(self.args))

    children = property(attrgetter("args"))

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return build_call(Call, self.op, children, self.dtype)


build_call: Callable[..., Call] = Call.__new__
"""The constructor of `Call` without `type.__call__`, which takes a third of the time."""


@interned
@dataclass(frozen=True, slots=True, eq=False)
class Cast(Expr):
    """A numeric conversion, as numpy's `astype`."""

    value: Expr
    dtype: DType

    def __post_init__(self) -> None:
        set_lanes(self, self.value.lanes)

    @property
    def children(self) -> tuple[Expr, ...]:  # type: ignore[override]
        return (self.value,)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Cast(children[0], self.dtype)


@interned
@dataclass(frozen=True, slots=True, eq=False)
class Bitcast(Expr):
    """The same bits read as another dtype of the same width."""

    value: Expr
    dtype: DType

    def __post_init__(self) -> None:
        set_lanes(self, self.value.lanes)

    @property
    def children(self) -> tuple[Expr, ...]:  # type: ignore[override]
        return (self.value,)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Bitcast(children[0], self.dtype)


@interned
@dataclass(frozen=True, slots=True, eq=False)
class Ramp(Expr):
    """The vector `base, base + stride, ..., base + (width - 1)·stride`."""

    base: Expr
    stride: Expr
    width: int

    def __post_init__(self) -> None:
        set_lanes(self, self.width)

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.base.dtype

    @property
    def children(self) -> tuple[Expr, ...]:  # type: ignore[override]
        return (self.base, self.stride)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Ramp(children[0], children[1], self.width)


@interned
@dataclass(frozen=True, slots=True, eq=False)
class Broadcast(Expr):
    """A scalar in every lane of a vector."""

    value: Expr
    width: int

    def __post_init__(self) -> None:
        set_lanes(self, self.width)

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.value.dtype

    @property
    def children(self) -> tuple[Expr, ...]:  # type: ignore[override]
        return (self.value,)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Broadcast(children[0], self.width)


def const(value: Number, dtype: DType = INDEX) -> Const:
    """Build a literal of `dtype`, which is the index type by default."""
    return Const(value, dtype)


_SMALL_INDICES: dict[Number, Const] = {value: Const(value) for value in range(-16, 257)}
"""The literals that indices hold most often. They stay in use, so that they are built only once."""
_find_or_build: Callable[..., Const] = Const.__new__


def _new_const(cls: type[Const], value: Number, dtype: DType = INDEX) -> Const:
    """The constructor of `Const`, which finds a small index without the table of all objects."""
    small = _SMALL_INDICES.get(value) if dtype is INDEX else None
    return _find_or_build(cls, value, dtype) if small is None else small


Const.__new__ = _new_const  # type: ignore[method-assign, assignment]
_INDEX = _SMALL_INDICES[-16]
"""An operand of the type that numbers have where no other operand has a type."""


def literal(value: Number, like: Expr, dtype: DType | None = None) -> Expr:
    """Build a literal as wide as `like`, and of its dtype unless `dtype` is given."""
    scalar = Const(value, dtype or like.dtype)
    return scalar if like.lanes == 1 else Broadcast(scalar, like.lanes)


def scalar_of(value: Expr) -> Expr:
    """The value that every lane of a broadcast holds; another value as it is."""
    return value.value if isinstance(value, Broadcast) else value


def as_expr(value: Operand, like: DType = INDEX) -> Expr:
    """Convert `value` to an expression; a Python number becomes a literal of dtype `like`."""
    return value if isinstance(value, Expr) else Const(value, like)


def call(op: str, *operands: Operand) -> Expr:
    """Apply the scalar operator `op`; Python numbers become literals like the last expression.

    Constants and the simplest identities fold, so that index arithmetic stays readable. Raises
    `TypeError` if the operands' dtypes differ.
    """
    if len(operands) == 2:
        return call_binary(op, *operands)
    row = SCALAR_OPERATORS[op]
    if len(operands) != row.arity:
        raise _wrong_number(op, len(operands))
    like = next((o for o in reversed(operands) if isinstance(o, Expr)), _INDEX)
    args = tuple([o if isinstance(o, Expr) else literal(o, like) for o in operands])
    dtype = args[-1].dtype
    if any(a.dtype != dtype for a in (args[1:] if op == "select" else args)):
        raise _different_dtypes(op, args)
    return Call(op, args, DType.bool if row.result == "bool" else dtype)


def call_binary(op: str, left: Operand, right: Operand) -> Expr:
    """`call` of two operands: a function of its own, because most operators have two."""
    row = SCALAR_OPERATORS[op]
    if row.arity != 2:
        raise _wrong_number(op, 2)
    if not isinstance(right, Expr):
        right = literal(right, left if isinstance(left, Expr) else _INDEX)
    if not isinstance(left, Expr):
        left = literal(left, right)
    dtype = right.dtype
    if left.dtype is not dtype:
        raise _different_dtypes(op, (left, right))
    if row.result == "bool":
        return build_call(Call, op, (left, right), DType.bool)
    if dtype is INDEX and (isinstance(right, Const) or isinstance(left, Const)):
        folded = _index_identity(op, left, right)
        if folded is not None:
            return folded
    return build_call(Call, op, (left, right), dtype)


def _wrong_number(op: str, count: int) -> TypeError:
    return TypeError(f"{op} takes {SCALAR_OPERATORS[op].arity} operands, not {count}")


def _different_dtypes(op: str, args: tuple[Expr, ...]) -> TypeError:
    return TypeError(f"{op} of {', '.join(a.dtype for a in args)}: cast the operands to one dtype")


def _index_identity(op: str, a: Expr, b: Expr) -> Expr | None:
    """Fold `a op b` of index type, where `a` or `b` is a literal. It folds if both are literals,
    or if the literal is a neutral element.
    """
    x = a.value if isinstance(a, Const) else None
    y = b.value if isinstance(b, Const) else None
    if y == 0 and op in _DIVISIONS:
        return None
    if x is not None and y is not None:
        if (on_integers := _ON_INTEGERS.get(op)) is not None:
            return Const(on_integers(x, y))
        row = SCALAR_OPERATORS[op]
        return Const(int(row.meaning(x, y))) if row.result == "same" else None
    match op:
        case "add":
            return b if x == 0 else a if y == 0 else None
        case "sub":
            return a if y == 0 else None
        case "mul":
            if x == 0 or y == 1:
                return a
            return b if y == 0 or x == 1 else None
        case "floordiv":
            return a if y == 1 else None
    return None


_ON_INTEGERS: Mapping[str, Callable[[Any, Any], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "floormod": operator.mod,
    "min": min,
    "max": max,
}
"""The operators of indices on Python's integers, for which numpy's take ten times as long."""
_DIVISIONS = frozenset({"floordiv", "floormod", "truncdiv", "truncmod"})
"""The operators whose results by 0 do not fold."""


def minimum(a: Operand, b: Operand) -> Expr:
    """The smaller of two values, as `numpy.minimum`."""
    return call("min", a, b)


def maximum(a: Operand, b: Operand) -> Expr:
    """The larger of two values, as `numpy.maximum`."""
    return call("max", a, b)


def select(condition: Expr, then: Operand, otherwise: Operand) -> Expr:
    """`then` where `condition` holds, else `otherwise`.

    Both sides may be evaluated, so their loads must be in bounds or guarded.
    """
    return call("select", condition, then, otherwise)


def as_int(expr: Operand) -> int | None:
    """The value of a literal integer, or `None` for any other expression."""
    match expr:
        case Const(value=int() as value):
            return int(value)
        case int():
            return int(expr)
    return None
