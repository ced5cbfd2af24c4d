"""Write values directly to their places in larger values: parts of a Concat, and rows of a state.

In: a fused module. Out: the same results. If a kernel only joins parts, and other kernels compute
most of them, `concat_in_place` removes it: each part becomes a region of the result.

    %a = fused(%x) {conv, relu}; %b = fused(%x) {conv}; %y = fused(%a, %b) {concat}
    ->  %a in %y[0, 0, 0, 0] = fused(%x) {conv, relu}; %b in %y[0, 0, 0, 64] = fused(%x) {conv}

If another Concat joins the result of a Concat, all parts are regions of the outer result. Pointwise
kernels read a part in its place. So a block of DenseNet, in which every Concat adds a few channels
to the result of the Concat before, is one buffer. `append_in_place` makes the rows of each `Append`
a region of the state:

    %r = fused(%x) {mul, add}; %k = Append(%r) {length=past}
    ->  %r in %k[past, 0, 0] = fused(%x) {mul, add}            %k is a state of the module

A part that no kernel can write to its place is copied there by a separate kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate

from webmlc.core.expr import as_int, const
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.fuse.kernels import body_of, constant_values, is_pointwise, kernel, kernel_name
from webmlc.graph.ir import Function, Module, Node, Region, TensorType, consumers, producers
from webmlc.graph.ops.decoder import APPEND
from webmlc.graph.ops.operator import Scope
from webmlc.graph.rewrite.bound_symbols import BoundSymbols


def append_in_place(module: Module) -> Module:
    """Append in place in `main`, the only function with states.

    needs: a fused module. guarantees: no `Append`; `Module.states` names every state.
    """
    if not module.length:
        return module
    appends = _Appends(module.main)
    return module.with_main(appends.run(), states=tuple(appends.states))


def concat_in_place(module: Module, limits: FusionLimits | None = None) -> Module:
    """Join in place in every function, within the limits of a kernel.

    needs: a fused module. guarantees: every node is `fused`, `View`, `Append`, `Bind` or of
    `CONTROL`. The nodes that read a value come after those that write its parts. Only pointwise
    kernels read a part. The start of each part in its whole is known at build time.
    """
    chosen_limits = limits or FusionLimits()
    return module.map_functions(lambda function: _joined(function, chosen_limits))


def _joined(function: Function, limits: FusionLimits) -> Function:
    """Join in place. If the limits forbid that a kernel reads one part of a value and writes
    another part, the part that it reads stays apart.
    """
    apart: set[str] = set()
    while True:
        result = _Concats(function, limits=limits, apart=frozenset(apart)).run()
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


@dataclass(slots=True)
class _InPlace:
    """The state of one function, with the regions of the parts so far."""

    function: Function
    users: dict[str, list[Node]] = field(init=False)
    makers: dict[str, Node] = field(init=False)
    constants: set[str] = field(init=False)
    types: dict[str, TensorType] = field(init=False)
    regions: dict[str, Region] = field(init=False)

    def __post_init__(self) -> None:
        self.users, self.makers = consumers(self.function), producers(self.function)
        self.constants = constant_values(self.function)
        self.types, self.regions = dict(self.function.types), dict(self.function.regions)

    def run(self) -> Function:
        """The function in which parts are written to their places."""
        nodes = tuple(new for node in self.function.nodes for new in self.rewritten(node))
        return replace(self.function, nodes=nodes, types=self.types, regions=self.regions)

    def rewritten(self, node: Node) -> Iterator[Node]:
        """The nodes that replace a node: kernels that copy parts to their places, or the node."""
        raise NotImplementedError

    def fits(self, value: str, joining: Node) -> bool:
        """True for a part that a kernel computes in every run as its only result, if all consumers
        but `joining` can read it in its place.
        """
        if value in self.constants or value in self.regions or value in self.function.outputs:
            return False
        maker = self.makers.get(value)
        is_only_result = maker is not None and maker.op == "fused" and len(maker.outputs) == 1
        users = self.users.get(value, ())
        return is_only_result and all(user is joining or is_pointwise(user) for user in users)


@dataclass(slots=True)
class _Appends(_InPlace):
    """The states so far."""

    states: list[str] = field(default_factory=list)

    def rewritten(self, node: Node) -> Iterator[Node]:
        if node.operator != APPEND:
            yield node
            return
        (rows,), (state,) = node.inputs, node.outputs
        self.states.append(state)
        region = Region.along(0, node.attributes["length"], state, self.types[state].rank)
        if self.fits(rows, node):
            self.regions[rows] = region
            return
        copy, type_ = f"{state}.rows", Scope.of(self.function).type_of(rows)
        assert type_ is not None
        self.types[copy], self.regions[copy] = type_, region
        types, nodes = {rows: type_, copy: type_}, (Node("Identity", (rows,), (copy,)),)
        yield kernel(Function("append", (rows,), (copy,), nodes, types, {}), node)


@dataclass(frozen=True, slots=True)
class _Concat:
    """The parts that a kernel joins: values of its body, of these lengths along an axis."""

    axis: int
    values: tuple[str, ...]
    lengths: tuple[int, ...]


@dataclass(slots=True)
class _Concats(_InPlace):
    """The values that stay `apart`. `concats` are the kernels that only join; `joins` are the
    removed ones, with the names of their parts.
    """

    limits: FusionLimits = field(kw_only=True)
    apart: frozenset[str] = field(kw_only=True)
    concats: dict[Node, _Concat] = field(default_factory=dict)
    joins: dict[Node, tuple[str, ...]] = field(default_factory=dict)

    def run(self) -> Function:
        bound = BoundSymbols(self.function)
        for node in self.function.nodes:
            concat = None if bound.needed_by(node) else _concat(node)
            if concat is not None:
                self.concats[node] = concat
        for node in reversed(self.concats):
            if node not in self.joins:
                self.join(node)
        return _InPlace.run(self)

    def join(self, node: Node) -> None:
        """Let other kernels write the parts of a Concat to their places, if they compute most of
        its result and the places are known at build time.
        """
        concat, (value,) = self.concats[node], node.outputs
        outer = self.regions.get(value)
        whole = self.function.type(value if outer is None else outer.whole)
        fitting = [
            concat.values.count(v) == 1 and v not in self.apart and self.fits(v, node)
            for v in concat.values
        ]
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

    def rewritten(self, node: Node) -> Iterator[Node]:
        if node not in self.joins:
            yield node
            return
        for value, name in zip(self.concats[node].values, self.joins[node], strict=True):
            if value != name:
                body = _part(node.attributes["body"], value, name)
                self.types[name] = body.type(name)
                yield kernel(body, node)


def _concat(node: Node) -> _Concat | None:
    """The parts that a kernel joins; it may compute some of them. `None` for other kernels."""
    body = body_of(node)
    if body is None or body.nodes[-1].op != "Concat" or body.nodes[-1].outputs != body.outputs:
        return None
    last = body.nodes[-1]
    axis = int(last.attributes["axis"]) % body.type(last.outputs[0]).rank
    lengths = [as_int(body.type(v).shape[axis]) for v in last.inputs]
    static = tuple(n for n in lengths if n is not None)
    return _Concat(axis, last.inputs, static) if len(static) == len(lengths) else None


def _part(body: Function, value: str, output: str) -> Function:
    """The function that computes one part of a Concat from its inputs, and names it `output`."""
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
    return replace(
        body,
        name=name,
        inputs=tuple(v for v in body.inputs if v in needed),
        outputs=(output,),
        nodes=tuple(nodes),
        types={**body.types, output: body.type(value)},
        constants={v: a for v, a in body.constants.items() if v in needed},
    )
