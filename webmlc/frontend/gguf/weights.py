"""Convert the blocks of GGUF's quantisation types to `BlockQuantised` weights.

In: the bytes of a matrix, `[N, bytes of a row]`, and the name of its type. Out: values of up to 8
bits, with a scale and perhaps a minimum for each block. A float type gives an array of floats.

    Q4_1, a block of 32: [scale: f16][minimum: f16][16 bytes of two values]
    ->  values [N, K] of 4 bits, scales [N, K/32], minimums [N, K/32]

Types of 3, 5 and 6 bits become signed bytes. Layouts are as in `ggml-common.h` of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np

from webmlc.graph.ir import Array
from webmlc.graph.ops.block_quantised import BlockQuantised

Matrix = BlockQuantised | Array
"""A matrix [N, K]: block-quantised, or of float32, float16 or bfloat16."""

SUPER = 256
"""The number of weights in a block of a K type, which has smaller blocks inside. From llama.cpp."""


def read_matrix(data: Array, type_: str, shape: tuple[int, int]) -> Matrix:
    """Convert a matrix of this shape, whose type has a row in `READERS`."""
    return READERS[type_](data, shape)


def _floats(data: Array, shape: tuple[int, int]) -> Array:
    return data.reshape(shape)


def _bfloats(data: Array, shape: tuple[int, int]) -> Array:
    floats: Array = np.ascontiguousarray(data).view(ml_dtypes.bfloat16)
    return floats.reshape(shape)


def _quantised(
    shape: tuple[int, int],
    bits: int,
    values: Array,
    scales: Array,
    minimums: Array | None = None,
) -> BlockQuantised:
    """Make the record of a matrix from its blocks. `scales` has an element for each block."""
    rows, columns = shape
    scales = scales.reshape(rows, -1)
    return BlockQuantised(
        np.ascontiguousarray(values.reshape(shape)),
        bits,
        columns // scales.shape[1],
        scales,
        None if minimums is None else minimums.reshape(rows, -1),
    )


def _split(data: Array, *sizes: int) -> list[Array]:
    """Split blocks of bytes into fields of these sizes."""
    blocks = data.reshape(-1, sum(sizes))
    return np.split(blocks, np.cumsum(sizes)[:-1].tolist(), axis=1)


def _halves(field: Array) -> Array:
    """The float16 numbers of a field, as float32 [blocks, 1]."""
    return np.ascontiguousarray(field).view(np.float16).astype(np.float32)


def _nibbles(field: Array, run: int) -> Array:
    """The values of 4 bits in a field. For each `run` of bytes, the low halves come first."""
    runs = field.reshape(len(field), -1, 1, run)
    return (runs >> np.array([[0], [4]], np.uint8) & 15).reshape(len(field), -1)


def _fifth_bits(field: Array) -> Array:
    """The 32 bits of a field, each as the value 0 or 16."""
    return np.unpackbits(field, axis=1, bitorder="little") << 4


def _q4_0(data: Array, shape: tuple[int, int]) -> BlockQuantised:
    scale, packed = _split(data, 2, 16)
    scales = _halves(scale)
    return _quantised(shape, 4, _nibbles(packed, 16), scales, -8 * scales)


def _q4_1(data: Array, shape: tuple[int, int]) -> BlockQuantised:
    scale, minimum, packed = _split(data, 2, 2, 16)
    return _quantised(shape, 4, _nibbles(packed, 16), _halves(scale), _halves(minimum))


def _q5_0(data: Array, shape: tuple[int, int]) -> BlockQuantised:
    scale, high, packed = _split(data, 2, 4, 16)
    values = (_nibbles(packed, 16) | _fifth_bits(high)).astype(np.int8) - np.int8(16)
    return _quantised(shape, 8, values, _halves(scale))


def _q5_1(data: Array, shape: tuple[int, int]) -> BlockQuantised:
    scale, minimum, high, packed = _split(data, 2, 2, 4, 16)
    values = (_nibbles(packed, 16) | _fifth_bits(high)).astype(np.int8)
    return _quantised(shape, 8, values, _halves(scale), _halves(minimum))


def _q8_0(data: Array, shape: tuple[int, int]) -> BlockQuantised:
    scale, values = _split(data, 2, 32)
    return _quantised(shape, 8, values.view(np.int8), _halves(scale))


def _scales_of_6_bits(scale: Array, minimum: Array, packed: Array) -> tuple[Array, Array]:
    """The scales and minimums of the eight blocks inside a block of Q4_K or Q5_K, [blocks, 8].

    The first four scales and minimums have 6 bits in bytes 0 to 7. The other four have their low 4
    bits in bytes 8 to 11, and their high 2 bits above the 6 bits of the first four.
    """
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    factors = np.concatenate([low & 63, high & 15 | low >> 2 & 48], axis=1)
    offsets = np.concatenate([middle & 63, high >> 4 | middle >> 2 & 48], axis=1)
    return (
        _halves(scale) * factors.astype(np.float32),
        -(_halves(minimum) * offsets.astype(np.float32)),
    )


def _q4_k(data: Array, shape: tuple[int, int]) -> BlockQuantised:
    scale, minimum, packed_scales, packed = _split(data, 2, 2, 12, SUPER // 2)
    scales, minimums = _scales_of_6_bits(scale, minimum, packed_scales)
    return _quantised(shape, 4, _nibbles(packed, 32), scales, minimums)


def _q5_k(data: Array, shape: tuple[int, int]) -> BlockQuantised:
    scale, minimum, packed_scales, high, packed = _split(data, 2, 2, 12, SUPER // 8, SUPER // 2)
    scales, minimums = _scales_of_6_bits(scale, minimum, packed_scales)
    bits = high[:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    values = _nibbles(packed, 32) | bits.reshape(len(bits), SUPER) << 4
    return _quantised(shape, 8, values.astype(np.int8), scales, minimums)


def _q6_k(data: Array, shape: tuple[int, int]) -> BlockQuantised:
    low, high, factors, scale = _split(data, SUPER // 2, SUPER // 4, SUPER // 16, 2)
    shifts = np.array([[0], [2], [4], [6]], np.uint8)
    bits = high.reshape(len(high), -1, 1, 32) >> shifts & 3
    values = _nibbles(low, 64) | bits.reshape(len(high), SUPER) << 4
    scales = _halves(scale) * factors.view(np.int8).astype(np.float32)
    return _quantised(shape, 8, values.astype(np.int8) - np.int8(32), scales)


READERS: Mapping[str, Callable[[Array, tuple[int, int]], Matrix]] = {
    "F32": _floats,
    "F16": _floats,
    "BF16": _bfloats,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
"""The converters by type."""
