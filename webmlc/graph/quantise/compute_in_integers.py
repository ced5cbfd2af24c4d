"""Compute a quantised graph on its integers: a node between DequantizeLinear and QuantizeLinear
becomes an integer operator with a scaling after it.

needs: a simplified function. guarantees: no product of two operands that are dequantised by
constants is left. A node without an integer form stays between its DequantizeLinear and
QuantizeLinear, and fusion joins the three later. Small constants are dequantised. before → after:

    %a = DequantizeLinear(%x, 0.1, 128)          %p = ConvInteger(%x, %w, 128)
    %b = DequantizeLinear(%w, 0.02)              %f = Cast(%p)
    %c = Conv(%a, %b)                      →     %m = Mul(%f, 0.1 · 0.02 / 0.5)
    %d = Relu(%c)                                %r = Relu(%m)
    %y = QuantizeLinear(%d, 0.5, 3)              %y = QuantizeLinear(%r, 1, 3)

The scheme is from Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference" (2018), with the multiplier in float32, as in native runtimes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Array, Function, Module, Node, TensorType
from webmlc.graph.ops.operator import Context
from webmlc.graph.ops.shapes import product_type
from webmlc.graph.ops.view import permutation
from webmlc.graph.rewrite.patterns import (
    P,
    Rule,
    by_operator,
    constant,
    nothing,
    number,
    value,
    view,
)
from webmlc.graph.rewrite.rewriting import Rewriting, Simplification, remove_dead_code
from webmlc.graph.simplify.constants import fold_function

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
"""The number of parts of a quantisation step, in which sums of quantised operands are computed. It
is a power of two, so that scaling by it is exact.
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


def uniform_bytes(rewriting: Rewriting, value: str) -> Quantised | None:
    """The parameters of bytes with one scale and one zero point; `None` for other values."""
    operand = quantised(rewriting, value)
    is_uniform = operand is not None and operand.is_uniform and operand.type.dtype in BYTES
    return operand if is_uniform else None


def _cancel_pair(before: Quantised, scale: Value, zero: Value | None, y: Value) -> str | None:
    """QuantizeLinear(DequantizeLinear(x)) with the same parameters  ->  x"""
    shift = 0 if zero is None else int(zero.array.reshape(-1)[0])
    parameters = (float(scale.array.item()), shift, y.type.dtype)
    return before.source if before.is_uniform and _parameters(before) == parameters else None


def _move_integers(
    before: Quantised, node: Node, context: Context, rewriting: Rewriting
) -> Node | None:
    """Move an operator that only selects elements before the DequantizeLinear."""
    if len([o for o in node.outputs if o]) != 1:
        return None
    axis = before.axis
    if not before.is_uniform:
        if node.op != "Transpose":
            return None
        axis = permutation(context).index(axis % before.type.rank)
    return _moved(rewriting, node, context, (before.source, *node.inputs[1:]), axis)


def _move_parts(node: Node, context: Context, rewriting: Rewriting) -> Node | None:
    """Move a Concat before the DequantizeLinears, if all parts have one scale and zero point."""
    parts = [quantised(rewriting, i) for i in node.inputs]
    uniform_parts = [p for p in parts if p is not None and p.is_uniform]
    if len(uniform_parts) != len(parts) or len(set(map(_parameters, uniform_parts))) != 1:
        return None
    return _moved(rewriting, node, context, tuple(p.source for p in uniform_parts), 1)


def _quantise_parts(joined: Node, node: Node, build: Builder, rewriting: Rewriting) -> Node | None:
    """Move a QuantizeLinear before the Concat of dequantised parts, so that it joins integers."""
    if any(quantised(rewriting, part) is None for part in joined.inputs):
        return None
    parts = []
    for part in joined.inputs:
        requantised = Node("QuantizeLinear", (part, *node.inputs[1:]), node.outputs)
        same = cancel_pair(rewriting, requantised, rewriting.scope.context(requantised))
        assert not isinstance(same, Node)
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


def _multiply_integers(
    x: Value, right: Quantised, node: Node, context: Context, rewriting: Rewriting
) -> Value | None:
    """Write a convolution or matrix product of dequantised operands as the product of their
    integers, then scaled.
    """
    if right.type.dtype not in BYTES:
        return None
    left = quantised(rewriting, x)
    if left is None:
        return _scale_weights(rewriting, node, context, right)
    columns = _columns(node, right)
    if left.type.dtype not in BYTES or not left.is_uniform or not right.is_along(columns):
        return None
    if node.op == "Gemm" and node.attributes.get("transA", 0):
        return None
    if node.op != "Conv" and min(left.type.rank, right.type.rank) < 2:
        return None
    scale = (left.scale.reshape(()) * right.scales()).astype(np.float32)
    sums = _products(rewriting, x.build, left, right)
    return _finished(rewriting, context, sums, scale)


def _columns(node: Node, right: Quantised) -> int:
    """The axis of output channels or columns in the right operand."""
    if node.op == "Conv" or node.attributes.get("transB", 0):
        return 0
    return right.type.rank - 1


def _products(rewriting: Rewriting, build: Builder, left: Quantised, right: Quantised) -> Value:
    """Write the product of the integers of both operands, an int32."""
    node, weights = build.source, build.value(right.source)
    if node.op == "Gemm" and node.attributes.get("transB", 0):
        array = rewriting.constants.get(weights)
        if array is None:
            weights = weights.transpose(1, 0)
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


def _finished(rewriting: Rewriting, context: Context, sums: Value, scale: Array) -> Value:
    """The scaled sums with the bias. A bias that is quantised by the scale of the products is added
    as integers, any other bias as floats.
    """
    node, build = context.node, sums.build
    alpha, beta = node.attributes.get("alpha", 1.0), node.attributes.get("beta", 1.0)
    along = _along_columns(context)
    bias = build.optional(2)
    if bias is not None and alpha == beta == 1.0:
        whole = _integer_bias(rewriting, bias, scale)
        if whole is not None:
            shape = along if node.op == "Conv" else whole.shape
            sums, bias = sums + whole.reshape(shape).astype(np.int32), None
    real = sums.cast(DType.float32)
    factor = (scale * np.float32(alpha)).reshape(along if scale.size > 1 else ())
    scaled = real * factor.astype(np.float32)
    if bias is None:
        return scaled
    if node.op == "Conv":
        array = rewriting.constants.get(bias)
        if array is not None:
            return scaled + array.reshape(along).astype(np.float32)
        return scaled + bias.reshape(*along)
    return scaled + (bias if beta == 1.0 else bias * beta)


def _along_columns(context: Context) -> tuple[int, ...]:
    """The shape in which a vector broadcasts along the channels or columns of the output."""
    return (-1,) + (1,) * (context.outputs[0].rank - 2 if context.node.op == "Conv" else 0)


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
) -> Value | None:
    """Write the product of floats and quantised weights as the product with their integers, then
    scaled.
    """
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
    along = _along_columns(context)
    return product * right.scales().reshape(along if right.scale.size > 1 else ())


def _average_integers(before: Quantised, node: Node, build: Builder) -> Value | None:
    """Write the mean of dequantised elements as the scaled mean of their integers."""
    if node.attributes.get("count_include_pad", 0) and any(node.attributes.get("pads", ())):
        return None  # padding is 0, not the zero point
    scale, zero, _ = _parameters(before)
    mean = build("AveragePool", before.source, **node.attributes)
    return mean * np.float32(scale) + -zero * np.float32(scale)


def _sum_map(before: Quantised, context: Context, build: Builder) -> Value | None:
    """Write the mean of a whole dequantised feature map as the scaled sum of its integers."""
    sizes = [as_int(size) for size in context.shape(0)[2:]]
    if None in sizes:
        return None
    count = prod(size or 0 for size in sizes)
    scale, zero, _ = _parameters(before)
    whole = build.value(before.source).cast(DType.int32)
    sums = whole.op("ReduceSum", range(2, context.rank(0)))
    centred = sums + np.int32(-zero * count)
    return centred.cast(DType.float32) * (np.float32(scale) / np.float32(count))


def _add_integers(
    left: Quantised,
    right: Quantised,
    scale: Value,
    zero: Value | None,
    summed: Node,
    rewriting: Rewriting,
) -> Node | None:
    """Write a sum of dequantised operands that is quantised again as a sum in steps of the result.

    Each operand is scaled by the quotient of the scales. All zero points are one constant, which is
    added first. onnxruntime's `QLinearAdd` rounds in the same way, once for each operand, so that
    results between two steps are equal.
    """
    build, node = scale.build, scale.build.source
    dtype = rewriting.types[node.outputs[0]].dtype
    if dtype not in BYTES:
        return None
    # An operand that only this node reads comes first: its kernel continues with the sum.
    summands = sorted((left, right), key=lambda o: rewriting.uses[o.source])
    factors = [(o.scale / scale.array).astype(np.float32).reshape(()) for o in summands]
    zeros = (np.float32(_parameters(o)[1]) * f for o, f in zip(summands, factors, strict=True))
    shift = np.float32(0 if zero is None else zero.array.item()) - sum(zeros, np.float32(0))
    reach = np.abs(shift) + 255 * sum(np.abs(factors))
    if not np.isfinite(reach):
        return None
    unit = np.ldexp(np.float32(1), np.frexp(reach)[1] - 24)  # sums of its multiples are exact
    value = build.constant(shift * _FINE, DType.float32)
    for operand, factor in zip(summands, factors, strict=True):
        value = _multiply_add(operand.source, factor * _FINE, value, unit * _FINE)
    value = value * (1 / _FINE)
    one, none = build.constant(1, DType.float32), build.constant(0, dtype)
    origin = tuple(dict.fromkeys((*summed.origin, *node.origin)))
    return replace(node, inputs=(value, one, none), origin=origin)


def _multiply_add(source: str, factor: Array, value: Value, unit: Array) -> Value:
    """Write source · factor + value for a `source` of bytes. The result is rounded once, with or
    without FMA, and in any order in which a driver adds.

    The factor is split into a multiple of `unit` and a remainder, the value into a whole number and
    a remainder. So the products are exact. The sum of the large terms is exact, too, and the sum of
    the small terms.
    """
    large = np.rint(factor / unit) * unit

    def times(part: Array) -> Value:
        return value.build("DequantizeLinear", source, np.float32(part))

    whole = value.op("Round")
    remainder = value - whole
    return (whole + times(large)) + (remainder + times(factor - large))


def _scale_once(scale: Value, node: Node, context: Context, rewriting: Rewriting) -> Node | None:
    """Scale an integer result that is scaled and then quantised once, by the quotient."""
    if scale.array.item() == 1 or node.attributes.get("block_size", 0):
        return None
    if scale.array.dtype != np.float32:
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
    build, by = scale.build, scale.array.reshape(())
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
    """The constant operands of one step, divided by a scale; `None` if any is not constant."""
    if step.op in ("Relu", "LeakyRelu"):
        return ()
    names: list[str] = []
    for name in step.inputs[1:]:
        array = rewriting.constants.get(name)
        if name and array is None:
            return None
        quotient = None if array is None else np.asarray(array / by, np.float32)
        names.append("" if quotient is None else build.constant(quotient, name=name))
    return names


_ZERO = constant("zero") | nothing("zero")
_SUM = P("Add", view("left", uniform_bytes), view("right", uniform_bytes), name="summed").once()
_DEQUANTISED = view("before", quantised)
cancel_pair = Rule(P("QuantizeLinear", _DEQUANTISED, number("scale"), _ZERO), _cancel_pair)

RULES = by_operator((
    cancel_pair,
    Rule(P(MOVES, _DEQUANTISED, more=True), _move_integers),
    Rule(P("Concat"), _move_parts),
    Rule(
        P("QuantizeLinear", P("Concat", name="joined").once(), number("scale"), more=True),
        _quantise_parts,
    ),
    Rule(
        P(("Conv", "MatMul", "Gemm"), value("x"), view("right", quantised), more=True),
        _multiply_integers,
    ),
    Rule(P("AveragePool", view("before", uniform_bytes)), _average_integers),
    Rule(P("GlobalAveragePool", view("before", uniform_bytes)), _sum_map),
    Rule(P("QuantizeLinear", _SUM, number("scale"), _ZERO), _add_integers),
    Rule(P("QuantizeLinear", value("x"), number("scale"), more=True), _scale_once),
))  # fmt: skip
"""The rules by operator, in the order in which they are tried."""


QUANTISED_CONSTANTS = frozenset({"DequantizeLinear"})
"""Operators that must not be folded before this pass, even if their inputs are constants."""


def compute_in_integers(module: Module) -> Module:
    """Rewrite every function."""
    return module.map_functions(compute_function)


def compute_function(function: Function) -> Function:
    """Rewrite one function. A function without quantised values is returned unchanged."""
    if all(node.op not in QUANTISED_CONSTANTS for node in function.nodes):
        return function
    integers = Simplification(function, RULES).run()
    return fold_function(remove_dead_code(integers))
