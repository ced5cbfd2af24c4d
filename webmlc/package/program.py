"""A lowered module becomes a program: buffers with slots, steps in order.

In: a `main` of `call_kernel` and `View` nodes. Out: `ProgramParts` for the manifest. A view has no
buffer of its own: it is its source's bytes under another shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from webmlc.core.errors import UserError
from webmlc.core.expr import Var
from webmlc.core.rewrite import variables
from webmlc.graph.ir import Function, Module, Node
from webmlc.graph.ops.operator import array_type
from webmlc.package.manifest import Buffer, Device, Port, Step, Symbol
from webmlc.package.write import ProgramParts


@dataclass(frozen=True, slots=True)
class Signature:
    """What the outside sees: inputs, outputs, and the symbols that the inputs' shapes bind."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    symbols: tuple[Symbol, ...]
    sequences: Mapping[str, tuple[str, ...] | None]


def signature(function: Function) -> Signature:
    """The model's signature; raises `UserError` where a symbol cannot be read off an input's
    shape.
    """
    roots = view_roots(function)
    ports = [
        tuple(
            Port(v, function.type(v).dtype, function.type(v).shape, roots.get(v, v)) for v in values
        )
        for values in (function.inputs, function.outputs)
    ]
    symbols: dict[str, Symbol] = {}
    for value in function.inputs:
        for axis, dimension in enumerate(function.type(value).shape):
            if isinstance(dimension, Var):
                symbols.setdefault(dimension.name, Symbol(dimension.name, value, axis))
    used = {v.name for t in function.types.values() for d in t.shape for v in variables(d)}
    if unbound := sorted(used - symbols.keys()):
        raise UserError(
            f"the symbolic dimension {unbound[0]!r} is no input's dimension, so it cannot be known "
            "at run time; give that input a dimension of this name"
        )
    return Signature(ports[0], ports[1], tuple(symbols.values()), function.sequences)


def view_roots(function: Function) -> dict[str, str]:
    """The value whose bytes each view is."""
    roots: dict[str, str] = {}
    for node in function.nodes:
        if node.op == "View":
            roots[node.outputs[0]] = roots.get(node.inputs[0], node.inputs[0])
    return roots


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A step of the wasm module: the kernel under its name there, where it comes from, and the
    slots of its arguments.
    """

    kernel: str
    program: Device
    source: str
    slots: tuple[int, ...]


def module_calls(
    programs: Mapping[Device, ProgramParts], described: Signature
) -> tuple[ModuleCall, ...]:
    """The steps of the one wasm module: the wasm program's, then the CPU steps of the webgpu
    program.

    A slot is a buffer's position in its own program, then the symbols'.
    """
    calls = []
    for device, program in programs.items():
        slots = {b.name: slot for slot, b in enumerate(program.buffers)}
        symbols = {s.name: len(slots) + i for i, s in enumerate(described.symbols)}
        for step in program.steps:
            if step.device == "wasm":
                name = step.kernel if device == "wasm" else f"{step.kernel}_cpu"
                arguments = (
                    *(slots[a] for a in step.arguments),
                    *(symbols[s] for s in step.symbols),
                )
                calls.append(ModuleCall(name, device, step.kernel, arguments))
    return tuple(calls)


def program_parts(module: Module) -> ProgramParts:
    """The program of a lowered module."""
    main = module.main
    roots = view_roots(main)
    calls = [node for node in main.nodes if node.op == "call_kernel"]

    def arguments(node: Node) -> tuple[str, ...]:
        return tuple(roots.get(v, v) for v in (*node.inputs, *node.outputs))

    used = dict.fromkeys(main.inputs)
    used |= dict.fromkeys(a for node in calls for a in arguments(node))
    used |= dict.fromkeys(roots.get(v, v) for v in main.outputs)
    steps = []
    for node in calls:
        kernel = module.kernels[str(node.attributes["kernel"])]
        device: Device = "webgpu" if node.attributes["device"] == "webgpu" else "wasm"
        steps.append(
            Step(
                device,
                kernel.name,
                arguments(node),
                len(node.outputs),
                tuple(s.name for s in kernel.symbols),
                origin=node.origin,
                reason=str(node.attributes.get("reason", "")),
            )
        )
    return ProgramParts([_buffer(main, v) for v in used], steps)


def _buffer(main: Function, value: str) -> Buffer:
    if value in main.constants:
        constant = array_type(main.constants[value])
        return Buffer(value, constant.dtype, constant.shape, "constant", value)
    known = main.type(value)
    return Buffer(value, known.dtype, known.shape, "input" if value in main.inputs else "scratch")
