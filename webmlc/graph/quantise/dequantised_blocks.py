"""Find the block-quantised weights that a DequantizeLinear computes.

In: a value. Out: the weights `[N, K]` as `BlockQuantised`, if the value is a dequantised constant
matrix, perhaps transposed, and if blocks along K have one scale and one zero point each.

    DequantizeLinear(%q: int4[K, N], %scales: [K/32, N], %zeros) {axis=0, block_size=32}
    ->  values = q - low, scales, minimums = (low - zeros) · scales      low: the least int4, -8

Weights of up to four bits may also have one scale in all, or one for each row. (Those of bytes are
products of bytes: see `compute_in_integers`.)
"""

from __future__ import annotations

import numpy as np

from webmlc.graph.ir import Array, Node
from webmlc.graph.ops.block_quantised import BlockQuantised
from webmlc.graph.ops.operator import Context
from webmlc.graph.ops.shapes import ONE
from webmlc.graph.rewrite.rewriting import Rewriting

_BLOCKS = (128, 64, 32)
"""The sizes of the blocks into which rows with one scale are divided. Large blocks have fewer
scales; the last one is taken for any row, which is filled up.
"""
_WORD_BITS = 32
"""The bits of a word, of which a block fills several."""


def dequantised_blocks(rewriting: Rewriting, value: str, row_axis: int) -> BlockQuantised | None:
    """The weights that a value holds, whose rows run along `row_axis` of the value. Rows are filled
    up to whole blocks. `None` for any other value.
    """
    maker = rewriting.producer(value)
    if maker is not None and (maker.domain, maker.op) == ("", "Transpose"):
        value, row_axis = maker.inputs[0], 1 - row_axis
        maker = rewriting.producer(value)
    if maker is None or (maker.domain, maker.op) != ("", "DequantizeLinear"):
        return None
    context = rewriting.scope.context(maker)
    array, scale, zero = (context.constant(index) for index in range(3))
    if array is None or scale is None or (context.has(2) and zero is None) or array.ndim != 2:
        return None
    dtype = context.dtype(0)
    if dtype.is_float or dtype.bits not in (2, 4, 8):
        return None
    shape = array.shape if row_axis == 0 else array.shape[::-1]
    block = _block_size(context, maker, row_axis, shape[1], dtype.bits)
    if block is None:
        return None
    blocks = -(-shape[1] // block)
    scales, zeros = (
        _by_block(parameter, row_axis, (shape[0], blocks)) for parameter in (scale, zero)
    )
    assert scales is not None
    low = int(dtype.limits[0])
    values = np.zeros((shape[0], blocks * block), np.int16)
    values[:, : shape[1]] = (array if row_axis == 0 else array.T).astype(np.int16)
    return _record(values, dtype.bits, block, scales, zeros, low)


def _block_size(context: Context, maker: Node, row_axis: int, depth: int, bits: int) -> int | None:
    """The size of the blocks of rows; `None` if blocks do not lie along the rows."""
    scale = context.shape(1)
    block, axis = int(maker.attributes.get("block_size", 0)), context.axis(1)
    if block and len(scale) == 2:
        fits = axis == 1 - row_axis and block * bits % _WORD_BITS == 0
        return block if fits else None
    is_single = all(size == ONE for size in scale)
    if bits > 4 or not (is_single or (len(scale) == 1 and axis == row_axis)):
        return None
    return next((size for size in _BLOCKS if depth % size == 0), _BLOCKS[-1])


def _by_block(parameter: Array | None, row_axis: int, shape: tuple[int, int]) -> Array | None:
    """Scales or zero points as float32 `[N, blocks]`."""
    if parameter is None:
        return None
    matrix = parameter.astype(np.float32)
    if matrix.ndim < 2:
        matrix = matrix.reshape(-1, 1)
    elif row_axis == 1:
        matrix = matrix.T
    return np.ascontiguousarray(np.broadcast_to(matrix, shape))


def _record(
    values: Array, bits: int, block: int, scales: Array, zeros: Array | None, low: int
) -> BlockQuantised:
    """The record of weights `(values - zeros) · scales`. `low` is the least value of their type."""
    if bits == 8:  # stored signed
        shift = 0 if low else 128
        stored = (values - shift).astype(np.int8)
    else:
        shift = low
        stored = (values - shift).astype(np.uint8)
    offsets = np.float32(shift) - (np.float32(0) if zeros is None else zeros)
    minimums = np.ascontiguousarray(np.broadcast_to(offsets * scales, scales.shape))
    return BlockQuantised(stored, bits, block, scales, minimums if minimums.any() else None)
