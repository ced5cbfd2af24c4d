"""Matrix products over packed right operands.

In: a matrix product of ONNX. Out: a `webmlc.MatMul` by a right operand that is packed
`[N/8][K][8]`, then the addition of the bias. A constant operand is packed at build, any other by a
`Pack` in every run. Constants of half precision are packed as they are, and widened afterwards.

    %y = Gemm(%x, %w, %b)  ->  %y.sum = webmlc.MatMul(%x, %y.packed); %y = Add(%y.sum, %b)
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int, const
from webmlc.core.machine import MAX_BINDING_BYTES
from webmlc.graph.builder import Builder
from webmlc.graph.element_types import TYPE_NUMBERS
from webmlc.graph.ir import Array, Node
from webmlc.graph.layout.layout_values import HALVES, LayoutValues
from webmlc.graph.layout.weights import (
    centred,
    less_zero_point,
    pack_matrix,
    widened,
    zero_point,
)
from webmlc.graph.ops.layout import PACK
from webmlc.graph.ops.operator import array_type
from webmlc.graph.ops.shapes import same

_WEIGHTS = (DType.int8, DType.int16)
_LARGE_ROWS = 24
"""The fewest rows of the left operand for which packing the right operand in every run saves time.
"""


def matrix_product(values: LayoutValues, node: Node) -> bool:
    """Write a matrix product over a packed right operand. False if the plain operator serves
    better.
    """
    left, right = node.inputs[:2]
    if not _is_packable(values, node):
        return False
    packed, bias = f"{node.outputs[0]}.packed", node.input(2)
    product = f"{node.outputs[0]}.sum" if bias else node.outputs[0]
    matrix = values.weights(right)
    if matrix is not None and matrix.ndim == 2:
        if node.op == "Gemm":
            matrix = matrix.T if node.attributes.get("transB", 0) else matrix
            if (alpha := node.attributes.get("alpha", 1.0)) != 1:
                matrix = matrix * np.float32(alpha)
        _constant_product(values, node, matrix, packed, product)
    elif _is_large(values, node):
        _packed_product(values, node, values.nchw(left), values.nchw(right), product)
    else:
        return False
    if bias:
        build = Builder(node, values)
        build("Add", product, _scaled(values, node, bias), output=node.outputs[0])
    return True


def integer_matrix_product(values: LayoutValues, node: Node) -> bool:
    """Write a product of quantised matrices over a packed right operand; False where the plain
    operator serves better.
    """
    right = node.inputs[1]
    output, packed = node.outputs[0], f"{node.outputs[0]}.packed"
    if not _are_matrices(values, node):
        return False
    if right in values.constants and values.rank(right) == 2:
        matrix, zero = centred(values, node, 1), zero_point(values, node)
        if matrix is None or (zero and values.types[zero].static_shape not in ((), (1,))):
            return False
        _constant_product(values, node, matrix, packed, f"{output}.sum" if zero else output)
        if zero:
            less_zero_point(values, node, zero, matrix.sum(0, np.int32), output)
        return True
    if not _is_large(values, node) or values.types[node.inputs[-1]].rank > 1:
        return False
    left, right = (widened(values, node, slot) for slot in (0, 1))
    _packed_product(values, node, left, right, output)
    return True


def _packed_product(values: LayoutValues, node: Node, left: str, right: str, output: str) -> None:
    """Write the product with a matrix that each run packs."""
    build, columns = Builder(node, values), values.types[node.outputs[0]].shape[-1]
    packed = build("Pack", right, output=f"{node.outputs[0]}.packed", domain="webmlc")
    build("MatMul", left, packed, output=output, domain="webmlc", columns=columns)


def _is_packable(values: LayoutValues, node: Node) -> bool:
    """True for a product of floats, or of floats with constant small integers, of matrices."""
    left, right = (values.types[i].dtype for i in node.inputs[:2])
    is_constant = values.weights(node.inputs[1]) is not None
    is_plain = is_constant and values.rank(node.inputs[1]) <= 2
    is_plain = is_plain and not node.attributes.get("transA", 0)
    if left in HALVES:
        has_scales = any(node.attributes.get(name, 1.0) != 1 for name in ("alpha", "beta"))
        fits = is_plain and left is right and not has_scales
    else:
        # `compute_in_integers` multiplies by small integers, and scales the product afterwards.
        is_scaled = is_constant and node.op == "MatMul" and right in _WEIGHTS
        fits = left is DType.float32 and (right is DType.float32 or is_scaled)
        fits = fits and (node.op == "MatMul" or is_plain)
    return fits and _are_matrices(values, node)


def _are_matrices(values: LayoutValues, node: Node) -> bool:
    """True for operands of two dimensions or more, if the right one has elements to pack."""
    left, right = node.inputs[:2]
    return min(values.rank(left), values.rank(right)) >= 2 and not values.types[right].is_empty


def _constant_product(
    values: LayoutValues, node: Node, matrix: Array, packed: str, product: str
) -> None:
    """Write the product with a constant matrix, in parts where a GPU could not bind it at once."""
    left, panels = values.nchw(node.inputs[0]), pack_matrix(matrix)
    build = Builder(node, values)
    is_half = array_type(panels).dtype in HALVES
    panel_bytes = panels[0].nbytes * (2 if is_half else 1)  # halves are widened at load
    at_once = max(MAX_BINDING_BYTES // panel_bytes, 1)
    starts = range(0, len(panels), at_once)
    parts = []
    for start in starts:
        part = panels[start : start + at_once]
        suffix = f".{start}" if len(starts) > 1 else ""
        columns = const(min(len(part) * PACK, matrix.shape[1] - start * PACK))
        right = build.constant(part, name=f"{packed}{suffix}")
        if is_half and values.types[left].dtype not in HALVES:
            right = build("Cast", right, output=f"{right}.wide", to=TYPE_NUMBERS[DType.float32])
        operands = (left, right)
        parts.append(f"{product}{suffix}")
        build("MatMul", *operands, output=parts[-1], domain="webmlc", columns=columns)
    if len(parts) > 1:
        build("Concat", *parts, output=product, axis=values.rank(left) - 1)


def _scaled(values: LayoutValues, node: Node, value: str) -> str:
    """`beta · value`."""
    beta = float(node.attributes.get("beta", 1.0))
    if beta == 1.0:
        return values.nchw(value)
    build, output = Builder(node, values), f"{value}.scaled"
    if value in values.constants:
        return build.constant(values.constants[value] * np.float32(beta), name=output)
    factor = build.constant(beta, DType.float32, f"{node.outputs[0]}.beta")
    return build("Mul", values.nchw(value), factor, output=output)


def _is_large(values: LayoutValues, node: Node) -> bool:
    """True if many rows read the right operand again, so that packing it at run time saves time."""
    rows = as_int(values.types[node.outputs[0]].shape[-2])
    left, right = (values.types[i].shape[:-2] for i in node.inputs[:2])
    same_batch = len(left) == len(right) and all(map(same, left, right))
    return same_batch and (rows is None or rows >= _LARGE_ROWS)
