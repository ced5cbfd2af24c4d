"""Operators that read shapes, or create tensors of a shape; and the nodes that hold symbolic
values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from webmlc.core.bounds import Interval, bounds
from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Call, Cast, Const, Expr, Var, as_expr, call, const, maximum, select
from webmlc.core.rewrite import rewrite, variables
from webmlc.graph.builder import Builder
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.cast import cast_to, named_type
from webmlc.graph.ops.operator import BIND, SYMBOLIC_CONSTANT, Context, Operator, case
from webmlc.graph.ops.shapes import (
    ZERO,
    canonical,
    check_shapes,
    check_single,
    dimensions,
    product,
    require,
    select_among,
)


def _shape(context: Context, *_: Tensor) -> Tensor:
    shape, rank = context.shape(0), context.rank(0)
    sizes = shape[context.attribute("start", 0) : context.attribute("end", rank)]
    values = [d.astype(DType.int64) for d in sizes] or [Const(0, DType.int64)]
    return compute("shape", (const(len(sizes)),), lambda i: select_among(values, i))


def _size(context: Context, *_: Tensor) -> Tensor:
    total = product(context.shape(0)).astype(DType.int64)
    return compute("size", (), lambda: total)


def _constant_of_shape_type(context: Context) -> TensorType:
    dtype = DType.of(np.asarray(context.attribute("value", np.zeros(1, np.float32))).dtype)
    return TensorType(dtype, tuple(canonical(d) for d in dimensions(context, 0, "the shape")))


def _constant_of_shape(context: Context, *_: Tensor) -> Tensor:
    value = np.asarray(context.attribute("value", np.zeros(1, np.float32))).reshape(-1)[0].item()
    y = context.outputs[0]
    return compute("fill", y.shape, lambda *_: Const(value, y.dtype))


def _sizes_type(context: Context) -> TensorType:
    context.known_value(0, "a size")
    return context.type(0)


def _sizes(context: Context, x: Tensor) -> Tensor:
    """Make sizes that a run computes symbols. So all values computed from them are known."""
    return compute("sizes", x.shape, lambda *i: x[i])


def _range_expanded(context: Context, build: Builder) -> str | None:
    """Expand a range whose length only a run knows: the run computes the length, too."""
    check_single(context, 0, 1, 2)
    if context.has(3) or _length(context) is not None:
        return None
    count = build("RangeCount", *context.node.inputs, domain="webmlc")
    return build("Range", *context.node.inputs, count)


def _range_count(context: Context, *inputs: Tensor) -> Tensor:
    start, limit, delta = (t[(ZERO,) * t.rank] for t in inputs)
    if start.dtype.is_float:
        count = call("ceil", (limit - start) / delta).astype(DType.int64)
    else:
        start, limit, delta = (e.astype(DType.int64) for e in (start, limit, delta))
        count = -((start - limit) // delta)  # rounded up
    return compute("count", (), lambda: maximum(count, 0))


def _range_type(context: Context) -> TensorType:
    if context.has(3):
        return TensorType(context.dtype(0), (dimensions(context, 3, "how many there are")[0],))
    length, dtype = _length(context), context.dtype(0)
    assert length is not None  # the expansion gives every other range a count
    if dtype.is_float:  # so that the float stands for the size from which the length is computed
        largest = const(1 << np.finfo(dtype.numpy).nmant)
        ends = (_whole(context.known_value(i, "an end").reshape(-1)[0]) for i in range(2))
        for end in (end for end in ends if isinstance(end, Expr)):
            require(context, "at most", end, largest)
            require(context, "at most", ZERO - end, largest)
    return TensorType(dtype, (length,))


def _length(context: Context) -> Expr | None:
    """The number of elements of a range. `None` if the number is unknown: it depends on data, or on
    symbols whose arithmetic rounds.
    """
    values = [context.value(i) for i in range(3)]
    numbers: list[Any] = [None if v is None else v.reshape(-1)[0] for v in values]
    if not any(n is None or isinstance(n, Expr) for n in numbers):
        first, end, step = numbers
        return const(max(0, int(np.ceil((end - first) / step))))
    start, limit, delta = map(_whole, numbers)
    if start is None or limit is None or not isinstance(delta, int) or delta == 0:
        return None
    distance = as_expr(limit) - start if delta > 0 else as_expr(start) - limit
    return canonical((distance + (abs(delta) - 1)) // abs(delta))


def _whole(number: Any) -> int | Expr | None:
    """A whole number, or an expression of symbols that is whole, even if it was converted to float.
    `None` if the number may have a fraction, or is unknown.
    """
    if isinstance(number, Cast) and not number.value.dtype.is_float:
        number = number.value
    if isinstance(number, Expr):
        return None if number.dtype.is_float else number
    return int(number) if number is not None and number % 1 == 0 else None


def _range(context: Context, start: Tensor, _limit: Tensor, delta: Tensor, *_: Tensor) -> Tensor:
    y = context.outputs[0]

    def scalar(t: Tensor) -> Expr:
        return t[(ZERO,) * t.rank]

    return compute("range", y.shape, lambda i: scalar(start) + i.astype(y.dtype) * scalar(delta))


def _eye_like_type(context: Context) -> TensorType:
    check_shapes(context, "rows columns")
    is_named = "dtype" in context.node.attributes
    dtype = named_type(context, "dtype") if is_named else context.dtype(0)
    return TensorType(dtype, context.shape(0))


def _eye_like(context: Context, *_: Tensor) -> Tensor:
    k, y = int(context.attribute("k", 0)), context.outputs[0]

    def element(i: Expr, j: Expr) -> Expr:
        return select(call("eq", i + k, j), Const(1, y.dtype), Const(0, y.dtype))

    return compute("eye", y.shape, element)


def _symbolic_constant_type(context: Context) -> TensorType:
    sizes = tuple(const(n) for n in context.attribute("shape"))
    return TensorType(context.attribute("dtype"), sizes)


def _symbolic_constant(context: Context, *_: Tensor) -> Tensor:
    """Select one of a few expressions of symbols by the flat index."""
    y = context.outputs[0]
    values = [cast_to(_exact(as_expr(e), y.dtype), y.dtype) for e in context.attribute("elements")]

    def element(*i: Expr) -> Expr:
        flat: Expr = ZERO
        for v, size in zip(i, y.shape, strict=True):
            flat = flat * size + v
        return select_among(values, flat)

    return compute("symbols", y.shape, element)


ASSUMED_MAX_SIZE = 1 << 16
"""The largest size that is assumed for a symbol when the range of a value is estimated. A value is
computed in 64 bits if such sizes may take it outside the range of an index. Chosen by hand.
"""


def _exact(value: Expr, dtype: DType) -> Expr:
    """An index expression, in 64 bits if `dtype` has 64 bits and the value may need them."""
    ranges = dict.fromkeys(variables(value), Interval(0, ASSUMED_MAX_SIZE))
    if dtype.bits < 64 or value.dtype != INDEX or bounds(value, ranges).within(*INDEX.limits):
        return value

    def rule(node: Expr) -> Expr | None:
        match node:
            case Const(value=number):
                return Const(number, DType.int64)
            case Var():
                return node.astype(DType.int64)
            case Call(op=op, args=args):
                return call(op, *args)
        return None

    return rewrite(value, rule)


X = "float32[2, 3, 4]"

OPS: tuple[Operator, ...] = (
    Operator("Shape", compute=_shape, kind="injective", cases=(
        case(X), case(X, start=1), case(X, start=-2, end=-1))),
    Operator("Size", compute=_size, kind="injective", cases=(case(X),)),
    Operator("ConstantOfShape", _constant_of_shape_type, _constant_of_shape,
             kind="injective", cases=(
        case([2, 3]), case([2, 3], value=np.array([5], np.int64)))),
    Operator("Sizes", _sizes_type, _sizes, domain="webmlc", kind="injective"),
    Operator("RangeCount", compute=_range_count, domain="webmlc", kind="injective"),
    Operator("Range", _range_type, _range, _range_expanded, kind="injective", cases=(
        case(np.int64(1), np.int64(10), np.int64(3)), case(np.int64(5), np.int64(-5), np.int64(-2)),
        case(np.float32(0.5), np.float32(3), np.float32(0.5)))),
    Operator("EyeLike", _eye_like_type, _eye_like, kind="injective", cases=(
        case("float32[3, 4]"), case("float32[3, 4]", k=1, dtype=7))),
    Operator("SymbolicConstant", _symbolic_constant_type, _symbolic_constant, kind="injective",
             domain=SYMBOLIC_CONSTANT[0]),
    Operator("Bind", _symbolic_constant_type, _symbolic_constant, domain=BIND[0]),
)  # fmt: skip
