"""Order: TopK, by counting for each element how many come before it. Quadratic, and independent."""

from __future__ import annotations

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_int, call, const, select
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import ONE, ZERO, check_single, dimensions, given

Inputs = tuple[Tensor | None, ...]


def _count(context: Context) -> Expr:
    if "k" in context.node.attributes:
        return const(int(context.attribute("k")))
    return dimensions(context, 1, "k")[0]


def _top_k_type(context: Context) -> tuple[TensorType, ...]:
    x, axis = context.type(0), context.axis(-1)
    check_single(context, 1)
    count, size = as_int(_count(context)), as_int(x.shape[axis])
    if count is not None and size is not None and count > size:
        raise NotSupportedError(f"the first {count} of {size} elements")
    shape = (*x.shape[:axis], _count(context), *x.shape[axis + 1 :])
    both = (TensorType(x.dtype, shape), TensorType(DType.int64, shape))
    return tuple(t for t, name in zip(both, context.node.outputs, strict=False) if name)


def _top_k(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """Of equal elements the first comes first."""
    x, axis = given(inputs, 0), context.axis(-1)
    better = "gt" if context.attribute("largest", 1) else "lt"
    size, count = x.shape[axis], _count(context)
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])

    def precedes(*index: Expr) -> Expr:
        *i, other = index
        mine, its = x[tuple(i)], x[(*i[:axis], other, *i[axis + 1 :])]
        first = call("eq", its, mine) & (other < i[axis])
        return select(call(better, its, mine) | first, ONE, ZERO)

    rank = reduce("rank", x.shape, (size,), "add", precedes)

    def position(*index: Expr) -> Expr:
        *i, at = index
        place = rank[(*i[:axis], at, *i[axis + 1 :])]
        return select(call("eq", place, i[axis]), at, ZERO)

    found = reduce("place", shape, (size,), "max", position)
    values = compute("values", shape, lambda *i: x[(*i[:axis], found[i], *i[axis + 1 :])])
    indices = compute("indices", shape, lambda *i: found[i].astype(DType.int64))
    both = zip((values, indices), context.node.outputs, strict=False)
    return tuple(t for t, name in both if name)


X = "float32[3, 5]"

OPS: tuple[Operator, ...] = (
    Operator("TopK", _top_k_type, _top_k, kind="reduction", cases=(
        case(X, [3], outputs=2), case(X, [2], outputs=2, axis=0, largest=0),
        case([[1.0, 3, 3, 2, 3]], [4], outputs=2))),
)  # fmt: skip
