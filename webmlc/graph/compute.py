"""Tensor expressions: the meaning of an operator, element by element.

A `Tensor` has a shape, a dtype and a `body`: an expression for the element at its axes. A
placeholder has no body. A body reads other tensors with `tensor[i, j]` (a `Read`). A reduction
folds its `value` over `reduce` axes. A scatter updates elements one after the other. An operator's
`compute` takes input tensors and returns output tensors. Fusion composes them, and
`loops.from_graph` turns each remaining stage into blocks.

    >>> from webmlc.core.expr import const, maximum
    >>> x = placeholder("x", (const(4), const(8)), DType.float32)
    >>> y = compute("relu", x.shape, lambda i, j: maximum(x[i, j], const(0, DType.float32)))
    >>> str(y.body)
    'T.max(x[relu_0, relu_1], T.float32(0.0))'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, Operand, Var, as_expr, as_int, set_lanes, widest
from webmlc.core.interning import interned
from webmlc.core.rewrite import walk
from webmlc.core.scalar_operators import SCALAR_OPERATORS


@dataclass(frozen=True, slots=True)
class ReduceAxis:
    """A variable that a reduction or a scatter runs along, with its extent."""

    var: Var
    extent: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """`combine` (a scalar operator with an identity: add, mul, min, max, bit_and, ...) of `value`
    over `axes`, starting at `init` (the operator's identity).
    """

    combine: str
    axes: tuple[ReduceAxis, ...]
    value: Expr
    init: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Scatter:
    """Updates of a tensor that starts as `initial` (None: the updates write every element).

    For the values of `axes` in order, the element at `target` becomes `value`, or `combine` of
    itself and `value`; a target outside the tensor is skipped. Updates that differ along `slices`
    never write the same element. The placeholder `state` stands for the tensor after the updates
    before this one.
    """

    initial: Expr | None
    slices: tuple[ReduceAxis, ...]
    axes: tuple[ReduceAxis, ...]
    target: tuple[Expr, ...]
    value: Expr
    combine: str | None
    state: Tensor

    @property
    def is_ordered(self) -> bool:
        """True if an update depends on the updates before it, not only on their targets."""
        roots = (*self.target, self.value)
        reads = (node for root in roots for node in walk(root) if isinstance(node, Read))
        return self.combine is not None or any(read.tensor is self.state for read in reads)


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor: a placeholder (`body` is None), a pointwise stage (`body` is an `Expr`), a
    reduction or a scatter.

    `axes` has one variable for each dimension, and `body` is an expression over them. `is_stored`
    says that a pointwise stage is stored, instead of computed again by each reader. Tensors are
    equal by identity.
    """

    name: str
    shape: tuple[Expr, ...]
    dtype: DType
    axes: tuple[Var, ...] = ()
    body: Expr | Reduction | Scatter | None = None
    is_stored: bool = False

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The expressions of the body."""
        match self.body:
            case None:
                return ()
            case Reduction(value=value):
                return (value,)
            case Scatter(initial=initial, target=target, value=value):
                return (*(() if initial is None else (initial,)), *target, value)
            case body:
                return (body,)

    @property
    def sources(self) -> tuple[Tensor, ...]:
        """The other tensors that the body reads, each once."""
        reads = (n for root in self.expressions for n in walk(root) if isinstance(n, Read))
        state = self.body.state if isinstance(self.body, Scatter) else None
        return tuple(dict.fromkeys(read.tensor for read in reads if read.tensor is not state))

    def __getitem__(self, indices: Operand | tuple[Operand, ...]) -> Expr:
        index = indices if isinstance(indices, tuple) else (indices,)
        if len(index) != self.rank:
            raise TypeError(f"{self.name} has rank {self.rank}, indexed with {len(index)}")
        return Read(self, tuple(as_expr(i) for i in index))


@interned
@dataclass(frozen=True, slots=True, eq=False)
class Read(Expr):
    """An element of a tensor."""

    tensor: Tensor
    indices: tuple[Expr, ...]

    def __post_init__(self) -> None:
        set_lanes(self, widest(self.indices))

    dtype = property(attrgetter("tensor.dtype"))
    children = property(attrgetter("indices"))

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Read(self.tensor, children)

    def text(self, parts: list[str]) -> str:
        """`x[i, j]`."""
        return f"{self.tensor.name}[{', '.join(parts) or '()'}]"


def placeholder(name: str, shape: Sequence[Expr], dtype: DType) -> Tensor:
    """A tensor whose elements come from outside."""
    return Tensor(name, tuple(shape), dtype)


def compute(
    name: str, shape: Sequence[Expr], body: Callable[..., Expr], *, keep: bool = False
) -> Tensor:
    """The tensor whose element at `axes` is `body(*axes)`, of the body's dtype. With `keep` it is
    stored, instead of computed again by each reader.
    """
    axes = tuple(Var(f"{name}_{d}") for d in range(len(shape)))
    value = body(*axes)
    return Tensor(name, tuple(shape), value.dtype, axes, value, keep)


def reduce(
    name: str,
    shape: Sequence[Expr],
    extents: Sequence[Expr],
    combine: str,
    body: Callable[..., Expr],
) -> Tensor:
    """The tensor whose element is `combine` of `body(*axes, *reduce_axes)` over reduce axes of
    these extents. If an extent is zero, the element is the identity of `combine`.
    """
    axes = tuple(Var(f"{name}_{d}") for d in range(len(shape)))
    reduce_axes = tuple(ReduceAxis(Var(f"{name}_r{d}"), extent) for d, extent in enumerate(extents))
    value = body(*axes, *(axis.var for axis in reduce_axes))
    init = identity(combine, value.dtype)
    if any(as_int(extent) == 0 for extent in extents):
        return Tensor(name, tuple(shape), value.dtype, axes, init)
    return Tensor(
        name, tuple(shape), value.dtype, axes, Reduction(combine, reduce_axes, value, init)
    )


def scatter(
    name: str,
    shape: Sequence[Expr],
    slices: Sequence[Expr],
    extents: Sequence[Expr],
    update: Callable[..., tuple[tuple[Expr, ...], Expr]],
    dtype: DType,
    initial: Tensor | Expr | None = None,
    combine: str | None = None,
) -> Tensor:
    """The tensor that starts as `initial`, with the updates `update(state, *slices, *axes)` applied
    in order (`Scatter`). An update is a target and a value.
    """
    axes = tuple(Var(f"{name}_{d}") for d in range(len(shape)))
    along = tuple(ReduceAxis(Var(f"{name}_s{d}"), extent) for d, extent in enumerate(slices))
    inside = tuple(ReduceAxis(Var(f"{name}_r{d}"), extent) for d, extent in enumerate(extents))
    state = placeholder(f"{name}_state", shape, dtype)
    target, value = update(state, *(axis.var for axis in (*along, *inside)))
    first = initial[axes] if isinstance(initial, Tensor) else initial
    body = Scatter(first, along, inside, target, value, combine, state)
    return Tensor(name, tuple(shape), dtype, axes, body)


def stages_of(roots: Sequence[Tensor]) -> list[Tensor]:
    """All tensors that `roots` need, and these themselves, producers before readers."""
    order: dict[Tensor, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        tensor, expanded = stack.pop()
        if tensor in order:
            continue
        if expanded:
            order[tensor] = None
            continue
        stack.append((tensor, True))
        stack.extend((source, False) for source in reversed(tensor.sources))
    return list(order)


def identity(combine: str, dtype: DType) -> Const:
    """The identity of a reduction. In types without infinity, ±infinity is the largest or smallest
    number.
    """
    value = SCALAR_OPERATORS[combine].identity
    if value is None:
        raise TypeError(f"{combine} has no identity and cannot reduce")
    if combine in ("min", "max") and dtype is not DType.bool and not dtype.has_infinity:
        low, high = dtype.limits
        return Const(high if combine == "min" else low, dtype)
    if dtype is DType.bool:
        return Const(combine in ("bit_and", "min"), dtype)
    return Const(value, dtype)
