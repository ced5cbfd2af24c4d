"""Concat in place: what a Concat would put together is written where it goes.

In: a fused module. Out: the same results; where a kernel does nothing but join parts, and other
kernels make most of them, these end with a `Put` (they write into the whole's bytes, from where
their part starts), and a `Join` says which parts fill a value, and where they start, in elements.

    %a = fused(%x) {conv, relu}; %b = fused(%x) {conv}; %y = fused(%a, %b) {concat}
    ->  %a.put = fused(%x) {conv, relu, put}; %b.put = fused(%x) {conv, put}
        %y = webmlc.Join(%a.put, %b.put) {starts=(0, 64)}

A part has the type of the whole, of which it fills the origin: kernels that differ in where they
write alone are one kernel. A Concat that another one joins is a part of that; pointwise kernels
read a part where it is (`Crop`), so that DenseNet's blocks, in which every Concat adds a few
channels to the one before, are one buffer. What no kernel can put there is copied by one of its
own.
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
    """needs: a fused module, for the CPU. guarantees: every node is `fused`, `View`, `Bind`, of
    `CONTROL`, or a `Join` of values that nothing but pointwise kernels and other joins read.
    """
    functions = {name: _InPlace(f).run() for name, f in module.functions.items()}
    return replace(module, functions=functions)


@dataclass(frozen=True, slots=True)
class _Concat:
    """What a kernel joins: values of its body, of these lengths along an axis."""

    axis: int
    values: tuple[str, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Join:
    """Where a Concat's parts start in `whole`, in elements; `put` are those whose makers write them
    there.
    """

    whole: TensorType
    starts: tuple[int, ...]
    put: frozenset[str]


@dataclass(slots=True)
class _InPlace:
    """The state: the kernels that do nothing but join, those of them that become a `Join`, and the
    whole that each value lies in that is written in place.
    """

    function: Function
    concats: dict[Node, _Concat] = field(init=False)
    users: dict[str, list[Node]] = field(init=False)
    makers: dict[str, Node] = field(init=False)
    fixed: set[str] = field(init=False)
    types: dict[str, TensorType] = field(init=False)
    joins: dict[Node, _Join] = field(default_factory=dict)
    wholes: dict[str, TensorType] = field(default_factory=dict)

    def run(self) -> Function:
        function = self.function
        bound = BoundSymbols(function)
        known = (node for node in function.nodes if not bound.needed_by(node))
        self.concats = {node: found for node in known if (found := _concat(node)) is not None}
        self.users = consumers(function)
        self.makers = producers(function)
        self.fixed = _made_of_constants(function)
        for node in reversed(self.concats):
            if node not in self.joins:
                self.join(node, function.type(node.outputs[0]))
        self.types = dict(function.types)
        nodes = tuple(made for node in function.nodes for made in self.rewritten(node))
        return replace(function, nodes=nodes, types=self.types)

    def join(self, node: Node, whole: TensorType) -> None:
        """Let the parts of a Concat be written into `whole`, where other kernels make most of it
        and their places are known.
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
        """True for a part that a kernel makes in every run, and that what else reads it can read
        where it is.
        """
        maker = self.makers.get(value)
        if maker is None or maker.op != "fused" or len(maker.outputs) != 1:
            return False
        if value in self.fixed or value in self.wholes or value in self.function.outputs:
            return False
        readers = (user for user in self.users[value] if user is not node)
        return self.concats[node].values.count(value) == 1 and all(map(_is_pointwise, readers))

    def rewritten(self, node: Node) -> Iterator[Node]:
        """What becomes of a node."""
        if node not in self.joins:
            yield self.reading_parts(self.putting(node))
            return
        (value,), join = node.outputs, self.joins[node]
        parts = []
        for number, part in enumerate(self.concats[node].values):
            if part in join.put:
                parts.append(self.spot(part, join.whole))
            else:
                parts.append(self.spot(f"{value}.{number}", join.whole))
                yield self.reading_parts(_copy(node, part, parts[-1], join.whole))
        whole = self.wholes.get(value)
        output = value if whole is None else self.spot(value, whole)
        yield Node("Join", tuple(parts), (output,), {"starts": join.starts}, "webmlc", node.origin)

    def spot(self, value: str, whole: TensorType) -> str:
        """The name of the whole's bytes from where a part starts."""
        self.types[f"{value}.put"] = whole
        return f"{value}.put"

    def putting(self, node: Node) -> Node:
        """A kernel that writes its result where it goes."""
        whole = self.wholes.get(node.outputs[0])
        if whole is None:
            return node
        return _put(node, node.attributes["body"], self.spot(node.outputs[0], whole), whole)

    def reading_parts(self, node: Node) -> Node:
        """A kernel that reads what is written in place where it is."""
        given = {v: self.wholes[v] for v in node.inputs if v in self.wholes}
        if not given:
            return node
        body: Function = node.attributes["body"]
        spots = {v: self.spot(v, whole) for v, whole in given.items()}
        parts = (
            Node("Crop", (spots[v],), (v,), {"types": (body.type(v),)}, "webmlc") for v in given
        )
        inputs = tuple(spots.get(v, v) for v in node.inputs)
        types = {**body.types, **{spots[v]: whole for v, whole in given.items()}}
        body = replace(body, inputs=inputs, nodes=(*parts, *body.nodes), types=types)
        return replace(node, inputs=inputs, attributes={**node.attributes, "body": body})


def _concat(node: Node) -> _Concat | None:
    """What a kernel joins that does nothing else, except for making a part in its own body."""
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


def _made_of_constants(function: Function) -> set[str]:
    """What loading makes, once."""
    made = set(function.constants)
    for node in function.nodes:
        if node.op in ("fused", "View") and node.inputs and made.issuperset(node.inputs):
            made.update(node.outputs)
    return made


def _copy(concat: Node, value: str, output: str, whole: TensorType) -> Node:
    """A kernel that puts one part of a Concat in its place, made of what the Concat reads."""
    body: Function = concat.attributes["body"]
    wanted, nodes = {value}, list[Node]()
    for node in reversed(body.nodes[:-1]):
        if not wanted.isdisjoint(node.outputs):
            nodes.insert(0, node)
            wanted.update(node.inputs)
    part = replace(
        body,
        name=kernel_name(nodes),
        inputs=tuple(v for v in body.inputs if v in wanted),
        outputs=(value,),
        nodes=tuple(nodes),
        constants={v: a for v, a in body.constants.items() if v in wanted},
    )
    return _put(replace(concat, inputs=part.inputs), part, output, whole)


def _put(node: Node, body: Function, output: str, whole: TensorType) -> Node:
    """The kernel of `body`, which writes its result to the origin of `whole`."""
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
