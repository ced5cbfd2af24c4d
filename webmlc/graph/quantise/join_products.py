"""Join the products of one left operand with several block-quantised matrices into one product.

In: a module whose products are `PackedBlockProduct` nodes. Out: the same results. The matrices of a
joined product are stored one after another, and each result is a slice of the columns.

needs: inferred types; equal nodes are merged, so that products of one operand read the same values.
guarantees: products are joined if they read the same operand, their weights have the same form
(bits, block, excess, element types, with or without minimums), and no other node reads these
weights. Sums with a constant vector are joined, too. before → after:

    %q = PackedBlockProduct(%x, %wq)         %p = PackedBlockProduct(%x, [%wq, %wk])
    %k = PackedBlockProduct(%x, %wk)    →    %h: [n, 12, 64] = Reshape(%p)
    %a: [n, 9, 64] = Reshape(%q)             %a = Slice(%h, 0:9 on axis 1)
    %b: [n, 3, 64] = Reshape(%k)             %b = Slice(%h, 9:12 on axis 1)

One product starts fewer kernels, and reads its left operand once. Products with float matrices stay
apart. A product with a packed float matrix already runs at the speed of memory or of arithmetic. A
slice of a joined result may need a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise

import numpy as np

from webmlc.core.expr import Expr, as_int, const
from webmlc.graph.builder import Builder
from webmlc.graph.ir import Function, Module, Node, TensorType, consumers, joined_origin
from webmlc.graph.ops.block_quantised import PRODUCT, WEIGHTS
from webmlc.graph.ops.layout import PACK
from webmlc.graph.rewrite.patterns import P, Rule
from webmlc.graph.rewrite.rewriting import Rewriting, rewritten


def join_products(module: Module) -> Module:
    """Join in every function."""
    return module.map_functions(_joined)


def _joined(function: Function) -> Function:
    groups = dict(_Products(function).groups())
    product = P(PRODUCT[1], domain=PRODUCT[0])
    return rewritten(function, [Rule(product, partial(_join, groups))]) if groups else function


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    """A product, the sum with a constant vector that follows it, and the view of its result. The
    view divides the columns into `size` elements each.
    """

    product: Node
    columns: int
    bias: Node | None = None
    view: Node | None = None
    size: int = 1

    @property
    def last(self) -> Node:
        """The last of these nodes: its output is the result."""
        return self.view or self.bias or self.product


@dataclass(slots=True)
class _Products:
    """The products of a function, and the consumers of its values."""

    function: Function
    users: dict[str, list[Node]] = field(init=False)

    def __post_init__(self) -> None:
        self.users = consumers(self.function)

    def groups(self) -> Iterator[tuple[Node, tuple[_Member, ...]]]:
        """The products that can be joined, behind the first product of each group."""
        by_form: dict[object, list[_Member]] = {}
        position = {node: number for number, node in enumerate(self.function.nodes)}
        for node in self.function.nodes:
            if node.operator == PRODUCT and self.has_own_weights(node):
                by_form.setdefault(self.form(node), []).append(self.member(node))
        for members in by_form.values():
            # Only the last member may end within a panel of columns.
            ordered = sorted(members, key=lambda member: member.columns % PACK != 0)
            whole = [member for member in ordered if member.columns % PACK == 0]
            joined = _with_equal_ends(ordered[: len(whole) + 1])
            if len(joined) > 1:
                yield min((member.product for member in joined), key=position.__getitem__), joined

    def has_own_weights(self, node: Node) -> bool:
        """True if the weights are constants that no other node reads."""
        weights = node.inputs[WEIGHTS:]
        return all(w in self.function.constants and self.users[w] == [node] for w in weights)

    def form(self, node: Node) -> object:
        """The properties that are equal for products that can be joined."""
        attributes = tuple((name, node.attributes[name]) for name in ("bits", "block", "excess"))
        types = tuple(self.function.constants[weight].dtype.str for weight in node.inputs[WEIGHTS:])
        return (node.inputs[:WEIGHTS], attributes, types)

    def member(self, product: Node) -> _Member:
        """A product with the sum and the view that follow it."""
        member = _Member(product, int(product.attributes["columns"]))
        bias = self.only_reader(product.outputs[0])
        if bias is not None and bias.operator == ("", "Add"):
            vectors = map(self.function.constants.get, bias.inputs)
            if any(v is not None and v.shape == (member.columns,) for v in vectors):
                member = replace(member, bias=bias)
        view = self.only_reader(member.last.outputs[0])
        if view is not None and (*view.operator, len(view.inputs)) == ("", "Reshape", 1):
            size = _divided_columns(*map(self.function.type, (view.inputs[0], view.outputs[0])))
            if size is not None:
                member = replace(member, view=view, size=size)
        return member

    def only_reader(self, value: str) -> Node | None:
        """The only node that reads a value. `None` if several nodes or the caller read it."""
        users = self.users.get(value, [])
        return users[0] if len(users) == 1 and value not in self.function.outputs else None


def _join(groups: Mapping[Node, tuple[_Member, ...]], node: Node, rewriting: Rewriting) -> None:
    """The first product of a group  ->  the joined product, and a slice in place of the end of each
    member. The nodes before these ends have no reader then.
    """
    members = groups.get(node)
    if members is None:
        return
    first = members[0]
    origin = joined_origin(*(member.product for member in members))
    build = Builder(replace(first.product, origin=origin), rewriting)
    slots = range(WEIGHTS, len(first.product.inputs))
    weights = [
        np.concatenate([rewriting.constants[m.product.inputs[s]] for m in members]) for s in slots
    ]
    columns = sum(member.columns for member in members)
    value = build(
        PRODUCT[1], *first.product.inputs[:WEIGHTS], *weights, domain=PRODUCT[0],
        **{**first.product.attributes, "columns": columns},
    )  # fmt: skip
    if first.bias is not None:
        biases = [
            rewriting.constants[next(i for i in m.bias.inputs if i in rewriting.constants)]
            for m in members
            if m.bias is not None
        ]
        value = value + np.concatenate(biases)
    if first.view is not None:
        rows = rewriting.types[first.view.outputs[0]].shape[:-2]
        shape: tuple[Expr, ...] = (*rows, const(columns // first.size), const(first.size))
        value = build("Reshape", value, type_=replace(value.type, shape=shape), shape=shape)
    axis = value.type.rank - (1 if first.view is None else 2)
    ends = accumulate((member.columns // first.size for member in members), initial=0)
    for member, bounds in zip(members, pairwise(ends), strict=True):
        slice_of = Builder(member.last, rewriting)
        numbers = (np.array([n]) for n in (*bounds, axis))
        slice_of("Slice", value, *numbers, output=member.last.outputs[0])


def _with_equal_ends(members: Sequence[_Member]) -> tuple[_Member, ...]:
    """The members, with their sums only if all have a sum, and with their views only if all views
    are alike.
    """
    if not all(member.bias is not None for member in members):
        stripped = (m if m.bias is None else _Member(m.product, m.columns) for m in members)
        members = tuple(stripped)
    sizes = {member.size if member.view is not None else 0 for member in members}
    if len(sizes) > 1 or 0 in sizes:
        members = tuple(replace(member, view=None, size=1) for member in members)
    return tuple(members)


def _divided_columns(before: TensorType, after: TensorType) -> int | None:
    """The last size of a view that only divides the columns in two; `None` for other views."""
    if after.rank != before.rank + 1 or after.shape[:-2] != before.shape[:-1]:
        return None
    return as_int(after.shape[-1])
