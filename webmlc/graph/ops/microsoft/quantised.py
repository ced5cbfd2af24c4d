"""Quantised operators of onnxruntime's own domain, as its quantiser writes them into models.

Operators on single elements, windows and rows become float operators between a DequantizeLinear and
a QuantizeLinear. Products become integer products that are scaled once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ops.microsoft.rows import (
    DOMAIN,
    WINDOWS,
    channels_last,
    channels_second,
    row,
    twin,
)
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.quantise import requantise
from webmlc.graph.ops.recurrent import QUANTISED, expand_layer
from webmlc.graph.ops.shapes import check_shape, check_stretches


def _real(context: Context, build: Builder, first: int) -> Value:
    """Dequantise the tensor at input `first`. Its scale and zero point are the next two inputs."""
    x, scale, zero = (build.optional(first + i) for i in range(3))
    return build("DequantizeLinear", x, scale, zero)


def _quantised(context: Context, build: Builder, value: Value, scale: int, data: int = 0) -> Value:
    """Quantise `value`. Input `scale` holds the scale, and the next input the zero point. The type
    is the type of the zero point, or of input `data`.
    """
    zero = build.optional(scale + 1) or build.constant(0, context.dtype(data))
    return build("QuantizeLinear", value, build.inputs[scale], zero)


def _of_floats(op: str, tensors: int) -> Callable[[Context, Builder], Value]:
    """The expansion of an operator on `tensors` quantised tensors, which is computed in floats."""

    def expand(context: Context, build: Builder) -> Value:
        values = [_real(context, build, 3 * t) for t in range(tensors)]
        attributes = dict(context.node.attributes)
        last = attributes.pop("channels_last", 0)
        if last:
            values = [channels_second(values[0], context.rank(0))]
        result = build(op, *values, **attributes)
        if last:
            result = channels_last(result, context.rank(0))
        return _quantised(context, build, result, 3 * tensors)

    return expand


def _concat(context: Context, build: Builder) -> Value:
    firsts = range(2, len(context.node.inputs), 3)
    parts = [_quantised(context, build, _real(context, build, i), 0, 2) for i in firsts]
    return build("Concat", *parts, axis=context.attribute("axis"))


def _where(context: Context, build: Builder) -> Value:
    parts = [_quantised(context, build, _real(context, build, i), 7, 1) for i in (1, 4)]
    return build("Where", build.inputs[0], *parts)


def _softmax(context: Context, build: Builder) -> Value:
    """Expand a quantised Softmax. Before opset 13, it runs over all axes from `axis` on."""
    x, axis = _real(context, build, 0), int(context.attribute("axis", -1))
    if int(context.attribute("opset", 13)) < 13:
        rows = build("Softmax", build("Flatten", x, axis=axis), axis=-1)
        result = build("Reshape", rows, build("Shape", build.optional(0)))
    else:
        result = build("Softmax", x, axis=axis)
    return _quantised(context, build, result, 3)


def _conv(context: Context, build: Builder) -> Value:
    """Expand QLinearConv, whose channels may come last, to the QLinearConv of ai.onnx."""
    attributes, inputs = dict(context.node.attributes), list(build.inputs)
    if not attributes.pop("channels_last", 0):
        return build("QLinearConv", *inputs, **attributes)
    rank = context.rank(0)
    y = build("QLinearConv", channels_second(inputs[0], rank), *inputs[1:], **attributes)
    return channels_last(y, rank)


def _embed(context: Context, build: Builder) -> tuple[Value, ...]:
    """Expand QEmbedLayerNormalization: dequantise the tables, the scale and the bias."""
    tensors = [
        None if x is None else build("DequantizeLinear", x, build.inputs[scale], build.inputs[zero])
        for x, scale, zero in zip(map(build.optional, range(2, 7)), range(8, 13), range(13, 18),
                                  strict=True)
    ]  # fmt: skip
    ids, segments, mask = (build.optional(i) for i in (0, 1, 7))
    return build.many("EmbedLayerNormalization", ids, segments, *tensors, mask, outputs=2,
                      domain=DOMAIN, **context.node.attributes)  # fmt: skip


def _max_pool(context: Context, build: Builder) -> Value:
    rank = context.rank(0)
    x = channels_second(build.inputs[0], rank)
    return channels_last(build("MaxPool", x, **context.node.attributes), rank)


# -- products --------------------------------------------------------------------------


def _products(context: Context, build: Builder, places: Sequence[int]) -> Value:
    """Write the MatMulInteger of the inputs at `places`: both operands, then both zero points."""
    left_place, right_place, left_zero, right_zero = places
    zeros = [
        build.optional(zero) or build.constant(0, context.dtype(place))
        for zero, place in ((left_zero, left_place), (right_zero, right_place))
    ]
    left, right = (
        build.inputs[place].transpose(1, 0) if context.attribute(name, 0) else build.inputs[place]
        for place, name in ((left_place, "transA"), (right_place, "transB"))
    )
    return build("MatMulInteger", left, right, *zeros)


def _scaled(
    sums: Value, scales: tuple[Value, Value], bias: Value | None, dtype: DType = DType.float32
) -> Value:
    """Scale the sums to the product, and add a bias if there is one. Scales, bias and product are
    of `dtype`; the numbers between are in float32.
    """
    if dtype is DType.float32:
        result = sums.cast(dtype) * (scales[0] * scales[1])
        return result if bias is None else result + bias
    left, right = (scale.cast(DType.float32) for scale in scales)
    wide_bias = None if bias is None else bias.cast(DType.float32)
    return _scaled(sums, (left, right), wide_bias).cast(dtype)


def _gemm(context: Context, build: Builder) -> Value:
    rows = context.shape(0)[1 if context.attribute("transA", 0) else 0]
    columns = context.shape(3)[0 if context.attribute("transB", 0) else 1]
    check_stretches(context, 4, (columns,))
    check_stretches(context, 6, (rows, columns))
    sums = _products(context, build, (0, 3, 2, 5))
    if context.has(6):
        sums = sums + build.inputs[6]
    left, right = build.inputs[1], build.inputs[4]
    alpha = float(context.attribute("alpha", 1.0))
    if alpha != 1.0:
        left = left * alpha
    scale, zero = build.optional(7), build.optional(8)
    if zero is not None:
        if scale is None:
            raise NotSupportedError("a zero point of the output without a scale")
        return requantise(build, sums, (left, right, scale), zero)
    # Without a zero point the result stays float, in units of the scale.
    return _scaled(sums, (left, right if scale is None else right / scale), None)


def _check_columns(context: Context, scale: int, bias: int) -> None:
    """Check that the right operand has one scale, or a scale for each column, and that the bias has
    a number for each column.
    """
    columns = context.shape(1)[-1]
    check_stretches(context, scale, (columns,))
    check_shape(context, bias, (columns,))


def _to_float(context: Context, build: Builder) -> Value:
    _check_columns(context, 3, 6)
    sums = _products(context, build, (0, 1, 4, 5))
    scales = (build.inputs[2], build.inputs[3])
    return _scaled(sums, scales, build.optional(6), context.dtype(2))


def _dynamic(context: Context, build: Builder) -> Value:
    """Expand DynamicQuantizeMatMul: the left operand is quantised by its own range."""
    _check_columns(context, 2, 4)
    a, scale, zero = build.many("DynamicQuantizeLinear", build.inputs[0], outputs=3)
    right_zero = build.optional(3) or build.constant(0, context.dtype(1))
    sums = build("MatMulInteger", a, build.inputs[1], zero, right_zero)
    scales = (scale, build.inputs[2])
    return _scaled(sums, scales, build.optional(4))


S, T, U = np.float32(0.02), np.float32(0.03), np.float32(0.05)
Z, V, Y = np.uint8(113), np.uint8(121), np.uint8(97)
# Signed weights of products are at most 60: without VNNI, onnxruntime adds two products in 16 bits.
X = "uint8[2, 3, 4] in 0..255"
MAP = "uint8[1, 3, 6, 5] in 0..255"
IDS = np.array([[1, 2, 0], [3, 3, 4]], np.int32)
TABLE = "uint8[6, 8] in 0..255"
SOFTMAX = case(X, S, Z, np.float32(1 / 256), np.uint8(0))

OPS: tuple[Operator, ...] = (
    row("QLinearAdd", 8, "", _of_floats("Add", 2),
        case(X, S, Z, "uint8[3, 1] in 0..255", T, V, U, Y),
        case("int8[5] in -99..99", S, np.int8(3), "int8[5] in -99..99", T, np.int8(9), U,
             np.int8(-5))),
    row("QLinearMul", 8, "", _of_floats("Mul", 2), case(X, S, Z, X, T, V, U, Y)),
    row("QLinearSigmoid", 5, "", _of_floats("Sigmoid", 1), case(X, S, Z, np.float32(1 / 256), Y)),
    row("QLinearLeakyRelu", 5, "alpha", _of_floats("LeakyRelu", 1), case(X, S, Z, T, V, alpha=0.1)),
    row("QLinearAveragePool", 5, f"{WINDOWS} ceil_mode channels_last count_include_pad",
        _of_floats("AveragePool", 1),
        case(MAP, S, Z, T, V, kernel_shape=(3, 2)),
        case("uint8[1, 6, 5, 3] in 0..255", S, Z, T, V, kernel_shape=(3, 3), channels_last=1)),
    row("QLinearGlobalAveragePool", 5, "channels_last", _of_floats("GlobalAveragePool", 1),
        case(MAP, S, Z, T, V),
        case("uint8[1, 6, 5, 3] in 0..255", S, Z, T, V, channels_last=1)),
    row("QLinearConcat", None, "axis", _concat, case(U, Y, X, S, Z, X, T, V, axis=1)),
    row("QLinearWhere", 9, "", _where, case("bool[3, 4]", X, S, Z, X, T, V, U, Y)),
    row("QLinearSoftmax", 5, "axis opset", _softmax,
        replace(SOFTMAX, attributes={"opset": 13}),
        replace(SOFTMAX, attributes={"opset": 12, "axis": 1})),
    row("NhwcMaxPool", 1, f"{WINDOWS} ceil_mode dilations", _max_pool,
        case("int8[1, 6, 5, 3] in -60..60", kernel_shape=(3, 3), strides=(2, 2))),
    twin("DequantizeLinear", 3, "axis", case(X, S, Z)),
    twin("QuantizeLinear", 3, "axis", case("float32[2, 3, 4]", S, Z)),
    row("QLinearConv", 9, f"{WINDOWS} channels_last dilations group", _conv,
        case(MAP, S, Z, "uint8[4, 3, 3, 3] in 0..255", T, V, U, Y, "int32[4] in -999..999"),
        case("uint8[1, 6, 5, 3] in 0..255", S, Z, "int8[4, 3, 3, 2] in -60..60", T, np.int8(0), U,
             Y, channels_last=1, pads=(1, 0, 1, 1), strides=(2, 1))),
    row("QLinearReduceMean", 5, "axes keepdims",
        _of_floats("ReduceMean", 1), case(X, S, Z, T, V, axes=(1,), keepdims=0),
        case(X, S, Z, T, V, axes=(0, 2), keepdims=1)),
    row("QEmbedLayerNormalization", 18, "epsilon", _embed,
        case(IDS, IDS[::-1].copy(), TABLE, TABLE, TABLE, "uint8[8] in 0..255",
             "uint8[8] in 0..255", (IDS > 1).astype(np.int32), *[S] * 5, *[Z] * 5, outputs=2),
        case(IDS, None, TABLE, TABLE, None, "uint8[8] in 0..255", "uint8[8] in 0..255", None,
             S, T, None, S, T, Z, V, None, Z, V, outputs=2)),
    row("QGemm", 9, "alpha transA transB", _gemm,
        case("uint8[3, 5] in 0..255", S, Z, "int8[5, 4] in -60..60", T, np.int8(0),
             "int32[4] in -999..999", U, Y),
        case("uint8[3, 5] in 0..255", S, Z, "uint8[4, 5] in 0..255", T, V, transB=1, alpha=0.5),
        case("uint8[3, 5] in 0..255", S, Z, "int8[5, 4] in -60..60", T, np.int8(0), None, U)),
    row("MatMulIntegerToFloat", 7, "", _to_float,
        case("uint8[2, 3, 5] in 0..255", "int8[5, 4] in -60..60", S, np.full(4, 0.03, np.float32),
             Z, np.array([1, 2, 3, 4], np.int8), "float32[4]")),
    row("DynamicQuantizeMatMul", 5, "", _dynamic,
        case("float32[3, 5]", "int8[5, 4] in -60..60", T, np.int8(3), "float32[4]")),
    row(QUANTISED, 12,
        "activation_alpha activation_beta activations clip direction hidden_size input_forget",
        expand_layer,
        case("float32[3, 2, 4]", "int8[1, 4, 20] in -60..60", "int8[1, 5, 20] in -60..60",
             "float32[1, 40]", None, None, None, None, np.array([0.01], np.float32),
             np.array([3], np.int8), np.array([0.02], np.float32), np.array([0], np.int8),
             hidden_size=5),
        case("float32[3, 1, 4]", "uint8[2, 4, 20] in 0..255", "uint8[2, 5, 20] in 0..255",
             "float32[2, 40]", None, "float32[2, 1, 5]", "float32[2, 1, 5]", "float32[2, 15]",
             np.array([0.01, 0.02], np.float32), np.array([128, 120], np.uint8),
             np.array([0.02, 0.01], np.float32), np.array([125, 128], np.uint8),
             hidden_size=5, direction="bidirectional")),
)  # fmt: skip
