"""The rules of `compute_in_integers`, in the order in which they are tried.

A rule is a function `(rewriting, node, context) -> an equal value | a better node | None`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Array, Node, TensorType
from webmlc.graph.ops.operator import Context
from webmlc.graph.ops.shapes import product_type
from webmlc.graph.ops.view import permutation
from webmlc.graph.rewrite.rewriting import Rewriting, Rule

BYTES = (DType.int8, DType.uint8)
"""Quantised types whose products sum in int32 without overflow."""
MOVES = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "Expand",
     "Tile", "DepthToSpace", "SpaceToDepth", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin"}
)  # fmt: skip
"""Operators of one output that commute with a scaling: each output element is an element of their
first input.
"""
SCALED = frozenset({"Relu", "LeakyRelu", "Clip"})
"""Functions f with f(a · x) = a · f(x) for positive a (a Clip if its limits are scaled, too)."""
_FINE = np.float32(64)
"""Parts of a quantisation step in which sums of quantised operands are computed. A power of two, so
that scaling by it is exact.
"""


@dataclass(frozen=True, slots=True)
class Quantised:
    """A value `(source - zero) · scale`. Scale and zero point have one element, or one for each
    position along `axis`.
    """

    source: str
    type: TensorType
    scale: Array
    zero: Array | None
    axis: int

    @property
    def is_uniform(self) -> bool:
        """True for one scale and one zero point."""
        return self.scale.size == 1 and (self.zero is None or self.zero.size == 1)

    def is_along(self, axis: int) -> bool:
        """True if scale and zero point are uniform, or lie along `axis`."""
        return self.is_uniform or self.axis % max(self.type.rank, 1) == axis

    def scales(self) -> Array:
        """The scale as a number or a vector."""
        return self.scale.reshape(()) if self.scale.size == 1 else self.scale.reshape(-1)


def quantised(rewriting: Rewriting, value: str) -> Quantised | None:
    """The parameters of the DequantizeLinear that computes a value; `None` for other values, and if
    the parameters are not constant.
    """
    maker = rewriting.producer(value)
    if maker is None or maker.op != "DequantizeLinear" or maker.domain:
        return None
    context = rewriting.scope.context(maker)
    scale, zero = context.constant(1), context.constant(2)
    if scale is None or (context.has(2) and zero is None) or scale.dtype != np.float32:
        return None
    if scale.ndim > 1 or maker.attributes.get("block_size", 0):
        return None
    axis = int(maker.attributes.get("axis", 1))
    return Quantised(maker.inputs[0], context.type(0), scale, zero, axis)


def cancel_pair(rewriting: Rewriting, node: Node, context: Context) -> str | None:
    """Replace a QuantizeLinear of a DequantizeLinear with the same parameters by its source."""
    if node.op != "QuantizeLinear" or node.domain:
        return None
    before = quantised(rewriting, node.inputs[0])
    scale, zero = context.constant(1), context.constant(2)
    if before is None or scale is None or before.type.dtype != context.outputs[0].dtype:
        return None
    if not before.is_uniform or scale.size != 1 or scale.item() != before.scale.item():
        return None
    shift = 0 if zero is None else int(zero.reshape(-1)[0])
    zero_before = 0 if before.zero is None else int(before.zero.reshape(-1)[0])
    return before.source if shift == zero_before else None


def move_integers(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Move an operator that only selects elements before the DequantizeLinear."""
    if node.domain or node.op not in MOVES or len([o for o in node.outputs if o]) != 1:
        return None
    before = quantised(rewriting, node.inputs[0])
    if before is None:
        return None
    axis = before.axis
    if not before.is_uniform:
        if node.op != "Transpose":
            return None
        axis = permutation(context).index(axis % before.type.rank)
    return _moved(rewriting, node, context, (before.source, *node.inputs[1:]), axis)


def move_parts(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Move a Concat before the DequantizeLinears, if all parts have one scale and zero point."""
    if node.domain or node.op != "Concat":
        return None
    parts = [quantised(rewriting, i) for i in node.inputs]
    uniform_parts = [p for p in parts if p is not None and p.is_uniform]
    if len(uniform_parts) != len(parts):
        return None
    first = _parameters(uniform_parts[0])
    if any(_parameters(p) != first for p in uniform_parts):
        return None
    return _moved(rewriting, node, context, tuple(p.source for p in uniform_parts), 1)


def quantise_parts(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Move a QuantizeLinear before the Concat of dequantised parts, so that it joins integers."""
    joined = rewriting.producer(node.inputs[0]) if node.op == "QuantizeLinear" else None
    if joined is None or joined.op != "Concat" or joined.domain or node.domain:
        return None
    scale = context.constant(1)
    if scale is None or scale.size != 1 or not rewriting.is_single_use(node.inputs[0]):
        return None
    if any(quantised(rewriting, part) is None for part in joined.inputs):
        return None
    build = Builder(node, rewriting)
    parts = []
    for part in joined.inputs:
        requantised = Node("QuantizeLinear", (part, *node.inputs[1:]), node.outputs)
        same = cancel_pair(rewriting, requantised, rewriting.scope.context(requantised))
        parts.append(same or build("QuantizeLinear", part, *node.inputs[1:], **node.attributes))
    return replace(node, op="Concat", inputs=tuple(parts), attributes=joined.attributes)


def _parameters(value: Quantised) -> tuple[float, int, DType]:
    zero = 0 if value.zero is None else int(value.zero.reshape(-1)[0])
    return float(value.scale.reshape(-1)[0]), zero, value.type.dtype


def _moved(
    rewriting: Rewriting, node: Node, context: Context, inputs: tuple[str, ...], axis: int
) -> Node:
    """Write `node` over the integers, and return the DequantizeLinear after it."""
    maker = rewriting.producer(node.inputs[0])
    assert maker is not None
    dtype = rewriting.scope.context(maker).dtype(0)
    type_ = replace(context.outputs[0], dtype=dtype)
    moved = Builder(node, rewriting)(
        node.op, *inputs, domain=node.domain, type_=type_, **node.attributes
    )
    attributes = {**maker.attributes, "axis": axis}
    return replace(maker, inputs=(moved, *maker.inputs[1:]), outputs=node.outputs,
                   attributes=attributes)  # fmt: skip


def multiply_integers(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Write a convolution or matrix product of dequantised operands as one of their integers, then
    scaled.
    """
    if node.domain or node.op not in ("Conv", "MatMul", "Gemm"):
        return None
    left, right = (quantised(rewriting, i) for i in node.inputs[:2])
    if right is None or right.type.dtype not in BYTES:
        return None
    if left is None:
        return _scale_weights(rewriting, node, context, right)
    columns = _columns(node, right)
    if left.type.dtype not in BYTES or not left.is_uniform or not right.is_along(columns):
        return None
    if node.op == "Gemm" and node.attributes.get("transA", 0):
        return None
    if node.op != "Conv" and min(left.type.rank, right.type.rank) < 2:
        return None
    build = Builder(node, rewriting)
    scale = (left.scale.reshape(()) * right.scales()).astype(np.float32)
    sums = _products(rewriting, build, left, right)
    return _finished(rewriting, build, context, sums, scale)


def _columns(node: Node, right: Quantised) -> int:
    """The axis of output channels or columns in the right operand."""
    if node.op == "Conv" or node.attributes.get("transB", 0):
        return 0
    return right.type.rank - 1


def _products(rewriting: Rewriting, build: Builder, left: Quantised, right: Quantised) -> str:
    """Write the product of the integers of both operands, an int32."""
    node, weights = build.source, right.source
    if node.op == "Gemm" and node.attributes.get("transB", 0):
        array = rewriting.constants.get(weights)
        if array is None:
            weights = build("Transpose", weights, perm=(1, 0))
        else:
            weights = build.constant(array.T, name=weights)
    zeros = []
    for operand in (left, right):
        zero = np.zeros((), operand.type.dtype.numpy) if operand.zero is None else operand.zero
        flat = zero.reshape(()) if zero.size == 1 else zero.reshape(-1)
        zeros.append(build.constant(flat, operand.type.dtype))
    if node.op == "Conv":
        return build("ConvInteger", left.source, weights, *zeros, **node.attributes)
    return build("MatMulInteger", left.source, weights, *zeros)


def _finished(
    rewriting: Rewriting, build: Builder, context: Context, sums: str, scale: Array
) -> Node:
    """The scaled sums with the bias. A bias that is quantised by the scale of the products is added
    as integers, others as floats.
    """
    node = build.source
    alpha, beta = node.attributes.get("alpha", 1.0), node.attributes.get("beta", 1.0)
    rank = context.outputs[0].rank
    along = (-1,) + (1,) * (rank - 2) if node.op == "Conv" else (-1,)
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    if bias and alpha == beta == 1.0:
        whole = _integer_bias(rewriting, bias, scale)
        if whole is not None:
            shape = along if node.op == "Conv" else whole.shape
            sums, bias = build("Add", sums, build.constant(whole.reshape(shape), DType.int32)), ""
    real = build("Cast", sums, to=1)
    shape = along if scale.size > 1 else ()
    factor = build.constant((scale * np.float32(alpha)).reshape(shape), DType.float32)
    if not bias:
        return replace(node, op="Mul", inputs=(real, factor), attributes={})
    scaled = build("Mul", real, factor)
    if node.op == "Conv":
        array = rewriting.constants.get(bias)
        if array is not None:
            bias = build.constant(array.reshape(along), DType.float32)
        else:
            bias = build("Reshape", bias, build.constant(along, DType.int64))
    elif beta != 1.0:
        bias = build("Mul", bias, build.constant(beta, DType.float32))
    return replace(node, op="Add", inputs=(scaled, bias), attributes={})


def _integer_bias(rewriting: Rewriting, bias: str, scale: Array) -> Array | None:
    """The integers of a bias that is quantised by the scale of the products; else `None`."""
    operand = quantised(rewriting, bias)
    if operand is None or operand.type.dtype is not DType.int32:
        return None
    if operand.zero is not None and operand.zero.any():
        return None
    if not np.allclose(operand.scales(), scale, rtol=1e-5, atol=0):
        return None
    return rewriting.constants.get(operand.source)


def _scale_weights(
    rewriting: Rewriting, node: Node, context: Context, right: Quantised
) -> Node | None:
    """Write the product of floats and quantised weights as one with their integers, then scaled."""
    weights = rewriting.constants.get(right.source)
    columns = _columns(node, right)
    if weights is None or not right.is_along(columns) or node.op == "Gemm" or weights.ndim < 2:
        return None
    if context.dtype(0) != DType.float32 or len(node.inputs) > 2:
        return None
    build = Builder(node, rewriting)
    shape = [1] * weights.ndim
    shape[columns] = -1
    zero = 0 if right.zero is None else right.zero.astype(np.int32).reshape(
        shape if right.zero.size > 1 else ())  # fmt: skip
    centred = weights.astype(np.int32) - zero
    small = DType.int8 if centred.min() >= -128 and centred.max() <= 127 else DType.int16
    product = build(
        node.op,
        node.inputs[0],
        build.constant(centred, small),
        domain=node.domain,
        type_=context.outputs[0],
        **node.attributes,
    )
    along = (-1,) + (1,) * (context.outputs[0].rank - 2) if node.op == "Conv" else (-1,)
    factor = right.scales().reshape(along if right.scale.size > 1 else ())
    scale = build.constant(factor, DType.float32)
    return replace(node, op="Mul", inputs=(product, scale), attributes={})


def average_integers(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Write the mean of dequantised elements as the scaled mean of their integers."""
    if node.domain or node.op != "AveragePool":
        return None
    before = quantised(rewriting, node.inputs[0])
    if before is None or not before.is_uniform or before.type.dtype not in BYTES:
        return None
    if node.attributes.get("count_include_pad", 0) and any(node.attributes.get("pads", ())):
        return None  # padding is 0, not the zero point
    build = Builder(node, rewriting)
    scale, zero, _ = _parameters(before)
    mean = build("AveragePool", before.source, **node.attributes)
    scaled = build("Mul", mean, build.constant(scale, DType.float32))
    shift = build.constant(-zero * np.float32(scale), DType.float32)
    return replace(node, op="Add", inputs=(scaled, shift), attributes={})


def sum_map(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Write the mean of a whole dequantised feature map as the scaled sum of its integers."""
    if node.domain or node.op != "GlobalAveragePool":
        return None
    before = quantised(rewriting, node.inputs[0])
    sizes = [as_int(size) for size in context.shape(0)[2:]]
    if before is None or not before.is_uniform or before.type.dtype not in BYTES or None in sizes:
        return None
    count = prod(size or 0 for size in sizes)
    build = Builder(node, rewriting)
    scale, zero, _ = _parameters(before)
    axes = build.constant(range(2, context.rank(0)), DType.int64)
    sums = build("ReduceSum", build("Cast", before.source, to=6), axes)
    centred = build("Add", sums, build.constant(-zero * count, DType.int32))
    factor = build.constant(np.float32(scale) / np.float32(count), DType.float32)
    return replace(node, op="Mul", inputs=(build("Cast", centred, to=1), factor), attributes={})


def add_integers(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Write a sum of dequantised operands that is quantised again as a sum in steps of the result.

    Each operand is scaled by the quotient of the scales. All zero points are one constant, which is
    added first. onnxruntime's `QLinearAdd` rounds in the same way, once for each operand, so that
    results between two steps are equal.
    """
    summed = rewriting.producer(node.inputs[0]) if node.op == "QuantizeLinear" else None
    if summed is None or summed.op != "Add" or summed.domain or node.domain:
        return None
    scale, zero = context.constant(1), context.constant(2)
    operands = [quantised(rewriting, i) for i in summed.inputs]
    summands = [o for o in operands if o is not None and o.is_uniform and o.type.dtype in BYTES]
    if scale is None or scale.size != 1 or len(summands) != len(operands):
        return None
    if context.has(2) and zero is None:
        return None
    if context.outputs[0].dtype not in BYTES or not rewriting.is_single_use(node.inputs[0]):
        return None
    build = Builder(node, rewriting)
    # An operand that only this node reads comes first: its kernel continues with the sum.
    summands.sort(key=lambda o: rewriting.uses[o.source])
    factors = [(o.scale / scale).astype(np.float32).reshape(()) for o in summands]
    zeros = (np.float32(_parameters(o)[1]) * f for o, f in zip(summands, factors, strict=True))
    shift = np.float32(0 if zero is None else zero.item()) - sum(zeros, np.float32(0))
    reach = np.abs(shift) + 255 * sum(np.abs(factors))
    if not np.isfinite(reach):
        return None
    unit = np.ldexp(np.float32(1), np.frexp(reach)[1] - 24)  # sums of its multiples are exact
    value = build.constant(shift * _FINE, DType.float32)
    for operand, factor in zip(summands, factors, strict=True):
        value = _multiply_add(build, operand.source, factor * _FINE, value, unit * _FINE)
    value = value * (1 / _FINE)
    one = build.constant(1, DType.float32)
    none = build.constant(0, context.outputs[0].dtype)
    origin = tuple(dict.fromkeys((*summed.origin, *node.origin)))
    return replace(node, inputs=(value, one, none), origin=origin)


def _multiply_add(build: Builder, source: str, factor: Array, value: Value, unit: Array) -> Value:
    """Write source · factor + value for a `source` of bytes. The result is rounded once, with or
    without FMA, and in whatever order a driver adds.

    The factor is split into a multiple of `unit` and a remainder, the value into a whole number and
    a remainder. So the products are exact, and the sums of the large terms and of the small terms.
    """
    large = np.rint(factor / unit) * unit

    def times(part: Array) -> Value:
        return build("DequantizeLinear", source, np.float32(part))

    whole = value.op("Round")
    rest = value - whole
    return (whole + times(large)) + (rest + times(factor - large))


def scale_once(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Scale an integer result that is scaled and then quantised once, by the quotient."""
    scale = context.constant(1) if node.op == "QuantizeLinear" and not node.domain else None
    if scale is None or scale.size != 1 or scale.item() == 1:
        return None
    if node.attributes.get("block_size", 0) or scale.dtype != np.float32:
        return None
    path: list[Node] = []
    value = node.inputs[0]
    while (maker := rewriting.producer(value)) is not None and rewriting.is_single_use(value):
        path.insert(0, maker)
        if maker.op == "Mul" and not maker.domain:
            break
        if maker.domain or maker.op not in (*SCALED, "Add"):
            return None
        value = maker.inputs[0]
    if not path or path[0].op != "Mul" or not _is_integer(rewriting, path[0].inputs[0]):
        return None
    build = Builder(node, rewriting)
    by = scale.reshape(())
    scaled = [_divided(rewriting, build, step, by) for step in path]
    if any(step is None for step in scaled):
        return None
    value = path[0].inputs[0]
    for step, constants in zip(path, scaled, strict=True):
        assert constants is not None
        if step is path[-1] and step.op == "Relu" and _is_lowest(context):
            continue  # QuantizeLinear saturates at zero
        value = build(step.op, value, *constants, **step.attributes)
    one = build.constant(1, DType.float32)
    origin = tuple(dict.fromkeys(o for step in (*path, node) for o in step.origin))
    return replace(node, inputs=(value, one, *node.inputs[2:]), origin=origin)


def _is_lowest(context: Context) -> bool:
    """True if the zero point of a QuantizeLinear is the lowest number that it stores."""
    zero = context.constant(2)
    lowest = np.iinfo(context.outputs[0].dtype.numpy).min
    return not lowest if zero is None else zero.size == 1 and zero.item() == lowest


def _is_integer(rewriting: Rewriting, value: str) -> bool:
    """True for sums of quantised products, and for means of quantised elements."""
    maker = rewriting.producer(value)
    if maker is None or maker.domain or maker.op not in ("Cast", "AveragePool"):
        return False
    dtype = rewriting.scope.context(maker).dtype(0)
    return dtype is DType.int32 or product_type(dtype) is DType.int32


def _divided(rewriting: Rewriting, build: Builder, step: Node, by: Array) -> Sequence[str] | None:
    """The constant operands of one step, divided by a scale; `None` if one is not constant."""
    if step.op in ("Relu", "LeakyRelu"):
        return ()
    names: list[str] = []
    for value in step.inputs[1:]:
        array = rewriting.constants.get(value)
        if value and array is None:
            return None
        quotient = None if array is None else np.asarray(array / by, np.float32)
        names.append("" if quotient is None else build.constant(quotient, name=value))
    return names


RULES: tuple[Rule, ...] = (
    cancel_pair,
    move_integers,
    move_parts,
    quantise_parts,
    multiply_integers,
    average_integers,
    sum_map,
    add_integers,
    scale_once,
)
