"""Every `fused` node of a module becomes a kernel and a `call_kernel`.

In: a fused module and a target device. Out: the module with `kernels` (naive loop functions, equal
ones once) and a `main` of `call_kernel` nodes (attributes `kernel`, `device`, and `constants`,
the parameters that hold constants: a GPU binds those read-only; destination passing: the outputs
are arguments too) and `View`s. On webgpu, a kernel without a GPU form gets the device `wasm`: a
CPU segment of the same package.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from webmlc.core.dtypes import DType
from webmlc.core.rewrite import walk
from webmlc.graph.ir import Function, Module, Node
from webmlc.loops.from_graph import Device, Lowered, from_graph
from webmlc.loops.ir import LoopFunction, expressions, walk_statements

GPU_BUFFERS = 8
"""Storage buffers that every WebGPU device binds at once."""


def lower_module(module: Module, device: Device) -> Module:
    """Lower `main` for a device; see the module's docstring.

    needs: a fused `main`. guarantees: every node is `call_kernel` or `View`.
    """
    table = _Kernels(frozenset(module.main.constants))
    nodes = tuple(n if n.op == "View" else table.call(n, device) for n in module.main.nodes)
    main = replace(module.main, nodes=nodes)
    return replace(module, functions={**module.functions, "main": main}, kernels=table.kernels)


@dataclass(slots=True)
class _Kernels:
    """The kernels made so far: by name, and by what they compute on which kinds of memory."""

    constants: frozenset[str]
    kernels: dict[str, LoopFunction] = field(default_factory=dict)
    by_key: dict[tuple[LoopFunction, tuple[str, ...]], str] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)

    def call(self, node: Node, device: Device) -> Node:
        body = node.attributes["body"]
        assert isinstance(body, Function)
        lowered, place = _lower(body, device)
        inputs = zip(lowered.function.params, lowered.inputs, strict=False)
        constants = tuple(buffer.name for buffer, value in inputs if value in self.constants)
        key = (lowered.function.key(), constants if place == "webgpu" else ())
        if key not in self.by_key:
            count = self.used.get(body.name, 0)
            self.used[body.name] = count + 1
            name = body.name if count == 0 else f"{body.name}_{count}"
            self.kernels[name] = replace(lowered.function, name=name)
            self.by_key[key] = name
        attributes = {"kernel": self.by_key[key], "device": place, "constants": constants}
        return Node("call_kernel", lowered.inputs, node.outputs, attributes, "webmlc", node.origin)


def _lower(body: Function, device: Device) -> tuple[Lowered, Device]:
    lowered = from_graph(body, body.name, device)
    if device == "webgpu" and not has_gpu_form(lowered.function):
        return from_graph(body, body.name, "wasm"), "wasm"
    return lowered, device


def has_gpu_form(function: LoopFunction) -> bool:
    """True where a shader can bind every buffer and has values of every type."""
    if len(function.params) > GPU_BUFFERS:
        return False
    types = {b.dtype for b in (*function.params, *function.allocations)}
    for stmt in walk_statements(function.body):
        types |= {value.dtype for root in expressions(stmt) for value in walk(root)}
    return DType.float64 not in types
