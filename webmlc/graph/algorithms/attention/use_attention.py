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
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_int
from webmlc.graph.algorithms.attention.nodes import PRODUCTS, logits_product
from webmlc.graph.algorithms.attention.operators import (
    FEWEST_COLUMNS,
    FEWEST_KEYS,
    MOST_COLUMNS,
)
from webmlc.graph.builder import Builder
from webmlc.graph.ir import Attribute, Function, Module, Node
from webmlc.graph.ops.shapes import canonical, same
from webmlc.graph.rewrite.rewriting import FunctionRewriter
from webmlc.graph.simplify.simplify_graph import remove_dead_code

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
    return module.map_functions(
        lambda f: remove_dead_code(_Rewrite(f, operands=operands, apart=apart).run())
    )


@dataclass(slots=True)
class _Rewrite(FunctionRewriter):
    """The function being written, and how often each value is read. `softmaxes` maps the second
    product of each attention to its softmax. `masks` maps the product to a node between the two
    that replaces rows, if there is one. `products` are the products of queries and keys.
    """

    operands: Operands = "packed"
    apart: bool = False
    uses: Counter[str] = field(default_factory=Counter)
    softmaxes: dict[Node, Node] = field(default_factory=dict)
    masks: dict[Node, Node] = field(default_factory=dict)
    products: set[Node] = field(default_factory=set)

    def run(self) -> Function:
        self.uses.update(self.source.outputs)
        for node in self.source.nodes:
            self.uses.update(node.inputs)
        for node in self.source.nodes:
            self.look_at(node)
        for node in self.source.nodes:
            if node in self.softmaxes:
                self.write_attention(node)
            elif node in self.products and self.operands == "plain":
                self.write_logits(node)
            elif self.operands == "plain" and (heads := self.repeated_heads(node)):
                build, times = Builder(node, self), heads[1]
                output = node.outputs[0]
                build("RepeatHeads", heads[0], output=output, domain="webmlc", times=times)
            else:
                self.keep(node)
        return self.written()

    def look_at(self, node: Node) -> None:
        """Note attention, if the node is its second product."""
        is_product = (node.domain, node.op) in PRODUCTS
        softmax = self.only_producer(node.inputs[0]) if is_product else None
        mask = softmax if softmax is not None and self.replaces_rows(softmax) else None
        softmax = softmax if mask is None else self.only_producer(mask.inputs[2])
        if softmax is None or not self.is_softmax_of_rows(softmax):
            return
        product = logits_product(self.source, self.makers, softmax.inputs[0], self.is_read_once)
        is_packed = self.operands == "packed"
        fits = self.is_long(softmax, node, product) if is_packed else self.is_plain(softmax, node)
        if fits:
            self.softmaxes[node] = softmax
            if mask is not None:
                self.masks[node] = mask
            if product is not None and self.right_operand(product) is not None:
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

    def write_attention(self, node: Node) -> None:
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
        build("Attention", logits, values, output=output, domain="webmlc", **attributes)
        if mask is not None and is_replaced:
            build("Where", *mask.inputs[:2], output, output=result)

    def is_never(self, condition: str) -> bool:
        """True for a constant condition that is false everywhere."""
        return condition in self.constants and not self.constants[condition].any()

    def write_logits(self, node: Node) -> None:
        """Write a product of queries and keys that are not packed, and multiply the result by the
        constant factors of both.
        """
        build = Builder(node, self)
        keys = self.right_operand(node) or node.inputs[1]
        (queries, by), (keys, by_too) = self.unscaled(node.inputs[0]), self.unscaled(keys)
        if by * by_too == 1:
            build("MatMul", queries, keys, output=node.outputs[0])
            return
        factor = build.constant(by * by_too, DType.float32)
        build("Mul", build("MatMul", queries, keys), factor, output=node.outputs[0])

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

    def repeated_heads(self, node: Node) -> tuple[str, Expr] | None:
        """The heads [*, G, N, D] that a view repeats, and how often it repeats them. The view
        merges an axis that an `Expand` made longer with the axis before it. `None` for other nodes.
        """
        expand = self.only_producer(node.inputs[0]) if _is_view(node) else None
        if expand is None or (expand.domain, expand.op) != ("", "Expand"):
            return None
        view = self.only_producer(expand.inputs[0])
        if view is None or not _is_view(view):
            return None
        values = (view.inputs[0], expand.inputs[0], expand.outputs[0], node.outputs[0])
        heads, apart, longer, merged = (self.types[value].shape for value in values)
        if len(heads) < 3 or not len(heads) + 1 == len(apart) == len(longer):
            return None
        if as_int(apart[-3]) != 1:
            return None
        times = longer[-3]
        repeated = (*heads[:-3], canonical(heads[-3] * times), *heads[-2:])
        shapes = ((apart[:-3] + apart[-2:], heads), (longer[:-3] + longer[-2:], heads))
        are_equal = all(_is_equal(*pair) for pair in (*shapes, (merged, repeated)))
        return (view.inputs[0], times) if are_equal else None

    def only_producer(self, value: str) -> Node | None:
        """The node that computes `value`, if only one node reads it."""
        return self.makers.get(value) if self.is_read_once(value) else None

    def is_read_once(self, value: str) -> bool:
        """True if one node reads the value, and the caller does not."""
        return self.uses[value] == 1


def _is_view(node: Node) -> bool:
    return (node.domain, node.op) == ("webmlc", "View")


def _is_equal(shape: Sequence[Expr], other: Sequence[Expr]) -> bool:
    return len(shape) == len(other) and all(map(same, shape, other))
