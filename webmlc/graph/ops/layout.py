"""The operators that `choose_layouts` makes (domain `webmlc`): NHWC feature maps, packed weights,
views.

Maps are already padded, so that every window lies inside; weights are `[O/8][KH][KW][I][8]`
(matrices `[N/8][K][8]`), zero-padded to whole panels of eight, which is what a vector load wants on
the CPU and two `vec4` loads on the GPU.
"""

from __future__ import annotations

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, as_expr, call, const, maximum, minimum, select
from webmlc.core.simplify import simplify
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, Operator

PACK = 8
"""Columns of a panel of packed weights."""

Tensors = tuple[Tensor | None, ...]


def _tensor(tensors: Tensors, index: int) -> Tensor:
    tensor = tensors[index]
    assert tensor is not None
    return tensor


# -- convolution -----------------------------------------------------------------------


def _window_type(context: Context, channels: Expr) -> TensorType:
    """The type of a map that windows slide over: `(size - reach) // stride + 1` positions."""
    batch, height, width, _ = context.shape(0)
    kernel = context.attribute("kernel_shape")
    strides, dilations = context.attribute("strides"), context.attribute("dilations")
    sizes = [
        simplify((size - ((kernel[d] - 1) * dilations[d] + 1)) // strides[d] + 1)
        for d, size in enumerate((height, width))
    ]
    return TensorType(context.dtype(0), (batch, *sizes, channels))


def _infer_convolution(context: Context) -> tuple[TensorType, ...]:
    return (_window_type(context, const(context.attribute("channels"))),)


def _convolution(context: Context, tensors: Tensors) -> tuple[Tensor, ...]:
    data, weights = _tensor(tensors, 0), _tensor(tensors, 1)
    groups = int(context.attribute("groups"))
    kernel, strides = context.attribute("kernel_shape"), context.attribute("strides")
    dilations = context.attribute("dilations")
    inputs = weights.shape[-2]
    per_group = int(context.attribute("channels")) // groups

    def element(n: Expr, y: Expr, x: Expr, o: Expr, ky: Expr, kx: Expr, i: Expr) -> Expr:
        row, column = y * strides[0] + ky * dilations[0], x * strides[1] + kx * dilations[1]
        if groups == 1:
            return data[n, row, column, i] * weights[o // PACK, ky, kx, i, o % PACK]
        group, within = o // per_group, o % per_group
        weight = weights[group, within // PACK, ky, kx, i, within % PACK]
        return data[n, row, column, group * inputs + i] * weight

    shape = context.outputs[0].shape
    extents = (const(kernel[0]), const(kernel[1]), inputs)
    return (reduce("conv", shape, extents, "add", element),)


def _infer_depthwise(context: Context) -> tuple[TensorType, ...]:
    return (_window_type(context, context.shape(0)[3]),)


def _depthwise(context: Context, tensors: Tensors) -> tuple[Tensor, ...]:
    data, weights = _tensor(tensors, 0), _tensor(tensors, 1)
    strides, dilations = context.attribute("strides"), context.attribute("dilations")

    def element(n: Expr, y: Expr, x: Expr, c: Expr, ky: Expr, kx: Expr) -> Expr:
        row, column = y * strides[0] + ky * dilations[0], x * strides[1] + kx * dilations[1]
        return data[n, row, column, c] * weights[ky, kx, c]

    return (reduce("depthwise", context.outputs[0].shape, weights.shape[:2], "add", element),)


# -- pooling ---------------------------------------------------------------------------


def _infer_pool(context: Context) -> tuple[TensorType, ...]:
    batch, _, _, channels = context.shape(0)
    return (TensorType(context.dtype(0), (batch, *context.attribute("output_size"), channels)),)


def _pool(context: Context, tensors: Tensors, combine: str) -> Tensor:
    data = _tensor(tensors, 0)
    kernel = context.attribute("kernel_shape")
    strides, dilations = context.attribute("strides"), context.attribute("dilations")

    def element(n: Expr, y: Expr, x: Expr, c: Expr, ky: Expr, kx: Expr) -> Expr:
        row, column = y * strides[0] + ky * dilations[0], x * strides[1] + kx * dilations[1]
        return data[n, row, column, c]

    extents = (const(kernel[0]), const(kernel[1]))
    return reduce("pool", context.outputs[0].shape, extents, combine, element)


def _max_pool(context: Context, tensors: Tensors) -> tuple[Tensor, ...]:
    return (_pool(context, tensors, "max"),)


def _average_pool(context: Context, tensors: Tensors) -> tuple[Tensor, ...]:
    total = _pool(context, tensors, "add")
    kernel = context.attribute("kernel_shape")
    dtype = total.dtype
    counts = [_window_count(context, d) for d in range(2)]
    if all(count is None for count in counts):
        scale = Const(1.0 / (kernel[0] * kernel[1]), dtype)
        return (compute("average", total.shape, lambda n, y, x, c: total[n, y, x, c] * scale),)

    def element(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        elements: Expr = const(1)
        for d, position in enumerate((y, x)):
            count = counts[d]
            elements = elements * (const(kernel[d]) if count is None else count(position))
        return total[n, y, x, c] / elements.astype(dtype)

    return (compute("average", total.shape, element),)


def _window_count(context: Context, d: int):  # type: ignore[no-untyped-def]
    """A function from an output position to the elements of its window along `d`; `None` where
    always all.
    """
    begin, end = context.attribute("begins")[d], context.attribute("ends")[d]
    size = as_expr(context.attribute("size")[d])
    kernel, stride = context.attribute("kernel_shape")[d], context.attribute("strides")[d]
    dilation = context.attribute("dilations")[d]
    padded = context.attribute("count_include_pad")
    low = const(-begin if padded else 0)
    high = size + (end if padded else 0)
    reach = (context.outputs[0].shape[d + 1] - 1) * stride + (kernel - 1) * dilation + 1
    always_inside = simplify(call("le", reach - begin, high)) == Const(True, DType.bool)
    if always_inside and (padded or begin == 0):
        return None

    def count(position: Expr) -> Expr:
        start = position * stride - begin
        first = maximum((low - start + (dilation - 1)) // dilation, 0)
        last = minimum((high - start + (dilation - 1)) // dilation, kernel)
        return last - first

    return count


# -- matrix product --------------------------------------------------------------------


def _infer_matmul(context: Context) -> tuple[TensorType, ...]:
    columns = as_expr(context.attribute("columns"))
    return (TensorType(context.dtype(0), (*context.shape(0)[:-1], columns)),)


def _matmul(context: Context, tensors: Tensors) -> tuple[Tensor, ...]:
    left, right = _tensor(tensors, 0), _tensor(tensors, 1)
    batch = right.rank - 3

    def element(*axes: Expr) -> Expr:
        *rows, column, k = axes
        shared = rows[:batch]
        return left[(*rows, k)] * right[(*shared, column // PACK, k, column % PACK)]

    return (reduce("matmul", context.outputs[0].shape, (left.shape[-1],), "add", element),)


def _infer_pack(context: Context) -> tuple[TensorType, ...]:
    *batch, rows, columns = context.shape(0)
    panels = simplify((columns + (PACK - 1)) // PACK)
    return (TensorType(context.dtype(0), (*batch, panels, rows, const(PACK))),)


def _pack(context: Context, tensors: Tensors) -> tuple[Tensor, ...]:
    matrix = _tensor(tensors, 0)
    columns = matrix.shape[-1]

    def element(*axes: Expr) -> Expr:
        *batch, panel, k, lane = axes
        column = panel * PACK + lane
        if simplify(columns % PACK) == Const(0):
            return matrix[(*batch, k, column)]
        inside = matrix[(*batch, k, minimum(column, columns - 1))]
        return select(column < columns, inside, const(0).astype(matrix.dtype))

    return (compute("pack", context.outputs[0].shape, element),)


# -- views -----------------------------------------------------------------------------


def _infer_view(context: Context) -> tuple[TensorType, ...]:
    return (TensorType(context.dtype(0), context.attribute("shape")),)


def _view(context: Context, tensors: Tensors) -> tuple[Tensor, ...]:
    data = _tensor(tensors, 0)
    shape = context.outputs[0].shape

    def element(*axes: Expr) -> Expr:
        flat: Expr = const(0)
        for axis, extent in zip(axes, shape, strict=True):
            flat = flat * extent + axis
        indices: list[Expr] = []
        for extent in reversed(data.shape):
            indices.append(flat % extent)
            flat = flat // extent
        return data[tuple(reversed(indices))]

    return (compute("view", shape, element),)


OPS: tuple[Operator, ...] = (
    Operator("Conv", _infer_convolution, _convolution, kind="contraction", domain="webmlc"),
    Operator("DepthwiseConv", _infer_depthwise, _depthwise, kind="contraction", domain="webmlc"),
    Operator("MaxPool", _infer_pool, _max_pool, kind="reduction", domain="webmlc"),
    Operator("AveragePool", _infer_pool, _average_pool, kind="reduction", domain="webmlc"),
    Operator("MatMul", _infer_matmul, _matmul, kind="contraction", domain="webmlc"),
    Operator("Pack", _infer_pack, _pack, kind="injective", domain="webmlc"),
    Operator("View", _infer_view, _view, domain="webmlc"),
)
