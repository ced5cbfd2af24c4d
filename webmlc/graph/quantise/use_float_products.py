"""Multiply block-quantised weights by float32 activations, on devices that wait for memory.

In: a module whose products are `PackedBlockProduct` nodes. Out: the same products as
`FloatBlockProduct` nodes, up to the rounding of quantised activations. Each product is one
reduction. Fusion adds a normalisation before it and elementwise nodes after it.

needs: inferred types, weights in their final layout. guarantees: no `PackedBlockProduct` whose data
are known; if only elementwise nodes read slices of a product's columns, each slice is a product of
its part of the weights, so that these nodes can be their common epilogue. before → after:

    %q, %s, %t = QuantiseBlocks(%x)
    %p = PackedBlockProduct(%q, %s, %t, %w)        %g = FloatBlockProduct(%x, %w) {first=0}
    %g = Slice(%p, 0:64)                      →    %u = FloatBlockProduct(%x, %w) {first=64}
    %u = Slice(%p, 64:128)                         %y = Mul(%g, %u)
    %y = Mul(%g, %u)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder
from webmlc.graph.ir import Function, Module, Node, consumers
from webmlc.graph.ops.block_quantised import DOMAIN, PRODUCT, QUANTISE_BLOCKS, WEIGHTS
from webmlc.graph.ops.layout import PACK
from webmlc.graph.rewrite.meaning import MAPS, kind_of
from webmlc.graph.rewrite.rewriting import FunctionRewriter
from webmlc.graph.simplify.simplify_graph import remove_dead_code


def use_float_products(module: Module) -> Module:
    """Rewrite every function."""
    return module.map_functions(lambda function: _Rewriting(function).run())


@dataclass(slots=True)
class _Rewriting(FunctionRewriter):
    """The function being written, and the consumers of its source's values."""

    users: dict[str, list[Node]] = field(init=False)

    def run(self) -> Function:
        self.users = consumers(self.source)
        replaced: set[Node] = set()
        for node in self.source.nodes:
            data = self.data_of(node)
            if data is None:
                if node not in replaced:
                    self.keep(node)
                continue
            slices = self.elementwise_slices(node)
            for part, first in slices.items():
                self.write(replace(part, origin=(*node.origin, *part.origin)), node, data, first)
            replaced.update(slices)
            if not slices:
                self.write(node, node, data, 0)
        return remove_dead_code(self.written())

    def data_of(self, node: Node) -> str | None:
        """The float32 data of a product of block-quantised weights; `None` for other nodes."""
        if (node.domain, node.op) != PRODUCT:
            return None
        quantised, scale, _ = node.inputs[:WEIGHTS]
        if not scale:
            return quantised
        maker = self.makers.get(quantised)
        if maker is None or (maker.domain, maker.op) != QUANTISE_BLOCKS:
            return None
        return maker.inputs[0]

    def write(self, place: Node, product: Node, data: str, first: int) -> None:
        """Write the product of the columns from `first` on, in place of a node."""
        columns = as_int(self.types[place.outputs[0]].shape[-1])
        attributes = {name: product.attributes[name] for name in ("bits", "block", "excess")}
        Builder(place, self)(
            "FloatBlockProduct", data, *product.inputs[WEIGHTS:],
            output=place.outputs[0],
            domain=DOMAIN, first=first, columns=columns, **attributes,
        )  # fmt: skip

    def elementwise_slices(self, product: Node) -> dict[Node, int]:
        """The slices of a product's columns, with their first columns. Only these slices may read
        the product, only elementwise nodes may read the slices, and each slice must start with a
        panel of the weights.
        """
        value = product.outputs[0]
        if value in self.source.outputs:
            return {}
        slices: dict[Node, int] = {}
        for user in self.users.get(value, []):
            first = self.first_column(user)
            readers = self.users.get(user.outputs[0], [])
            is_elementwise = bool(readers) and all(kind_of(reader) in MAPS for reader in readers)
            if first is None or first % PACK or not is_elementwise:
                return {}
            slices[user] = first
        return slices

    def first_column(self, node: Node) -> int | None:
        """The first column that a slice of columns takes; `None` for other nodes."""
        if (node.domain, node.op) != ("", "Slice") or node.outputs[0] in self.source.outputs:
            return None
        data, start, _, *rest = node.inputs
        if len(rest) != 1 or not all(name in self.constants for name in (start, rest[0])):
            return None
        starts, axes = (self.constants[name].reshape(-1) for name in (start, rest[0]))
        if len(axes) != 1 or int(axes[0]) not in (-1, self.rank(data) - 1) or starts[0] < 0:
            return None
        return int(starts[0])
