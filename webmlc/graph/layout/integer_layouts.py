"""Remove the zero points from the inner loops of integer products.

The zero point of the weights is subtracted at build. The zero point `z` of the other operand is
subtracted from the sum once: Σ (x - z) · w = Σ x · w - z · Σ w. The inner loop has two loads and a
product.
"""

from __future__ import annotations

import numpy as np

from webmlc.graph.builder import Builder
from webmlc.graph.ir import Array, Node
from webmlc.graph.layout.layout_values import LayoutValues

_INT32 = 6
"""ONNX's number of int32, an attribute of `Cast`."""


def zero_point(values: LayoutValues, node: Node) -> str:
    """The zero point of the left operand or the feature map; "" if it is zero."""
    zero = node.inputs[2] if len(node.inputs) > 2 else ""
    return "" if zero in values.constants and not values.constants[zero].any() else zero


def centred(values: LayoutValues, node: Node, axis: int) -> Array | None:
    """The constant weights minus their zero point (one number, or a number for each position along
    `axis`), as small integers; `None` if the zero point is not constant.
    """
    weights = values.constants[node.inputs[1]]
    zero = node.inputs[3] if len(node.inputs) > 3 else ""
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
    number = build("Cast", zero, output=f"{output}.zero", to=_INT32)
    build("Mul", number, build.constant(sums, name=f"{output}.sums"), output=shift)
    build("Sub", f"{output}.sum", shift, output=output)


def widened(values: LayoutValues, node: Node, slot: int) -> str:
    """Write an operand minus its zero point, in int32."""
    name = f"{node.outputs[0]}.{slot}"
    zero = node.inputs[2 + slot] if len(node.inputs) > 2 + slot else ""
    build = Builder(node, values)
    wide = build("Cast", values.nchw(node.inputs[slot]), output=name, to=_INT32)
    if not zero:
        return wide
    shift = build("Cast", zero, output=f"{name}.zero", to=_INT32)
    return build("Sub", wide, shift, output=f"{name}.centred")
