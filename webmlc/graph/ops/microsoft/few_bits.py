"""Weights of a few bits, as onnxruntime's quantiser writes them. MatMulNBits multiplies by weights
that stay packed; the others expand to it, or dequantise their weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Array, Attribute
from webmlc.graph.ops.block_quantised import pack_values
from webmlc.graph.ops.layout import PACK
from webmlc.graph.ops.microsoft.gates import ACTIVATIONS
from webmlc.graph.ops.microsoft.rows import DOMAIN, known_size, row
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, Result, case
from webmlc.graph.ops.shapes import check_shapes

INT8_LEVEL = 4
"""The `accuracy_level` of MatMulNBits that allows products of int8. From onnxruntime's operator
documentation.
"""


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


def _shared(context: Context) -> dict[str, Attribute]:
    """The attributes that a fused operator has in common with the MatMulNBits in it."""
    defaults = {"K": 0, "accuracy_level": 0, "bits": 4, "block_size": 32}
    return {name: context.attribute(name, default) for name, default in defaults.items()}


def _fused_few_bits(context: Context, build: Builder) -> tuple[Result, ...]:
    """Expand MatMulNBitsMlp and MatMulNBitsQkv: products of one input, which may be the norm of a
    sum. MatMulNBitsMlp multiplies the second product by an activation of the first.
    """
    x, skip, norm = (build.optional(i) for i in range(3))
    assert x is not None
    is_mlp = context.node.op == "MatMulNBitsMlp"
    epsilon, total = context.attribute("epsilon", 1e-5 if is_mlp else 1e-6), x
    if norm is None and skip is not None:
        raise NotSupportedError("a skip without a norm_scale: add it before the operator")
    if norm is not None:
        known_size(context.shape(2)[0], "the size of the norm")
        total = x if skip is None else x + skip
        x = build("RMSNormalization", total, norm, axis=-1, epsilon=epsilon)
    columns = [context.count(n) for n in (("N", "N") if is_mlp else ("Nq", "Nkv", "Nkv"))]
    products = []
    for number, count in enumerate(columns):
        weights, scales, bias = (build.optional(3 + 3 * number + i) for i in range(3))
        inputs = (x, weights, scales, None, None, bias)
        products.append(build("MatMulNBits", *inputs, domain=DOMAIN, **_shared(context), N=count))
    if not is_mlp:
        return *products, total
    gate, up = products
    name = str(context.attribute("activation"))
    if name not in ACTIVATIONS:
        raise NotSupportedError(f"the activation {name!r}")
    return ACTIVATIONS[name](gate) * up, total


def _adapted_few_bits(context: Context, build: Builder) -> Value:
    """Expand MatMulNBitsQLoRA: a product, plus the product of two adapters of low rank."""
    x, weights, scales, down, down_scales, up, up_scales = build.inputs
    rank, columns = known_size(context.shape(3)[0], "the rank"), context.count("N")
    attributes = _shared(context)
    bits, block = context.attribute("lora_bits", 8), context.attribute("lora_block_size", 32)
    y = build("MatMulNBits", x, weights, scales, domain=DOMAIN, N=columns, **attributes)
    if not rank or as_int(context.shape(5)[1]) == 0:
        raise NotSupportedError("adapters without elements: use a MatMulNBits")
    adapter = {**attributes, "bits": bits, "block_size": block}
    narrow = build("MatMulNBits", x, down, down_scales, domain=DOMAIN, N=rank, **adapter)
    adapter |= {"K": rank, "accuracy_level": 0}
    return y + build("MatMulNBits", narrow, up, up_scales, domain=DOMAIN, N=columns, **adapter)


FLOATS_OF_4_BITS = {
    0: (0.0, 0.0052083333, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25,
        -0.0, -0.0052083333, -2 / 3, -1.0, -1 / 3, -0.5, -1 / 6, -0.25),
    1: (-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
        0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
}  # fmt: skip
"""The numbers that the 16 codes of FP4 (0) and NF4 (1) stand for, from bitsandbytes."""


def _bnb4(context: Context, build: Builder) -> Value:
    """Expand MatMulBnb4: the weights become a float constant. Each code of 4 bits, the first of a
    byte in its upper half, stands for a number, times the greatest number of its block.
    """
    weights, limits, kind = (
        context.constant(1),
        context.constant(2),
        context.attribute("quant_type"),
    )
    columns, depth, block = (context.count(n) for n in ("N", "K", "block_size"))
    if weights is None or limits is None:
        raise NotSupportedError("weights or greatest numbers of blocks that are not constant")
    if kind not in FLOATS_OF_4_BITS:
        raise NotSupportedError(f"quant_type {kind}: it is 0 for FP4 or 1 for NF4")
    blocks = -(-columns * depth // block)
    if 2 * weights.size < columns * depth or limits.size != blocks:
        raise NotSupportedError(
            f"{weights.size} bytes of weights and {limits.size} greatest numbers, not "
            f"{-(-columns * depth // 2)} bytes and {blocks} blocks of {block} elements"
        )
    codes = unpack_bits(weights.reshape(-1, 1), 4)[:, ::-1].reshape(-1)[: columns * depth]
    table = np.array(FLOATS_OF_4_BITS[int(kind)], np.float32)
    numbers = table[codes] * np.repeat(limits.astype(np.float32), block)[: len(codes)]
    matrix = numbers.reshape(columns, depth)
    if context.attribute("transB", 1):
        matrix = np.ascontiguousarray(matrix.T)
    return build.inputs[0] @ build.constant(matrix, context.dtype(0))


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
    elements = np.ascontiguousarray(unpack_bits(packed, bits)[..., :width])
    return build.constant(elements, DType(f"uint{bits}"))


def unpack_bits(packed: Array, bits: int) -> Array:
    """Unpack the elements of bytes along the last axis. The first element of a byte is in its
    lowest bits.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    elements = packed[..., None] >> shifts & ((1 << bits) - 1)
    return elements.reshape(*packed.shape[:-1], packed.shape[-1] * len(shifts))


BNB4 = (np.arange(80) * 37 % 256).astype(np.uint8)
SCALES = np.linspace(0.1, 1, 4, dtype=np.float32)
BYTES_8 = (np.arange(128) * 11 % 256).astype(np.uint8).reshape(4, 1, 32)
GATES: tuple[Any, ...] = tuple(
    (np.arange(64 * n, 64 * n + 64, dtype=np.uint8).reshape(4, 1, 16), SCALES, "float32[4]")
    for n in range(3)
)
TWO = (*GATES[0], *GATES[1])

OPS: tuple[Operator, ...] = (
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
    row("MatMulBnb4", 3, "K N block_size quant_type training_mode transB", _bnb4,
        case("float32[2, 3, 32]", BNB4, np.linspace(0.1, 1, 10, dtype=np.float32), K=32, N=5,
             block_size=16, quant_type=1),
        case("float32[3, 32]", BNB4, np.linspace(0.1, 1, 5, dtype=np.float32), K=32, N=5,
             block_size=32, quant_type=0)),
    row("MatMulNBitsMlp", 9, "K N accuracy_level activation bits block_size epsilon",
        _fused_few_bits,
        case("float32[2, 32]", None, "float32[32]", *TWO, K=32, N=4, block_size=32,
             activation="silu"),
        case("float32[2, 32]", "float32[2, 32]", "float32[32]", *TWO, K=32, N=4, block_size=32,
             activation="silu", outputs=2),
        case("float32[2, 32]", None, None, *TWO, K=32, N=4, block_size=32, activation="silu"),
        activation=("silu", "gelu", "relu")),
    row("MatMulNBitsQkv", 12, "K Nkv Nq accuracy_level bits block_size epsilon", _fused_few_bits,
        case("float32[2, 32]", "float32[2, 32]", "float32[32]", *TWO, *GATES[2], K=32, Nq=4,
             Nkv=4, block_size=32, outputs=4),
        case("float32[2, 32] in -1e-3..1e-3", "float32[2, 32] in -1e-3..1e-3", "float32[32]", *TWO,
             *GATES[2], K=32, Nq=4, Nkv=4, block_size=32)),
    row("MatMulNBitsQLoRA", 7, "K N accuracy_level bits block_size lora_bits lora_block_size",
        _adapted_few_bits,
        case("float32[2, 32]", *GATES[0][:2], BYTES_8[:3], SCALES[:3], BYTES_8[:4], SCALES, K=32,
             N=4)),
)  # fmt: skip
