"""Collect the kernels of a module's `fused` nodes; equal kernels are stored once.

In: a `fused` node and a device. Out: its `call_kernel` node; the kernel is in the table. On webgpu,
a kernel that no shader can compute gets the device `wasm` and a reason: it runs in a CPU segment of
the same package.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from webmlc.graph.ir import Attribute, Function, Node
from webmlc.loops.from_graph import Lowered, from_graph
from webmlc.loops.ir import LoopFunction
from webmlc.loops.kernel_form import KernelForm
from webmlc.loops.places import placed_body


@dataclass(slots=True)
class Kernels:
    """The kernels so far, by name, and by their computation and the kinds of memory they read.

    `used` counts the kernels of each body's name.
    """

    constants: frozenset[str]
    kernels: dict[str, LoopFunction] = field(default_factory=dict)
    by_key: dict[tuple[LoopFunction, tuple[str, ...]], str] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)

    def call(
        self, node: Node, function: Function, form: KernelForm, reason: str | None = None
    ) -> Node:
        """Build the call of the kernel of a fused node of `function`. `reason` says why it does not
        run on the GPU.
        """
        body = placed_body(node, function)
        lowered, place, obstacle = lower_body(body, form)
        inputs = zip(lowered.function.params, lowered.inputs, strict=False)
        constants = tuple(buffer.name for buffer, value in inputs if value in self.constants)
        key = (lowered.function.key(), constants if place.binds_constants_apart else ())
        if key not in self.by_key:
            base = _name(body)
            count = self.used.get(base, 0)
            self.used[base] = count + 1
            name = base if count == 0 else f"{base}_{count}"
            self.kernels[name] = replace(lowered.function, name=name)
            self.by_key[key] = name
        attributes: dict[str, Attribute] = {
            "kernel": self.by_key[key],
            "device": place.device,
            "constants": constants,
        }
        if lowered.displacements:
            attributes["displacements"] = lowered.displacements
        if (why := obstacle or reason) is not None:
            attributes["reason"] = why
        call = Node("call_kernel", lowered.inputs, node.outputs, attributes, "webmlc", node.origin)
        return replace(call, stages=lowered.function.stages)


def _name(body: Function) -> str:
    """The name of a body's kernel. It ends with `put` if a result is a part of a larger value."""
    puts = any(output in body.regions for output in body.outputs)
    return f"{body.name}_put".removeprefix("_") if puts else body.name


def lower_body(body: Function, form: KernelForm) -> tuple[Lowered, KernelForm, str | None]:
    """Lower a body in the requested form, or in the fallback form if there is an obstacle.

    Returns the kernel, its form, and the obstacle.
    """
    lowered = from_graph(body, body.name, form)
    reason = form.obstacle(lowered.function)
    if reason is None:
        return lowered, form, None
    assert form.fallback is not None, reason
    return from_graph(body, body.name, form.fallback), form.fallback, reason
