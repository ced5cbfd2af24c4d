"""Zero points of integer products whose operands are laid out anew.

Weights lose theirs at build. That of the other operand, `z`, is taken off the sum once, which
leaves the inner loop two loads and a product: Σ (x - z) · w = Σ x · w - z · Σ w.
"""

from __future__ import annotations

import numpy as np

from webmlc.graph.ir import Array, Node
from webmlc.graph.layout.layout_values import LayoutValues

_INT32 = 6
"""ONNX's number of int32, as `Cast` has it."""


def zero_point(values: LayoutValues, node: Node) -> str:
    """The zero point of the left operand or the map; "" where it is zero."""
    zero = node.inputs[2] if len(node.inputs) > 2 else ""
    return "" if zero in values.constants and not values.constants[zero].any() else zero


def centred(values: LayoutValues, node: Node, axis: int) -> Array | None:
    """The constant weights less their zero point (one, or one along `axis`), as small integers;
    `None` where it is not constant.
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
    """Make `output` of `{output}.sum`, the products of a left operand that is not less its zero
    point; `sums` are the weights'.
    """
    if zero in values.constants:
        shift = -sums * values.constants[zero].astype(np.int32)
        added = values.constant(f"{output}.shift", shift)
        values.emit("Add", (f"{output}.sum", added), output, node.origin)
        return
    number = values.emit("Cast", (zero,), f"{output}.zero", node.origin, to=_INT32)
    factors = (number, values.constant(f"{output}.sums", sums))
    shift_name = values.emit("Mul", factors, f"{output}.shift", node.origin)
    values.emit("Sub", (f"{output}.sum", shift_name), output, node.origin)


def widened(values: LayoutValues, node: Node, slot: int) -> str:
    """An operand less its zero point, in int32."""
    name = f"{node.outputs[0]}.{slot}"
    zero = node.inputs[2 + slot] if len(node.inputs) > 2 + slot else ""
    operand = values.nchw(node.inputs[slot])
    wide = values.emit("Cast", (operand,), name, node.origin, to=_INT32)
    if not zero:
        return wide
    shift = values.emit("Cast", (zero,), f"{name}.zero", node.origin, to=_INT32)
    return values.emit("Sub", (wide, shift), f"{name}.centred", node.origin)
