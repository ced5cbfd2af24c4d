"""Write the parts of a Concat directly to their places in the result.

In: a fused module. Out: the same results. If a kernel only joins parts, and other kernels compute
most of them, the kernel is removed: each part becomes a region of the result.

    %a = fused(%x) {conv, relu}; %b = fused(%x) {conv}; %y = fused(%a, %b) {concat}
    ->  %a in %y[0, 0, 0, 0] = fused(%x) {conv, relu}; %b in %y[0, 0, 0, 64] = fused(%x) {conv}

If another Concat joins the result of a Concat, all parts are regions of the outer result. Pointwise
kernels read a part in its place. So a block of DenseNet, in which every Concat adds a few channels
to the result of the Concat before, is one buffer. A part that no kernel can write to its place is
copied there by a separate kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from webmlc.core.expr import as_int, const
from webmlc.graph.fuse.fuse import POINTWISE
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.fuse.kernel_name import kernel_name
from webmlc.graph.ir import Function, Module, Node, Region, TensorType, consumers, producers
from webmlc.graph.rewrite.bound_symbols import BoundSymbols
from webmlc.graph.rewrite.meaning import kind_of


def concat_in_place(module: Module, limits: FusionLimits | None = None) -> Module:
    """Join in place in every function, within the limits of a kernel.

    needs: a fused module. guarantees: every node is `fused`, `View`, `Append`, `Bind` or of
    `CONTROL`. The nodes that read a value come after those that write its parts. Only pointwise
    kernels read a part. The start of each part in its whole is known at build time.
    """
    chosen_limits = limits or FusionLimits()
    functions = {name: _in_place(f, chosen_limits) for name, f in module.functions.items()}
    return replace(module, functions=functions)


def _in_place(function: Function, limits: FusionLimits) -> Function:
    """Join in place. If the limits forbid that a kernel reads one part of a value and writes
    another part, the part that it reads stays apart.
    """
    apart: set[str] = set()
    while True:
        result = _InPlace(function, limits, frozenset(apart)).run()
        conflicts = _read_and_written(result) if limits.binds_once else set()
        if not conflicts:
            return result
        apart |= conflicts


def _read_and_written(function: Function) -> set[str]:
    """The parts that a kernel reads while it writes another part of the same value."""
    wholes = {part: region.whole for part, region in function.regions.items()}
    conflicts: set[str] = set()
    for node in function.nodes:
        written = {wholes[output] for output in node.outputs if output in wholes}
        conflicts.update(value for value in node.inputs if wholes.get(value) in written)
    return conflicts


@dataclass(frozen=True, slots=True)
class _Concat:
    """The parts that a kernel joins: values of its body, of these lengths along an axis."""

    axis: int
    values: tuple[str, ...]
    lengths: tuple[int, ...]


@dataclass(slots=True)
class _InPlace:
    """The state of one function. `apart` are the values that stay apart. `concats` are the kernels
    that only join; `joins` are the removed ones, with the names of their parts. `regions` are the
    regions of the parts.
    """

    function: Function
    limits: FusionLimits
    apart: frozenset[str]
    concats: dict[Node, _Concat] = field(init=False)
    users: dict[str, list[Node]] = field(init=False)
    makers: dict[str, Node] = field(init=False)
    constant_values: set[str] = field(init=False)
    types: dict[str, TensorType] = field(init=False)
    joins: dict[Node, tuple[str, ...]] = field(default_factory=dict)
    regions: dict[str, Region] = field(default_factory=dict)

    def run(self) -> Function:
        function = self.function
        self.regions = dict(function.regions)
        bound = BoundSymbols(function)
        unbound = (node for node in function.nodes if not bound.needed_by(node))
        self.concats = {node: concat for node in unbound if (concat := _concat(node)) is not None}
        self.users = consumers(function)
        self.makers = producers(function)
        self.constant_values = constant_values(function)
        for node in reversed(self.concats):
            if node not in self.joins:
                self.join(node)
        self.types = dict(function.types)
        nodes = tuple(new for node in function.nodes for new in self.rewritten(node))
        return replace(function, nodes=nodes, types=self.types, regions=self.regions)

    def join(self, node: Node) -> None:
        """Let other kernels write the parts of a Concat to their places, if they compute most of
        its result and the places are known at build time.
        """
        concat = self.concats[node]
        (value,) = node.outputs
        outer = self.regions.get(value)
        whole = self.function.type(value if outer is None else outer.whole)
        fitting = [self.fits(part, node) for part in concat.values]
        length = sum(n for n, fits in zip(concat.lengths, fitting, strict=True) if fits)
        inner = [as_int(size) for size in whole.shape[concat.axis + 1 :]]
        if None in inner or 2 * length < sum(concat.lengths):
            return
        if fitting.count(False) > self.limits.copied_parts or not self.limits.can_bind(whole):
            return
        names = []
        for number, start in enumerate(accumulate(concat.lengths[:-1], initial=0)):
            name = concat.values[number] if fitting[number] else f"{value}.part{number}"
            region = Region.along(concat.axis, const(start), value, whole.rank)
            self.regions[name] = region if outer is None else region.within(outer)
            names.append(name)
        self.joins[node] = tuple(names)
        for name in names:
            if self.makers.get(name) in self.concats:
                self.join(self.makers[name])

    def fits(self, value: str, node: Node) -> bool:
        """True for a part that a kernel computes in every run, if its other consumers can read it
        in its place.
        """
        if value in self.constant_values or value in self.regions or value in self.function.outputs:
            return False
        if value in self.apart:
            return False
        is_movable = can_move(self.makers.get(value), self.users.get(value, ()), node)
        return self.concats[node].values.count(value) == 1 and is_movable

    def rewritten(self, node: Node) -> Iterator[Node]:
        """The nodes that replace a node: kernels that copy parts to their places, or the node."""
        if node not in self.joins:
            yield node
            return
        for value, name in zip(self.concats[node].values, self.joins[node], strict=True):
            if value != name:
                copy = _copy(node, value, name)
                self.types[name] = copy.attributes["body"].type(name)
                yield copy


def _concat(node: Node) -> _Concat | None:
    """The parts that a kernel joins; it may compute some of them. `None` for other kernels."""
    body = node.attributes.get("body")
    if node.op != "fused" or not isinstance(body, Function) or body.nodes[-1].op != "Concat":
        return None
    last = body.nodes[-1]
    axis = int(last.attributes["axis"]) % body.type(last.outputs[0]).rank
    lengths = [as_int(body.type(v).shape[axis]) for v in last.inputs]
    static = tuple(n for n in lengths if n is not None)
    only = last.outputs == body.outputs and len(static) == len(lengths)
    return _Concat(axis, last.inputs, static) if only else None


def can_move(maker: Node | None, users: Sequence[Node], joining: Node) -> bool:
    """True if the kernel `maker` can write its only result as a part of the result of `joining`,
    and all other consumers can read it there.
    """
    if maker is None or maker.op != "fused" or len(maker.outputs) != 1:
        return False
    return all(user is joining or _is_pointwise(user) for user in users)


def _is_pointwise(node: Node) -> bool:
    """True for a kernel whose elements depend on elements at one position each."""
    body = node.attributes.get("body")
    return isinstance(body, Function) and all(kind_of(n) in POINTWISE for n in body.nodes)


def constant_values(function: Function) -> set[str]:
    """The values that are computed once, at load."""
    values = set(function.constants)
    for node in function.nodes:
        if node.op in ("fused", "View") and node.inputs and values.issuperset(node.inputs):
            values.update(node.outputs)
    return values


def _copy(concat: Node, value: str, output: str) -> Node:
    """A kernel that computes one part of a Concat from its inputs, and names it `output`."""
    body: Function = concat.attributes["body"]
    needed, nodes = {value}, list[Node]()
    for node in reversed(body.nodes[:-1]):
        if not needed.isdisjoint(node.outputs):
            nodes.insert(0, node)
            needed.update(node.inputs)
    name = kernel_name(nodes)
    if nodes:
        outputs = tuple(output if o == value else o for o in nodes[-1].outputs)
        nodes[-1] = replace(nodes[-1], outputs=outputs)
    else:
        nodes.append(Node("Identity", (value,), (output,)))
    body = replace(
        body,
        name=name,
        inputs=tuple(v for v in body.inputs if v in needed),
        outputs=(output,),
        nodes=tuple(nodes),
        types={**body.types, output: body.type(value)},
        constants={v: a for v, a in body.constants.items() if v in needed},
    )
    attributes = {**concat.attributes, "body": body}
    return replace(concat, inputs=body.inputs, outputs=(output,), attributes=attributes)
