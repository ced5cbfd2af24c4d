"""Collect the kernels of a module's `fused` nodes; equal kernels are stored once.

In: a `fused` node and a device. Out: its `call_kernel` node; the kernel is in the table. On webgpu,
a kernel that no shader can compute gets the device `wasm` and a reason: it runs in a CPU segment of
the same package.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.ir import Array, Attribute, Function, Node, TensorType
from webmlc.graph.ops.operator import Scope
from webmlc.loops.from_graph import Lowered, from_graph
from webmlc.loops.from_program import from_program, node_apart, with_schedule
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

    Returns the kernel, its form, and the obstacle. A kernel of people's own has their schedule for
    the device of its form.
    """
    apart = node_apart(body)

    def lower(form: KernelForm) -> Lowered:
        if apart is not None:
            return from_program(body, apart, form)
        return from_graph(body, body.name, form)

    lowered = lower(form)
    reason = form.obstacle(lowered.function)
    if reason is not None:
        assert form.fallback is not None, reason
        form = form.fallback
        lowered = lower(form)
    return lowered if apart is None else with_schedule(lowered, apart, form), form, reason


def copy_node(value: str, target: str, function: Function, like: str = "") -> Node:
    """Build a kernel that copies a value to `target`.

    `like` names a value of the same type, by default the value itself. Without a value, the kernel
    writes `true`.
    """
    if not value:
        value = f"{target}.start"
        copied_type, constants = TensorType(DType.bool, ()), {value: np.array(True)}
    else:
        copied_type = value_type(function, like or value)
        constants = {v: a for v, a in function.constants.items() if v == value and a.size == 1}
    inner = Node("Identity", (value,), (target,))
    return fused_node("copy", inner, value, {value: copied_type, target: copied_type}, constants)


def fused_node(
    name: str, node: Node, value: str, types: dict[str, TensorType], constants: dict[str, Array]
) -> Node:
    """Build a fused node of one node that reads one value."""
    inputs = () if constants else (value,)
    body = Function(name, inputs, node.outputs, (node,), types, constants)
    return Node("fused", inputs, node.outputs, {"body": body}, "webmlc")


def view_roots(function: Function) -> dict[str, str]:
    """The value that owns the bytes of each view."""
    roots: dict[str, str] = {}
    for node in function.nodes:
        if node.op == "View":
            roots[node.outputs[0]] = roots.get(node.inputs[0], node.inputs[0])
    return roots


def value_type(function: Function, value: str) -> TensorType:
    """The type of a value, which may be a constant."""
    tensor_type = Scope(function.types, function.constants, {}).type_of(value)
    assert tensor_type is not None, value
    return tensor_type
