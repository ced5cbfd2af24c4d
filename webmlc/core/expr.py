"""Expressions: one small language for dimensions, indices and scalar arithmetic.

Every dimension is an expression (`3`, `n`, `2*n + 1`); a static shape consists of constants. The
nodes are `Const`, `Var`, `Call` (a row of `SCALAR_OPERATORS`), `Cast`, `Bitcast`, and for vectors
`Ramp` and `Broadcast`. Later stages add leaves that read memory (`graph.compute.Read`,
`loops.ir.Load`). Nodes are immutable, compare by structure, and compute their hash once.

    >>> n = Var("n")
    >>> str((n * 2 + 1) // 4)
    '(n * 2 + 1) // 4'
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter, is_

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.scalar_operators import SCALAR_OPERATORS

Number = int | float | bool


class Expr:
    """The base of all expressions. `dtype` is the element type, and `lanes` the number of elements
    in the value: 1 for a scalar.
    """

    __slots__ = ("_twin", "lanes")
    dtype: DType
    lanes: int
    _hash: int
    _twin: Expr

    def children(self) -> tuple[Expr, ...]:
        """The sub-expressions, in order."""
        return ()

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        """Copy this node with other children: as many, in the same order."""
        assert not children
        return self

    def _key(self) -> tuple[object, ...]:
        """The fields that decide whether this node equals another of its class."""
        return tuple(getattr(self, f.name) for f in fields(self) if f.compare)  # type: ignore[arg-type]

    def _seal(self, lanes: int = 1) -> None:
        """Keep the number of lanes, and the hash, which the hashes of the children make."""
        _SET_LANES(self, lanes)
        object.__setattr__(self, "_hash", hash((type(self).__name__, *self._key())))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle without the hash: another process hashes strings in another way."""
        return type(self), tuple(getattr(self, f.name) for f in fields(self) if f.init)  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or self._hash != other._hash:
            return False
        mine, theirs = self.children(), other.children()
        if not mine:
            return self._key() == other._key()
        if all(map(is_, mine, theirs)) and self._key() == other._key():
            return True  # most equal nodes share their children
        return _twin(self) is _twin(other) or _same(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __add__(self, other: Operand) -> Expr:
        return call("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return call("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return call("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return call("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return call("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return call("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return call("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return call("div", other, self)

    def __floordiv__(self, other: Operand) -> Expr:
        return call("floordiv", self, other)

    def __rfloordiv__(self, other: Operand) -> Expr:
        return call("floordiv", other, self)

    def __mod__(self, other: Operand) -> Expr:
        return call("floormod", self, other)

    def __and__(self, other: Operand) -> Expr:
        return call("bit_and", self, other)

    def __or__(self, other: Operand) -> Expr:
        return call("bit_or", self, other)

    def __invert__(self) -> Expr:
        return call("bit_not", self)

    def __neg__(self) -> Expr:
        return call("neg", self)

    def __lt__(self, other: Operand) -> Expr:
        return call("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return call("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return call("gt", self, other)

    def __ge__(self, other: Operand) -> Expr:
        return call("ge", self, other)

    def equals(self, other: Operand) -> Expr:
        """The boolean expression `self == other` (`==` itself compares structure)."""
        return call("eq", self, other)

    def astype(self, dtype: DType) -> Expr:
        """Convert the value, as numpy's `astype` does."""
        return self if dtype == self.dtype else Cast(self, dtype)

    def __bool__(self) -> bool:
        raise TypeError(
            f"an expression has no truth value; compare with .equals or prove it: {self}"
        )

    def __str__(self) -> str:
        from webmlc.core.expr_text import print_expr

        return print_expr(self)


_SET_LANES = vars(Expr)["lanes"].__set__
"""Sets the slot of a frozen node. Faster than `object.__setattr__`, which looks the slot up."""
_SET_TWIN = vars(Expr)["_twin"].__set__
_HASH = attrgetter("_hash")


def widest(children: tuple[Expr, ...]) -> int:
    """The most lanes of some expressions: those of what is computed from them."""
    lanes = 1
    for child in children:
        if child.lanes > lanes:
            lanes = child.lanes
    return lanes


def _same(a: Expr, b: Expr) -> bool:
    """Compare two expressions by structure.

    Each pair of nodes is compared once, because many sub-expressions are shared. Nodes that prove
    equal get a common twin, so that their next comparison is one of identity.
    """
    pending: list[tuple[object, object]] = [(a, b)]
    compared: dict[tuple[int, int], tuple[Expr, Expr]] = {}
    while pending:
        x, y = pending.pop()
        if isinstance(x, Expr):
            if type(x) is not type(y) or x._hash != y._hash:
                return False
            if (id(x), id(y)) in compared or _twin(x) is _twin(y):
                continue
            compared[id(x), id(y)] = x, y
            parts, others = x._key(), y._key()
        elif isinstance(x, tuple) and isinstance(y, tuple):
            parts, others = x, y
            if len(parts) != len(others):
                return False
        elif x != y:
            return False
        else:
            continue
        pending += [pair for pair in zip(parts, others, strict=True) if pair[0] is not pair[1]]
    for x, y in compared.values():
        twin, other = _twin(x), _twin(y)
        if twin is not other:
            _SET_TWIN(other, twin)
    return True


def _twin(expr: Expr) -> Expr:
    """Find the representative of the expressions known to equal `expr`, and halve the path."""
    twin: Expr | None = getattr(expr, "_twin", None)
    if twin is None:
        return expr
    following: Expr | None
    while (following := getattr(twin, "_twin", None)) is not None:
        _SET_TWIN(expr, following)
        expr, twin = twin, following
    return twin


Operand = Expr | int | float | bool


@dataclass(frozen=True, slots=True, eq=False)
class Const(Expr):
    """A literal of a dtype. A float keeps its Python value; its uses round it to the dtype."""

    value: Number
    dtype: DType = INDEX
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.dtype.is_float:
            object.__setattr__(self, "value", float(self.value))
        elif self.dtype is DType.bool:
            object.__setattr__(self, "value", bool(self.value))
        else:
            object.__setattr__(self, "value", int(self.value))
        self._seal()

    def _key(self) -> tuple[object, ...]:
        if isinstance(self.value, float):  # its text distinguishes 0.0 from -0.0, and equates NaNs
            return (repr(self.value), self.dtype)
        return (self.value, self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Var(Expr):
    """A variable: a loop index, a block axis, a symbolic dimension or a let.

    Names are unique in a function.
    """

    name: str
    dtype: DType = INDEX
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._seal()

    def _key(self) -> tuple[object, ...]:
        return (self.name, self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Call(Expr):
    """A scalar operator applied to arguments. Build it with `call`, which checks them."""

    op: str
    args: tuple[Expr, ...]
    dtype: DType
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        args = self.args
        _SET_LANES(self, widest(args))
        _SET_HASH(self, hash((self.op, self.dtype, *map(_HASH, args))))  # most nodes are calls

    def _key(self) -> tuple[object, ...]:
        return (self.op, self.args, self.dtype)

    def children(self) -> tuple[Expr, ...]:
        return self.args

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Call(self.op, children, self.dtype)


_SET_HASH = vars(Call)["_hash"].__set__


@dataclass(frozen=True, slots=True, eq=False)
class Cast(Expr):
    """A numeric conversion, as numpy's `astype`."""

    value: Expr
    dtype: DType
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._seal(self.value.lanes)

    def _key(self) -> tuple[object, ...]:
        return (self.value, self.dtype)

    def children(self) -> tuple[Expr, ...]:
        return (self.value,)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Cast(children[0], self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Bitcast(Expr):
    """The same bits read as another dtype of the same width."""

    value: Expr
    dtype: DType
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._seal(self.value.lanes)

    def _key(self) -> tuple[object, ...]:
        return (self.value, self.dtype)

    def children(self) -> tuple[Expr, ...]:
        return (self.value,)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Bitcast(children[0], self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Ramp(Expr):
    """The vector `base, base + stride, ..., base + (width - 1)·stride`."""

    base: Expr
    stride: Expr
    width: int
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._seal(self.width)

    def _key(self) -> tuple[object, ...]:
        return (self.base, self.stride, self.width)

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.base.dtype

    def children(self) -> tuple[Expr, ...]:
        return (self.base, self.stride)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Ramp(children[0], children[1], self.width)


@dataclass(frozen=True, slots=True, eq=False)
class Broadcast(Expr):
    """A scalar in every lane of a vector."""

    value: Expr
    width: int
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._seal(self.width)

    def _key(self) -> tuple[object, ...]:
        return (self.value, self.width)

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.value.dtype

    def children(self) -> tuple[Expr, ...]:
        return (self.value,)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Broadcast(children[0], self.width)


def const(value: Number, dtype: DType = INDEX) -> Const:
    """Build a literal of `dtype`, which is the index type by default."""
    return Const(value, dtype)


def literal(value: Number, like: Expr, dtype: DType | None = None) -> Expr:
    """Build a literal as wide as `like`, and of its dtype unless `dtype` is given."""
    scalar = Const(value, dtype or like.dtype)
    return scalar if like.lanes == 1 else Broadcast(scalar, like.lanes)


def as_expr(value: Operand, like: DType = INDEX) -> Expr:
    """Convert `value` to an expression; a Python number becomes a literal of dtype `like`."""
    return value if isinstance(value, Expr) else Const(value, like)


def call(op: str, *operands: Operand) -> Expr:
    """Apply the scalar operator `op`; Python numbers take the dtype of the last expression operand.

    Constants and the simplest identities fold, so that index arithmetic stays readable. Raises
    `TypeError` if the operands' dtypes differ.
    """
    row = SCALAR_OPERATORS[op]
    args = _as_expressions(operands)
    if len(args) != row.arity:
        raise TypeError(f"{op} takes {row.arity} operands, not {len(args)}")
    last_dtype = args[-1].dtype
    if len(args) == 2:
        dtypes_agree = args[0].dtype == last_dtype
    else:
        dtypes_agree = all(a.dtype == last_dtype for a in (args[1:] if op == "select" else args))
    if not dtypes_agree:
        raise TypeError(
            f"{op} of {', '.join(a.dtype for a in args)}: cast the operands to one dtype"
        )
    dtype = DType.bool if row.result == "bool" else last_dtype
    if dtype == INDEX and len(args) == 2:
        folded = _index_identity(op, args[0], args[1])
        return Call(op, args, dtype) if folded is None else folded
    return Call(op, args, dtype)


def _as_expressions(operands: tuple[Operand, ...]) -> tuple[Expr, ...]:
    """Convert operands to expressions; numbers take the dtype of the last expression operand."""
    like: DType | None = None
    has_numbers = False
    for operand in operands:
        if isinstance(operand, Expr):
            like = operand.dtype
        else:
            has_numbers = True
    if not has_numbers:
        return operands  # type: ignore[return-value]
    return tuple(as_expr(o, INDEX if like is None else like) for o in operands)


def _index_identity(op: str, a: Expr, b: Expr) -> Expr | None:
    """Fold `a op b` of index type if both are literals or one is a neutral element."""
    x = a.value if isinstance(a, Const) else None
    y = b.value if isinstance(b, Const) else None
    if x is None and y is None:
        return None
    if y == 0 and op in _DIVISIONS:
        return None
    if x is not None and y is not None:
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
