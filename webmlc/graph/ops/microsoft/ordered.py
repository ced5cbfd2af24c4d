"""Quantised operators whose matrices have one of the orders of cublasLt. Only plain orders are
supported: of rows for matrices, and of columns for the weights of QOrderedMatMul.
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ops.microsoft.rows import known_size, row
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import check_shapes

BY_COLUMNS, BY_ROWS = 0, 1
"""The orders of matrices that have a plain layout, as cublasLt numbers them."""


def _check_order(context: Context, order: int, *names: str) -> None:
    for name in names:
        actual = context.attribute(name, order)
        if actual != order:
            raise NotSupportedError(
                f"{name} is {actual}: only plain orders are supported, {BY_ROWS} for matrices and "
                f"{BY_COLUMNS} for the weights of QOrderedMatMul"
            )


def _int8(build: Builder, value: Value, scale: Value) -> Value:
    return build("QuantizeLinear", value, scale, build.constant(0, DType.int8))


def _ordered(context: Context, build: Builder) -> Value:
    """Expand QuantizeWithOrder and DequantizeWithOrder of matrices in the order of rows."""
    _check_order(context, BY_ROWS, "order_input", "order_output")
    x, scale = build.inputs
    if context.node.op == "QuantizeWithOrder":
        return _int8(build, x, scale)
    to = context.attribute("to")
    return build("Cast", build("DequantizeLinear", x, scale), to=to)


def _ordered_gelu(context: Context, build: Builder) -> Value:
    _check_order(context, BY_ROWS, "order_X", "order_Y")
    x, scale, y_scale = build.inputs
    return _int8(build, build("DequantizeLinear", x, scale).op("Gelu"), y_scale)


def _ordered_norm(context: Context, build: Builder) -> Value:
    _check_order(context, BY_ROWS, "order_X", "order_Y")
    x, scale, gamma, beta, y_scale = (build.optional(i) for i in range(5))
    assert x and scale and gamma and y_scale
    axis, epsilon = context.attribute("axis", -1), context.attribute("epsilon", 1e-5)
    parameters = (p and p.cast(DType.float32) for p in (gamma, beta))
    y = build("LayerNormalization", build("DequantizeLinear", x, scale), *parameters, axis=axis,
              epsilon=epsilon)  # fmt: skip
    return _int8(build, y, y_scale)


def _ordered_product(context: Context, build: Builder) -> Value:
    """Expand QOrderedMatMul: A · B, plus a bias and C, quantised. The bytes of B are in the order
    of columns.
    """
    _check_order(context, BY_ROWS, "order_A", "order_Y")
    _check_order(context, BY_COLUMNS, "order_B")
    check_shapes(context, "... depth", "", "depth columns")
    depth, columns = (known_size(n, "the weights' shape") for n in context.shape(2))
    a, a_scale, b, b_scale, y_scale, bias, c, c_scale = (build.optional(i) for i in range(8))
    assert a and a_scale and b and b_scale and y_scale
    weights = b.reshape(columns, depth).transpose(1, 0)
    y = build("MatMulInteger", a, weights).cast(DType.float32) * (a_scale * b_scale)
    y = y if bias is None else y + bias
    if c is not None:
        y = y + build("DequantizeLinear", c, c_scale)
    return _int8(build, y, y_scale)


BYTES = "int8[2, 3, 4] in -99..99"
S, T, U = np.float32(0.02), np.float32(0.03), np.float32(0.05)

OPS: tuple[Operator, ...] = (
    row("QuantizeWithOrder", 2, "order_input order_output", _ordered,
        case("float32[2, 3, 4]", S, order_input=1, order_output=1)),
    row("DequantizeWithOrder", 2, "order_input order_output to", _ordered,
        case(BYTES, S, order_input=1, order_output=1, to=1)),
    row("QOrderedGelu", 3, "order_X order_Y", _ordered_gelu,
        case(BYTES, S, T, order_X=1, order_Y=1)),
    row("QOrderedLayerNormalization", 5, "axis epsilon order_X order_Y", _ordered_norm,
        case(BYTES, S, "float32[4]", "float32[4]", T, order_X=1, order_Y=1),
        case(BYTES, S, "float32[4]", None, T, epsilon=0.1)),
    row("QOrderedMatMul", 8, "order_A order_B order_Y", _ordered_product,
        case(BYTES, S, "int8[4, 5] in -60..60", np.full(5, 0.03, np.float32), U, "float32[5]",
             "int8[2, 3, 5] in -99..99", T, order_A=1, order_B=0, order_Y=1),
        case(BYTES, S, "int8[4, 5] in -60..60", T, U, order_A=1, order_B=0, order_Y=1)),
)  # fmt: skip
