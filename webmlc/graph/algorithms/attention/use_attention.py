"""Long attention as one operator, where its scores would not stay in the cache.

In: a function after layouts. Out: the same meaning; a product, a softmax over its columns and a
product with what that gives are one `webmlc.Attention` (`ops/attention.py`), whose kernel makes the
scores of a few rows at a time.

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
"""Bytes of scores below which they stay in the cache by themselves."""
_HEIGHTS = range(6, 25)
"""Rows of a block of scores, one of which must divide the queries."""


def use_attention(module: Module) -> Module:
    """Rewrite every function.

    needs: layouts chosen, inferred types. guarantees: inferred types, no dead code.
    """
    functions = {n: remove_dead_code(_Rewrite(f).run()) for n, f in module.functions.items()}
    return replace(module, functions=functions)


@dataclass(frozen=True, slots=True)
class _Logits:
    """scale · Q Kᵀ + bias: the product's node, the others' numbers, and where they come from."""

    product: Node
    origin: tuple[str, ...]
    scale: float = 1.0
    bias: tuple[str, ...] = ()


@dataclass(slots=True)
class _Rewrite(FunctionRewriter):
    """The function being written, who makes each value and how often it is read."""

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
        """Write attention for the product that ends it; False for another node."""
        softmax = self.maker(node.inputs[0]) if _is_product(node) else None
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
        """What a softmax reads, in these parts; `None` where it is something else."""
        node = self.maker(value)
        if node is None or _is_product(node):
            return None if node is None else _Logits(node, node.origin)
        if node.domain or node.op not in ("Mul", "Div", "Add"):
            return None
        for inner, other in (node.inputs, node.inputs[::-1])[: 1 if node.op == "Div" else 2]:
            found = self.logits(inner) if self.types[inner] == self.types[value] else None
            if found is None or found.bias:
                continue
            origin = (*found.origin, *node.origin)
            if node.op == "Add":
                return replace(found, origin=origin, bias=(other,))
            factor = self.constants.get(other)
            if factor is not None and factor.size == 1:
                number = float(factor.item())
                scale = found.scale / number if node.op == "Div" else found.scale * number
                return replace(found, origin=origin, scale=scale)
        return None

    def maker(self, value: str) -> Node | None:
        """The node that makes `value` for one reader."""
        return self.makers.get(value) if self.uses[value] == 1 else None

    def is_long(self, softmax: Node) -> bool:
        """True where the softmax runs along the rows of many scores, a number that divides well."""
        known = self.types[softmax.inputs[0]]
        shape, axis = known.static_shape, int(softmax.attributes.get("axis", -1))
        if shape is None or len(shape) < 2 or axis % len(shape) != len(shape) - 1:
            return False
        is_large = known.dtype is DType.float32 and math.prod(shape) * 4 >= SMALLEST
        return is_large and any(shape[-2] % height == 0 for height in _HEIGHTS)


def _is_product(node: Node) -> bool:
    return (node.domain, node.op) == ("webmlc", "MatMul")
