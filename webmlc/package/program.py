"""A lowered module becomes a program: buffers with slots, steps in order.

In: a `main` of `call_kernel`, `View`, `Join` and `Bind` nodes. Out: `ProgramParts` for the
manifest. A view has no buffer of its own: it is its source's bytes under another shape. Nor have
the parts of a join: each is the joined value's bytes from some displacement on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from webmlc.core.errors import UserError
from webmlc.core.expr import Var
from webmlc.core.machine import Device
from webmlc.core.rewrite import variables
from webmlc.graph.ir import Function, Module, Node
from webmlc.graph.ops.operator import array_type, is_bind
from webmlc.loops.lower_module import view_roots
from webmlc.package.manifest import Bind, Buffer, BufferKind, Control, Port, Step, Symbol
from webmlc.package.write import ProgramParts
from webmlc.target.wasm.emit_module import ModuleControl


@dataclass(frozen=True, slots=True)
class Signature:
    """What the outside sees: inputs, outputs, and the symbols that the inputs' shapes bind. Those
    that `Bind` nodes bind are a program's own affair.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    symbols: tuple[Symbol, ...]
    sequences: Mapping[str, tuple[str, ...] | None]


def signature(module: Module) -> Signature:
    """The model's signature; raises `UserError` where a symbol is no input's dimension and no value
    of the model's.
    """
    function = module.main
    roots = view_roots(function)
    checks = {check.value for check in module.checks}
    outputs = tuple(value for value in function.outputs if value not in checks)
    ports = [
        tuple(
            Port(v, function.type(v).dtype, function.type(v).shape, roots.get(v, v)) for v in values
        )
        for values in (function.inputs, outputs)
    ]
    symbols: dict[str, Symbol] = {}
    for value in function.inputs:
        for axis, dimension in enumerate(function.type(value).shape):
            if isinstance(dimension, Var):
                symbols.setdefault(dimension.name, Symbol(dimension.name, value, axis))
    used = {v.name for t in function.types.values() for d in t.shape for v in variables(d)}
    bound = {s for n in function.nodes if is_bind(n) for s in n.attributes["symbols"]}
    if unbound := sorted(used - symbols.keys() - bound):
        raise UserError(
            f"the symbolic dimension {unbound[0]!r} is no input's dimension, so it cannot be known "
            "at run time; give that input a dimension of this name"
        )
    return Signature(ports[0], ports[1], tuple(symbols.values()), function.sequences)


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A step of the wasm module: the kernel under its name there, where it comes from, the slots of
    its arguments, and the bytes from what a slot holds to the argument, if there are any.
    """

    kernel: str
    program: Device
    source: str
    slots: tuple[int, ...]
    displacements: tuple[int, ...] = ()
    control: ModuleControl | None = None


def module_calls(
    programs: Mapping[Device, ProgramParts], described: Signature
) -> tuple[ModuleCall, ...]:
    """The steps of the one wasm module: the wasm program's, then the CPU steps of the webgpu
    program.

    A slot is a buffer's position in its own program, then the symbols' (those of the inputs, then
    those bound on the way), then two for each loop: its symbol, and its number of iterations.
    """
    calls: list[ModuleCall] = []
    for device, program in programs.items():
        slots = {b.name: slot for slot, b in enumerate(program.buffers)}
        bound = (s for item in program.body if isinstance(item, Bind) for s in item.symbols)
        names = (*(s.name for s in described.symbols), *bound)
        symbols = {name: len(slots) + i for i, name in enumerate(names)}
        loops = [s.control.symbol for s in program.steps if s.control and s.control.kind == "loop"]
        first = len(slots) + len(symbols)
        symbols |= {symbol: first + 2 * i for i, symbol in enumerate(loops)}
        numbers = [len(calls)]  # of each step, were it in the module
        for step in program.steps:
            numbers.append(numbers[-1] + (step.device == "wasm"))
        for step in program.steps:
            if step.device != "wasm":
                continue
            name = step.kernel if device == "wasm" else f"{step.kernel}_cpu"
            arguments = (*(slots[a] for a in step.arguments), *(symbols[s] for s in step.symbols))
            control = None
            if step.control is not None:
                counter = symbols.get(step.control.symbol)
                control = ModuleControl(step.control.kind, numbers[step.control.target], counter)
            call = ModuleCall(name, device, step.kernel, arguments, step.displacements, control)
            calls.append(call)
    return tuple(calls)


def program_parts(module: Module) -> ProgramParts:
    """The program of a lowered module: the steps of `main`, and of what it runs in its place. What
    the CPU makes of constants alone comes first: it is done once, at load.
    """
    steps = _Steps(module)
    early = _made_of_constants(module)
    derived = {v for node in early for v in node.outputs}
    later = (node for node in module.main.nodes if derived.isdisjoint(node.outputs))
    main = replace(module.main, nodes=(*early, *later))
    steps.function(main)
    used = dict.fromkeys(main.inputs)
    used |= dict.fromkeys(a for step in steps.steps for a in step.arguments)
    used |= dict.fromkeys(bind.buffer for bind, _ in steps.binds)
    used |= dict.fromkeys(steps.root(v) for v in main.outputs)
    buffers = [_buffer(module, v, v in derived) for v in used]
    once = sum(1 for node in early if node.op == "call_kernel")
    return ProgramParts(buffers, steps.body(), once=once)


def _made_of_constants(module: Module) -> list[Node]:
    """The kernel calls (and views) of a CPU program that depend on constants and on each other
    only, not on symbols either. What a loop starts from is no such value: every iteration writes it
    again; nor is what several kernels write, a copy that a scatter updates; nor is a part of a
    join, most of which a run makes.
    """
    main = module.main
    calls = [node for node in main.nodes if node.op == "call_kernel"]
    if any(_device(node) != "wasm" for node in calls):
        return []
    known = set(main.constants)
    early: list[Node] = []
    states = {v for node in main.nodes if node.op == "Loop" for v in node.outputs}
    states |= {node.inputs[0] for node in main.nodes if node.op == "Loop"}
    states |= {v for node in main.nodes if node.op == "Join" for v in node.inputs}
    writers = Counter(value for node in calls for value in node.outputs)
    states |= {value for value, count in writers.items() if count > 1}
    for node in main.nodes:
        fixed = node.op in ("call_kernel", "View") and bool(node.inputs)
        fixed = fixed and states.isdisjoint(node.outputs)
        sizes = (d for output in node.outputs for d in main.type(output).shape)
        if fixed and known.issuperset(node.inputs) and not any(map(variables, sizes)):
            early.append(node)
            known.update(node.outputs)
    return early


@dataclass(slots=True)
class _Steps:
    """The steps so far, the binds with the number of steps before each, the buffers that views and
    the inputs of functions stand for, and those in which the parts of joins lie, and where.
    """

    module: Module
    steps: list[Step] = field(default_factory=list)
    binds: list[tuple[Bind, int]] = field(default_factory=list)
    roots: dict[str, str] = field(default_factory=dict)
    spots: dict[str, tuple[str, int]] = field(default_factory=dict)

    def root(self, value: str) -> str:
        """The buffer that holds a value."""
        value = self.roots.get(value, value)
        return self.root(self.spots[value][0]) if value in self.spots else value

    def displacement(self, value: str) -> int:
        """Bytes from the start of its buffer to a value."""
        whole, start = self.spots.get(self.roots.get(value, value), ("", 0))
        return start + self.displacement(whole) if whole else 0

    def function(self, function: Function) -> None:
        """Append a function's steps."""
        for node in function.nodes:
            if node.op == "Join":
                unit = function.type(node.outputs[0]).dtype.bytes
                for value, start in zip(node.inputs, node.attributes["starts"], strict=True):
                    self.spots[value] = (node.outputs[0], start * unit)
        for node in function.nodes:
            match node.op:
                case "View":
                    self.roots[node.outputs[0]] = self.root(node.inputs[0])
                case "call_kernel":
                    self.steps.append(self.call(node))
                case "Bind":
                    self.binds.append((self.bind(node), len(self.steps)))
                case "If":
                    self.branches(node)
                case "Loop":
                    self.loop(node)

    def body(self) -> list[Step | Bind]:
        """Steps and binds, in order."""
        body: list[Step | Bind] = list(self.steps)
        for bind, before in reversed(self.binds):
            body.insert(before, bind)
        return body

    def bind(self, node: Node) -> Bind:
        """The symbols that a run reads from memory."""
        symbols, elements = node.attributes["symbols"], node.attributes["positions"]
        return Bind(self.root(node.inputs[0]), symbols, elements, node.origin)

    def call(self, node: Node) -> Step:
        """The step of a kernel call."""
        kernel = self.module.kernels[str(node.attributes["kernel"])]
        arguments = (*node.inputs, *node.outputs)
        displacements = tuple(map(self.displacement, arguments))
        return Step(
            _device(node),
            kernel.name,
            tuple(map(self.root, arguments)),
            len(node.outputs),
            tuple(s.name for s in kernel.symbols),
            origin=node.origin,
            reason=str(node.attributes.get("reason", "")),
            displacements=displacements if any(displacements) else (),
        )

    def branches(self, node: Node) -> None:
        """if, the one branch, else, the other."""
        then, other = (self.module.functions[name] for name in node.attributes["functions"])
        split = 1 + len(then.inputs)
        start = self.control(node, node.inputs[:1])
        self.enter(then, node.inputs[1:split])
        middle = self.control(node, ())
        self.enter(other, node.inputs[split:])
        self.decide(start, Control("if", middle + 1))
        self.decide(middle, Control("else", len(self.steps)))

    def loop(self, node: Node) -> None:
        """loop, the body, next. The values that it carries lie in the buffers of its outputs."""
        (body,) = (self.module.functions[name] for name in node.attributes["functions"])
        symbol, trips = node.attributes["symbol"].name, node.attributes["trips"]
        carried = node.attributes["carried"]
        condition = node.inputs[:1] if node.inputs[0] else ()
        start = self.control(node, condition)
        self.enter(body, (*node.outputs[:carried], *node.inputs[1 + carried :]))
        end = self.control(node, condition)
        self.decide(start, Control("loop", end + 1, symbol, trips))
        self.decide(end, Control("next", start + 1, symbol, trips))

    def enter(self, function: Function, values: Sequence[str]) -> None:
        """A function's steps over these values."""
        self.roots |= {n: self.root(v) for n, v in zip(function.inputs, values, strict=True)}
        self.function(function)

    def control(self, node: Node, condition: Sequence[str]) -> int:
        """Append a step that `decide` completes; returns its number."""
        arguments = tuple(self.root(v) for v in condition)
        self.steps.append(Step(_device(node), "", arguments, 0, origin=node.origin))
        return len(self.steps) - 1

    def decide(self, number: int, control: Control) -> None:
        """Say what the step of this number decides."""
        self.steps[number] = replace(self.steps[number], kernel=control.kind, control=control)


def _device(node: Node) -> Device:
    return "webgpu" if node.attributes["device"] == "webgpu" else "wasm"


def _buffer(module: Module, value: str, derived: bool) -> Buffer:
    for function in module.functions.values():
        if value in function.constants:
            constant = array_type(function.constants[value])
            return Buffer(value, constant.dtype, constant.shape, "constant", value)
    for function in module.functions.values():
        if value in function.types:
            known = function.types[value]
            kind: BufferKind = "derived" if derived else "scratch"
            if value in module.main.inputs:
                kind = "input"
            return Buffer(value, known.dtype, known.shape, kind)
    raise KeyError(value)
