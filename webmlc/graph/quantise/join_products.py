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

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

import numpy as np

from webmlc.core.expr import Expr, as_int, const
from webmlc.graph.builder import Builder
from webmlc.graph.ir import Function, Module, Node, TensorType, consumers
from webmlc.graph.ops.block_quantised import PRODUCT, WEIGHTS
from webmlc.graph.ops.layout import PACK
from webmlc.graph.rewrite.rewriting import FunctionRewriter
from webmlc.graph.simplify.simplify_graph import remove_dead_code


def join_products(module: Module) -> Module:
    """Join in every function."""
    return module.map_functions(lambda function: _Joining(function).run())


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
class _Joining(FunctionRewriter):
    """The function being written, and the members that are joined, by their nodes."""

    users: dict[str, list[Node]] = field(init=False)
    groups: dict[Node, tuple[_Member, ...]] = field(default_factory=dict)
    replaced: set[Node] = field(default_factory=set)

    def run(self) -> Function:
        self.users = consumers(self.source)
        self.find_groups()
        if not self.groups:
            return self.source
        for node in self.source.nodes:
            if node in self.groups:
                self.join(self.groups[node])
            elif node not in self.replaced:
                self.keep(node)
        return remove_dead_code(self.written())

    def find_groups(self) -> None:
        """Collect the products that can be joined, by the first product of each group."""
        by_form: dict[object, list[_Member]] = {}
        position = {node: number for number, node in enumerate(self.source.nodes)}
        for node in self.source.nodes:
            if (node.domain, node.op) == PRODUCT and self.has_own_weights(node):
                by_form.setdefault(self.form(node), []).append(self.member(node))
        for members in by_form.values():
            # Only the last member may end within a panel of columns.
            ordered = sorted(members, key=lambda member: member.columns % PACK != 0)
            whole = [member for member in ordered if member.columns % PACK == 0]
            joined = _with_equal_ends(ordered[: len(whole) + 1])
            if len(joined) < 2:
                continue
            first = min(joined, key=lambda member: position[member.product])
            self.groups[first.product] = joined
            for member in joined:
                nodes = (member.product, member.bias, member.view)
                self.replaced.update(node for node in nodes if node is not None)

    def has_own_weights(self, node: Node) -> bool:
        """True if the weights are constants that no other node reads."""
        weights = node.inputs[WEIGHTS:]
        return all(w in self.constants and self.users[w] == [node] for w in weights)

    def form(self, node: Node) -> object:
        """The properties that are equal for products that can be joined."""
        attributes = tuple((name, node.attributes[name]) for name in ("bits", "block", "excess"))
        types = tuple(self.constants[weight].dtype.str for weight in node.inputs[WEIGHTS:])
        return (node.inputs[:WEIGHTS], attributes, types)

    def member(self, product: Node) -> _Member:
        """A product with the sum and the view that follow it."""
        member = _Member(product, int(product.attributes["columns"]))
        bias = self.only_reader(product.outputs[0])
        if bias is not None and (bias.domain, bias.op) == ("", "Add"):
            vectors = (self.constants[i] for i in bias.inputs if i in self.constants)
            if any(vector.shape == (member.columns,) for vector in vectors):
                member = replace(member, bias=bias)
        view = self.only_reader(member.last.outputs[0])
        if view is not None and (view.domain, view.op, len(view.inputs)) == ("", "Reshape", 1):
            size = _divided_columns(self.types[view.inputs[0]], self.types[view.outputs[0]])
            if size is not None:
                member = replace(member, view=view, size=size)
        return member

    def only_reader(self, value: str) -> Node | None:
        """The only node that reads a value. `None` if several nodes or the caller read it."""
        users = self.users.get(value, [])
        return users[0] if len(users) == 1 and value not in self.source.outputs else None

    def join(self, members: Sequence[_Member]) -> None:
        """Write one product, and the slices of its result."""
        first = members[0]
        origin = tuple(dict.fromkeys(o for m in members for o in m.product.origin))
        build = Builder(replace(first.product, origin=origin), self)
        slots = range(WEIGHTS, len(first.product.inputs))
        weights = [
            build.constant(np.concatenate([self.constants[m.product.inputs[s]] for m in members]))
            for s in slots
        ]
        columns = sum(member.columns for member in members)
        value = build(
            PRODUCT[1], *first.product.inputs[:WEIGHTS], *weights, domain=PRODUCT[0],
            **{**first.product.attributes, "columns": columns},
        )  # fmt: skip
        if first.bias is not None:
            biases = [
                self.constants[next(i for i in m.bias.inputs if i in self.constants)]
                for m in members
                if m.bias is not None
            ]
            value = build("Add", value, build.constant(np.concatenate(biases)))
        if first.view is not None:
            rows = self.types[first.view.outputs[0]].shape[:-2]
            shape: tuple[Expr, ...] = (*rows, const(columns // first.size), const(first.size))
            type_ = TensorType(self.types[value].dtype, shape)
            value = build("Reshape", value, type_=type_, shape=shape)
        axis = len(self.types[value].shape) - (1 if first.view is None else 2)
        ends = accumulate((member.columns // first.size for member in members), initial=0)
        for member, (start, end) in zip(members, pairwise(ends), strict=True):
            slice_of = Builder(member.last, self)
            bounds = (slice_of.constant(np.array([n])) for n in (start, end, axis))
            slice_of("Slice", value, *bounds, output=member.last.outputs[0])


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
