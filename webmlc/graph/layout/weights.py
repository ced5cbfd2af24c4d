"""Prepare the constant weights of products: subtract their zero points, and pack them for vector
loads into contiguous panels of eight output channels.

The zero point of the weights is subtracted at build. The zero point `z` of the other operand is
subtracted from the sum once: Σ (x - z) · w = Σ x · w - z · Σ w. The inner loop has two loads and a
product.

pack_matrix(matrix of shape (3, 10)).shape  ->  (2, 3, 8): two panels, zero-padded
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder, Value
from webmlc.graph.element_types import TYPE_NUMBERS
from webmlc.graph.ir import Array, Node
from webmlc.graph.layout.layout_values import LayoutValues
from webmlc.graph.ops.layout import PACK


def pack_matrix(matrix: Array) -> Array:
    """Pack `[K, N]` as `[N/8, K, 8]`: zero-padded panels of eight columns. Vector loads read a row
    of a panel.
    """
    return _padded(matrix, 1, PACK).reshape(len(matrix), -1, PACK).transpose(1, 0, 2)


def pack_convolution(weights: Array, groups: int) -> Array:
    """Pack `[O, I, *kernel]` as `[O/8, *kernel, I, 8]`, zero-padded; with several groups as
    `[groups, ...]`. Pack a single output channel as `[1, *kernel, I, 1]`, for vectors along the
    inputs.
    """
    outputs, inputs, *kernel = weights.shape
    width = PACK if outputs > groups else 1
    padded = _padded(weights.reshape(groups, outputs // groups, inputs, *kernel), 1, width)
    split = padded.reshape(groups, -1, width, inputs, *kernel)
    packed = split.transpose(0, 1, *range(4, split.ndim), 3, 2)
    return packed if groups > 1 else packed[0]


def _padded(array: Array, axis: int, multiple: int) -> Array:
    """The array with zeros at the end of an axis, so that `multiple` divides its size."""
    missing = -array.shape[axis] % multiple
    pads = [(0, missing if d == axis else 0) for d in range(array.ndim)]
    return np.pad(array, pads) if missing else array


def pack_depthwise(weights: Array) -> Array:
    """Pack `[C, 1, *kernel]` as `[*kernel, C]`: the channels of a tap are contiguous."""
    return np.moveaxis(weights[:, 0], 0, -1)


def zero_point(values: LayoutValues, node: Node) -> str:
    """The zero point of the left operand or the feature map; "" if it is zero."""
    zero = node.input(2)
    return "" if zero in values.constants and not values.constants[zero].any() else zero


def centred(values: LayoutValues, node: Node, axis: int) -> Array | None:
    """The constant weights minus their zero point (one number, or a number for each position along
    `axis`), as small integers; `None` if the zero point is not constant.
    """
    weights, zero = values.constants[node.inputs[1]], node.input(3)
    if zero and zero not in values.constants:
        return None
    shape = [1] * weights.ndim
    shape[axis] = -1
    shift = values.constants[zero].astype(np.int32).reshape(shape) if zero else np.int32(0)
    wide = weights.astype(np.int32) - shift
    fits = not wide.size or (wide.min() >= -128 and wide.max() <= 127)
    return wide.astype(np.int8 if fits else np.int16)


def less_zero_point(values: LayoutValues, node: Node, zero: str, sums: Array, output: str) -> None:
    """Write `output`: the product `{output}.sum` of a left operand that includes its zero point,
    minus the product of the zero point. `sums` are the sums of the weights.
    """
    build = Builder(node, values)
    shift = f"{output}.shift"
    if zero in values.constants:
        build.constant(-sums * values.constants[zero].astype(np.int32), name=shift)
        build("Add", f"{output}.sum", shift, output=output)
        return
    number = _wide(build, zero, f"{output}.zero")
    build("Mul", number, build.constant(sums, name=f"{output}.sums"), output=shift)
    build("Sub", f"{output}.sum", shift, output=output)


def widened(values: LayoutValues, node: Node, slot: int) -> str:
    """Write an operand minus its zero point, in int32."""
    name, zero = f"{node.outputs[0]}.{slot}", node.input(2 + slot)
    build = Builder(node, values)
    wide = _wide(build, values.nchw(node.inputs[slot]), name)
    if not zero:
        return wide
    return build("Sub", wide, _wide(build, zero, f"{name}.zero"), output=f"{name}.centred")


def _wide(build: Builder, value: str, output: str) -> Value:
    """Write a value in int32."""
    return build("Cast", value, output=output, to=TYPE_NUMBERS[DType.int32])
