"""Quantised operators of onnxruntime's own domain, as its quantiser writes them into models.

Operators on single elements, windows and rows become float operators between a DequantizeLinear and
a QuantizeLinear. Products become integer products that are scaled once. MatMulNBits multiplies by
weights of a few bits, which stay packed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Array
from webmlc.graph.ops.block_quantised import pack_values
from webmlc.graph.ops.layout import PACK
from webmlc.graph.ops.microsoft.rows import MANY, WINDOWS, row, twin
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.quantise import requantise
from webmlc.graph.ops.recurrent import QUANTISED, expand_layer
from webmlc.graph.ops.shapes import check_shape, check_shapes, check_stretches

INT8_LEVEL = 4
"""The `accuracy_level` of MatMulNBits that allows products of int8. From onnxruntime's operator
documentation.
"""


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
            values = [_channels_second(values[0], context.rank(0))]
        result = build(op, *values, **attributes)
        if last:
            result = _channels_last(result, context.rank(0))
        return _quantised(context, build, result, 3 * tensors)

    return expand


def _channels_second(value: Value, rank: int) -> Value:
    return value.transpose(0, rank - 1, *range(1, rank - 1))


def _channels_last(value: Value, rank: int) -> Value:
    return value.transpose(0, *range(2, rank), 1)


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


def _max_pool(context: Context, build: Builder) -> Value:
    rank = context.rank(0)
    x = _channels_second(build.inputs[0], rank)
    return _channels_last(build("MaxPool", x, **context.node.attributes), rank)


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


def _scaled(sums: Value, scales: tuple[Value, Value], bias: Value | None) -> Value:
    """Scale the sums to the float32 product, and add a bias if there is one."""
    factor = scales[0] * scales[1]
    result = sums.cast(DType.float32) * factor
    return result if bias is None else result + bias


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
    if not context.has(7):
        if context.has(8):
            raise NotSupportedError("a zero point of the output without a scale")
        return _scaled(sums, (left, right), None)
    zero = build.optional(8) or build.constant(0, context.dtype(0))
    return requantise(build, sums, (left, right, build.inputs[7]), zero)


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
    return _scaled(sums, scales, build.optional(6))


def _dynamic(context: Context, build: Builder) -> Value:
    """Expand DynamicQuantizeMatMul: the left operand is quantised by its own range."""
    _check_columns(context, 2, 4)
    a, scale, zero = build.many("DynamicQuantizeLinear", build.inputs[0], outputs=3)
    right_zero = build.optional(3) or build.constant(0, context.dtype(1))
    sums = build("MatMulInteger", a, build.inputs[1], zero, right_zero)
    scales = (scale, build.inputs[2])
    return _scaled(sums, scales, build.optional(4))


# -- weights of a few bits ---------------------------------------------------------------


def _few_bits(context: Context, build: Builder) -> Value:
    """Expand MatMulNBits to a product with block-quantised weights: the zero points become
    minimums, -scale · zero. Activations are quantised only if `accuracy_level` allows it.
    """
    bits, block = int(context.attribute("bits", 4)), context.count("block_size")
    depth, columns = context.count("K"), context.count("N")
    weights = context.constant(1)
    if weights is None or context.has(4):
        raise NotSupportedError("weights that are not constant, or are grouped by an index")
    if context.attribute("weight_prepacked", 0):
        raise NotSupportedError("weights that are packed for a GPU (weight_prepacked)")
    blocks = -(-depth // block)
    check_shapes(context, "... depth", depth=depth)
    if weights.size * 8 != columns * blocks * block * bits:
        raise NotSupportedError(
            f"{weights.size} bytes of weights, not {columns} rows of {blocks} blocks of {block} "
            f"elements of {bits} bits"
        )
    data, dtype = build.inputs[0], context.dtype(0)
    if blocks * block != depth:
        rank = context.rank(0)
        data = build("Pad", data, [0] * (2 * rank - 1) + [blocks * block - depth])
    if dtype is not DType.float32:
        data = data.cast(DType.float32)
    values = unpack_bits(weights.reshape(columns, -1), bits)
    scales = _matrix(build.inputs[2], columns, blocks)
    packed = [_panels(build, scales, columns, blocks)]
    excess = 1 << (bits - 1)
    if context.has(3):
        excess = 0
        zeros = _zero_points(context, build, bits, columns, blocks)
        packed.append(_panels(build, -(scales * zeros), columns, blocks))
    sums = build(
        "BlockProduct", data, build.constant(pack_values(values, bits, block)), *packed,
        domain="webmlc", bits=bits, block=block, columns=columns, excess=excess,
        exact=int(int(context.attribute("accuracy_level", 0)) != INT8_LEVEL),
    )  # fmt: skip
    if dtype is not DType.float32:
        sums = sums.cast(dtype)
    return sums + build.inputs[5] if context.has(5) else sums


def _matrix(values: Value, columns: int, blocks: int) -> Value:
    """One number for each block, as a float32 matrix [columns, blocks]."""
    return values.reshape(columns, blocks).cast(DType.float32)


def _panels(build: Builder, matrix: Value, columns: int, blocks: int) -> Value:
    """Pack a matrix [columns, blocks] in panels of columns (`pack_columns`)."""
    panels = -(-columns // PACK)
    if columns % PACK:
        matrix = build("Pad", matrix, [0, 0, panels * PACK - columns, 0])
    return matrix.reshape(panels, PACK, blocks).transpose(0, 2, 1)


def _zero_points(context: Context, build: Builder, bits: int, columns: int, blocks: int) -> Value:
    """The zero points as floats, [columns, blocks]."""
    if context.dtype(3).is_float:
        return _matrix(build.inputs[3], columns, blocks)
    packed = context.constant(3)
    if packed is None:
        raise NotSupportedError("zero points that are not constant")
    elements = unpack_bits(packed.reshape(columns, -1), bits)[:, :blocks]
    return build.constant(np.ascontiguousarray(elements), DType.float32)


def _gather_blocks(context: Context, build: Builder) -> Value:
    """Expand GatherBlockQuantized to a Gather of a DequantizeLinear, which `use_block_products`
    joins. Bytes hold several elements along the last axis; the middle of their range is zero unless
    there are zero points.
    """
    scales, zeros = build.optional(2), build.optional(3)
    data, bits = build.optional(0), int(context.attribute("bits", 4))
    if context.dtype(0) is DType.uint8:
        if bits not in (2, 4, 8):
            raise NotSupportedError(f"elements of {bits} bits")
        blocks = context.type(2).static_shape
        if blocks is None:
            raise NotSupportedError("scales of a symbolic shape")
        data = _unpacked(context, build, 0, bits, None)
        if zeros:
            zeros = _unpacked(context, build, 3, bits, blocks[-1])
        else:
            zeros = build.constant(np.full(blocks, 1 << (bits - 1)), DType(f"uint{bits}"))
    operands = (data, scales, zeros) if zeros else (data, scales)
    axis, block = int(context.attribute("quantize_axis", 1)), context.count("block_size", 128)
    floats = build("DequantizeLinear", *operands, axis=axis, block_size=block)
    gathered_axis = int(context.attribute("gather_axis", 0))
    return build("Gather", floats, build.optional(1), axis=gathered_axis)


def _unpacked(context: Context, build: Builder, index: int, bits: int, width: int | None) -> Value:
    """The elements in the bytes of a constant: `width` of them along the last axis, or all."""
    packed = context.constant(index)
    if packed is None:
        raise NotSupportedError("weights that are not constant")
    elements = unpack_bits(packed.reshape(-1, packed.shape[-1]), bits)[:, :width]
    return build.constant(elements.reshape(*packed.shape[:-1], -1), DType(f"uint{bits}"))


def unpack_bits(packed: Array, bits: int) -> Array:
    """Unpack the elements of rows of bytes. The first element of a byte is in its lowest bits."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (packed[..., None] >> shifts & ((1 << bits) - 1)).reshape(len(packed), -1)


S, T, U = np.float32(0.02), np.float32(0.03), np.float32(0.05)
Z, V, Y = np.uint8(113), np.uint8(121), np.uint8(97)
# Signed weights of products are at most 60: without VNNI, onnxruntime adds two products in 16 bits.
X = "uint8[2, 3, 4] in 0..255"
MAP = "uint8[1, 3, 6, 5] in 0..255"
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
    row("QLinearConcat", MANY, "axis", _concat, case(U, Y, X, S, Z, X, T, V, axis=1)),
    row("QLinearWhere", 9, "", _where, case("bool[3, 4]", X, S, Z, X, T, V, U, Y)),
    row("QLinearSoftmax", 5, "axis opset", _softmax,
        replace(SOFTMAX, attributes={"opset": 13}),
        replace(SOFTMAX, attributes={"opset": 12, "axis": 1})),
    row("NhwcMaxPool", 1, f"{WINDOWS} ceil_mode dilations", _max_pool,
        case("int8[1, 6, 5, 3] in -60..60", kernel_shape=(3, 3), strides=(2, 2))),
    twin("DequantizeLinear", 3, "axis", case(X, S, Z)),
    twin("QuantizeLinear", 3, "axis", case("float32[2, 3, 4]", S, Z)),
    row("QGemm", 9, "alpha transA transB", _gemm,
        case("uint8[3, 5] in 0..255", S, Z, "int8[5, 4] in -60..60", T, np.int8(0),
             "int32[4] in -999..999", U, Y),
        case("uint8[3, 5] in 0..255", S, Z, "uint8[4, 5] in 0..255", T, V, transB=1, alpha=0.5)),
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
    row("MatMulNBits", 6, "K N accuracy_level bits block_size weight_prepacked", _few_bits,
        case("float32[2, 3, 40]", np.arange(160, dtype=np.uint8).reshape(5, 2, 16),
             np.linspace(0.1, 1, 10, dtype=np.float32), K=40, N=5, bits=4, block_size=32),
        case("float32[3, 32]", np.arange(64, dtype=np.uint8).reshape(4, 1, 16),
             np.linspace(0.1, 1, 4, dtype=np.float32), np.arange(4, dtype=np.uint8),
             K=32, N=4, bits=4, block_size=32),
        case("float32[3, 32]", np.arange(64, dtype=np.uint8).reshape(4, 1, 16),
             np.linspace(0.1, 1, 4, dtype=np.float32), None, None, "float32[4]",
             K=32, N=4, bits=4, block_size=32),
        case("float32[3, 40]", np.arange(80, dtype=np.uint8).reshape(5, 2, 8),
             np.linspace(0.1, 1, 10, dtype=np.float32), np.arange(5, dtype=np.uint8),
             K=40, N=5, bits=2, block_size=32),
        case("float32[3, 40]", np.arange(240, dtype=np.uint8).reshape(5, 3, 16),
             np.linspace(0.1, 1, 15, dtype=np.float32), np.arange(120, 135, dtype=np.uint8),
             K=40, N=5, bits=8, block_size=16),
        case("float32[3, 40]", np.arange(160, dtype=np.uint8).reshape(5, 2, 16),
             np.linspace(0.1, 1, 10, dtype=np.float32), np.linspace(5, 9, 10, dtype=np.float32),
             K=40, N=5, bits=4, block_size=32)),
    row("GatherBlockQuantized", 4, "bits block_size gather_axis quantize_axis", _gather_blocks,
        case(np.arange(80, dtype=np.uint8).reshape(5, 16), "int64[2, 3] in -4..3",
             np.linspace(0.1, 1, 10, dtype=np.float32).reshape(5, 2), bits=4, block_size=16,
             quantize_axis=1),
        case(np.arange(160, dtype=np.uint8).reshape(5, 32), "int32[4] in -4..3",
             np.linspace(0.1, 1, 10, dtype=np.float32).reshape(5, 2),
             np.arange(130, 140, dtype=np.uint8).reshape(5, 2), bits=8, block_size=16,
             quantize_axis=1)),
)  # fmt: skip
