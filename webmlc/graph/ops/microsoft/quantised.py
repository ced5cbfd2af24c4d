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
from webmlc.graph.builder import Builder
from webmlc.graph.ir import Array
from webmlc.graph.ops.block_quantised import pack_values
from webmlc.graph.ops.layout import PACK
from webmlc.graph.ops.microsoft.rows import row
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.quantise import number_of, requantise
from webmlc.graph.ops.recurrent import QUANTISED, expand_layer
from webmlc.graph.ops.shapes import check_shape, check_shapes, check_stretches

INT8_LEVEL = 4
"""The `accuracy_level` of MatMulNBits that allows products of int8. From onnxruntime's operator
documentation.
"""
Expansion = Callable[[Context, Builder], tuple[str, ...]]


def _input(context: Context, index: int) -> str:
    """The name of an input, or "" if it is omitted."""
    return context.node.inputs[index] if context.has(index) else ""


def _real(context: Context, b: Builder, first: int) -> str:
    """Dequantise the tensor at input `first`. Its scale and zero point are the next two inputs."""
    x, scale, zero = (_input(context, first + i) for i in range(3))
    return b("DequantizeLinear", x, scale, *([zero] if zero else []))


def _quantised(context: Context, b: Builder, value: str, scale: int, data: int = 0) -> str:
    """Quantise `value`. Input `scale` holds the scale, and the next one the zero point. The type is
    that of the zero point, or of input `data`.
    """
    zero = _input(context, scale + 1) or b.constant(0, context.dtype(data))
    return b("QuantizeLinear", value, _input(context, scale), zero)


def _of_floats(op: str, tensors: int) -> Expansion:
    """The expansion of an operator on `tensors` quantised tensors, which is computed in floats."""

    def expand(context: Context, b: Builder) -> tuple[str, ...]:
        values = [_real(context, b, 3 * t) for t in range(tensors)]
        attributes = dict(context.node.attributes)
        last = attributes.pop("channels_last", 0)
        if last:
            values = [_channels_second(b, values[0], context.rank(0))]
        result = b(op, *values, **attributes)
        if last:
            result = _channels_last(b, result, context.rank(0))
        return (_quantised(context, b, result, 3 * tensors),)

    return expand


def _channels_second(b: Builder, value: str, rank: int) -> str:
    return b("Transpose", value, perm=(0, rank - 1, *range(1, rank - 1)))


def _channels_last(b: Builder, value: str, rank: int) -> str:
    return b("Transpose", value, perm=(0, *range(2, rank), 1))


def _concat(context: Context, b: Builder) -> tuple[str, ...]:
    firsts = range(2, len(context.node.inputs), 3)
    parts = [_quantised(context, b, _real(context, b, i), 0, 2) for i in firsts]
    return (b("Concat", *parts, axis=context.attribute("axis")),)


def _where(context: Context, b: Builder) -> tuple[str, ...]:
    parts = [_quantised(context, b, _real(context, b, i), 7, 1) for i in (1, 4)]
    return (b("Where", _input(context, 0), *parts),)


def _softmax(context: Context, b: Builder) -> tuple[str, ...]:
    """Expand a quantised Softmax. Before opset 13, it runs over all axes from `axis` on."""
    x, axis = _real(context, b, 0), int(context.attribute("axis", -1))
    if int(context.attribute("opset", 13)) < 13:
        rows = b("Softmax", b("Flatten", x, axis=axis), axis=-1)
        result = b("Reshape", rows, b("Shape", _input(context, 0)))
    else:
        result = b("Softmax", x, axis=axis)
    return (_quantised(context, b, result, 3),)


def _max_pool(context: Context, b: Builder) -> tuple[str, ...]:
    rank = context.rank(0)
    x = _channels_second(b, _input(context, 0), rank)
    return (_channels_last(b, b("MaxPool", x, **context.node.attributes), rank),)


def _twin(context: Context, b: Builder) -> tuple[str, ...]:
    """Write the operator of the same name in ONNX's own domain."""
    return (b(context.node.op, *context.node.inputs, **context.node.attributes),)


# -- products --------------------------------------------------------------------------


def _products(context: Context, b: Builder, places: Sequence[int]) -> str:
    """Write the MatMulInteger of the inputs at `places`: both operands, then both zero points."""
    left, right, left_zero, right_zero = (_input(context, i) for i in places)
    zeros = [
        zero or b.constant(0, context.dtype(place))
        for zero, place in ((left_zero, places[0]), (right_zero, places[1]))
    ]
    for side, name in enumerate(("transA", "transB")):
        if context.attribute(name, 0):
            matrix = b("Transpose", (left, right)[side], perm=(1, 0))
            left, right = (matrix, right) if side == 0 else (left, matrix)
    return b("MatMulInteger", left, right, *zeros)


def _scaled(context: Context, b: Builder, sums: str, scales: Sequence[str], bias: str) -> str:
    """Scale the sums to the float32 product, and add a bias if there is one."""
    factor = b("Mul", *scales)
    result = b("Mul", b("Cast", sums, to=number_of(DType.float32)), factor)
    return b("Add", result, bias) if bias else result


def _gemm(context: Context, b: Builder) -> tuple[str, ...]:
    rows = context.shape(0)[1 if context.attribute("transA", 0) else 0]
    columns = context.shape(3)[0 if context.attribute("transB", 0) else 1]
    check_stretches(context, 4, (columns,))
    check_stretches(context, 6, (rows, columns))
    sums = _products(context, b, (0, 3, 2, 5))
    if context.has(6):
        sums = b("Add", sums, _input(context, 6))
    left, right = _input(context, 1), _input(context, 4)
    alpha = float(context.attribute("alpha", 1.0))
    if alpha != 1.0:
        left = b("Mul", left, b.constant(alpha, DType.float32))
    if not context.has(7):
        return (_scaled(context, b, sums, (left, right), ""),)
    zero = _input(context, 8) or b.constant(0, context.dtype(0))
    return (requantise(b, sums, (left, right, _input(context, 7)), zero),)


def _check_columns(context: Context, scale: int, bias: int) -> None:
    """Check that the right operand has one scale, or one for each column, and so many biases."""
    columns = context.shape(1)[-1]
    check_stretches(context, scale, (columns,))
    check_shape(context, bias, (columns,))


def _to_float(context: Context, b: Builder) -> tuple[str, ...]:
    _check_columns(context, 3, 6)
    sums = _products(context, b, (0, 1, 4, 5))
    scales = (_input(context, 2), _input(context, 3))
    return (_scaled(context, b, sums, scales, _input(context, 6)),)


def _dynamic(context: Context, b: Builder) -> tuple[str, ...]:
    """Expand DynamicQuantizeMatMul: the left operand is quantised by its own range."""
    _check_columns(context, 2, 4)
    a, scale, zero = b.many("DynamicQuantizeLinear", _input(context, 0), outputs=3)
    right_zero = _input(context, 3) or b.constant(0, context.dtype(1))
    sums = b("MatMulInteger", a, _input(context, 1), zero, right_zero)
    scales = (scale, _input(context, 2))
    return (_scaled(context, b, sums, scales, _input(context, 4)),)


# -- weights of a few bits ---------------------------------------------------------------


def _few_bits(context: Context, b: Builder) -> tuple[str, ...]:
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
    data, dtype = _input(context, 0), context.dtype(0)
    if blocks * block != depth:
        rank = context.rank(0)
        pads = b.constant([0] * (2 * rank - 1) + [blocks * block - depth])
        data = b("Pad", data, pads)
    if dtype is not DType.float32:
        data = b("Cast", data, to=number_of(DType.float32))
    values = unpack_bits(weights.reshape(columns, -1), bits)
    scales = _matrix(b, _input(context, 2), columns, blocks)
    packed = [_panels(b, scales, columns, blocks)]
    excess = 1 << (bits - 1)
    if context.has(3):
        excess = 0
        zeros = _zero_points(context, b, bits, columns, blocks)
        packed.append(_panels(b, b("Neg", b("Mul", scales, zeros)), columns, blocks))
    sums = b(
        "BlockProduct", data, b.constant(pack_values(values, bits, block)), *packed,
        domain="webmlc", bits=bits, block=block, columns=columns, excess=excess,
        exact=int(int(context.attribute("accuracy_level", 0)) != INT8_LEVEL),
    )  # fmt: skip
    if dtype is not DType.float32:
        sums = b("Cast", sums, to=number_of(dtype))
    return (b("Add", sums, _input(context, 5)) if context.has(5) else sums,)


def _matrix(b: Builder, values: str, columns: int, blocks: int) -> str:
    """One number for each block, as a float32 matrix [columns, blocks]."""
    matrix = b("Reshape", values, b.constant([columns, blocks]))
    return b("Cast", matrix, to=number_of(DType.float32))


def _panels(b: Builder, matrix: str, columns: int, blocks: int) -> str:
    """Pack a matrix [columns, blocks] in panels of columns (`pack_columns`)."""
    panels = -(-columns // PACK)
    if columns % PACK:
        matrix = b("Pad", matrix, b.constant([0, 0, panels * PACK - columns, 0]))
    split = b("Reshape", matrix, b.constant([panels, PACK, blocks]))
    return b("Transpose", split, perm=(0, 2, 1))


def _zero_points(context: Context, b: Builder, bits: int, columns: int, blocks: int) -> str:
    """The zero points as floats, [columns, blocks]."""
    if context.dtype(3).is_float:
        return _matrix(b, _input(context, 3), columns, blocks)
    packed = context.constant(3)
    if packed is None:
        raise NotSupportedError("zero points that are not constant")
    elements = unpack_bits(packed.reshape(columns, -1), bits)[:, :blocks]
    return b.constant(np.ascontiguousarray(elements), DType.float32)


def _gather_blocks(context: Context, b: Builder) -> tuple[str, ...]:
    """Expand GatherBlockQuantized to a Gather of a DequantizeLinear, which `use_block_products`
    joins. Bytes hold several elements along the last axis; the middle of their range is zero unless
    there are zero points.
    """
    scales, zeros = _input(context, 2), _input(context, 3)
    data, bits = _input(context, 0), int(context.attribute("bits", 4))
    if context.dtype(0) is DType.uint8:
        if bits not in (2, 4, 8):
            raise NotSupportedError(f"elements of {bits} bits")
        blocks = context.type(2).static_shape
        if blocks is None:
            raise NotSupportedError("scales of a symbolic shape")
        data = _unpacked(context, b, 0, bits, None)
        if zeros:
            zeros = _unpacked(context, b, 3, bits, blocks[-1])
        else:
            zeros = b.constant(np.full(blocks, 1 << (bits - 1)), DType(f"uint{bits}"))
    operands = (data, scales, zeros) if zeros else (data, scales)
    axis, block = int(context.attribute("quantize_axis", 1)), context.count("block_size", 128)
    floats = b("DequantizeLinear", *operands, axis=axis, block_size=block)
    gathered_axis = int(context.attribute("gather_axis", 0))
    return (b("Gather", floats, _input(context, 1), axis=gathered_axis),)


def _unpacked(context: Context, b: Builder, index: int, bits: int, width: int | None) -> str:
    """The elements in the bytes of a constant: `width` of them along the last axis, or all."""
    packed = context.constant(index)
    if packed is None:
        raise NotSupportedError("weights that are not constant")
    elements = unpack_bits(packed.reshape(-1, packed.shape[-1]), bits)[:, :width]
    return b.constant(elements.reshape(*packed.shape[:-1], -1), DType(f"uint{bits}"))


def unpack_bits(packed: Array, bits: int) -> Array:
    """Unpack the elements of rows of bytes. The first element of a byte is in its lowest bits."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (packed[..., None] >> shifts & ((1 << bits) - 1)).reshape(len(packed), -1)


S, T, U = np.float32(0.02), np.float32(0.03), np.float32(0.05)
Z, V, Y = np.uint8(113), np.uint8(121), np.uint8(97)
X = "uint8[2, 3, 4] in 0..255"
MAP = "uint8[1, 3, 6, 5] in 0..255"
SOFTMAX = case(X, S, Z, np.float32(1 / 256), np.uint8(0))

OPS: tuple[Operator, ...] = (
    row("QLinearAdd", _of_floats("Add", 2), case(X, S, Z, "uint8[3, 1] in 0..255", T, V, U, Y),
         case("int8[5] in -99..99", S, np.int8(3), "int8[5] in -99..99", T, np.int8(9), U,
              np.int8(-5))),
    row("QLinearMul", _of_floats("Mul", 2), case(X, S, Z, X, T, V, U, Y)),
    row("QLinearSigmoid", _of_floats("Sigmoid", 1), case(X, S, Z, np.float32(1 / 256), Y)),
    row("QLinearLeakyRelu", _of_floats("LeakyRelu", 1), case(X, S, Z, T, V, alpha=0.1)),
    row("QLinearAveragePool", _of_floats("AveragePool", 1),
         case(MAP, S, Z, T, V, kernel_shape=(3, 2)),
         case("uint8[1, 6, 5, 3] in 0..255", S, Z, T, V, kernel_shape=(3, 3), channels_last=1)),
    row("QLinearGlobalAveragePool", _of_floats("GlobalAveragePool", 1), case(MAP, S, Z, T, V),
         case("uint8[1, 6, 5, 3] in 0..255", S, Z, T, V, channels_last=1)),
    row("QLinearConcat", _concat, case(U, Y, X, S, Z, X, T, V, axis=1)),
    row("QLinearWhere", _where, case("bool[3, 4]", X, S, Z, X, T, V, U, Y)),
    row("QLinearSoftmax", _softmax,
         replace(SOFTMAX, attributes={"opset": 13}),
         replace(SOFTMAX, attributes={"opset": 12, "axis": 1})),
    row("NhwcMaxPool", _max_pool,
         case("int8[1, 6, 5, 3] in -99..99", kernel_shape=(3, 3), strides=(2, 2))),
    row("DequantizeLinear", _twin, case(X, S, Z)),
    row("QuantizeLinear", _twin, case("float32[2, 3, 4]", S, Z)),
    row("QGemm", _gemm,
         case("uint8[3, 5] in 0..255", S, Z, "int8[5, 4] in -99..99", T, np.int8(0),
              "int32[4] in -999..999", U, Y),
         case("uint8[3, 5] in 0..255", S, Z, "uint8[4, 5] in 0..255", T, V, transB=1, alpha=0.5)),
    row("MatMulIntegerToFloat", _to_float,
         case("uint8[2, 3, 5] in 0..255", "int8[5, 4] in -99..99", S, np.full(4, 0.03, np.float32),
              Z, np.array([1, 2, 3, 4], np.int8), "float32[4]")),
    row("DynamicQuantizeMatMul", _dynamic,
         case("float32[3, 5]", "int8[5, 4] in -99..99", T, np.int8(3), "float32[4]")),
    row(QUANTISED, expand_layer,
         case("float32[3, 2, 4]", "int8[1, 4, 20] in -99..99", "int8[1, 5, 20] in -99..99",
              "float32[1, 40]", None, None, None, None, np.array([0.01], np.float32),
              np.array([3], np.int8), np.array([0.02], np.float32), np.array([0], np.int8),
              hidden_size=5),
         case("float32[3, 1, 4]", "uint8[2, 4, 20] in 0..255", "uint8[2, 5, 20] in 0..255",
              "float32[2, 40]", None, "float32[2, 1, 5]", "float32[2, 1, 5]", "float32[2, 15]",
              np.array([0.01, 0.02], np.float32), np.array([128, 120], np.uint8),
              np.array([0.02, 0.01], np.float32), np.array([125, 128], np.uint8),
              hidden_size=5, direction="bidirectional")),
    row("MatMulNBits", _few_bits,
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
    row("GatherBlockQuantized", _gather_blocks,
         case(np.arange(80, dtype=np.uint8).reshape(5, 16), "int64[2, 3] in -4..3",
              np.linspace(0.1, 1, 10, dtype=np.float32).reshape(5, 2), bits=4, block_size=16,
              quantize_axis=1),
         case(np.arange(160, dtype=np.uint8).reshape(5, 32), "int32[4] in -4..3",
              np.linspace(0.1, 1, 10, dtype=np.float32).reshape(5, 2),
              np.arange(130, 140, dtype=np.uint8).reshape(5, 2), bits=8, block_size=16,
              quantize_axis=1)),
)  # fmt: skip
