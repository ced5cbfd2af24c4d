"""Write long attention as one operator, if its scores would not stay in the cache.

In: a function after layouts. Out: the same meaning; a product, a softmax over its columns and a
second product are one `webmlc.Attention` (`operators.py`), whose kernel computes the scores of a
few rows at a time.

    %s = webmlc.MatMul(%q, %k); %l = Add(Mul(%s, c), %mask)
    %p = Softmax(%l); %y = webmlc.MatMul(%p, %v)             ->  %y = Attention(%q, %k, %v, %mask)
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder
from webmlc.graph.ir import Function, Module, Node
from webmlc.graph.rewrite.function_writer import FunctionRewriter
from webmlc.graph.simplify.simplify_graph import remove_dead_code

SMALLEST = 1 << 20
"""Bytes of scores from which attention is one operator: fewer stay in the cache anyway (chosen by
hand, with the second-level caches of desktop cores in mind).
"""
_BLOCK_ROWS = range(6, 25)
"""The numbers of rows that a block of scores may have. One of them must divide the queries."""


def use_attention(module: Module) -> Module:
    """Rewrite every function.

    needs: layouts chosen, inferred types. guarantees: inferred types, no dead code.
    """
    functions = {n: remove_dead_code(_Rewrite(f).run()) for n, f in module.functions.items()}
    return replace(module, functions=functions)


@dataclass(frozen=True, slots=True)
class _Logits:
    """scale · Q Kᵀ + bias: the node of the product, the scale, the bias, and their origin."""

    product: Node
    origin: tuple[str, ...]
    scale: float = 1.0
    bias: tuple[str, ...] = ()


@dataclass(slots=True)
class _Rewrite(FunctionRewriter):
    """The function being written, and how often each value is read."""

    uses: Counter[str] = field(default_factory=Counter)

    def run(self) -> Function:
        self.uses.update(self.source.outputs)
        for node in self.source.nodes:
            self.uses.update(node.inputs)
        for node in self.source.nodes:
            if not self.attention(node):
                self.keep(node)
        return self.written()

    def attention(self, node: Node) -> bool:
        """Write attention for its second product; False for other nodes."""
        softmax = self.only_producer(node.inputs[0]) if _is_product(node) else None
        if softmax is None or softmax.op != "Softmax" or not self.is_long(softmax):
            return False
        logits = self.logits(softmax.inputs[0])
        if logits is None or self.types[node.outputs[0]].dtype is not DType.float32:
            return False
        origin = tuple(dict.fromkeys((*logits.origin, *softmax.origin, *node.origin)))
        Builder(replace(node, origin=origin), self)(
            "Attention",
            *logits.product.inputs,
            node.inputs[1],
            *logits.bias,
            output=node.outputs[0],
            domain="webmlc",
            scale=logits.scale,
            columns=node.attributes["columns"],
        )
        return True

    def logits(self, value: str) -> _Logits | None:
        """The value as logits; `None` if it does not have that form."""
        node = self.only_producer(value)
        if node is None or _is_product(node):
            return None if node is None else _Logits(node, node.origin)
        if node.domain or node.op not in ("Mul", "Div", "Add"):
            return None
        for inner, other in (node.inputs, node.inputs[::-1])[: 1 if node.op == "Div" else 2]:
            logits = self.logits(inner) if self.types[inner] == self.types[value] else None
            if logits is None or logits.bias:
                continue
            origin = (*logits.origin, *node.origin)
            if node.op == "Add":
                return replace(logits, origin=origin, bias=(other,))
            factor = self.constants.get(other)
            if factor is not None and factor.size == 1:
                number = float(factor.item())
                scale = logits.scale / number if node.op == "Div" else logits.scale * number
                return replace(logits, origin=origin, scale=scale)
        return None

    def only_producer(self, value: str) -> Node | None:
        """The node that computes `value`, if only one node reads it."""
        return self.makers.get(value) if self.uses[value] == 1 else None

    def is_long(self, softmax: Node) -> bool:
        """True for a softmax along rows of many scores, if blocks of rows divide them."""
        type_ = self.types[softmax.inputs[0]]
        shape, axis = type_.static_shape, int(softmax.attributes.get("axis", -1))
        if shape is None or len(shape) < 2 or axis % len(shape) != len(shape) - 1:
            return False
        is_large = type_.dtype is DType.float32 and math.prod(shape) * 4 >= SMALLEST
        return is_large and any(shape[-2] % rows == 0 for rows in _BLOCK_ROWS)


def _is_product(node: Node) -> bool:
    return (node.domain, node.op) == ("webmlc", "MatMul")
