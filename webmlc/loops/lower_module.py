"""Every `fused` node of a module becomes a kernel and a `call_kernel`.

In: a fused module and the form of kernels. Out: the module with `kernels` (naive loop functions,
equal ones once) and functions of `call_kernel` nodes, `View`s, `Join`s, `Bind`s and control flow.
A `call_kernel` has the attributes `kernel`, `device` and `constants`: the parameters that hold
constants, which a GPU binds read-only. Its outputs are arguments, too. A kernel without a GPU form
gets the device `wasm`, a CPU segment of the same package; its attribute `reason` says why.

Control flow keeps its functions, whose results go where the node's outputs are: a branch writes
them at its end; a loop starts with copies of its initial values, and an iteration ends with putting
its slices into what is scanned, then its values into what is carried:

    %y, %z = webmlc.Loop(, %x) {functions=(body)}   →   %y = copy(%x); webmlc.Loop {body}
                                                        body: ...; %z = put_slice(%s); %y = copy(%o)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, const
from webmlc.graph.ir import Array, Attribute, Function, Module, Node, TensorType
from webmlc.graph.ops.control import CONTROL
from webmlc.graph.ops.operator import Scope
from webmlc.loops.kernel_form import KernelForm
from webmlc.loops.kernels import Kernels, lower_body


def lower_module(module: Module, form: KernelForm) -> Module:
    """Lower `main`, and the functions that it runs, to kernels of a form.

    needs: a fused module. guarantees: every node is `call_kernel`, `View`, `Join`, `Bind` or of
    `CONTROL`; what a node of `CONTROL` runs stays on one device.
    """
    constants = frozenset(c for f in module.functions.values() for c in f.constants)
    lowering = _Lowering(module, Kernels(constants))
    lowering.function(module.main, form)
    kernels = lowering.table.kernels
    return replace(module, functions=dict(reversed(lowering.functions.items())), kernels=kernels)


@dataclass(slots=True)
class _Lowering:
    module: Module
    table: Kernels
    functions: dict[str, Function] = field(default_factory=dict)

    def function(
        self,
        function: Function,
        form: KernelForm,
        end: End | None = None,
        reason: str | None = None,
    ) -> None:
        """Lower a function, and what ends it; `reason` says why it is not on the GPU."""
        nodes: list[Node] = []
        types = dict(function.types)
        for node in function.nodes:
            if (node.domain, node.op) in CONTROL:
                nodes += self.control(node, function, types, form, reason)
            else:
                call = self.table.call(node, form, reason) if node.op == "fused" else node
                nodes.append(call)
        last = () if end is None else end.nodes(function)
        names = {} if end is None else end.renamed(function)
        for node in last:
            nodes.append(self.table.call(node, form, reason))
            types |= node.attributes["body"].types
        types |= {names[v]: t for v, t in function.types.items() if v in names}
        self.functions[function.name] = replace(
            function, nodes=tuple(_rename(n, names) for n in nodes), types=types
        )

    def control(
        self,
        node: Node,
        function: Function,
        types: dict[str, TensorType],
        form: KernelForm,
        reason: str | None,
    ) -> Iterator[Node]:
        """The node, after what it starts with; its functions are lowered."""
        run = [self.module.functions[name] for name in node.attributes["functions"]]
        if form.fallback is not None:
            reason = next(filter(None, (self.obstacle(function, form) for function in run)), None)
            form = form if reason is None else form.fallback
        attributes = {**node.attributes, "device": form.device}
        if node.op == "If":
            for branch in run:
                results = tuple(zip(branch.outputs, node.outputs, strict=True))
                self.function(branch, form, End(results), reason)
            yield replace(node, attributes=attributes)
            return
        carried, asks = int(node.attributes["carried"]), int(node.attributes["asks"])
        condition = f"{node.outputs[0]}.condition" if asks else ""
        states = ((condition,) if asks else ()) + node.outputs[:carried]
        for value, state in zip(node.inputs[1 - asks : carried + 1], states, strict=True):
            copy = _copy(value, state, function)
            types |= copy.attributes["body"].types
            yield self.table.call(copy, form, reason)
        (body,) = run
        results = tuple(zip(body.outputs, (*states, *node.outputs[carried:]), strict=True))
        own = dict(zip(states[asks:], body.inputs, strict=False))
        slices = _slices(node, states)
        self.function(body, form, End(results, own, slices), reason)
        yield replace(node, inputs=(condition, *node.inputs[1:]), attributes=attributes)

    def obstacle(self, function: Function, form: KernelForm) -> str | None:
        """Why a function, with those that it runs, cannot have kernels of this form; None where it
        can.
        """
        for node in function.nodes:
            if (node.domain, node.op) in CONTROL:
                run = (self.module.functions[name] for name in node.attributes["functions"])
                reason = next(filter(None, (self.obstacle(f, form) for f in run)), None)
            elif node.op == "View":
                reason = None
            else:
                reason = lower_body(node.attributes["body"], form)[2]
            if reason is not None:
                return reason
        return None


@dataclass(frozen=True, slots=True)
class Slice:
    """Where an iteration's slice goes: at `position` of `axis` of a tensor."""

    type: TensorType
    axis: int
    position: Expr


@dataclass(frozen=True, slots=True)
class End:
    """What a branch or an iteration ends with: `results` are (a value in it, a value around it).

    `own` names the input that holds a state before the iteration; `slices` are the results that are
    parts of what they go to.
    """

    results: tuple[tuple[str, str], ...]
    own: Mapping[str, str] = field(default_factory=dict)
    slices: Mapping[str, Slice] = field(default_factory=dict)

    def nodes(self, function: Function) -> tuple[Node, ...]:
        """Slices are put in their places, then states copied: first those that are other states."""
        renamed = self.renamed(function)
        puts, kept, copies = [], [], []
        for value, target in self.results:
            if target in self.slices:
                puts.append(_put_slice(value, target, self.slices[target], function))
            elif value in renamed and renamed[value] == target:
                continue
            elif self.source(value, function) not in self.own.values():
                copies.append(_copy(value, target, function))
            elif self.source(value, function) != self.own[target]:
                kept.append(_copy(value, f"{target}.next", function))
                copies.append(_copy(f"{target}.next", target, function, value))
        return (*puts, *kept, *copies)

    def renamed(self, function: Function) -> dict[str, str]:
        """The values that their kernel writes where they go, because nothing reads what is there
        any more.
        """
        places = {o: p for p, n in enumerate(function.nodes) for o in n.outputs if n.op == "fused"}
        roots = view_roots(function)
        reads: dict[str, int] = {}
        for position, node in enumerate(function.nodes):
            reads |= {roots.get(i, i): position for i in node.inputs if i}
        reads |= {self.source(v, function): len(function.nodes) for v, _ in self.results}
        names: dict[str, str] = {}
        for value, target in self.results:
            last_read = reads.get(self.own.get(target, ""), -1)
            whole = value not in names and target not in self.slices
            if whole and last_read < places.get(value, -1):
                names[value] = target
        return names

    def source(self, value: str, function: Function) -> str:
        """The value whose bytes a value is."""
        return view_roots(function).get(value, value)


def view_roots(function: Function) -> dict[str, str]:
    """The value whose bytes each view is."""
    roots: dict[str, str] = {}
    for node in function.nodes:
        if node.op == "View":
            roots[node.outputs[0]] = roots.get(node.inputs[0], node.inputs[0])
    return roots


def _slices(node: Node, states: tuple[str, ...]) -> dict[str, Slice]:
    """Of a loop's outputs, those that it scans."""
    places = node.attributes["places"]
    scanned = len(node.outputs) - len(places)
    slices = {}
    for k, (axis, backward) in enumerate(places, scanned):
        known: TensorType = node.attributes["types"][k]
        position: Expr = node.attributes["symbol"]
        if backward:
            position = node.attributes["trips"] - 1 - position
        at = axis + known.rank if axis < 0 else axis
        slices[node.outputs[k]] = Slice(known, at, position)
    return slices


def _copy(value: str, target: str, function: Function, like: str = "") -> Node:
    """A kernel that copies a value; `like` has its type, "" its own. No value is true."""
    if not value:
        value = f"{target}.start"
        known, constants = TensorType(DType.bool, ()), {value: np.array(True)}
    else:
        known = value_type(function, like or value)
        constants = {v: a for v, a in function.constants.items() if v == value and a.size == 1}
    inner = Node("Identity", (value,), (target,))
    return _kernel("copy", (inner,), value, {value: known, target: known}, constants)


def _put_slice(value: str, target: str, where: Slice, function: Function) -> Node:
    """A kernel that writes a value into its place in a larger one."""
    constants = {v: a for v, a in function.constants.items() if v == value and a.size == 1}
    known, whole = value_type(function, value), where.type
    shape = (*known.shape[: where.axis], const(1), *known.shape[where.axis :])
    offsets = tuple(where.position if d == where.axis else const(0) for d in range(whole.rank))
    part = f"{value}.slice"
    unsqueeze = Node("Unsqueeze", (value,), (part,), {"axes": (where.axis,)})
    attributes: dict[str, Attribute] = {"types": (whole,), "offsets": offsets}
    put = Node("Put", (part,), (target,), attributes, "webmlc")
    types = {value: known, part: TensorType(known.dtype, shape), target: whole}
    return _kernel("put_slice", (unsqueeze, put), value, types, constants)


def _kernel(
    name: str,
    nodes: tuple[Node, ...],
    value: str,
    types: dict[str, TensorType],
    constants: dict[str, Array],
) -> Node:
    """A fused node of nodes that read one value."""
    inputs = () if constants else (value,)
    outputs = nodes[-1].outputs
    body = Function(name, inputs, outputs, nodes, types, constants)
    return Node("fused", inputs, outputs, {"body": body}, "webmlc")


def value_type(function: Function, value: str) -> TensorType:
    """The type of a value, which may be a constant."""
    known = Scope(function.types, function.constants, {}).type_of(value)
    assert known is not None, value
    return known


def _rename(node: Node, names: Mapping[str, str]) -> Node:
    if not names:
        return node
    inputs, outputs = ([names.get(v, v) for v in side] for side in (node.inputs, node.outputs))
    return replace(node, inputs=tuple(inputs), outputs=tuple(outputs))
