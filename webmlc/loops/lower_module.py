"""Every `fused` node of a module becomes a kernel and a `call_kernel`.

In: a fused module and a target device. Out: the module with `kernels` (naive loop functions, equal
ones once) and a `main` of `call_kernel` nodes (attributes `kernel`, `device`, and `constants`,
the parameters that hold constants: a GPU binds those read-only; destination passing: the outputs
are arguments too) and `View`s. On webgpu, a kernel without a GPU form gets the device `wasm`: a
CPU segment of the same package; its attribute `reason` says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from webmlc.graph.ir import Attribute, Function, Module, Node
from webmlc.loops.from_graph import Device, Lowered, from_graph
from webmlc.loops.gpu_form import gpu_obstacle
from webmlc.loops.ir import LoopFunction


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
        lowered, place, reason = _lower(body, device)
        inputs = zip(lowered.function.params, lowered.inputs, strict=False)
        constants = tuple(buffer.name for buffer, value in inputs if value in self.constants)
        key = (lowered.function.key(), constants if place == "webgpu" else ())
        if key not in self.by_key:
            count = self.used.get(body.name, 0)
            self.used[body.name] = count + 1
            name = body.name if count == 0 else f"{body.name}_{count}"
            self.kernels[name] = replace(lowered.function, name=name)
            self.by_key[key] = name
        attributes: dict[str, Attribute] = {
            "kernel": self.by_key[key],
            "device": place,
            "constants": constants,
        }
        if reason is not None:
            attributes["reason"] = reason
        return Node("call_kernel", lowered.inputs, node.outputs, attributes, "webmlc", node.origin)


def _lower(body: Function, device: Device) -> tuple[Lowered, Device, str | None]:
    """The kernel, where it runs, and why it does not run on the GPU that was asked for."""
    lowered = from_graph(body, body.name, device)
    reason = gpu_obstacle(lowered.function) if device == "webgpu" else None
    if reason is not None:
        return from_graph(body, body.name, "wasm"), "wasm", reason
    return lowered, device, None
