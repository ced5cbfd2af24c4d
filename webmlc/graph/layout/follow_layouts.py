"""Write an operator over the NHWC twins of its inputs, as the `Layout` of its row says.

In: a node with an input that has so far only an NHWC twin. Out: the node over twins, whose outputs
are twins, too. Inputs and attributes that name or count dimensions are rearranged.

    %y = Pad(%x, [0, 0, 1, 1, 0, 0, 1, 1])  ->  %y.nhwc = Pad(%x.nhwc, [0, 1, 1, 0, 0, 1, 1, 0])
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from webmlc.graph.builder import Builder
from webmlc.graph.ir import Attribute, Node, TensorType
from webmlc.graph.layout.layout_values import (
    MAP_RANKS,
    LayoutValues,
    channels_first,
    channels_last,
)
from webmlc.graph.ops.nhwc import Layout, Operand
from webmlc.graph.ops.shapes import same
from webmlc.graph.rewrite.meaning import layout_of


def follow_layouts(values: LayoutValues, node: Node) -> bool:
    """Write a node over NHWC twins. False if no input is a twin, or if the node depends on the
    order of dimensions.
    """
    layout = layout_of(node)
    ranks = {values.types[o].rank for o in node.outputs if o}
    if layout is None or len(ranks) != 1 or not any(i in values.pending for i in node.inputs):
        return False
    (rank,) = ranks
    operands = layout.operands(len(node.inputs))
    if rank not in MAP_RANKS or operands is None or layout.unless in node.attributes:
        return False
    inputs_or_none = (*node.inputs, *[""] * (len(operands) - len(node.inputs)))
    pairs = list(zip(operands, inputs_or_none, strict=True))
    if not all(_follows(values, operand, value, rank) for operand, value in pairs):
        return False
    build = Builder(node, values)
    inputs = [_rearranged(build, values, *pair, rank) for pair in pairs[: len(node.inputs)]]
    outputs = [f"{o}.nhwc" if o else "" for o in node.outputs]
    attributes = _rearranged_attributes(layout, node.attributes, rank)
    build.many(node.op, *inputs, outputs=outputs, domain=node.domain, **attributes)
    for value, twin in zip(node.outputs, outputs, strict=True):
        if value:
            values.define_nhwc(value, twin, node.origin)
    return True


def _follows(values: LayoutValues, operand: Operand, value: str, rank: int) -> bool:
    """True if an input fits its place in a node whose output has this rank."""
    array = values.constants.get(value)
    match operand:
        case "map":
            return bool(value) and values.rank(value) == rank
        case "broadcast":
            return not value or array is not None or values.rank(value) in (0, rank)
        case "vector":
            return not value or values.rank(value) <= 1
        case "any":
            return True
        case "none":
            return not value or (array is not None and array.size == 0)
        case "sizes":
            return not value or (array is not None and array.size in (0, rank))
        case "pads":
            return array is not None
        case "axes":
            return array is not None and array.size > 0


def _rearranged(
    build: Builder, values: LayoutValues, operand: Operand, value: str, rank: int
) -> str:
    """The input of a node over NHWC that stands for `value`."""
    order, output = list(channels_last(rank)), build.source.outputs[0]
    match operand:
        case "map":
            return values.as_nhwc(value)
        case "broadcast":
            return _rearranged_broadcast(build, values, value, rank)
        case "pads":
            pads = values.constants[value].reshape(2, rank)[:, order].reshape(-1)
            return build.constant(pads, name=f"{output}.amounts")
        case "sizes" if value and values.constants[value].size:
            return build.constant(values.constants[value][order], name=f"{value}.nhwc")
        case "axes":
            moved = [channels_first(rank)[axis] for axis in values.constants[value].tolist()]
            return build.constant(np.sort(np.array(moved, np.int64)), name=f"{output}.axes")
    return value


def _rearranged_broadcast(build: Builder, values: LayoutValues, value: str, rank: int) -> str:
    """The input of an elementwise node over NHWC; a constant is rearranged now."""
    array = values.constants.get(value)
    if not value or (array is not None and array.size == 1 and array.ndim <= rank):
        return value
    if array is not None:
        wide = array.reshape((1,) * (rank - array.ndim) + array.shape)
        return build.constant(wide.transpose(channels_last(rank)), name=f"{value}.nhwc{rank}")
    return values.as_nhwc(value) if values.rank(value) == rank else value


def _rearranged_attributes(
    layout: Layout, attributes: Mapping[str, Attribute], rank: int
) -> Mapping[str, Attribute]:
    """The attributes of a node over NHWC."""
    result = dict(attributes)
    if layout.axis is not None:
        result["axis"] = channels_first(rank)[attributes.get("axis", layout.axis)]
    if layout.per_dimension:
        elements = attributes[layout.per_dimension]
        result[layout.per_dimension] = tuple(elements[d] for d in channels_last(rank))
    return result


def follow_view(values: LayoutValues, node: Node) -> bool:
    """Write a view that keeps batch and channels, and only joins or splits the dimensions between
    them, over the NHWC twin; False for other views.
    """
    value, output = node.inputs[0], node.outputs[0]
    before, after = values.types[value].shape, values.types[output].shape
    if value not in values.pending or len(after) not in MAP_RANKS:
        return False
    if not all(map(same, before[:2], after[:2])):
        return False
    shape = tuple(after[d] for d in channels_last(len(after)))
    twin, type_ = f"{output}.nhwc", TensorType(values.types[value].dtype, shape)
    values.view(Builder(node, values), values.nhwc[value], type_, twin)
    values.define_nhwc(output, twin, node.origin)
    return True
