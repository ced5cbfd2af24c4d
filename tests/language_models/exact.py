"""Compute block-quantised products in float32, so that results can be compared closely."""

from __future__ import annotations

from dataclasses import replace

from webmlc.graph.ir import Module, Node


def exact(module: Module) -> Module:
    """The module with the attribute `exact` on each product of block-quantised weights.

    By default, products quantise their data to int8.
    """
    nodes = tuple(map(_exact_node, module.main.nodes))
    return replace(module, functions={"main": replace(module.main, nodes=nodes)})


def _exact_node(node: Node) -> Node:
    if node.op != "BlockProduct":
        return node
    return replace(node, attributes={**node.attributes, "exact": 1})
