"""Order: TopK, by sorting (`ops.sorting`). Along a short axis each element counts how many come
before it, which is quadratic, and independent.
"""

from __future__ import annotations

from collections.abc import Callable

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_int, call, const, select
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import ONE, ZERO, check_single, dimensions, given, require
from webmlc.graph.ops.sorting import comparable, inside, stable_order, word_bits, words

Inputs = tuple[Tensor | None, ...]
SHORT = 128
"""Elements of an axis that are sooner compared with one another than sorted by radix, which has
5,120 counters.
"""


def _count(context: Context) -> Expr:
    if "k" in context.node.attributes:
        return const(int(context.attribute("k")))
    count = dimensions(context, 1, "k")[0]
    is_empty = as_int(context.shape(0)[context.axis(-1)]) == 0
    return ZERO if is_empty and as_int(count) is None else count


def _top_k_type(context: Context) -> tuple[TensorType, ...]:
    x, axis = context.type(0), context.axis(-1)
    check_single(context, 1)
    count, size = _count(context), x.shape[axis]
    if not require(context, "at most", count, size):
        raise NotSupportedError(f"the first {count} of {size} elements")
    shape = (*x.shape[:axis], _count(context), *x.shape[axis + 1 :])
    both = (TensorType(x.dtype, shape), TensorType(DType.int64, shape))
    return tuple(t for t, name in zip(both, context.node.outputs, strict=False) if name)


def _top_k(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """Of equal elements the first comes first; NaN is larger than all."""
    x, axis = given(inputs, 0), context.axis(-1)
    size = as_int(x.shape[axis])
    places = _by_count if size is not None and size <= SHORT else _by_sort
    place = places(x, axis, context)
    shape = (*x.shape[:axis], _count(context), *x.shape[axis + 1 :])

    def value(*i: Expr) -> Expr:
        return x[(*i[:axis], place(*i), *i[axis + 1 :])]

    values = compute("values", shape, value)
    indices = compute("indices", shape, lambda *i: place(*i).astype(DType.int64))
    both = zip((values, indices), context.node.outputs, strict=False)
    return tuple(t for t, name in both if name)


def _by_sort(x: Tensor, axis: int, context: Context) -> Callable[..., Expr]:
    """Where along the axis each element of the result stands, by sorting lines along it."""
    descending = bool(context.attribute("largest", 1))
    shape = (*x.shape[:axis], *x.shape[axis + 1 :], x.shape[axis])

    def word(number: int) -> Callable[..., Expr]:
        def element(*i: Expr) -> Expr:
            return words(x[(*i[:axis], i[-1], *i[axis:-1])], descending)[number]

        return element

    count = len(words(x[(ZERO,) * x.rank]))
    keys = [compute(f"word{n}", shape, word(n), keep=True) for n in range(count)]
    order = stable_order("order", keys, word_bits(x.dtype))
    size = x.shape[axis]
    return lambda *i: inside(order[(*i[:axis], *i[axis + 1 :], i[axis])], size)


def _by_count(x: Tensor, axis: int, context: Context) -> Callable[..., Expr]:
    """Where along the axis each element of the result stands: that of as many before it."""
    size = x.shape[axis]
    better = "gt" if context.attribute("largest", 1) else "lt"
    keys = x
    if x.dtype.is_float:
        keys = compute("keys", x.shape, lambda *i: comparable(x[i]), keep=True)

    def precedes(*index: Expr) -> Expr:
        *i, other = index
        mine, its = keys[tuple(i)], keys[(*i[:axis], other, *i[axis + 1 :])]
        first = call("eq", its, mine) & (other < i[axis])
        return select(call(better, its, mine) | first, ONE, ZERO)

    rank = reduce("rank", x.shape, (size,), "add", precedes)
    shape = (*x.shape[:axis], _count(context), *x.shape[axis + 1 :])

    def position(*index: Expr) -> Expr:
        *i, at = index
        place = rank[(*i[:axis], at, *i[axis + 1 :])]
        return select(call("eq", place, i[axis]), at, ZERO)

    found = reduce("place", shape, (size,), "max", position)
    return lambda *i: found[i]


X, LONG = "float32[3, 5]", "float32[3, 150]"

OPS: tuple[Operator, ...] = (
    Operator("TopK", _top_k_type, _top_k, kind="reduction", cases=(
        case(X, [3], outputs=2), case(X, [2], outputs=2, axis=0, largest=0),
        case([[1.0, 3, 3, 2, 3]], [4], outputs=2), case(LONG, [7], outputs=2),
        case(LONG, [150], outputs=2, axis=1, largest=0),
        case("int64[200, 2] in -9..9", [200], outputs=2, axis=0),
        case("uint8[2, 200]", [9], outputs=2, largest=0))),
)  # fmt: skip
