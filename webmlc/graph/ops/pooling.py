"""Pooling: a `pool` stage reduces the taps of each window of the padded input. A last stage may
follow.

A pool is a `Pooling` function. From it, `_channels_first` makes the meaning of ONNX's operator, and
`_channels_last` the row of the operator over NHWC that `layout.window_layouts` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, call, const, select
from webmlc.graph.builder import Builder
from webmlc.graph.compute import Tensor, compute, identity, reduce, scatter
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.index import require_within
from webmlc.graph.ops.operator import (
    Context,
    Layout,
    NotSupportedError,
    Operator,
    case,
    given_types,
    same_type,
)
from webmlc.graph.ops.reduction import fold, mean_scale
from webmlc.graph.ops.shapes import (
    ONE,
    ZERO,
    accumulator,
    check_shape,
    check_shapes,
    dimensions,
    product,
    require,
)
from webmlc.graph.ops.windows import (
    AUTO_PAD,
    CHANNELS_FIRST,
    CHANNELS_LAST,
    MapOrder,
    Windows,
    average,
    mean_type,
    pool,
)

Compute = Callable[[Context, Tensor], Tensor]


Pooling = Callable[[Context, Tensor, Windows, MapOrder], Tensor]
"""The meaning of a pool over a padded feature map, whose channels come first or last."""


def lowest(dtype: DType) -> float | int:
    """The lower limit of all maximums."""
    value = identity("max", dtype).value
    assert not isinstance(value, str)
    return value


def _channels_first(
    pooling: Pooling, padding: Callable[[DType], float | int] = lambda _: 0
) -> Compute:
    """The meaning of ONNX's operator, which pads the map."""

    def meaning(context: Context, x: Tensor) -> Tensor:
        windows = windows_of(context)
        padded = windows.pad(x, padding(x.dtype))
        return pooling(context, padded, windows, CHANNELS_FIRST)

    return meaning


def _channels_last(name: str, pooling: Pooling) -> Operator:
    """The row of the operator over NHWC: the map is padded, and `windows` are an attribute."""

    def meaning(context: Context, x: Tensor) -> Tensor:
        return pooling(context, x, context.attribute("windows"), CHANNELS_LAST)

    return Operator(name, compute=meaning, kind="reduction", domain="webmlc", trait="pool")


def windows_of(context: Context) -> Windows:
    """The windows of a pooling node."""
    return Windows.of(
        context, context.attribute("kernel_shape"), bool(context.attribute("ceil_mode", 0))
    )


def _pool_type(context: Context) -> tuple[TensorType, ...]:
    x = context.type(0)
    pooled = TensorType(x.dtype, (*x.shape[:2], *windows_of(context).sizes))
    _check_elements(context)
    output_count = len(context.node.outputs)
    return (pooled, TensorType(DType.int64, pooled.shape))[:output_count]


def _check_elements(context: Context) -> None:
    """Check that each feature map has elements: nothing has no mean and no maximum."""
    x = context.type(0)
    if not all(require(context, "at most", ONE, size) for size in x.shape[2:]):
        raise NotSupportedError(f"{x}: a pool of no elements")


def largest(dtype: DType) -> str:
    """The scalar operator of a maximum over a window. Whether a NaN is skipped depends on its
    position, as in onnxruntime.
    """
    return "relaxed_max" if dtype.is_float else "max"


def _max_pool(context: Context, x: Tensor, windows: Windows, order: MapOrder) -> Tensor:
    return pool(x, windows, order, largest(x.dtype))


def _average_pool(context: Context, x: Tensor, windows: Windows, order: MapOrder) -> Tensor:
    return average(x, windows, order, bool(context.attribute("count_include_pad", 0)))


def _lp_pool(context: Context, x: Tensor, windows: Windows, order: MapOrder) -> Tensor:
    before, after = power(context.count("p", 2))
    total = pool(x, windows, order, "add", before)
    return compute("root", total.shape, lambda *i: after(total[i]))


def _max_pool_and_places(context: Context, x: Tensor) -> tuple[Tensor, ...]:
    pooled = _channels_first(_max_pool, lowest)(context, x)
    if context.output_count < 2:
        return (pooled,)
    return (pooled, _max_position(context, x, pooled, windows_of(context)))


def _max_position(context: Context, x: Tensor, pooled: Tensor, windows: Windows) -> Tensor:
    """The flat index of each maximum in the whole input: of the first maximum if several are equal.

    The reduction finds the number of a tap, which is a constant where its loops are unrolled. The
    last stage computes the index of this tap alone. The index is 2**31 - 1 if no tap equals the
    maximum, because it is NaN.
    """
    rank, spatial = windows.rank, x.shape[2:]
    columns_first = bool(context.attribute("storage_order", 0))
    order = range(rank)[::-1] if columns_first else range(rank)
    nothing = const(2**31 - 1)

    def place(window: Sequence[Expr], tap: Sequence[Expr]) -> list[Expr]:
        padded_place = windows.positions(window, tap)
        return [p - b for p, b in zip(padded_place, windows.begins, strict=True)]

    def tap_number(n: Expr, c: Expr, *axes: Expr) -> Expr:
        at = place(axes[:rank], axes[rank:])
        is_maximum: Expr = const(True, DType.bool)
        number: Expr = ZERO
        for d, kernel in enumerate(windows.kernel):
            number = number * kernel + axes[rank + d]
            if not windows.is_inside(d):
                is_maximum = is_maximum & (at[d] >= 0) & (at[d] < spatial[d])
        is_maximum = is_maximum & call("eq", x[(n, c, *at)], pooled[(n, c, *axes[:rank])])
        return select(is_maximum, number, nothing)

    taps = [const(k) for k in windows.kernel]
    first = reduce("position", pooled.shape, taps, "min", tap_number)

    def index(n: Expr, c: Expr, *window: Expr) -> Expr:
        number = first[(n, c, *window)]
        remainder, tap = number, list[Expr]()
        for kernel in reversed(windows.kernel):
            tap.insert(0, remainder % kernel)
            remainder = remainder // kernel
        at = place(window, tap)
        flat: Expr = n * x.shape[1] + c
        for d in order:
            flat = flat * spatial[d] + at[d]
        return select(call("eq", number, nothing), nothing, flat).astype(DType.int64)

    return compute("indices", pooled.shape, index)


def _average_type(context: Context) -> TensorType:
    pooled = _pool_type(context)[0]
    return replace(pooled, dtype=mean_type(pooled.dtype))


def power(p: int) -> tuple[Callable[[Expr], Expr], Callable[[Expr], Expr]]:
    """The function |x|^p and its inverse."""
    if p == 1:
        return (lambda x: call("abs", x)), (lambda x: x)
    if p == 2:
        return (lambda x: x * x), (lambda x: call("sqrt", x))
    return (
        lambda x: call("unsigned_pow", call("abs", x), float(p)),
        lambda x: call("unsigned_pow", x, 1.0 / p),
    )


def _global_type(context: Context) -> TensorType:
    x = context.type(0)
    _check_elements(context)
    return TensorType(x.dtype, (*x.shape[:2], *((ONE,) * (x.rank - 2))))


def _global_average(context: Context, x: Tensor) -> Tensor:
    axes, sum_dtype = range(2, x.rank), accumulator(x.dtype)
    total = fold("pool", x, axes, "add", lambda *i: x[i].astype(sum_dtype))
    scale = mean_scale(x.shape[2:], sum_dtype)
    return compute("average", total.shape, lambda *i: scale(total[i]).astype(x.dtype))


def _global_max(context: Context, x: Tensor) -> Tensor:
    return fold("pool", x, range(2, x.rank), largest(x.dtype), lambda *i: x[i])


def _global_lp(context: Context, x: Tensor) -> Tensor:
    before, after = power(context.count("p", 2))
    total = fold("pool", x, range(2, x.rank), "add", lambda *i: before(x[i]))
    return compute("root", total.shape, lambda *i: after(total[i]))


def _unpool_type(context: Context) -> TensorType:
    x = context.type(0)
    check_shape(context, 1, x.shape)
    check_shapes(context, "batch channels ...", "", "rank", rank=x.rank)
    if context.has(2):
        return TensorType(x.dtype, tuple(dimensions(context, 2, "the shape")))
    kernel = context.attribute("kernel_shape")
    rank = x.rank - 2
    strides = context.attribute("strides", (1,) * rank)
    pads = context.attribute("pads", (0,) * (2 * rank))
    if not len(kernel) == len(strides) == len(pads) // 2 == rank:
        raise NotSupportedError(f"a kernel, strides and pads that are not of {rank} dimensions")
    sizes = [
        (x.shape[2 + d] - 1) * strides[d] + kernel[d] - pads[d] - pads[rank + d]
        for d in range(rank)
    ]
    return TensorType(x.dtype, (*x.shape[:2], *sizes))


def _max_unpool(context: Context, build: Builder) -> str:
    """Count positions within each map, and check that none is in another: MaxPool writes none."""
    x, indices = context.node.inputs[:2]
    shape, types = _pooled_shape(context)[2:], _unpool_type(context)
    places = build("MapPosition", indices, domain="webmlc", size=product(shape))
    places = require_within(build, places, product(shape))
    return build("UnpoolMaps", x, places, domain="webmlc", shape=shape, types=types)


def _map_position(context: Context, x: Tensor) -> Tensor:
    """Positions in a whole tensor, less the position at which the map of each begins."""
    size: Expr = context.attribute("size")

    def element(*i: Expr) -> Expr:
        channel = i[0].astype(x.dtype) * x.shape[1].astype(x.dtype) + i[1].astype(x.dtype)
        return x[i] - channel * size.astype(x.dtype)

    return compute("position", x.shape, element)


def _unpool_maps(context: Context, x: Tensor, places: Tensor) -> Tensor:
    """Write each element to its place in a feature map of zeros. The last of several elements at
    one place stays.

    Input 1 holds places in feature maps of `shape`. The result may have feature maps of another
    shape. Elements outside of it are left out.
    """
    shape = context.outputs[0].shape

    def update(_: Tensor, n: Expr, c: Expr, *i: Expr) -> tuple[tuple[Expr, ...], Expr]:
        place, target = places[(n, c, *i)].astype(DType.int32), list[Expr]()
        for size in reversed(context.attribute("shape")[1:]):
            target.insert(0, place % size)
            place = place // size
        return (n, c, place, *target), x[(n, c, *i)]

    zero = Const(0, x.dtype)
    return scatter("unpool", shape, shape[:2], x.shape[2:], update, x.dtype, zero)


def _pooled_shape(context: Context) -> tuple[Expr, ...]:
    """The shape of the tensor that was pooled, as the kernel implies it."""
    implied = replace(context.node, inputs=context.node.inputs[:2])
    return _unpool_type(Context(implied, context.types[:2])).shape


X = "float32[2, 3, 7, 6]"
POOLS = (
    case(X, kernel_shape=(2, 2)), case(X, kernel_shape=(3, 3), strides=(2, 2), pads=(1,) * 4),
    case(X, kernel_shape=(3, 2), strides=(2, 2), ceil_mode=1),
    case(X, kernel_shape=(3, 3), strides=(2, 2), auto_pad="SAME_UPPER"),
    case(X, kernel_shape=(2, 2), auto_pad="SAME_LOWER"),
    case("float32[1, 2, 9]", kernel_shape=(3,)),
)  # fmt: skip

_POOL, _GLOBAL_POOL = Layout(form="pool"), Layout(form="global pool")

OPS: tuple[Operator, ...] = (
    Operator("MaxPool", _pool_type, _max_pool_and_places, kind="reduction", layout=_POOL,
             choices=AUTO_PAD, cases=(
        *POOLS, case(X, kernel_shape=(2, 2), dilations=(2, 2)),
        case(X, kernel_shape=(2, 2), strides=(2, 2), outputs=2),
        case("int8[1, 1, 4, 4] in -9..9", kernel_shape=(2, 2)))),
    Operator("AveragePool", _average_type, _channels_first(_average_pool), kind="reduction",
             layout=_POOL, choices=AUTO_PAD, cases=(
        *POOLS, case(X, kernel_shape=(3, 3), pads=(1,) * 4, count_include_pad=1),
        case(X, kernel_shape=(2, 2), dilations=(2, 2)))),
    Operator("LpPool", _pool_type, _channels_first(_lp_pool), kind="reduction",
             layout=_POOL, choices=AUTO_PAD, cases=(
        case(X, kernel_shape=(2, 2)), case(X, kernel_shape=(3, 3), p=1),
        case(X, kernel_shape=(3, 3), pads=(1,) * 4, p=3))),
    _channels_last("MaxPool", _max_pool),
    _channels_last("AveragePool", _average_pool),
    _channels_last("LpPool", _lp_pool),
    Operator("GlobalAveragePool", _global_type, _global_average, kind="reduction",
             layout=_GLOBAL_POOL, cases=(case(X),)),
    Operator("GlobalMaxPool", _global_type, _global_max, kind="reduction", layout=_GLOBAL_POOL,
             cases=(case(X),)),
    Operator("GlobalLpPool", _global_type, _global_lp, kind="reduction", cases=()),
    Operator("MapPosition", same_type, _map_position, domain="webmlc", kind="injective"),
    Operator("UnpoolMaps", given_types, _unpool_maps, domain="webmlc"),
    Operator("MaxUnpool", _unpool_type, expand=_max_unpool, cases=(
        case([[[[1.0, 2], [3, 4]]]], np.array([[[[5, 7], [13, 15]]]]), kernel_shape=(2, 2),
             strides=(2, 2)),
        case([[[[1.0, 2], [3, 4]]]], np.array([[[[5, 7], [13, 15]]]]), [1, 1, 5, 5],
             kernel_shape=(2, 2), strides=(2, 2)))),
)  # fmt: skip
