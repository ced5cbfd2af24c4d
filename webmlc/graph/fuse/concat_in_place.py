"""Write the parts of a Concat directly to their places in the result.

In: a fused module. Out: the same results. If a kernel only joins parts, and other kernels compute
most of them, these kernels end with a `Put`: they write into the bytes of the whole, from the start
of their part. A `Join` says which parts fill a value, and where each starts, in elements.

    %a = fused(%x) {conv, relu}; %b = fused(%x) {conv}; %y = fused(%a, %b) {concat}
    ->  %a.put = fused(%x) {conv, relu, put}; %b.put = fused(%x) {conv, put}
        %y = webmlc.Join(%a.put, %b.put) {starts=(0, 64)}

A part has the type of the whole, and fills it from its origin, so kernels that differ only in where
they write are one kernel. If another Concat joins the result of a Concat, it is a part of that.
Pointwise kernels read a part in its place (`Crop`). So DenseNet's blocks, in which every Concat
adds a few channels to the one before, are one buffer. A part that no kernel can write to its place
is copied there by a kernel of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate

from webmlc.core.expr import as_int, const
from webmlc.graph.fuse.fuse import POINTWISE, kernel_name
from webmlc.graph.ir import Attribute, Function, Module, Node, TensorType, consumers, producers
from webmlc.graph.rewrite.bound_symbols import BoundSymbols
from webmlc.graph.rewrite.meaning import kind_of


def concat_in_place(module: Module) -> Module:
    """Join in place in every function.

    needs: a fused module, for the CPU. guarantees: every node is `fused`, `View`, `Bind`, of
    `CONTROL`, or a `Join` of values that only pointwise kernels and other joins read.
    """
    functions = {name: _InPlace(f).run() for name, f in module.functions.items()}
    return replace(module, functions=functions)


@dataclass(frozen=True, slots=True)
class _Concat:
    """The parts that a kernel joins: values of its body, of these lengths along an axis."""

    axis: int
    values: tuple[str, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Join:
    """The starts of a Concat's parts in `whole`, in elements. The producers of the parts in `put`
    write them there.
    """

    whole: TensorType
    starts: tuple[int, ...]
    put: frozenset[str]


@dataclass(slots=True)
class _InPlace:
    """The state of one function: the kernels that only join, the kernels that become a `Join`, and
    the whole of each value that is written in place.
    """

    function: Function
    concats: dict[Node, _Concat] = field(init=False)
    users: dict[str, list[Node]] = field(init=False)
    makers: dict[str, Node] = field(init=False)
    constant_values: set[str] = field(init=False)
    types: dict[str, TensorType] = field(init=False)
    joins: dict[Node, _Join] = field(default_factory=dict)
    wholes: dict[str, TensorType] = field(default_factory=dict)

    def run(self) -> Function:
        function = self.function
        bound = BoundSymbols(function)
        unbound = (node for node in function.nodes if not bound.needed_by(node))
        self.concats = {node: concat for node in unbound if (concat := _concat(node)) is not None}
        self.users = consumers(function)
        self.makers = producers(function)
        self.constant_values = _constant_values(function)
        for node in reversed(self.concats):
            if node not in self.joins:
                self.join(node, function.type(node.outputs[0]))
        self.types = dict(function.types)
        nodes = tuple(new for node in function.nodes for new in self.rewritten(node))
        return replace(function, nodes=nodes, types=self.types)

    def join(self, node: Node, whole: TensorType) -> None:
        """Let the parts of a Concat be written into `whole`, if other kernels compute most of it
        and their places are known at build time.
        """
        concat = self.concats[node]
        inner = [as_int(size) for size in whole.shape[concat.axis + 1 :]]
        fitting = [self.fits(value, node) for value in concat.values]
        length = sum(n for n, fits in zip(concat.lengths, fitting, strict=True) if fits)
        if None in inner or 2 * length < sum(concat.lengths):
            return
        stride = math.prod(size for size in inner if size is not None)
        starts = accumulate((stride * n for n in concat.lengths[:-1]), initial=0)
        put = [value for value, fits in zip(concat.values, fitting, strict=True) if fits]
        self.joins[node] = _Join(whole, tuple(starts), frozenset(put))
        self.wholes |= dict.fromkeys(put, whole)
        for value in put:
            if self.makers[value] in self.concats:
                self.join(self.makers[value], whole)

    def fits(self, value: str, node: Node) -> bool:
        """True for a part that a kernel computes in every run, if its other consumers can read it
        in its place.
        """
        maker = self.makers.get(value)
        if maker is None or maker.op != "fused" or len(maker.outputs) != 1:
            return False
        if value in self.constant_values or value in self.wholes or value in self.function.outputs:
            return False
        readers = (user for user in self.users[value] if user is not node)
        return self.concats[node].values.count(value) == 1 and all(map(_is_pointwise, readers))

    def rewritten(self, node: Node) -> Iterator[Node]:
        """The nodes that replace a node."""
        if node not in self.joins:
            yield self.reading_parts(self.writing_in_place(node))
            return
        (value,), join = node.outputs, self.joins[node]
        parts = []
        for number, part in enumerate(self.concats[node].values):
            if part in join.put:
                parts.append(self.place_of(part, join.whole))
            else:
                parts.append(self.place_of(f"{value}.{number}", join.whole))
                yield self.reading_parts(_copy(node, part, parts[-1], join.whole))
        whole = self.wholes.get(value)
        output = value if whole is None else self.place_of(value, whole)
        yield Node("Join", tuple(parts), (output,), {"starts": join.starts}, "webmlc", node.origin)

    def place_of(self, value: str, whole: TensorType) -> str:
        """The name of the bytes of the whole from the start of a part."""
        self.types[f"{value}.put"] = whole
        return f"{value}.put"

    def writing_in_place(self, node: Node) -> Node:
        """The kernel, writing its result to its place in the whole."""
        whole = self.wholes.get(node.outputs[0])
        if whole is None:
            return node
        return _put(node, node.attributes["body"], self.place_of(node.outputs[0], whole), whole)

    def reading_parts(self, node: Node) -> Node:
        """The kernel, reading values that are written in place from their places."""
        wholes = {v: self.wholes[v] for v in node.inputs if v in self.wholes}
        if not wholes:
            return node
        body: Function = node.attributes["body"]
        places = {v: self.place_of(v, whole) for v, whole in wholes.items()}
        parts = (
            Node("Crop", (places[v],), (v,), {"types": (body.type(v),)}, "webmlc") for v in wholes
        )
        inputs = tuple(places.get(v, v) for v in node.inputs)
        types = {**body.types, **{places[v]: whole for v, whole in wholes.items()}}
        body = replace(body, inputs=inputs, nodes=(*parts, *body.nodes), types=types)
        return replace(node, inputs=inputs, attributes={**node.attributes, "body": body})


def _concat(node: Node) -> _Concat | None:
    """The parts that a kernel joins, some of which it may compute; `None` for other kernels."""
    body = node.attributes.get("body")
    if node.op != "fused" or not isinstance(body, Function) or body.nodes[-1].op != "Concat":
        return None
    last = body.nodes[-1]
    axis = int(last.attributes["axis"]) % body.type(last.outputs[0]).rank
    lengths = [as_int(body.type(v).shape[axis]) for v in last.inputs]
    static = tuple(n for n in lengths if n is not None)
    only = last.outputs == body.outputs and len(static) == len(lengths)
    return _Concat(axis, last.inputs, static) if only else None


def _is_pointwise(node: Node) -> bool:
    body = node.attributes.get("body")
    return isinstance(body, Function) and all(kind_of(n) in POINTWISE for n in body.nodes)


def _constant_values(function: Function) -> set[str]:
    """The values that are computed once, at load."""
    values = set(function.constants)
    for node in function.nodes:
        if node.op in ("fused", "View") and node.inputs and values.issuperset(node.inputs):
            values.update(node.outputs)
    return values


def _copy(concat: Node, value: str, output: str, whole: TensorType) -> Node:
    """A kernel that computes one part of a Concat from its inputs, and writes it to its place."""
    body: Function = concat.attributes["body"]
    needed, nodes = {value}, list[Node]()
    for node in reversed(body.nodes[:-1]):
        if not needed.isdisjoint(node.outputs):
            nodes.insert(0, node)
            needed.update(node.inputs)
    part = replace(
        body,
        name=kernel_name(nodes),
        inputs=tuple(v for v in body.inputs if v in needed),
        outputs=(value,),
        nodes=tuple(nodes),
        constants={v: a for v, a in body.constants.items() if v in needed},
    )
    return _put(replace(concat, inputs=part.inputs), part, output, whole)


def _put(node: Node, body: Function, output: str, whole: TensorType) -> Node:
    """The kernel of `body`, writing its result to the origin of `whole`."""
    attributes: dict[str, Attribute] = {"types": (whole,), "offsets": (const(0),) * whole.rank}
    last = Node("Put", body.outputs, (output,), attributes, "webmlc")
    body = replace(
        body,
        name=f"{body.name}_put".lstrip("_"),
        outputs=(output,),
        nodes=(*body.nodes, last),
        types={**body.types, output: whole},
    )
    return replace(node, outputs=(output,), attributes={**node.attributes, "body": body})
