"""Lower every `fused` node of a module to a kernel and a `call_kernel` node.

In: a fused module and the form of kernels. Out: the module with `kernels` (naive loop functions,
without duplicates), and functions of `call_kernel`, `View` and `Bind` nodes and control flow. A
`call_kernel` has the attributes `kernel`, `device` and `constants`. `constants` names the
parameters that hold constants, which a GPU binds read-only. Outputs are arguments too.
`displacements` are the bytes from the start of an argument's buffer to the address that the kernel
receives, by parameter. A kernel that no shader can compute gets the device `wasm`, a CPU segment of
the same package, and an attribute `reason`.

Control flow of a device keeps its functions, whose results are written to the node's outputs. A
branch writes the outputs at its end. A loop starts with copies of its initial values. Each
iteration ends by copying its slices to their regions of the scanned outputs, then its values to the
carried values. Functions that the host runs write no values of the node:

    %y, %z = webmlc.Loop(, %x) {functions=(body)}   →   %y = copy(%x); webmlc.Loop {body}
                                body: ...; %z.slice in %z[i, 0] = slice_put(%s); %y = copy(%o)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from webmlc.core.expr import Expr, const
from webmlc.graph.ir import Function, Module, Node, Region, StatePort, TensorType
from webmlc.graph.ops.control import CONTROL, RUNS_ON_HOST
from webmlc.loops.kernel_form import KernelForm
from webmlc.loops.kernels import Kernels, copy_node, fused_node, lower_body, value_type, view_roots
from webmlc.loops.places import placed_body


def lower_module(module: Module, form: KernelForm) -> Module:
    """Lower `main`, and the functions that it runs, to kernels of a form.

    needs: a fused module. guarantees: every node is `call_kernel`, `View`, `Bind` or of `CONTROL`;
    all functions of a node of `CONTROL` run on one device, unless the host executes the node.
    """
    lowering = _Lowering(module, Kernels(_constants(module)))
    lowering.function(module.main, form)
    functions = dict(reversed(lowering.functions.items()))
    ports = [port for port in module.state_ports if port.is_replaced]
    functions["main"] = _replace_states(functions["main"], ports, lowering.table, form)
    states = (*module.states, *(port.state for port in ports))
    kernels = lowering.table.kernels
    return replace(module, functions=functions, kernels=kernels, states=states)


def _constants(module: Module) -> frozenset[str]:
    """The constants of all functions, and their views: a view is bound like its source."""
    constants = {c for f in module.functions.values() for c in f.constants}
    roots = {v: root for f in module.functions.values() for v, root in view_roots(f).items()}
    for view, root in roots.items():
        while root in roots:  # a view of an outer function
            root = roots[root]
        if root in constants:
            constants.add(view)
    return frozenset(constants)


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
        """Lower a function and the nodes of its end. `reason` says why it is not on the GPU."""
        end_nodes = () if end is None else end.nodes(function)
        names = {} if end is None else end.direct_targets(function)
        if end is not None:
            function = end.with_slices(function)
        nodes: list[Node] = []
        types = dict(function.types)
        for node in (*function.nodes, *end_nodes):
            if (node.domain, node.op) in CONTROL:
                nodes += self.control(node, function, types, form, reason)
            elif node.op == "fused":
                nodes.append(self.table.call(node, function, form, reason))
            else:
                nodes.append(node)
        for node in end_nodes:
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
        """Lower the functions of a control node; yield its initial copies, then the node."""
        functions = [self.module.functions[name] for name in node.attributes["functions"]]
        if RUNS_ON_HOST in node.attributes:
            for body in functions:
                self.function(body, form)
            yield node
            return
        if form.fallback is not None:
            obstacles = (self.obstacle(function, form) for function in functions)
            reason = next(filter(None, obstacles), None)
            form = form if reason is None else form.fallback
        attributes = {**node.attributes, "device": form.device}
        if node.op == "If":
            for branch in functions:
                results = tuple(zip(branch.outputs, node.outputs, strict=True))
                self.function(branch, form, End(results), reason)
            yield replace(node, attributes=attributes)
            return
        carried, asks = int(node.attributes["carried"]), int(node.attributes["asks"])
        condition = f"{node.outputs[0]}.condition" if asks else ""
        states = ((condition,) if asks else ()) + node.outputs[:carried]
        for value, state in zip(node.inputs[1 - asks : carried + 1], states, strict=True):
            copy = copy_node(value, state, function)
            types |= copy.attributes["body"].types
            yield self.table.call(copy, function, form, reason)
        (body,) = functions
        results = tuple(zip(body.outputs, (*states, *node.outputs[carried:]), strict=True))
        state_inputs = dict(zip(states[asks:], body.inputs, strict=False))
        slices = _slices(node, states)
        self.function(body, form, End(results, state_inputs, slices), reason)
        yield replace(node, inputs=(condition, *node.inputs[1:]), attributes=attributes)

    def obstacle(self, function: Function, form: KernelForm) -> str | None:
        """The reason why a function, or a function that it runs, cannot have kernels of this form.

        The result is `None` if all functions can.
        """
        for node in function.nodes:
            if (node.domain, node.op) in CONTROL:
                inner = (self.module.functions[name] for name in node.attributes["functions"])
                reason = next(filter(None, (self.obstacle(f, form) for f in inner)), None)
            elif node.op == "View":
                reason = None
            else:
                reason = lower_body(placed_body(node, function), form)[2]
            if reason is not None:
                return reason
        return None


@dataclass(frozen=True, slots=True)
class Slice:
    """The place of an iteration's slice: the region at one position on `axis` of a tensor."""

    type: TensorType
    axis: int
    region: Region


@dataclass(frozen=True, slots=True)
class End:
    """The end of a branch or an iteration: `results` are (inner value, outer value).

    `state_inputs` names the input that holds a state before the iteration. `slices` are the places
    of the results that are parts of their outer value.
    """

    results: tuple[tuple[str, str], ...]
    state_inputs: Mapping[str, str] = field(default_factory=dict)
    slices: Mapping[str, Slice] = field(default_factory=dict)

    def nodes(self, function: Function) -> tuple[Node, ...]:
        """Build the nodes that write slices to their places, then copy the new states.

        A new state that is the old value of another state is first copied aside.
        """
        direct_targets = self.direct_targets(function)
        puts, copies_aside, copies = [], [], []
        for value, target in self.results:
            if target in self.slices:
                puts.append(_copy_slice(value, target, self.slices[target].axis, function))
            elif value in direct_targets and direct_targets[value] == target:
                continue
            elif self.source(value, function) not in self.state_inputs.values():
                copies.append(copy_node(value, target, function))
            elif self.source(value, function) != self.state_inputs[target]:
                copies_aside.append(copy_node(value, f"{target}.next", function))
                copies.append(copy_node(f"{target}.next", target, function, value))
        return (*puts, *copies_aside, *copies)

    def with_slices(self, function: Function) -> Function:
        """The function, in which the slices have their regions."""
        regions = {_part(target): place.region for target, place in self.slices.items()}
        wholes = {target: place.type for target, place in self.slices.items()}
        types, regions = {**function.types, **wholes}, {**function.regions, **regions}
        return replace(function, types=types, regions=regions)

    def direct_targets(self, function: Function) -> dict[str, str]:
        """The values that their kernel can write directly to their target.

        Nothing reads the previous content of the target any more when the kernel runs.
        """
        places = {o: p for p, n in enumerate(function.nodes) for o in n.outputs if n.op == "fused"}
        roots = view_roots(function)
        reads: dict[str, int] = {}
        for position, node in enumerate(function.nodes):
            reads |= {roots.get(i, i): position for i in node.inputs if i}
        reads |= {self.source(v, function): len(function.nodes) for v, _ in self.results}
        names: dict[str, str] = {}
        for value, target in self.results:
            last_read = reads.get(self.state_inputs.get(target, ""), -1)
            whole = value not in names and target not in self.slices
            if whole and last_read < places.get(value, -1):
                names[value] = target
        return names

    def source(self, value: str, function: Function) -> str:
        """The value that owns the bytes of `value`: the source of a view, or the value itself."""
        return view_roots(function).get(value, value)


def _slices(node: Node, states: tuple[str, ...]) -> dict[str, Slice]:
    """The scanned outputs of a loop, with the places of their slices."""
    places = node.attributes["places"]
    scanned = len(node.outputs) - len(places)
    slices = {}
    for k, (axis, backward) in enumerate(places, scanned):
        slice_type: TensorType = node.attributes["types"][k]
        position: Expr = node.attributes["symbol"]
        if backward:
            position = node.attributes["trips"] - 1 - position
        position_axis = axis + slice_type.rank if axis < 0 else axis
        region = Region.along(position_axis, position, node.outputs[k], slice_type.rank)
        slices[node.outputs[k]] = Slice(slice_type, position_axis, region)
    return slices


def _part(target: str) -> str:
    """The name of the part of a scanned output that one iteration writes."""
    return f"{target}.slice"


def _copy_slice(value: str, target: str, axis: int, function: Function) -> Node:
    """Build a kernel that copies a value to the part of `target` that an iteration writes."""
    constants = {v: a for v, a in function.constants.items() if v == value and a.size == 1}
    type_ = value_type(function, value)
    shape = (*type_.shape[:axis], const(1), *type_.shape[axis:])
    inner = Node("Unsqueeze", (value,), (_part(target),), {"axes": (axis,)})
    types = {value: type_, _part(target): TensorType(type_.dtype, shape)}
    return fused_node("slice", inner, value, types, constants)


def _rename(node: Node, names: Mapping[str, str]) -> Node:
    if not names:
        return node
    inputs, outputs = ([names.get(v, v) for v in side] for side in (node.inputs, node.outputs))
    return replace(node, inputs=tuple(inputs), outputs=tuple(outputs))


def _replace_states(
    main: Function, ports: Sequence[StatePort], table: Kernels, form: KernelForm
) -> Function:
    """Replace the states of a session at the end of a run: `main` without the states among its
    inputs and their next values among its outputs. Its last kernels copy the next values.

    func main(%x, %state)                     func main(%x)
      %h = call_kernel lstm(%x, %state)   ->    %h = call_kernel lstm(%x, %state)
      return %y, %h                             %state = call_kernel copy(%h)
                                                return %y

    A state is on one device: the device of the kernels that read it. If kernels on the GPU and on
    the CPU read it, they read a copy that is made at the start of the run. A next value that is
    itself a state is copied aside, before any state is replaced.
    """
    states = {port.state for port in ports}
    presents = {port.present for port in ports}
    roots = view_roots(main)
    first, aside, last = list[Node](), list[Node](), list[Node]()
    types, renamed = dict(main.types), dict[str, str]()
    for port in ports:
        state, value, home, reason = port.state, port.present, form, None
        readers = _readers(main, state, roots)
        devices = {node.attributes["device"] for node in readers}
        if len(devices) > 1:
            renamed[state] = f"{state}.start"
            first.append(table.call(copy_node(state, renamed[state], main), main, home))
            types[renamed[state]] = types[state]
        elif form.fallback is not None and devices == {form.fallback.device}:
            home = form.fallback
            reason = str(readers[0].attributes.get("reason", "")) or None
        if roots.get(value, value) in states:
            copy = copy_node(value, f"{state}.next", main)
            aside.append(table.call(copy, main, home, reason))
            types |= copy.attributes["body"].types
            last.append(copy_node(f"{state}.next", state, main, value))
        else:
            last.append(copy_node(value, state, main))
        last[-1] = table.call(last[-1], main, home, reason)
    nodes = (replace(n, inputs=tuple(renamed.get(i, i) for i in n.inputs)) for n in main.nodes)
    return replace(
        main,
        inputs=tuple(name for name in main.inputs if name not in states),
        outputs=tuple(name for name in main.outputs if name not in presents),
        nodes=(*first, *nodes, *aside, *last),
        types=types,
    )


def _readers(main: Function, state: str, roots: dict[str, str]) -> list[Node]:
    """The nodes that run on a device and read a state, or a view of it."""
    return [
        node
        for node in main.nodes
        if "device" in node.attributes and state in {roots.get(i, i) for i in node.inputs}
    ]
