"""Layouts: feature maps become NHWC, weights are packed for vector loads.

In: an inferred function of ONNX operators (NCHW). Out: the same meaning, where convolutions and
pools are the `webmlc` operators of `ops/layout.py` over NHWC feature maps of any rank, and constant
matrix operands are packed `[N/8][K][8]`. The pass walks once: every value may have an NHWC twin,
which is written on demand. The operator's row (`ops/nhwc.py`) says whether and how the operator
follows a feature map. So transposes remain only where two layouts really meet, usually at the
graph's edge.

    %y = Conv(%x, %w)  ->  %x.nhwc = Transpose(%x); %y.nhwc = webmlc.Conv(%x.nhwc, %w.packed)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from webmlc.graph.builder import Builder
from webmlc.graph.ir import Function, Module, Node
from webmlc.graph.layout.follow_layouts import follow_layouts, follow_view
from webmlc.graph.layout.layout_values import LayoutValues, keeps_order
from webmlc.graph.layout.matrix_layouts import integer_matrix_product, matrix_product
from webmlc.graph.layout.window_layouts import (
    convolution,
    global_pool,
    pool,
    transposed_convolution,
)
from webmlc.graph.ops.nhwc import Form
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
    functions = {name: _Rewrite(f).run() for name, f in module.functions.items()}
    return replace(module, functions=functions)


@dataclass(slots=True)
class _Rewrite(LayoutValues):
    """The function being written."""

    def run(self) -> Function:
        self.types.update(self.source.types)
        build = Builder.without_origin(self)
        for name, array in self.source.constants.items():
            build.constant(array, name=name)
        for node in self.source.nodes:
            self.rewrite(node)
        for output in self.source.outputs:
            self.nchw(output)
        return self.written()

    def rewrite(self, node: Node) -> None:
        """Write `node` in its own form, over NHWC twins, as a view, or as it is."""
        layout = layout_of(node)
        is_view = layout is not None and layout.is_view
        if layout is not None and layout.form and _RULES[layout.form](self, node):
            return
        if follow_layouts(self, node) or (is_view and follow_view(self, node)):
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
