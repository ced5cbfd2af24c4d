"""Round float inputs of products whose weights are bytes (dynamic range quantisation).

LiteRT quantises such an input in each run, by its own smallest and largest number, and multiplies
bytes. Here the numbers are rounded to those that the bytes stand for, and products are of floats:

    FULLY_CONNECTED(x: float32, w: int8)   ->   MatMul(rounded x, DequantizeLinear(w))

The parameters are those of XNNPACK (`xnn_f32_qd8_asymmetric_quantization_params`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.frontend.tflite.operation import Operation
from webmlc.graph.builder import Value

LOWEST, HIGHEST = np.float32(-128), np.float32(127)
"""The limits of a byte."""
ZERO = np.float32(0)


def rounded(op: Operation, x: Value, axes: Sequence[int]) -> Value:
    """Input 0, which is `x`, rounded if the weights, input 1, are bytes and it has floats. The
    numbers along `axes` are rounded together.
    """
    weights, is_float = op.tensor(1), op.tensor(0).dtype == DType.float32
    is_quantised = weights.dtype == DType.int8 and weights.quantisation is not None
    if not (is_float and is_quantised):
        return x
    low = op.build("ReduceMin", x, axes, keepdims=1).op("Min", ZERO)
    high = op.build("ReduceMax", x, axes, keepdims=1).op("Max", ZERO)
    is_zero = low.op("Equal", high)
    span = op.build("Div", HIGHEST - LOWEST, high - low)
    scale = is_zero.where(np.float32(1), span)
    first, last = low * scale, high * scale
    is_near_first = (first + LOWEST + (last + HIGHEST)).op("Greater", ZERO)
    zero = is_near_first.where(-first + LOWEST, -last + HIGHEST)
    zero = zero.op("Clip", LOWEST, HIGHEST).op("Round")
    integers = ((x * scale).op("Round") + zero).op("Clip", LOWEST, HIGHEST)
    return (integers - zero) * op.build("Div", np.float32(1), scale)
