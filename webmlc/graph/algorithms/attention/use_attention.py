"""Write a softmax and a product with its result as one operator.

In: a function after layouts. Out: the same meaning; a softmax along rows and a product with values
are one `webmlc.Attention` (`operators.py`), whose kernel computes the logits, too.

    %s = MatMul(%q, %k); %l = Add(Mul(%s, c), %mask)
    %p = Softmax(%l); %y = MatMul(%p, %v)               ->  %y = Attention(%l, %v)

On the CPU this is faster if the logits would not stay in the cache. The operands of both products
stay packed there. A GPU always computes both products in one dispatch, whose threads read queries,
keys and values where they are. So on a GPU packings are left out. Constant factors of queries and
keys become one factor of the logits, and heads that views repeat become a `RepeatHeads`. Where
barriers are slow, the threads of such a dispatch mostly wait. So with `apart`, products of as many
queries as keys stay apart. If there are more keys, they come from a past, and separate products
would pack them again in every run.

ONNX's own attention replaces the weights of a row without keys by zeros. A whole row has one
condition, so the row of the product can be replaced instead:

    %p = Where(%is_masked [*, M, 1], 0, Softmax(%l))    ->  %a = Attention(%l, %v)
    %y = MatMul(%p, %v)                                     %y = Where(%is_masked, 0, %a)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int
from webmlc.graph.algorithms.attention.nodes import PRODUCTS, logits_product
from webmlc.graph.algorithms.attention.operators import (
    FEWEST_COLUMNS,
    FEWEST_KEYS,
    MOST_COLUMNS,
)
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Attribute, Function, Module, Node, producers
from webmlc.graph.ops.shapes import ONE, canonical, same
from webmlc.graph.rewrite.patterns import Nodes, P, Rule, by_operator, value
from webmlc.graph.rewrite.rewriting import Rewriting, remove_dead_code

Operands = Literal["packed", "plain"]

SMALLEST = 1 << 20
"""The fewest bytes of logits for which attention of packed operands becomes one operator. Smaller
logits stay in the cache anyway (chosen by hand, with the second-level caches of desktop cores in
mind).
"""
_BLOCK_ROWS = range(6, 25)
"""The numbers of rows that a block of logits may have. One of them must divide the queries."""


def use_attention(module: Module, operands: Operands, *, apart: bool = False) -> Module:
    """Rewrite every function.

    needs: layouts chosen, inferred types. guarantees: inferred types, no dead code. With `apart`,
    plain products of as many queries as keys are left as they are.
    """
    rules = by_operator(
        (
            Rule(Nodes(frozenset(PRODUCTS), (), "", has_more=False), _write_product),
            *([Rule(_REPEATED_HEADS, _repeat_heads)] if operands == "plain" else []),
        )
    )

    def with_attention(function: Function) -> Function:
        rewriting = _Attentions(function, rules, operands=operands, apart=apart)
        for node in function.nodes:
            rewriting.look_at(node)
        return remove_dead_code(rewriting.run())

    return module.map_functions(with_attention)


def _write_product(node: Node, rewriting: _Attentions) -> Value | None:
    """Softmax(l) · v  ->  Attention(l, v), and q · k with its factors behind it"""
    if node in rewriting.softmaxes:
        return rewriting.write_attention(node)
    return rewriting.write_logits(node) if node in rewriting.products else None


def _repeat_heads(heads: Value, apart: Node, longer: Node, y: Value) -> Value | None:
    """A view that merges an axis of heads [*, G, N, D], which an Expand made longer, with the axis
    before it  ->  RepeatHeads
    """
    before, after = (y.build.value(node.outputs[0]).shape for node in (apart, longer))
    if heads.type.rank < 3 or not heads.type.rank + 1 == len(before) == len(after):
        return None
    times = after[-3]
    repeated = (*heads.shape[:-3], canonical(heads.shape[-3] * times), *heads.shape[-2:])
    shapes = (
        (before, (*heads.shape[:-2], ONE, *heads.shape[-2:])),
        (after[:-3] + after[-2:], heads.shape),
        (y.shape, repeated),
    )
    if not all(len(a) == len(b) and all(map(same, a, b)) for a, b in shapes):
        return None
    return heads.op("RepeatHeads", domain="webmlc", times=times)


_APART = P("View", value("heads"), name="apart", domain="webmlc").once()
_REPEATED_HEADS = P("View", P("Expand", _APART, name="longer", more=True).once(), domain="webmlc")
"""Heads that a view puts into an axis of their own, an Expand repeats, and a view joins."""


@dataclass(slots=True)
class _Attentions(Rewriting):
    """The function being written. `softmaxes` maps the second product of each attention to its
    softmax. `masks` maps the product to a node between the two that replaces rows, if there is one.
    `products` are the products of queries and keys that are not packed. `makers` has the node of
    the source that computes each value.
    """

    operands: Operands = "packed"
    apart: bool = False
    makers: Mapping[str, Node] = field(init=False)
    softmaxes: dict[Node, Node] = field(default_factory=dict)
    masks: dict[Node, Node] = field(default_factory=dict)
    products: set[Node] = field(default_factory=set)

    def __post_init__(self) -> None:
        Rewriting.__post_init__(self)
        self.makers = producers(self.source)

    def look_at(self, node: Node) -> None:
        """Note attention, if the node is its second product."""
        is_product = (node.domain, node.op) in PRODUCTS
        softmax = self.only_producer(node.inputs[0]) if is_product else None
        mask = softmax if softmax is not None and self.replaces_rows(softmax) else None
        softmax = softmax if mask is None else self.only_producer(mask.inputs[2])
        if softmax is None or not self.is_softmax_of_rows(softmax):
            return
        product = logits_product(self.source, self.makers, softmax.inputs[0], self.is_single_use)
        is_packed = self.operands == "packed"
        fits = self.is_long(softmax, node, product) if is_packed else self.is_plain(softmax, node)
        if fits:
            self.softmaxes[node] = softmax
            if mask is not None:
                self.masks[node] = mask
            if product is not None and not is_packed and self.right_operand(product) is not None:
                self.products.add(product)

    def replaces_rows(self, node: Node) -> bool:
        """True for zeros in the place of whole rows."""
        if (node.domain, node.op) != ("", "Where"):
            return False
        condition, zero, rows = node.inputs
        number = self.constants.get(zero)
        is_zero = number is not None and number.size == 1 and number.item() == 0
        is_whole = self.types[condition].rank > 1 and as_int(self.types[condition].shape[-1]) == 1
        return is_zero and is_whole and self.types[rows] == self.types[node.outputs[0]]

    def is_softmax_of_rows(self, node: Node) -> bool:
        """True for a softmax of float32 along the last axis of a matrix, or of a batch of them."""
        if (node.domain, node.op) != ("", "Softmax"):
            return False
        type_, axis = self.types[node.inputs[0]], int(node.attributes.get("axis", -1))
        is_last = type_.rank > 1 and axis % type_.rank == type_.rank - 1
        return type_.dtype is DType.float32 and is_last

    def is_long(self, softmax: Node, product: Node, first: Node | None) -> bool:
        """True for rows of many logits between packed products, if blocks of rows divide them."""
        shape = self.types[softmax.inputs[0]].static_shape
        is_packed = first is not None and bool(first.domain and product.domain)
        if shape is None or not is_packed:
            return False
        is_large = math.prod(shape) * 4 >= SMALLEST
        return is_large and any(shape[-2] % rows == 0 for rows in _BLOCK_ROWS)

    def is_plain(self, softmax: Node, product: Node) -> bool:
        """True for values from run time, of few columns and enough keys, without new batches."""
        if self.right_operand(product) is None:
            return False
        logits, result = (self.types[n.outputs[0]].shape for n in (softmax, product))
        keys, columns = as_int(logits[-1]), as_int(result[-1])
        has_batch = len(logits) == len(result) and all(map(same, logits[:-1], result[:-1]))
        has_room = columns is not None and FEWEST_COLUMNS <= columns <= MOST_COLUMNS
        if self.apart and same(*logits[-2:]):
            return False
        return has_batch and has_room and (keys is None or keys >= FEWEST_KEYS)

    def write_attention(self, node: Node) -> Value:
        """Write attention for its second product."""
        softmax, mask = self.softmaxes[node], self.masks.get(node)
        logits, values, result = softmax.inputs[0], node.inputs[1], node.outputs[0]
        origin = tuple(dict.fromkeys((*softmax.origin, *node.origin)))
        build = Builder(replace(node, origin=origin), self)
        attributes: dict[str, Attribute] = {"columns": node.attributes.get("columns")}
        if self.operands == "plain":
            values, attributes = self.right_operand(node) or values, {}
        is_replaced = mask is not None and not self.is_never(mask.inputs[0])
        output = build.fresh("rows") if is_replaced else result
        rows = build("Attention", logits, values, output=output, domain="webmlc", **attributes)
        if mask is not None and is_replaced:
            return build("Where", *mask.inputs[:2], rows, output=result)
        return rows

    def is_never(self, condition: str) -> bool:
        """True for a constant condition that is false everywhere."""
        return condition in self.constants and not self.constants[condition].any()

    def write_logits(self, node: Node) -> Value:
        """Write a product of queries and keys that are not packed, and multiply the result by the
        constant factors of both.
        """
        build = Builder(node, self)
        keys = self.right_operand(node) or node.inputs[1]
        (queries, by), (keys, by_too) = self.unscaled(node.inputs[0]), self.unscaled(keys)
        if by * by_too == 1:
            return build("MatMul", queries, keys)
        factor = build.constant(by * by_too, DType.float32)
        return build("MatMul", queries, keys) * factor

    def right_operand(self, product: Node) -> str | None:
        """The right operand of a product, as it is before a `Pack`. `None` for a constant, and for
        packed float16 constants that a `Cast` widens.
        """
        value = product.inputs[1]
        maker = self.makers.get(value)
        if maker is not None and (maker.domain, maker.op) == ("webmlc", "Pack"):
            return maker.inputs[0]
        return None if value in self.constants or product.domain else value

    def unscaled(self, value: str) -> tuple[str, float]:
        """The value without a constant factor, and the factor. A transposition may follow the
        multiplication.
        """
        node = self.only_producer(value)
        if node is None or node.domain or node.op not in ("Mul", "Div", "Transpose"):
            return value, 1.0
        if node.op == "Transpose":
            inner, by = self.unscaled(node.inputs[0])
            if by == 1.0:
                return value, by
            return Builder(node, self)("Transpose", inner, **node.attributes), by
        for inner, other in (node.inputs, node.inputs[::-1])[: 1 if node.op == "Div" else 2]:
            factor = self.constants.get(other)
            if factor is not None and factor.size == 1 and self.types[inner] == self.types[value]:
                number = float(factor.item())
                source, by = self.unscaled(inner)
                return source, by / number if node.op == "Div" else by * number
        return value, 1.0

    def only_producer(self, value: str) -> Node | None:
        """The node that computes `value`, if only one node reads it."""
        return self.makers.get(value) if self.is_single_use(value) else None
