"""Simplify a graph: remove identities, common sub-expressions and dead code; merge views and
transposes; fold batch normalisation and padding into convolutions.

    %a = Conv(%x, %w)                              const %w2 = %w · factor, %b2 = ...
    %b = BatchNormalization(%a, ...)       →       %c = Conv(%x, %w2, %b2)
    %c = Identity(%b)

One walk in order is enough: the inputs of a node are simplified before the node. A tensor whose
elements all have one value, known at build time, counts as that number. ONNX's attention without a
mask adds a zero for each query and key, and tests whether rows of these zeros are -inf:

    %bias = ConstantOfShape(%shape)
    %masked = Equal(ReduceMax(%bias), -inf)                  (false everywhere)
    %y = Where(%masked, 0, %p)                         ->    %y = %p
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Array, Function, Module, Node, TensorType, joined_origin
from webmlc.graph.ops.operator import Context
from webmlc.graph.ops.shapes import ONE, ZERO
from webmlc.graph.ops.slice import pads_of, slices
from webmlc.graph.ops.view import permutation
from webmlc.graph.rewrite.patterns import (
    Nodes,
    P,
    Pattern,
    Rule,
    by_operator,
    constant,
    number,
    value,
    view,
)
from webmlc.graph.rewrite.rewriting import Rewriting, Simplification, remove_dead_code
from webmlc.graph.simplify.rearrangement_rules import (
    canonical_view,
    hoist_elementwise,
    merge_transposes,
    same_type,
    use_channel_shuffle,
    view_transpose,
)


def simplify_graph(module: Module) -> Module:
    """Simplify every function.

    needs: types. guarantees: a node computes every output; every constant is used; every view
    (Reshape, Flatten, Squeeze, Unsqueeze) is a `Reshape` with its shape as an attribute.
    """
    return module.map_functions(simplify_function)


def simplify_function(function: Function) -> Function:
    """Simplify one function."""
    live = remove_dead_code(function)
    return remove_dead_code(Simplification(live, RULES).run())


def _look_up_equal(
    index: Value, steps: Value, table: Value, hot: Node, node: Node, rewriting: Rewriting
) -> Node | None:
    """Replace the product of one-hot rows, `index == steps`, and a table by rows of the table. An
    index without a row gives zeros: the table gets a row of zeros at each end.

        %h = Cast(Equal(%i, [0, 1, ..., n - 1]))
        %y = MatMul(%h, %w)              ->  %y = Gather([0; %w; 0], Clip(%i + 1, 0, n + 1))
    """
    depth, numbers = len(table.array), steps.array
    if numbers.shape[-1:] != (depth,) or numbers.size != depth:
        return None
    if (numbers.reshape(-1) != np.arange(depth)).any():
        return None
    if index.type.rank != rewriting.types[hot.outputs[0]].rank or index.shape[-1] != ONE:
        return None
    return _rows(index, table, hot, node, rewriting)


def _look_up_one_hot(
    index: Value, ends: Value, table: Value, hot: Node, node: Node, rewriting: Rewriting
) -> Node | None:
    """Replace the product of the rows of a OneHot and a table by rows of the table. Indices that
    count from the end are counted from the front.
    """
    rank, depth = index.type.rank, len(table.array)
    axis = rewriting.scope.context(hot).axis(-1, rank + 1)
    if ends.array.tolist() != [0, 1] or axis != rank or not _holds_rows(index, table):
        return None
    index = Builder(hot, rewriting).value(index)
    from_front = index.op("Less", 0).where(index + depth, index)
    return _rows(from_front, table, hot, node, rewriting)


def _holds_rows(index: Value, table: Value) -> bool:
    """True if `table` is a matrix of finite numbers, and if `index` has integers that can hold the
    indices of its rows and one larger index.
    """
    dtype, array = index.type.dtype, table.array
    is_index = dtype.is_integer and len(array) < dtype.limits[1]
    return is_index and array.ndim == 2 and bool(np.isfinite(array).all())


def _rows(index: Value, table: Value, hot: Node, node: Node, rewriting: Rewriting) -> Node | None:
    """Read the rows of the table, after a row of zeros is added at each end."""
    if not _holds_rows(index, table):
        return None
    build = Builder(node, rewriting)
    flat = build("Reshape", index, shape=rewriting.types[node.outputs[0]].shape[:-1])
    row = (flat + 1).op("Clip", 0, len(table.array) + 1)
    rows = build.constant(np.pad(table.array, ((1, 1), (0, 0))), name=table)
    origin = joined_origin(hot, node)
    return replace(node, op="Gather", inputs=(rows, row), attributes={"axis": 0}, origin=origin)


def _product(hot: Pattern) -> Nodes:
    """The product of rows, which may be cast before, and a constant table."""
    return P("MatMul", hot | P("Cast", hot), constant("table"))


_EQUAL = P("Equal", value("index"), constant("steps"), name="hot")
_ONE_HOT = P("OneHot", value("index"), value("depth"), constant("ends"), name="hot")
look_up_equal = Rule(_product(_EQUAL), _look_up_equal)
look_up_one_hot = Rule(_product(_ONE_HOT), _look_up_one_hot)


NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Pow": 1}
"""The right operand with which each operator returns its left operand."""
COPIES = frozenset(
    {"Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators whose results have elements of their first input only."""
FOLDS = frozenset({"ReduceMax", "ReduceMin"})
"""Operators that fold any number of equal values to the same value."""


def _is_unchanged(context: Context) -> bool:
    """True if the output has the type of the first input."""
    return same_type(context.types[0], context.outputs[0] if context.outputs else None)


_IDENTITIES: Mapping[str, Callable[[Context], bool]] = {
    "Identity": lambda context: True,
    **dict.fromkeys(
        ("Cast", "CastLike", "Expand", "Tile", "Reshape", "Flatten", "Squeeze", "Unsqueeze"),
        _is_unchanged,
    ),
    **dict.fromkeys(
        ("Resize", "Upsample"),
        lambda context: (
            _is_unchanged(context)
            and context.attribute("coordinate_transformation_mode") != "tf_crop_and_resize"
        ),
    ),
    "Slice": lambda context: (
        _is_unchanged(context)
        and all(start == ZERO and step == 1 for start, _, step in slices(context))
    ),
    "Pad": lambda context: (
        _is_unchanged(context)
        and all(before == ZERO and after == ZERO for before, after in pads_of(context))
    ),
    "Transpose": lambda context: permutation(context) == tuple(range(context.rank(0))),
    "Clip": lambda context: not any(context.has(i) for i in (1, 2)) and not context.node.attributes,
    **dict.fromkeys(
        ("Concat", "Sum", "Max", "Min", "Mean"), lambda context: len(context.node.inputs) == 1
    ),
}
"""Whether a node returns its first input unchanged, by its operator."""


def _drop_identity(node: Node, context: Context) -> str | None:
    """Replace a node that returns its first input unchanged by that input."""
    has_one = len(node.outputs) == 1 and context.has(0)
    return node.inputs[0] if has_one and _IDENTITIES[node.op](context) else None


def _drop_empty_parts(node: Node, context: Context) -> Node | None:
    """Drop the parts of a Concat that have no elements along its axis."""
    axis = context.axis(0)
    parts = [name for i, name in enumerate(node.inputs) if context.shape(i)[axis] != ZERO]
    if not parts or len(parts) == len(node.inputs):
        return None
    return replace(node, inputs=tuple(parts))


def single_value(rewriting: Rewriting, name: str) -> Array | None:
    """An array of one element, the value of every element of `name`. `None` if the elements differ,
    or if their value is not known at build time.
    """
    array = rewriting.constants.get(name)
    if array is not None:
        is_single = array.size > 0 and bool(np.all(array == array.flat[0]))
        return array.reshape(-1)[:1] if is_single else None
    node = rewriting.producer(name)
    if node is None or node.domain:
        return None
    match node.op:
        case "ConstantOfShape":
            fill = rewriting.scope.context(node).attribute("value", np.zeros(1, np.float32))
            return np.asarray(fill).reshape(-1)[:1]
        case "Equal":
            a, b = (single_value(rewriting, side) for side in node.inputs)
            return None if a is None or b is None else a == b
        case op if op in COPIES or (op in FOLDS and _has_elements(rewriting, node.inputs[0])):
            return single_value(rewriting, node.inputs[0])
    return None


def _has_elements(rewriting: Rewriting, name: str) -> bool:
    """True if it is known at build time that a tensor has elements."""
    type_ = rewriting.types.get(name)
    shape = None if type_ is None else type_.static_shape
    return shape is not None and 0 not in shape


def _drop_neutral(x: Value, fill: Array, node: Node, y: Value) -> Value | None:
    """x + 0, x - 0, x · 1, x / 1, x ^ 1  ->  x, unless the other operand stretches x"""
    return x if fill[0] == NEUTRAL[node.op] and same_type(x.type, y.type) else None


def _choose_branch(condition: Array, a: Value, b: Value, y: Value) -> Value | None:
    """Where(true, a, b)  ->  a, if it has the shape of the result"""
    chosen = a if condition[0] else b
    return chosen if same_type(chosen.type, y.type) else None


def _split_batch_normalisation(
    x: Value, context: Context, rewriting: Simplification
) -> Value | None:
    """BatchNormalization(x, ...) by constants  ->  x · factor + shift, which fold into the producer
    of x
    """
    arrays = [context.constant(i) for i in range(1, 5)]
    if any(array is None for array in arrays):
        return None
    scale, bias, mean, variance = (np.asarray(array, np.float64) for array in arrays)
    factor = scale / np.sqrt(variance + context.attribute("epsilon", 1e-5))
    shape = (-1,) + (1,) * max(x.type.rank - 2, 0)

    def along_channels(array: Array) -> Value:
        return x.build.constant(array.reshape(shape), x.type.dtype, context.node.inputs[1])

    product = rewriting.product(x.build, (x, along_channels(factor)), x.type, fold_into_weights)
    return product + along_channels(bias - mean * factor)


def _fold_into_weights(
    maker: Node, operand: Value, node: Node, y: Value, rewriting: Rewriting
) -> Node | None:
    """Fold x · constant or x + constant, one number a channel, into the weights or the bias of the
    producer of x.
    """
    inner = rewriting.scope.context(maker)
    if not same_type(inner.outputs[0], y.type):
        return None
    channels = _per_channel(operand.array, inner.outputs[0])
    folded = None
    if channels is not None:
        folded = _fold_into_producer(rewriting, inner, node.op, channels)
    if folded is None:
        return None
    origin = (*maker.origin, *(o for o in node.origin if o not in maker.origin))
    return replace(folded, outputs=node.outputs, origin=origin)


def _per_channel(array: Array, type_: TensorType) -> Array | None:
    """The constant as one number for each channel (axis 1); `None` if it has another shape."""
    count = as_int(type_.shape[1])
    if count is None or array.ndim > type_.rank:
        return None
    shape = (1,) * (type_.rank - array.ndim) + array.shape
    if any(n != 1 for d, n in enumerate(shape) if d != 1) or shape[1] not in (1, count):
        return None
    return np.broadcast_to(array.astype(np.float64).reshape(-1), (count,))


def _fold_into_producer(
    rewriting: Rewriting, inner: Context, op: str, channels: Array
) -> Node | None:
    """The producer with other weights; `None` if its weights or its bias are not constant."""
    maker, weights, bias = inner.node, inner.constant(1), inner.constant(2)
    if weights is None or weights.dtype not in (np.float32, np.float64):
        return None
    if inner.has(2) and bias is None:
        return None
    if maker.op == "Gemm" and any(maker.attributes.get(n, 1.0) != 1.0 for n in ("alpha", "beta")):
        return None
    axis = _channel_axis(inner)
    flat = np.zeros(len(channels)) if bias is None else _flat_bias(bias, len(channels))
    if axis is None or flat is None:
        return None
    build = Builder(maker, rewriting)
    inputs = list(maker.inputs[:2])
    if op == "Mul":
        shape = [1] * weights.ndim
        shape[axis] = -1
        scaled: Any = weights.astype(np.float64) * channels.reshape(shape)
        inputs[1] = build.constant(scaled.astype(weights.dtype), name=maker.inputs[1])
        flat = flat * channels
    else:
        flat = flat + channels
    if op == "Add" or bias is not None:
        like = maker.inputs[2] if bias is not None else f"{maker.inputs[1]}/bias"
        inputs.append(build.constant(flat.astype(weights.dtype), name=like))
    return replace(maker, inputs=tuple(inputs))


def _flat_bias(bias: Array, count: int) -> Array | None:
    if bias.size not in (1, count) or (bias.ndim == 2 and bias.shape[0] != 1):
        return None
    return np.broadcast_to(bias.astype(np.float64).reshape(-1), (count,))


def _channel_axis(inner: Context) -> int | None:
    """The axis of output channels in the weights; `None` if there is no such axis."""
    match inner.node.op:
        case "Conv":
            return 0
        case "ConvTranspose":
            return 1 if inner.attribute("group", 1) == 1 else None
    return 0 if inner.attribute("transB", 0) else 1


def _fold_padding(pad: Node, node: Node, rewriting: Rewriting) -> Node | None:
    """Conv(Pad(x)) of zeros  ->  Conv(x), with more padding"""
    mode = node.attributes.get("auto_pad", "NOTSET")
    inner = rewriting.scope.context(pad)
    if mode not in ("NOTSET", "VALID") or not _pads_zero(inner):
        return None
    amounts = [(as_int(a), as_int(b)) for a, b in pads_of(inner)]
    if any(a is None or b is None or a < 0 or b < 0 for a, b in amounts):
        return None
    if any(amounts[d] != (0, 0) for d in (0, 1)):
        return None
    pads: Any = node.attributes.get("pads")
    if pads is None or mode == "VALID":
        pads = (0,) * (2 * (inner.rank(0) - 2))
    extra = [a for a, _ in amounts[2:]] + [b for _, b in amounts[2:]]
    attributes = {k: v for k, v in node.attributes.items() if k != "auto_pad"}
    attributes["pads"] = tuple(int(p) + int(q or 0) for p, q in zip(pads, extra, strict=True))
    return replace(node, inputs=(pad.inputs[0], *node.inputs[1:]), attributes=attributes)


def _pads_zero(context: Context) -> bool:
    if context.attribute("mode", "constant") != "constant":
        return False
    if context.has(2):
        fill = context.constant(2)
        return fill is not None and not fill.any()
    return not context.attribute("value", 0)


def _merge_constants(
    x: Value, a: Value, b: Value, inner: Node, node: Node, rewriting: Simplification
) -> Value | None:
    """(x + a) + b  ->  x + (a + b)
    (x · a) · b  ->  x · (a · b)
    (x + a) · b  ->  x · b + a · b
    """
    build, type_ = x.build, rewriting.types[node.outputs[0]]
    outer = b.array
    if not type_.dtype.is_float or not same_type(x.type, type_):
        return None
    wide = np.float64 if outer.dtype != np.float64 else np.longdouble
    left: Any = a.array.astype(wide)
    right: Any = outer.astype(wide)
    if node.op == inner.op:
        merged = left + right if node.op == "Add" else left * right
        return build(node.op, x, build.constant(merged.astype(outer.dtype), name=a))
    if node.op != "Mul":
        return None
    product = rewriting.product(build.with_origin(inner), (x, b), type_, merge_constants)
    shift = build.constant((left * right).astype(outer.dtype), name=a)
    return build("Add", product, shift)


def _use_sigmoid(
    x: Value, a: Value, tanh: Node, y: Value, rewriting: Simplification
) -> Value | None:
    """a · tanh(x) + a  ->  2a · sigmoid(2x): half the work, and no digits cancel"""
    if not same_type(x.type, y.type):
        return None
    inside = x.build.with_origin(tanh)
    two = inside.constant(np.array(2, a.array.dtype))
    doubled = rewriting.product(inside, (x, two), y.type, merge_constants)
    sigmoid = inside("Sigmoid", doubled, type_=y.type)
    return y.build("Mul", sigmoid, y.build.constant(a.array + a.array, name=a))


_TANH = P("Tanh", value("x"), name="tanh").once()
_LINEAR = P(("Conv", "ConvTranspose", "Gemm"), name="maker").once()
_INNER = P(("Add", "Mul"), value("x"), constant("a"), name="inner").once()
fold_into_weights = Rule(P(("Mul", "Add"), _LINEAR, constant("operand")), _fold_into_weights)
merge_constants = Rule(P(("Add", "Mul"), _INNER, constant("b")), _merge_constants)

RULES = by_operator((
    Rule(P("Concat"), _drop_empty_parts),
    Rule(P(_IDENTITIES), _drop_identity),
    Rule(P(NEUTRAL, value("x"), view("fill", single_value)), _drop_neutral),
    Rule(P("Where", view("condition", single_value), value("a"), value("b")), _choose_branch),
    canonical_view,
    merge_transposes,
    view_transpose,
    use_channel_shuffle,
    look_up_equal,
    look_up_one_hot,
    hoist_elementwise,
    Rule(P("BatchNormalization", value("x"), more=True), _split_batch_normalisation),
    fold_into_weights,
    Rule(P("Add", P("Mul", _TANH, number("a")).once(), constant("a")), _use_sigmoid),
    Rule(P("Add", _TANH, constant("a").where(lambda a: bool((a.array == 1).all()))), _use_sigmoid),
    merge_constants,
    Rule(P("Conv", P("Pad", name="pad"), more=True), _fold_padding),
))  # fmt: skip
"""The rules by operator, in the order in which they are tried."""
