"""Compute products of block-quantised weights with activations in float32.

In: a module as its frontend wrote it. Out: the same products without quantised activations. They
are slower, and as exact as float32.

    %y = webmlc.BlockProduct(%x, ...)                ->  %y = webmlc.BlockProduct(%x, ...) {exact=1}
    %y = MatMulNBits(%x, ...) {accuracy_level=4}     ->  %y = MatMulNBits(%x, ...)
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.graph.ir import Module, Node


def compute_exactly(module: Module) -> Module:
    """Rewrite every function.

    needs: the nodes of the frontend, before shapes are inferred.
    """
    functions = {
        name: replace(f, nodes=tuple(map(_exact, f.nodes))) for name, f in module.functions.items()
    }
    return replace(module, functions=functions)


def _exact(node: Node) -> Node:
    match node.domain, node.op:
        case "webmlc", "BlockProduct":
            return replace(node, attributes={**node.attributes, "exact": 1})
        case "com.microsoft", "MatMulNBits":
            attributes = {k: v for k, v in node.attributes.items() if k != "accuracy_level"}
            return replace(node, attributes=attributes)
    return node
