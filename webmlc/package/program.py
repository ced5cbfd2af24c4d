"""Convert a lowered module to a program: buffers with slots, and steps in order.

In: a `main` of `call_kernel`, `View` and `Bind` nodes and control flow. Out: `ProgramParts`, and
the rest of the manifest. A view has no buffer: it consists of the bytes of its source under another
shape. A region of another value has no buffer either: the region lies in the buffer of the whole
value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import convert, structs

from webmlc.core.errors import UserError
from webmlc.core.expr import Var
from webmlc.core.machine import DEVICES, Device
from webmlc.core.rewrite import variables
from webmlc.core.sizes import is_size
from webmlc.core.text_steps import WORDS, CountGrams
from webmlc.graph import ir as graph
from webmlc.graph.ir import Function, Module, Node, Ragged, Shaped
from webmlc.graph.ops.operator import array_type, symbols_bound_by
from webmlc.graph.table import OPS
from webmlc.loops.kernels import view_roots
from webmlc.package.compression import SUFFIX
from webmlc.package.manifest import (
    Buffer,
    BufferKind,
    Carried,
    Check,
    CustomOperator,
    Manifest,
    Port,
    Requirement,
    StatePort,
    Symbol,
    TextPort,
    Texts,
    TextTensor,
    TypedValue,
)
from webmlc.package.manifest import symbols_bound_by as segment_symbols
from webmlc.package.sizes import to_shape, to_size
from webmlc.package.steps import Steps, buffers_of, device_of
from webmlc.package.write import ProgramParts
from webmlc.target.wasm.emit_module import ModuleControl
from webmlc.version import VERSION


def signature(module: Module) -> Manifest:
    """The manifest of a model without programs and files: inputs, outputs, the symbols of the
    inputs' shapes, and the checks of a run.

    The symbol of the length of states has no input: a session binds this symbol. The symbols that
    nodes bind are internal to a program.

    Raises `UserError` if a symbol is neither a dimension of an input nor bound by a node.
    """
    function = module.main
    roots = view_roots(function)
    replaced = [port for port in module.state_ports if port.is_replaced]
    hidden = {check.value for check in module.checks} | {port.present for port in replaced}
    inputs = tuple(v for v in function.inputs if v not in {port.past for port in replaced})
    outputs = tuple(value for value in function.outputs if value not in hidden)

    def port(value: str) -> Port:
        type_ = function.type(value)
        return Port(value, type_.dtype, to_shape(type_.shape), roots.get(value, value))

    symbols: dict[str, Symbol] = {}
    for value in inputs:
        for axis, dimension in enumerate(function.type(value).shape):
            if isinstance(dimension, Var):
                symbols.setdefault(dimension.name, Symbol(dimension.name, value, axis))
    used = {v.name for t in function.types.values() for d in t.shape for v in variables(d)}
    for name, equal in module.equal_symbols.items():
        symbols.setdefault(name, structs.replace(symbols[equal], name=name))
    if module.length:
        symbols[module.length] = Symbol(module.length, "", 0)
    if module.capacity:
        symbols[module.capacity] = Symbol(module.capacity, "", 1)
    nodes = [node for f in module.functions.values() for node in f.nodes]
    bindable = symbols.keys() | {symbol for node in nodes for symbol in symbols_bound_by(node)}
    if unbound := sorted(used - bindable):
        raise UserError(
            f"no input has the symbolic dimension {unbound[0]!r}, so it cannot be known at run "
            "time; give an input a dimension of this name"
        )
    requirements = (
        Requirement(r.rule, to_size(r.left), to_size(r.right), r.node)
        for r in function.requirements
        if _is_checkable(r, bindable)
    )
    return Manifest(
        name=module.name,
        compiler=f"webmlc {VERSION}",
        symbols=tuple(symbols.values()),
        inputs=tuple(map(port, inputs)),
        outputs=tuple(map(port, outputs)),
        texts=_texts(module),
        sequences={
            n: v for n, v in function.sequences.items() if v is None or isinstance(v, tuple)
        },
        shapes={
            n: v.sizes for n, v in function.sequences.items() if isinstance(v, Shaped | Ragged)
        },
        typed={name: convert(kind, TypedValue) for name, kind in module.typed.items()},
        requirements=tuple(requirements),
        checks=tuple(Check(check.value, check.nodes) for check in module.checks),
        states=tuple(map(_state_port, module.state_ports)),
        carried=tuple(Carried(past, present) for past, present in module.carried.items()),
        operators=_custom_operators(module),
    )


def _texts(module: Module) -> Texts | None:
    """The texts of a module, as the manifest says them."""
    texts = module.texts
    if texts is None:
        return None
    ports = {
        side: tuple(TextPort(p.name, to_shape(p.shape), p.position) for p in members)
        for side, members in (("inputs", texts.inputs), ("outputs", texts.outputs))
    }
    before = tuple(
        structs.replace(step, grams=step.grams + SUFFIX) if isinstance(step, CountGrams) else step
        for step in texts.before
    )
    constants = {
        name: TextTensor(array.shape, tuple(texts.words[i] for i in array.reshape(-1).tolist()))
        for name, array in texts.constants.items()
    }
    return Texts(
        WORDS + SUFFIX,
        before=before,
        after=texts.after,
        constants=constants,
        feeds=texts.feeds,
        reads=texts.reads,
        **ports,
    )


def _custom_operators(module: Module) -> tuple[CustomOperator, ...]:
    """The operators of a module that people defined."""
    rows = (OPS.get(node.operator) for f in module.functions.values() for node in f.nodes)
    counts = Counter(row for row in rows if row is not None and row.custom is not None)
    return tuple(
        CustomOperator(row.domain, row.name, count, row.custom.origin)
        for row, count in counts.items()
        if row.custom is not None
    )


def _is_checkable(requirement: graph.Requirement, symbols: Container[str]) -> bool:
    """True if hosts can evaluate a requirement, whose sizes are then expressions over the symbols
    of inputs and of binds. No run can evaluate other requirements.
    """
    sizes = (requirement.left, requirement.right)
    return all(is_size(s) and all(v.name in symbols for v in variables(s)) for s in sizes)


def _state_port(port: graph.StatePort) -> StatePort:
    past = Port(port.past, port.type.dtype, to_shape(port.type.shape), port.state)
    rows, size = (None if s is None else to_size(s) for s in (port.rows, port.size))
    return StatePort(past, port.present, rows, size)


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A step of the wasm module.

    - `kernel`: the name of the kernel in the module.
    - `program`, `source`: the program of the step, and the name of the kernel there.
    - `slots`: the slots of the arguments.
    - `displacements`: the bytes from the address in a slot to the argument, or () if all are 0.
    """

    kernel: str
    program: Device
    source: str
    slots: tuple[int, ...]
    displacements: tuple[int, ...] = ()
    control: ModuleControl | None = None


def module_calls(
    programs: Mapping[Device, ProgramParts], model_signature: Manifest
) -> tuple[ModuleCall, ...]:
    """The steps of the wasm module, which all programs share.

    The steps of the wasm program come first, then the CPU steps of the webgpu program. Each buffer
    of a program has a slot, in order. The slots of the symbols follow: first the symbols of the
    inputs, then the symbols that a run binds. Finally, each loop has two slots: its symbol and its
    number of iterations.
    """
    calls: list[ModuleCall] = []
    for device, program in programs.items():
        slots = {b.name: slot for slot, b in enumerate(program.buffers)}
        bound_symbols = (symbol for item in program.body for symbol in segment_symbols(item))
        names = (*(s.name for s in model_signature.symbols), *bound_symbols)
        symbols = {name: len(slots) + i for i, name in enumerate(names)}
        loops = [s.control.symbol for s in program.steps if s.control and s.control.kind == "loop"]
        first = len(slots) + len(symbols)
        symbols |= {symbol: first + 2 * i for i, symbol in enumerate(loops)}
        numbers = [len(calls)]  # for each step, the number of the next call in the module
        for step in program.steps:
            numbers.append(numbers[-1] + DEVICES[step.device].runs_steps)
        for number, step in enumerate(program.steps):
            if not DEVICES[step.device].runs_steps:
                continue
            name = step.kernel if device == step.device else f"{step.kernel}_cpu"
            arguments = (*(slots[a] for a in step.arguments), *(symbols[s] for s in step.symbols))
            control = None
            if step.control is not None:
                counter = symbols.get(step.control.symbol)
                control = ModuleControl(step.control.kind, numbers[step.control.target], counter)
            displacements = program.displacements.get(number, ())
            call = ModuleCall(name, device, step.kernel, arguments, displacements, control)
            calls.append(call)
    return tuple(calls)


def program_parts(module: Module) -> ProgramParts:
    """Convert a lowered module to a program: the steps of `main` and of the functions that it runs.

    Steps that depend on constants only come first: they run once, at load. In a program that uses
    both devices, only steps of the GPU run at load.
    """
    load_nodes = _load_nodes(module)
    derived = {v for node in load_nodes for v in node.outputs}
    functions = {
        name: replace(f, nodes=tuple(n for n in f.nodes if derived.isdisjoint(n.outputs)))
        for name, f in module.functions.items()
    }
    main = replace(module.main, nodes=(*load_nodes, *functions["main"].nodes))
    steps = Steps(replace(module, functions={**functions, "main": main}))
    steps.function(main)
    used = dict.fromkeys(main.inputs)
    used |= dict.fromkeys(name for item in steps.body for name in buffers_of(item))
    used |= dict.fromkeys(steps.root(v) for v in main.outputs)
    buffers = [_buffer(module, v, v in derived) for v in used]
    once = sum(1 for node in load_nodes if node.op == "call_kernel")
    return ProgramParts(
        buffers,
        steps.body,
        once=once,
        displacements=steps.displacements,
        stages=tuple(steps.stages.get(number, ()) for number in range(len(steps.steps))),
    )


def _load_nodes(module: Module) -> list[Node]:
    """The kernel calls and views that depend only on constants and on each other. The nodes of
    `main` come first, then the nodes of the functions that `main` runs.

    Nodes that depend on symbols are excluded. So are nodes whose output buffers a run writes again,
    and nodes whose outputs the host reads in each run, to bind symbols.
    If some kernels run on the GPU, nodes whose outputs the CPU computes or reads are excluded, too:
    derived buffers never move between devices.
    """
    functions = (module.main, *(f for f in module.functions.values() if f is not module.main))
    calls = [node for f in functions for node in f.nodes if node.op == "call_kernel"]
    excluded = _rewritten_values(functions, module.states) | _bound_values(functions)
    if not all(DEVICES[device_of(node)].runs_steps for node in calls):
        excluded |= _values_off_gpu(functions)
    nodes: list[Node] = []
    for function in functions:
        constants = set(function.constants)
        for node in function.nodes:
            is_candidate = node.op in ("call_kernel", "View") and bool(node.inputs)
            is_candidate = is_candidate and excluded.isdisjoint(node.outputs)
            is_candidate = is_candidate and not _depends_on_symbols(module, function, node)
            if is_candidate and constants.issuperset(node.inputs):
                nodes.append(node)
                constants.update(node.outputs)
    return nodes


def _values_off_gpu(functions: Sequence[Function]) -> set[str]:
    """The values that the CPU or the host computes or reads, directly or through views."""
    values = {value for function in functions for value in function.outputs}
    for node in (node for function in functions for node in function.nodes):
        is_on_gpu = node.op == "call_kernel" and not DEVICES[device_of(node)].runs_steps
        if not is_on_gpu and node.op != "View":
            values.update((*node.inputs, *node.outputs))
    return _with_viewed(functions, values)


def _bound_values(functions: Sequence[Function]) -> set[str]:
    """The values that the host reads to bind symbols, directly or through views."""
    nodes = (node for function in functions for node in function.nodes if node.op == "Bind")
    return _with_viewed(functions, {value for node in nodes for value in node.inputs})


def _with_viewed(functions: Sequence[Function], values: set[str]) -> set[str]:
    """The values, and the values that they show under another shape."""
    values = set(values)
    for node in (node for function in functions for node in reversed(function.nodes)):
        if node.op == "View" and values & {*node.outputs}:
            values.update(node.inputs)
    return values


def _rewritten_values(functions: Sequence[Function], states: Sequence[str]) -> set[str]:
    """The values whose buffers a run may write again: states, results of control flow, values that
    several kernels write (such as a copy that a scatter updates), and regions of other values.
    """
    values = {*states, *(part for function in functions for part in function.regions)}
    writers: Counter[str] = Counter()
    for node in (node for function in functions for node in function.nodes):
        match node.op:
            case "If" | "Loop":
                values.update(node.outputs)
                values.update(node.inputs[:1] if node.op == "Loop" else ())
            case "call_kernel":
                writers.update(node.outputs)
    return values | {value for value, count in writers.items() if count > 1}


def _depends_on_symbols(module: Module, function: Function, node: Node) -> bool:
    """True if the sizes or the elements of a node's outputs depend on symbols."""
    if node.op == "call_kernel" and module.kernels[str(node.attributes["kernel"])].symbols:
        return True
    return any(variables(d) for output in node.outputs for d in function.type(output).shape)


def _buffer(module: Module, value: str, derived: bool) -> Buffer:
    for function in module.functions.values():
        if value in function.constants:
            constant = array_type(function.constants[value])
            return Buffer(value, to_shape(constant.shape), constant.dtype, "constant", value)
    for function in module.functions.values():
        if value in function.types:
            tensor_type = function.types[value]
            kind: BufferKind = "derived" if derived else "scratch"
            if value in module.main.inputs:
                kind = "input"
            elif value in module.states:
                kind = "state"
            return Buffer(value, to_shape(tensor_type.shape), tensor_type.dtype, kind)
    raise KeyError(value)
