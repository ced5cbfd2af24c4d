"""Layouts: feature maps become NHWC, weights are packed for vector loads.

In: an inferred function of ONNX operators (NCHW). Out: the same meaning, where convolutions and
pools are the `webmlc` operators of `ops/layout.py` over NHWC feature maps of any rank, and constant
matrix operands are packed `[N/8][K][8]`. The pass walks once: every value may have an NHWC twin,
which is written on demand. The operator's row (`ops/operator.py`) says whether and how the operator
follows a feature map. So transposes remain only where two layouts really meet, usually at the
graph's edge.

    %y = Conv(%x, %w)  ->  %x.nhwc = Transpose(%x); %y.nhwc = webmlc.Conv(%x.nhwc, %w.packed)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from webmlc.graph.builder import Builder
from webmlc.graph.ir import Attribute, Function, Module, Node, TensorType
from webmlc.graph.layout.layout_values import (
    MAP_RANKS,
    LayoutValues,
    channels_first,
    channels_last,
    keeps_order,
)
from webmlc.graph.layout.matrix_layouts import integer_matrix_product, matrix_product
from webmlc.graph.layout.window_layouts import (
    convolution,
    global_pool,
    pool,
    transposed_convolution,
)
from webmlc.graph.ops.operator import Form, Layout, Operand
from webmlc.graph.ops.shapes import same
from webmlc.graph.rewrite.meaning import layout_of

_RULES: Mapping[Form, Callable[[LayoutValues, Node], bool]] = {
    "convolution": convolution,
    "transposed convolution": transposed_convolution,
    "pool": pool,
    "global pool": global_pool,
    "matrix product": matrix_product,
    "integer matrix product": integer_matrix_product,
}
"""The rule that writes each form. For nodes without such a form it writes nothing and returns
False.
"""


def choose_layouts(module: Module) -> Module:
    """Choose layouts in every function.

    needs: inferred types. guarantees: inferred types; nodes whose bytes do not change are `View`.
    """
    return module.map_functions(lambda function: _Rewrite(function).run())


@dataclass(slots=True)
class _Rewrite(LayoutValues):
    """The function being written."""

    def finish(self) -> Function:
        for output in self.source.outputs:
            self.nchw(output)
        return LayoutValues.finish(self)

    def add(self, node: Node) -> None:
        """Write `node` in its own form, over NHWC twins, as a view, or as it is."""
        layout = layout_of(node)
        is_view = layout is not None and layout.is_view
        if layout is not None and layout.form and _RULES[layout.form](self, node):
            return
        if layout is not None and follow_layout(self, node, layout):
            return
        if is_view and follow_view(self, node):
            return
        inputs = tuple(self.nchw(i) for i in node.inputs)
        if is_view or self.moves_no_element(node):
            type_ = self.types[node.outputs[0]]
            self.view(Builder(node, self), inputs[0], type_, node.outputs[0])
        else:
            self.keep(replace(node, inputs=inputs))

    def moves_no_element(self, node: Node) -> bool:
        """True for a Transpose that only moves dimensions of size one."""
        if node.op != "Transpose" or node.domain:
            return False
        type_ = self.types[node.inputs[0]]
        permutation = node.attributes.get("perm", tuple(reversed(range(type_.rank))))
        return keeps_order(type_, tuple(permutation))


def follow_layout(values: LayoutValues, node: Node, layout: Layout) -> bool:
    """Write a node over NHWC twins. Inputs and attributes that name or count dimensions are
    rearranged. False if no input is a twin, or if the node depends on the order of dimensions.

        %y = Pad(%x, [0, 0, 1, 1, 0, 0, 1, 1])
        ->  %y.nhwc = Pad(%x.nhwc, [0, 1, 1, 0, 0, 1, 1, 0])
    """
    ranks = {values.rank(o) for o in node.outputs if o}
    if len(ranks) != 1 or values.pending.isdisjoint(node.inputs):
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
    outputs = [values.define_nhwc(o) if o else "" for o in node.outputs]
    attributes = _rearranged_attributes(layout, node.attributes, rank)
    build.many(node.op, *inputs, outputs=outputs, domain=node.domain, **attributes)
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
    type_ = TensorType(values.types[value].dtype, shape)
    values.view(Builder(node, values), f"{value}.nhwc", type_, values.define_nhwc(output))
    return True
