"""Fuse groups of nodes into `fused` nodes, one kernel each.

In: a function after layouts. Out: a function whose nodes are `fused` (attribute `body`: the group
as a graph function), `View` (same bytes, other shape) and `Bind` (sizes read from memory). There
are three steps. First, every contraction and reduction takes the elementwise nodes after it as its
epilogue. It also takes the Pad of its result if the limits say so, and writes into the padded
feature map. Second, every reduction takes the elementwise nodes that only it reads as its prologue.
Third, the other nodes form groups among themselves, forward and backward.

    %c = Conv(%x, %w); %r = Relu(%c); %s = Add(%r, %k)  ->  %s = fused(%x, %w, %k) {conv, relu, add}
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from webmlc.core.expr import Expr, as_int
from webmlc.core.simplify import prove_equal
from webmlc.graph.algorithms.attention.nodes import (
    is_attention,
    is_transpose,
    logits_nodes,
    operand_moves,
)
from webmlc.graph.compute import placeholder
from webmlc.graph.fuse.choose_padding import is_constant, writes_padded
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.fuse.kernels import POINTWISE, kernel, kernel_name
from webmlc.graph.ir import Function, Module, Node, Region, TensorType, consumers, producers
from webmlc.graph.ops.block_quantised import QUANTISE_BLOCKS
from webmlc.graph.ops.control import CONTROL
from webmlc.graph.ops.decoder import APPEND
from webmlc.graph.ops.operator import Scope, is_bind, is_symbolic, symbolic_constant, symbolic_value
from webmlc.graph.rewrite.bound_symbols import BoundSymbols, in_order_of_binds
from webmlc.graph.rewrite.meaning import MAPS, kind_of, parts_of_node, row_of

_MAX_LOOK_AHEAD = 24
"""The most nodes after an anchor that are tried for its epilogue (chosen by hand: build time)."""


def fuse(module: Module, limits: FusionLimits | None = None) -> Module:
    """Group the nodes of every function into kernels.

    needs: inferred types, layouts chosen. guarantees: every node is `fused`, `View`, `Append`,
    `Bind` or of `CONTROL`. The order is topological, and few binds interrupt nodes that can run
    together. A value leaves its group only if another group or the caller reads it.
    """
    chosen_limits = limits or FusionLimits()
    return module.map_functions(
        lambda function: _Fusion(function, chosen_limits, module.algorithms).run()
    )


@dataclass(slots=True)
class _Fusion:
    """The state: the group (a list of nodes, in order) of each node. `algorithms` is
    `Module.algorithms`. `regions` are the places of values in padded feature maps.
    """

    function: Function
    limits: FusionLimits
    algorithms: Mapping[str, str]
    groups: dict[Node, list[Node]] = field(default_factory=dict)
    regions: dict[str, Region] = field(default_factory=dict)
    users: dict[str, list[Node]] = field(init=False)
    makers: dict[str, Node] = field(init=False)
    position: dict[Node, int] = field(init=False)
    symbolic: dict[str, Node] = field(init=False)
    returned: frozenset[str] = field(init=False)
    bound: BoundSymbols = field(init=False)
    scope: Scope = field(init=False)

    def __post_init__(self) -> None:
        function = self.function
        self.users, self.makers = consumers(function), producers(function)
        self.position = {node: p for p, node in enumerate(function.nodes)}
        self.symbolic = {
            node.outputs[0]: symbolic_constant_of(node)
            for node in function.nodes
            if is_symbolic(node)
        }
        self.returned = frozenset(function.outputs)
        self.bound, self.scope = BoundSymbols(function), Scope.of(function)

    def run(self) -> Function:
        """The function of kernels."""
        for node in filter(is_attention, self.function.nodes):
            self.take_attention(node)
        for kind in ("contraction", "reduction"):
            for node in self.function.nodes:
                if kind_of(node) == kind and node not in self.groups:
                    self.take_epilogue([node], MAPS)
                    self.take_padding(self.groups[node])
                    if self.limits.joins_operands and is_block_product(node):
                        fits = partial(is_operand, self.function, node)
                        self.take_prologue(self.groups[node], fits)
        for node in self.function.nodes:
            has_product = any(map(is_block_product, self.groups.get(node, ())))
            if kind_of(node) == "reduction" and node.domain == "" and not has_product:
                self.take_prologue(self.groups[node], lambda maker: kind_of(maker) in MAPS)
        for node in self.function.nodes if self.limits.pads == "always" else ():
            if row_of(node).trait == "pool":
                self.take_prologue(self.groups[node], self.is_padding_of_pool)
        for node in self.function.nodes if self.limits.quantises_rows else ():
            if node.operator == QUANTISE_BLOCKS:
                self.groups[node] = [node]
                self.take_rows(self.groups[node])
        for node in sorted(self.function.nodes, key=lambda node: node.op != "Concat"):
            if node not in self.groups and not is_no_kernel(node):
                kinds = POINTWISE if kind_of(node) in POINTWISE else frozenset()
                self.take_epilogue([node], kinds)
                if kinds:
                    self.take_prologue(self.groups[node], self.is_read_once)
        return self.build()

    def take_attention(self, node: Node) -> None:
        """Take the nodes that compute the logits of an attention. If the limits allow it, also take
        the transpositions of its operands and of its result.
        """
        self.take_epilogue([node], MAPS)
        group = self.groups[node]
        logits, *values = node.inputs
        members = logits_nodes(self.function, self.makers, logits, lambda _: True)
        if self.limits.joins_transposes:
            operands = [i for m in members if kind_of(m) == "contraction" for i in m.inputs]
            members += operand_moves(self.makers, *operands, *values)
        self.take_prologue(group, members.__contains__)
        after = self.only_reader(group)
        if self.limits.joins_transposes and after is not None and is_transpose(after):
            self.take(group, after, at=len(group))

    def take(self, group: list[Node], node: Node, at: int = 0) -> None:
        """Put a node into a group, before the member at this place."""
        group.insert(at, node)
        self.groups[node] = group

    def only_reader(self, group: list[Node]) -> Node | None:
        """The only reader of the only value that leaves a group. `None` if there are several values
        or readers, or if the reader is in a group.
        """
        live = self.live_out(group)
        readers = list(self.users.get(live[0], ())) if len(live) == 1 else []
        if len(readers) != 1 or live[0] in self.returned or readers[0] in self.groups:
            return None
        return readers[0]

    def take_epilogue(self, group: list[Node], kinds: frozenset[str]) -> None:
        """Grow `group` forward, and keep the longest group that exactly one value leaves."""
        best = list(group)
        grown = list(group)
        values = {o for node in group for o in node.outputs if o}
        shape = self.function.type(group[0].outputs[0])
        first_output = group[0].outputs[0]
        pointwise = kind_of(group[0]) in POINTWISE
        if sum(1 for o in group[0].outputs if o) == 1 and kinds:
            for node in self.followers(first_output):
                fits = (
                    kind_of(node) in kinds
                    and node not in self.groups
                    and self.keeps_shape(node, shape, pointwise)
                )
                if not fits or not any(i in values for i in node.inputs) or len(node.outputs) != 1:
                    continue
                grown.append(node)
                values.add(node.outputs[0])
                shape = self.function.type(node.outputs[0])
                if self.live_out(grown) == [node.outputs[0]] and self.fits_limits(grown):
                    best = list(grown)
        for node in best:
            self.groups[node] = best
        self.take_dequantised(best)

    def take_padding(self, group: list[Node]) -> None:
        """Let the group write its result into the padded feature map that a `Pad` would compute.

        If the limits allow it, other nodes may read the result, too: they read it inside the padded
        feature map.
        """
        pad = self.padding_of(group)
        type_ = None if pad is None else self.scope.type_of(pad.inputs[0])
        if pad is None or type_ is None or not self.fits_limits([*group, pad]):
            return
        (value, *_), (padded,) = pad.inputs, pad.outputs
        padded_type, is_chosen = self.function.type(padded), self.limits.pads == "chosen"
        if is_chosen and not writes_padded(type_, padded_type, self.algorithms):
            return
        if not self.limits.can_bind(padded_type):
            return
        data = placeholder(value, type_.shape, type_.dtype)
        if parts := parts_of_node(pad, self.scope, (data,)):
            if len(self.users[value]) > 1:
                self.regions[value] = parts[-1].region
            self.take(group, pad, at=len(group))

    def padding_of(self, group: list[Node]) -> Node | None:
        """The `Pad` of the only value that leaves a group, if its other consumers can read this
        value in its place.
        """
        live = self.live_out(group)
        if self.limits.pads == "never" or len(live) != 1 or live[0] in self.returned:
            return None
        (value,) = live
        readers = self.users[value]
        pads = [
            n for n in readers if n not in self.groups and is_constant(n) and n.inputs[0] == value
        ]
        if len(readers) > 1:
            if self.limits.pads != "always" or not all(map(self.reads_parts, readers)):
                return None
            pads = [pad for pad in pads if not self.is_padding_of_pool(pad)]
        return pads[0] if pads else None

    def reads_parts(self, node: Node) -> bool:
        """True for a node whose kernel can read a part of a feature map in its place: it computes
        the position of each element in memory from its indices.
        """
        has_indices = kind_of(node) in POINTWISE or "windows" in node.attributes
        return has_indices and not is_no_kernel(node)

    def is_padding_of_pool(self, node: Node) -> bool:
        """True for a constant `Pad` that only a pool reads: the pool can pad while it reads."""
        readers = self.users.get(node.outputs[0], [])
        is_read_by_pool = len(readers) == 1 and row_of(readers[0]).trait == "pool"
        return is_constant(node) and is_read_by_pool and node.outputs[0] not in self.returned

    def take_dequantised(self, group: list[Node]) -> None:
        """Take the DequantizeLinears that the epilogue reads, so that it reads small integers."""
        for node in list(group):
            for value in node.inputs if kind_of(node) in MAPS else ():
                maker = self.makers.get(value)
                if maker is None or maker.op != "DequantizeLinear" or maker in self.groups:
                    continue
                if self.live_out([maker, *group]) == self.live_out(group):
                    self.take(group, maker)

    def followers(self, value: str) -> Iterator[Node]:
        """The nodes that depend on `value` within a short distance, in topological order.

        If a value has more consumers than a kernel may have nodes, its consumers are left out: such
        a value leaves its kernel anyway.
        """
        readers_so_far: dict[Node, None] = {}
        front = [value]
        while front and len(readers_so_far) < _MAX_LOOK_AHEAD:
            users = (self.users.get(v, ()) for v in front)
            read_by_few = (nodes for nodes in users if len(nodes) <= self.limits.nodes)
            readers = [n for nodes in read_by_few for n in nodes if n not in readers_so_far]
            readers_so_far.update(dict.fromkeys(readers))
            front = [o for n in readers if kind_of(n) in POINTWISE for o in n.outputs if o]
        return iter(sorted(readers_so_far, key=self.position.__getitem__))

    def keeps_shape(self, node: Node, anchor: TensorType, pointwise: bool) -> bool:
        """True where `node` is a map over the anchor's elements (or, for pointwise groups, any
        injective map).
        """
        shape = self.function.type(node.outputs[0]).shape
        if kind_of(node) == "injective":
            return pointwise and node.op != "Concat"
        return (may_be_same if pointwise else is_same)(shape, anchor.shape)

    def live_out(self, group: Iterable[Node]) -> list[str]:
        """The values that the group computes, and that other nodes or the caller read."""
        members = set(group)
        outputs = [o for node in members for o in node.outputs if o]
        return [
            v
            for v in outputs
            if v not in self.regions
            and (v in self.returned or any(u not in members for u in self.users.get(v, ())))
        ]

    def fits_limits(self, group: list[Node]) -> bool:
        """True if a kernel is within the limits. A constant of one element needs no buffer."""
        is_small = len(group) <= self.limits.nodes
        return is_small and len(self.inputs_of(group)) + 1 <= self.limits.buffers

    def inputs_of(self, group: Sequence[Node]) -> list[str]:
        """The values that the group reads from outside, in order of first use, without constants of
        one element.
        """
        outputs = {o for node in group for o in node.outputs}
        read = dict.fromkeys(i for node in group for i in node.inputs if i and i not in outputs)
        return [v for v in read if not self.is_literal(v) and v not in self.symbolic]

    def symbolic_nodes(self, group: list[Node]) -> list[Node]:
        """The symbolic constants that the group reads. They have no bytes; a group has copies."""
        read = dict.fromkeys(i for node in group for i in node.inputs)
        outputs = {o for node in group for o in node.outputs}
        return [self.symbolic[v] for v in read if v in self.symbolic and v not in outputs]

    def is_literal(self, value: str) -> bool:
        array = self.function.constants.get(value)
        return array is not None and array.size == 1

    def take_prologue(self, group: list[Node], fits: Callable[[Node], bool]) -> None:
        """Grow a group backward over nodes that fit and that only the group reads.

        Pools of domain `webmlc` take no prologue, because they read an element several times. A
        reduction takes no rearrangements, because each of its stages would compute them again.
        """
        queue = deque(i for node in group for i in node.inputs if i)
        while queue:
            maker = self.makers.get(queue.popleft())
            if maker is None or maker in self.groups or not fits(maker):
                continue
            members = set(group)
            only_here = all(u in members for o in maker.outputs for u in self.users.get(o, ()))
            if not only_here or not self.returned.isdisjoint(maker.outputs):
                continue
            if not self.fits_limits([maker, *group]):
                continue
            self.take(group, maker)
            queue += [i for i in maker.inputs if i]

    def take_rows(self, group: list[Node]) -> None:
        """Let the kernel that quantises blocks compute the rows of the blocks. It takes maps,
        pointwise nodes whose elements are read once, and a norm of rows before these nodes.
        """

        def fits(maker: Node) -> bool:
            return kind_of(maker) in MAPS or self.is_read_once(maker)

        self.take_prologue(group, fits)
        norm = self.makers.get(group[0].inputs[0])
        norm_group = self.groups.get(norm, []) if norm is not None else []
        if norm is None or row_of(norm).trait != "row norm" or len(group) > 1:
            return
        whole = [*norm_group, *group]
        if norm_group[-1] is norm and self.live_out(whole) == self.live_out(group):
            for node in norm_group:
                self.groups[node] = whole
            self.groups[group[0]] = whole

    def is_read_once(self, maker: Node) -> bool:
        """True for a pointwise node whose consumers read every element once. Concat and Transpose
        are left out: separate kernels compute them faster, part by part and block by block.
        """
        if kind_of(maker) not in POINTWISE or maker.op in ("Concat", "Transpose"):
            return False
        if len(maker.outputs) != 1:
            return False
        shape = self.function.type(maker.outputs[0]).shape
        maps = [user for user in self.users[maker.outputs[0]] if kind_of(user) in MAPS]
        return all(may_be_same(shape, self.function.type(u.outputs[0]).shape) for u in maps)

    def build(self) -> Function:
        """The function of `fused` and `View` nodes, ordered by their dependences."""
        read_from_memory = set(self.function.outputs)
        for node in self.function.nodes:
            if is_no_kernel(node):
                self.groups[node] = [node]
                read_from_memory.update(node.inputs)
        checked = self.bound.checked_by(self.function.requirements)
        virtual = self.symbolic.keys() - read_from_memory - {b.outputs[0] for b in checked}
        nodes: list[Node] = []
        done: set[int] = set()
        stack = [
            (self.groups[node], False)
            for node in reversed(self.function.nodes)
            if node.outputs[0] not in virtual
        ]
        while stack:
            group, expanded = stack.pop()
            if id(group) in done:
                continue
            if expanded:
                done.add(id(group))
                is_whole = len(group) == 1 and is_no_kernel(group[0])
                nodes.append(group[0] if is_whole else self.fused_node(group))
                continue
            stack.append((group, True))
            read = [i for n in group for i in n.inputs if i not in virtual]
            makers = [self.makers[i] for i in read if i in self.makers]
            makers += [binder for n in group for binder in self.bound.needed_by(n)]
            stack += [(self.groups[m], False) for m in makers if self.groups[m] is not group]
        regions = {**self.function.regions, **self.regions}
        nodes_in_order = in_order_of_binds(nodes, self.bound)
        return replace(self.function, nodes=nodes_in_order, regions=regions)

    def fused_node(self, group: list[Node]) -> Node:
        """The kernel of a group."""
        members = sorted(group, key=self.position.__getitem__)
        ordered = (*self.symbolic_nodes(members), *members)
        live = self.live_out(members)
        values = sorted({v for node in ordered for v in (*node.inputs, *node.outputs) if v})
        constants = self.function.constants
        body = Function(
            kernel_name(members),
            tuple(self.inputs_of(ordered)),
            tuple(o for node in members for o in node.outputs if o in live),
            ordered,
            {v: t for v in values if (t := self.scope.type_of(v)) is not None},
            {v: constants[v] for v in values if v in constants},
        )
        return kernel(body, *ordered)


def is_no_kernel(node: Node) -> bool:
    """True for nodes that become no kernel: views, appended rows, sizes that a run reads, and
    control flow.
    """
    return node.op == "View" or is_bind(node) or node.operator in {*CONTROL, APPEND}


def symbolic_constant_of(node: Node) -> Node:
    """A symbolic node as a node inside a kernel. The symbols are parameters of the kernel."""
    value, dtype = symbolic_value(node), node.attributes["dtype"]
    return symbolic_constant(value, dtype, node.outputs[0], node.origin)


def is_block_product(node: Node) -> bool:
    """True for a product of float32 data and block-quantised weights."""
    return node.operator == ("webmlc", "FloatBlockProduct")


def is_operand(function: Function, product: Node, maker: Node) -> bool:
    """True for nodes that belong into the kernel of a `FloatBlockProduct`: the normalisation of its
    data, a product of the same data for its epilogue, and elementwise nodes between the two.

        %h = RMSNormalization(%x, %g)
        %y = FloatBlockProduct(%h, ...); %z = FloatBlockProduct(%h, ...)   one kernel of all five
        %s = Swish(%y); %m = Mul(%s, %z)

    Every workgroup repeats the normalisation, which is short beside its part of the product.
    """
    if product.inputs[0] in maker.outputs:
        types = (function.type(maker.inputs[0]), function.type(product.inputs[0]))
        return kind_of(maker) == "reduction" and is_same(*(type_.shape for type_ in types))
    if is_block_product(maker):
        return maker.inputs[0] == product.inputs[0]
    shapes = (function.type(node.outputs[0]).shape for node in (maker, product))
    return kind_of(maker) in MAPS and is_same(*shapes)


def is_same(shape: Sequence[Expr], other: Sequence[Expr]) -> bool:
    """True for shapes that are certainly equal."""
    return len(shape) == len(other) and all(map(prove_equal, shape, other))


def may_be_same(shape: Sequence[Expr], other: Sequence[Expr]) -> bool:
    """True if the shapes are equal, or if only symbolic sizes before the last one differ in form:
    `(n + 1, 4)` and `(m, 4)`. Such sizes are taken as equal: a wrong guess only repeats cheap work,
    if one of the two sizes is 1.
    """
    if len(shape) != len(other):
        return False
    pairs = [pair for pair in zip(shape, other, strict=True) if not prove_equal(*pair)]
    last = not shape or prove_equal(shape[-1], other[-1])
    return last and all(as_int(size) is None for pair in pairs for size in pair)
