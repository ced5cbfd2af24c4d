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

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Function, Module, Node, consumers
from webmlc.graph.ops.block_quantised import DOMAIN, PRODUCT, QUANTISE_BLOCKS, WEIGHTS
from webmlc.graph.ops.layout import PACK
from webmlc.graph.rewrite.meaning import MAPS, kind_of
from webmlc.graph.rewrite.patterns import P, Rule, nothing, value
from webmlc.graph.rewrite.rewriting import Rewriting, rewritten

Users = Mapping[str, list[Node]]
"""The nodes that read each value."""
_QUANTISED = P(QUANTISE_BLOCKS[1], value("data"), domain=DOMAIN)
_PRODUCTS = tuple(
    P(PRODUCT[1], *operands, name="product", domain=DOMAIN, more=True)
    for operands in ((_QUANTISED, value("scales")), (value("data"), nothing("scales")))
)
"""Products of quantised data whose source is there, and of float32 data."""


def use_float_products(module: Module) -> Module:
    """Rewrite every function."""
    return module.map_functions(_with_float_products)


def _with_float_products(function: Function) -> Function:
    users = consumers(function)
    products = [Rule(product, partial(_float_product, users)) for product in _PRODUCTS]
    slices = [
        Rule(P("Slice", product, more=True), partial(_float_slice, users)) for product in _PRODUCTS
    ]
    return rewritten(function, [*products, *slices])


def _float_product(
    users: Users, data: Value, node: Node, build: Builder, rewriting: Rewriting
) -> Value | None:
    """A product of quantised data  ->  a product of the data, unless its slices become products"""
    return None if _slices(users, node, rewriting) else _write(build, node, data, 0)


def _float_slice(
    users: Users, data: Value, product: Node, node: Node, rewriting: Rewriting
) -> Value | None:
    """A slice of a product  ->  a product of a part of the weights"""
    first = _slices(users, product, rewriting).get(node.outputs[0])
    if first is None:
        return None
    build = Builder(replace(node, origin=(*product.origin, *node.origin)), rewriting)
    return _write(build, product, data, first)


def _write(build: Builder, product: Node, data: Value, first: int) -> Value:
    """Write the product of the columns from `first` on, in place of the builder's node."""
    columns = as_int(build.value(build.source.outputs[0]).shape[-1])
    attributes = {name: product.attributes[name] for name in ("bits", "block", "excess")}
    return build(
        "FloatBlockProduct", data, *product.inputs[WEIGHTS:],
        domain=DOMAIN, first=first, columns=columns, **attributes,
    )  # fmt: skip


def _slices(users: Users, product: Node, rewriting: Rewriting) -> dict[str, int]:
    """The slices of a product's columns, with their first columns. Only these slices may read the
    product, only elementwise nodes may read the slices, and each slice must start with a panel of
    the weights.
    """
    value, outputs = product.outputs[0], rewriting.source.outputs
    if value in outputs:
        return {}
    slices: dict[str, int] = {}
    for user in users.get(value, []):
        first = _first_column(user, rewriting)
        readers = users.get(user.outputs[0], [])
        is_elementwise = bool(readers) and all(kind_of(reader) in MAPS for reader in readers)
        if first is None or first % PACK or not is_elementwise or user.outputs[0] in outputs:
            return {}
        slices[user.outputs[0]] = first
    return slices


def _first_column(node: Node, rewriting: Rewriting) -> int | None:
    """The first column that a slice of columns takes; `None` for other nodes."""
    if node.operator != ("", "Slice") or len(node.inputs) != 4:
        return None
    starts, axes = (rewriting.constants.get(node.inputs[slot]) for slot in (1, 3))
    if starts is None or axes is None or axes.size != 1 or starts.item() < 0:
        return None
    last = rewriting.types[node.inputs[0]].rank - 1
    return int(starts.item()) if axes.item() in (-1, last) else None
