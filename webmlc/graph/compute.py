"""Tensor expressions: what an operator means, element by element.

A `Tensor` has a shape, a dtype and a `body` that gives the element at its axes; a placeholder has
none. A body reads other tensors with `tensor[i, j]` (a `Read`); a reduction folds its `value` over
`reduce` axes. An operator's `compute` takes input tensors and returns output tensors; fusion
composes them; `loops.from_graph` turns each remaining stage into a block.

    >>> from webmlc.core.expr import const, maximum
    >>> x = placeholder("x", (const(4), const(8)), DType.float32)
    >>> y = compute("relu", x.shape, lambda i, j: maximum(x[i, j], const(0, DType.float32)))
    >>> str(y.body)
    'T.max(x[relu_0, relu_1], T.float32(0.0))'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, Operand, Var, as_expr, as_int
from webmlc.core.scalar_operators import SCALAR_OPERATORS


@dataclass(frozen=True, slots=True)
class ReduceAxis:
    """A reduction variable with its extent."""

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
class Tensor:
    """A tensor: a placeholder (`body` is None), a pointwise stage (`body` is an `Expr`) or a
    reduction.

    `axes` has one variable a dimension; `body` is an expression over them. `kept` says that a
    pointwise stage is stored, not computed again by each reader. Tensors are equal by identity.
    """

    name: str
    shape: tuple[Expr, ...]
    dtype: DType
    axes: tuple[Var, ...] = ()
    body: Expr | Reduction | None = None
    kept: bool = False

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __getitem__(self, indices: Operand | tuple[Operand, ...]) -> Expr:
        index = indices if isinstance(indices, tuple) else (indices,)
        if len(index) != self.rank:
            raise TypeError(f"{self.name} has rank {self.rank}, indexed with {len(index)}")
        return Read(self, tuple(as_expr(i) for i in index))


@dataclass(frozen=True, slots=True, eq=False)
class Read(Expr):
    """An element of a tensor."""

    tensor: Tensor
    indices: tuple[Expr, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._seal()

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.tensor.dtype

    def _key(self) -> tuple[object, ...]:
        return (id(self.tensor), self.indices)

    def children(self) -> tuple[Expr, ...]:
        return self.indices

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
    """The tensor whose element at `axes` is `body(*axes)`; its dtype is the body's."""
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
    these extents; of nothing, where one of them is zero.
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


def identity(combine: str, dtype: DType) -> Const:
    """The neutral element of a reduction: ±infinity of integers is their largest or smallest
    value.
    """
    value = SCALAR_OPERATORS[combine].identity
    if value is None:
        raise TypeError(f"{combine} has no identity and cannot reduce")
    if dtype.is_integer and combine in ("min", "max"):
        low, high = dtype.limits
        return Const(high if combine == "min" else low, dtype)
    if dtype is DType.bool:
        return Const(combine in ("bit_and", "min"), dtype)
    return Const(value, dtype)
