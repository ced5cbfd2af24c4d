"""The kernels of a module: each `fused` node's, equal ones once.

In: a `fused` node and a device. Out: its `call_kernel`; the kernel is in the table. On webgpu, a
kernel without a GPU form gets the device `wasm`: a CPU segment of the same package, and a reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from webmlc.graph.ir import Attribute, Function, Node
from webmlc.loops.from_graph import Lowered, from_graph
from webmlc.loops.ir import LoopFunction
from webmlc.loops.kernel_form import KernelForm


@dataclass(slots=True)
class Kernels:
    """The kernels made so far: by name, and by what they compute on which kinds of memory."""

    constants: frozenset[str]
    kernels: dict[str, LoopFunction] = field(default_factory=dict)
    by_key: dict[tuple[LoopFunction, tuple[str, ...]], str] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)

    def call(self, node: Node, form: KernelForm, reason: str | None = None) -> Node:
        """The call of a fused node's kernel; `reason` says why it is not on the GPU."""
        body = node.attributes["body"]
        assert isinstance(body, Function)
        lowered, place, obstacle = lower_body(body, form)
        inputs = zip(lowered.function.params, lowered.inputs, strict=False)
        constants = tuple(buffer.name for buffer, value in inputs if value in self.constants)
        key = (lowered.function.key(), constants if place.binds_constants_apart else ())
        if key not in self.by_key:
            count = self.used.get(body.name, 0)
            self.used[body.name] = count + 1
            name = body.name if count == 0 else f"{body.name}_{count}"
            self.kernels[name] = replace(lowered.function, name=name)
            self.by_key[key] = name
        attributes: dict[str, Attribute] = {
            "kernel": self.by_key[key],
            "device": place.device,
            "constants": constants,
        }
        if (why := obstacle or reason) is not None:
            attributes["reason"] = why
        return Node("call_kernel", lowered.inputs, node.outputs, attributes, "webmlc", node.origin)


def lower_body(body: Function, form: KernelForm) -> tuple[Lowered, KernelForm, str | None]:
    """The kernel, the form that it got, and why that is not the one that was asked for."""
    lowered = from_graph(body, body.name, form)
    reason = form.obstacle(lowered.function)
    if reason is None:
        return lowered, form, None
    assert form.fallback is not None, reason
    return from_graph(body, body.name, form.fallback), form.fallback, reason
