"""Choose how exact a language model is: float32 throughout, or rounded keys and values.

In: a module as its frontend wrote it. Out of `compute_exactly`: the products of block-quantised
weights read activations that are not quantised. They are slower, and as exact as float32.

    %y = webmlc.BlockProduct(%x, ...)                ->  %y = webmlc.BlockProduct(%x, ...) {exact=1}
    %y = MatMulNBits(%x, ...) {accuracy_level=4}     ->  %y = MatMulNBits(%x, ...)

Out of `round_caches`: new rows are rounded to bfloat16 before they are appended to the keys and
values of causal attention. The memory of the rows and the bytes that a token reads halve. A
function is rewritten only if its products round their activations to bytes anyway, which is
coarser.

    %keys = Append(%rows)        ->     %keys.rounded = Cast(%rows) {to = bfloat16}
                                        %keys = Append(%keys.rounded)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from webmlc.core.dtypes import DType
from webmlc.graph.element_types import TYPE_NUMBERS
from webmlc.graph.ir import Function, Module, Node
from webmlc.graph.ops.decoder import APPEND

ROUNDED = TYPE_NUMBERS[DType.bfloat16]
"""The type of the rows. A bfloat16 has the range of float32 and is widened by one shift. In
WebAssembly, widening a float16 takes six instructions.
"""
READER = ("webmlc", "CausalAttention")
ROUNDING = ("webmlc", "BlockProduct")


def compute_exactly(module: Module) -> Module:
    """Rewrite every function.

    needs: the nodes of the frontend, before shapes are inferred.
    """
    return module.map_functions(lambda f: replace(f, nodes=tuple(map(_exact, f.nodes))))


def _exact(node: Node) -> Node:
    match node.domain, node.op:
        case "webmlc", "BlockProduct":
            return replace(node, attributes={**node.attributes, "exact": 1})
        case "com.microsoft", "MatMulNBits":
            attributes = {k: v for k, v in node.attributes.items() if k != "accuracy_level"}
            return replace(node, attributes=attributes)
    return node


def round_caches(module: Module) -> Module:
    """Rewrite every function.

    needs: the nodes of the frontend, before shapes are inferred.
    """
    return module.map_functions(
        lambda f: replace(f, nodes=tuple(_rounded(f))) if _rounds_activations(f) else f
    )


def _rounds_activations(function: Function) -> bool:
    """True for a function of products that may round activations to bytes."""
    return any((node.domain, node.op) == ROUNDING for node in function.nodes)


def _rounded(function: Function) -> Iterator[Node]:
    """The nodes of a function, with the Casts."""
    readers: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for node in function.nodes:
        for value in node.inputs:
            readers[value].add((node.domain, node.op))
    for node in function.nodes:
        cache = node.outputs[0] if (node.domain, node.op) == APPEND else ""
        if readers[cache] == {READER} and cache not in function.outputs:
            rounded = f"{cache}.rounded"
            yield Node("Cast", node.inputs, (rounded,), {"to": ROUNDED}, origin=node.origin)
            node = replace(node, inputs=(rounded,))
        yield node
