"""The rules of `simplify_graph`, in the order in which they are tried.

A rule is a function `(rewriting, node, context) -> an equal value | a better node | None`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder
from webmlc.graph.ir import Array, Node
from webmlc.graph.ops.operator import Context
from webmlc.graph.ops.shapes import ZERO
from webmlc.graph.ops.slice import pads_of, slices
from webmlc.graph.ops.view import permutation
from webmlc.graph.rewrite.rewriting import Rewriting, Rule
from webmlc.graph.simplify.fill_rules import choose_branch, single_value
from webmlc.graph.simplify.lookup_rules import look_up_one_hot
from webmlc.graph.simplify.rearrangement_rules import (
    canonical_view,
    hoist_elementwise,
    same_type,
    simplify_transpose,
    use_channel_shuffle,
)

SINGLE = frozenset({"Concat", "Sum", "Max", "Min", "Mean"})
NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Pow": 1}
COMMUTATIVE = frozenset({"Add", "Mul"})


def drop_identity(rewriting: Rewriting, node: Node, context: Context) -> str | None:
    """Replace a node that returns its first input unchanged by that input."""
    if node.domain or len(node.outputs) != 1 or not node.inputs or not node.inputs[0]:
        return None
    unchanged = same_type(context.types[0], context.outputs[0] if context.outputs else None)
    match node.op:
        case "Identity":
            is_identity = True
        case "Cast" | "CastLike" | "Expand" | "Tile" | "Reshape" | "Flatten" | "Unsqueeze":
            is_identity = unchanged
        case "Squeeze":
            is_identity = unchanged
        case "Resize" | "Upsample":
            is_identity = unchanged and context.attribute("coordinate_transformation_mode") not in (
                "tf_crop_and_resize",
            )
        case "Slice":
            is_identity = unchanged and all(
                s == ZERO and step == 1 for s, _, step in slices(context)
            )
        case "Pad":
            is_identity = unchanged and all(a == ZERO and b == ZERO for a, b in pads_of(context))
        case "Transpose":
            axes = permutation(context)
            is_identity = axes == tuple(range(len(axes)))
        case "Clip":
            is_identity = not any(context.has(i) for i in (1, 2)) and not node.attributes
        case op if op in SINGLE:
            is_identity = len(node.inputs) == 1
        case _:
            is_identity = False
    return node.inputs[0] if is_identity else None


def drop_empty_parts(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Drop the parts of a Concat that have no elements along its axis."""
    if node.domain or node.op != "Concat":
        return None
    axis = context.axis(0)
    parts = [name for i, name in enumerate(node.inputs) if context.shape(i)[axis] != ZERO]
    if not parts or len(parts) == len(node.inputs):
        return None
    return replace(node, inputs=tuple(parts))


def drop_neutral(rewriting: Rewriting, node: Node, context: Context) -> str | None:
    """Replace x + 0, x - 0, x · 1, x / 1 and x ^ 1 by x, unless the other operand stretches x."""
    if node.domain or node.op not in NEUTRAL:
        return None
    for here, other in ((0, 1), (1, 0)) if node.op in COMMUTATIVE else ((0, 1),):
        if not same_type(context.types[here], context.outputs[0]):
            continue
        value = single_value(rewriting, node.inputs[other])
        if value is not None and value[0] == NEUTRAL[node.op]:
            return node.inputs[here]
    return None


def split_batch_normalisation(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Write batch normalisation by constants as x · factor + shift, which fold into the producer of
    x.
    """
    if node.domain or node.op != "BatchNormalization":
        return None
    arrays = [context.constant(i) for i in range(1, 5)]
    if any(a is None for a in arrays):
        return None
    scale, bias, mean, variance = (np.asarray(a, np.float64) for a in arrays)
    factor = scale / np.sqrt(variance + context.attribute("epsilon", 1e-5))
    x = context.type(0)
    shape = (-1,) + (1,) * max(x.rank - 2, 0)
    build = Builder(node, rewriting)

    def constant(array: Array) -> str:
        return build.constant(array.reshape(shape), x.dtype, node.inputs[1])

    scaled = build.fresh("scaled")
    rewriting.types[scaled] = x
    product = Node("Mul", (node.inputs[0], constant(factor)), (scaled,), origin=node.origin)
    folded = fold_into_weights(rewriting, product, rewriting.scope.context(product))
    (name,) = build.append(folded or product)
    shift = constant(bias - mean * factor)
    return replace(node, op="Add", inputs=(name, shift), attributes={})


def fold_into_weights(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Fold x · constant or x + constant, one number a channel, into the weights or the bias of the
    producer of x.
    """
    if node.domain or node.op not in ("Mul", "Add"):
        return None
    for here, other in ((0, 1), (1, 0)):
        array = context.constant(other)
        maker = rewriting.producer(node.inputs[here])
        if array is None or maker is None or not rewriting.is_single_use(node.inputs[here]):
            continue
        if maker.domain or maker.op not in ("Conv", "ConvTranspose", "Gemm"):
            continue
        if not same_type(context.types[here], context.outputs[0]):
            continue
        inner = rewriting.scope.context(maker)
        channels = _per_channel(array, inner)
        if channels is not None:
            folded = _fold_into_producer(rewriting, maker, inner, node.op, channels)
            if folded is not None:
                origin = (*maker.origin, *(o for o in node.origin if o not in maker.origin))
                return replace(folded, outputs=node.outputs, origin=origin)
    return None


def _per_channel(array: Array, inner: Context) -> Array | None:
    """The constant as one number for each channel (axis 1); `None` if it has another shape."""
    count = as_int(inner.outputs[0].shape[1])
    rank = inner.outputs[0].rank
    if count is None or array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if any(n != 1 for d, n in enumerate(shape) if d != 1) or shape[1] not in (1, count):
        return None
    return np.broadcast_to(array.astype(np.float64).reshape(-1), (count,))


def _fold_into_producer(
    rewriting: Rewriting, maker: Node, inner: Context, op: str, channels: Array
) -> Node | None:
    weights = inner.constant(1)
    if weights is None or weights.dtype not in (np.float32, np.float64):
        return None
    bias = inner.constant(2)
    if inner.has(2) and bias is None:
        return None
    alpha, beta = maker.attributes.get("alpha", 1.0), maker.attributes.get("beta", 1.0)
    if maker.op == "Gemm" and (alpha != 1.0 or beta != 1.0):
        return None
    axis = _channel_axis(maker, inner)
    if axis is None:
        return None
    flat = np.zeros(len(channels)) if bias is None else _flat_bias(bias, len(channels))
    if flat is None:
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


def _channel_axis(maker: Node, inner: Context) -> int | None:
    """The axis of output channels in the weights; `None` if there is no such axis."""
    match maker.op:
        case "Conv":
            return 0
        case "ConvTranspose":
            return 1 if inner.attribute("group", 1) == 1 else None
    return 0 if inner.attribute("transB", 0) else 1


def fold_padding(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Turn a Pad of zeros before a convolution into padding of the convolution."""
    if node.domain or node.op != "Conv":
        return None
    pad = rewriting.producer(node.inputs[0])
    if pad is None or pad.op != "Pad" or pad.domain:
        return None
    if node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    inner = rewriting.scope.context(pad)
    if inner.attribute("mode", "constant") != "constant" or not _pads_zero(inner):
        return None
    rank = inner.rank(0)
    amounts = [(as_int(a), as_int(b)) for a, b in pads_of(inner)]
    if any(a is None or b is None or a < 0 or b < 0 for a, b in amounts):
        return None
    if any(amounts[d] != (0, 0) for d in (0, 1)):
        return None
    pads: Any = node.attributes.get("pads")
    if pads is None or node.attributes.get("auto_pad") == "VALID":
        pads = (0,) * (2 * (rank - 2))
    extra = [a for a, _ in amounts[2:]] + [b for _, b in amounts[2:]]
    attributes = {k: v for k, v in node.attributes.items() if k != "auto_pad"}
    attributes["pads"] = tuple(int(p) + int(q or 0) for p, q in zip(pads, extra, strict=True))
    return replace(node, inputs=(pad.inputs[0], *node.inputs[1:]), attributes=attributes)


def _pads_zero(context: Context) -> bool:
    if context.has(2):
        fill = context.constant(2)
        return fill is not None and not fill.any()
    return not context.attribute("value", 0)


def merge_constants(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Write (x + a) + b as x + (a + b), (x · a) · b as x · (a · b), and (x + a) · b as
    x · b + a · b.
    """
    if node.domain or node.op not in ("Add", "Mul") or not context.dtype(0).is_float:
        return None
    build = Builder(node, rewriting)
    for here, other in ((0, 1), (1, 0)):
        outer = context.constant(other)
        inner = rewriting.producer(node.inputs[here])
        if outer is None or inner is None or inner.op not in ("Add", "Mul") or inner.domain:
            continue
        if not rewriting.is_single_use(node.inputs[here]):
            continue
        inner_context = rewriting.scope.context(inner)
        for x, c in ((0, 1), (1, 0)):
            constant = inner_context.constant(c)
            if constant is None or not same_type(inner_context.types[x], context.outputs[0]):
                continue
            wide = np.float64 if outer.dtype != np.float64 else np.longdouble
            a: Any = constant.astype(wide)
            b: Any = outer.astype(wide)
            if node.op == inner.op:
                merged = a + b if node.op == "Add" else a * b
                name = build.constant(merged.astype(outer.dtype), name=inner.inputs[c])
                return replace(node, inputs=(inner.inputs[x], name))
            if node.op == "Mul":
                scaled = build.fresh("scaled")
                rewriting.types[scaled] = context.outputs[0]
                factors = (inner.inputs[x], node.inputs[other])
                product = _multiply(rewriting, factors, scaled, inner.origin)
                shift = build.constant((a * b).astype(outer.dtype), name=inner.inputs[c])
                return replace(node, op="Add", inputs=(product, shift))
    return None


def _multiply(
    rewriting: Rewriting, factors: tuple[str, str], output: str, origin: tuple[str, ...]
) -> str:
    """Add a product by a constant, merged with the constants in its other factor."""
    product = Node("Mul", factors, (output,), origin=origin)
    merged = merge_constants(rewriting, product, rewriting.scope.context(product))
    return rewriting.append(merged or product)[0]


def use_sigmoid(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Write a · tanh(x) + a as 2a · sigmoid(2x): half the work, and no digits cancel."""
    if node.domain or node.op != "Add":
        return None
    for here, other in ((0, 1), (1, 0)):
        value, shift = node.inputs[here], context.constant(other)
        if shift is None or not same_type(context.types[here], context.outputs[0]):
            continue
        tanh, factor = _without_factor(rewriting, value)
        maker = rewriting.producer(tanh)
        if maker is None or maker.domain or maker.op != "Tanh" or not bool(np.all(shift == factor)):
            continue
        if not all(map(rewriting.is_single_use, (value, tanh))):
            continue
        build = Builder(replace(node, origin=maker.origin), rewriting)
        two = build.constant(np.array(2, shift.dtype), name=tanh)
        doubled, sigmoid = (build.fresh(name) for name in ("doubled", "sigmoid"))
        rewriting.types[doubled] = context.outputs[0]
        name = _multiply(rewriting, (maker.inputs[0], two), doubled, maker.origin)
        name = build("Sigmoid", name, output=sigmoid, type_=context.outputs[0])
        scale = build.constant(shift + shift, name=node.inputs[other])
        return replace(node, op="Mul", inputs=(name, scale))
    return None


def _without_factor(rewriting: Rewriting, value: str) -> tuple[str, Array]:
    """The factors of a product of a value and a constant number; the value and 1 for others."""
    maker = rewriting.producer(value)
    if maker is not None and (maker.domain, maker.op) == ("", "Mul"):
        product = rewriting.scope.context(maker)
        for here, other in ((0, 1), (1, 0)):
            factor = product.constant(other)
            if factor is not None and factor.size == 1:
                return maker.inputs[here], factor
    return value, np.ones(())


RULES: tuple[Rule, ...] = (
    drop_empty_parts,
    drop_identity,
    drop_neutral,
    choose_branch,
    canonical_view,
    simplify_transpose,
    use_channel_shuffle,
    look_up_one_hot,
    hoist_elementwise,
    split_batch_normalisation,
    fold_into_weights,
    use_sigmoid,
    merge_constants,
    fold_padding,
)
