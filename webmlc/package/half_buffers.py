"""Choose the buffers of a GPU program that adapters with `shader-f16` store as halves.

In: a program, its kernels, and the float32 values that are halves in the model
(`graph/layout/widen_halves.py`). Out: the names of the buffers, and the parameters of each kernel
that receive such a buffer.

    x.wide: float32[n, 64]  ->  float16[n, 64], where x.wide is the value x of a float16 model

A buffer qualifies if only kernels on the GPU use it, and if these kernels read and write the whole
buffer. Every call of such a kernel must pass halves for the same parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from webmlc.core.dtypes import DType
from webmlc.core.machine import Device
from webmlc.graph.ir import Module
from webmlc.package.manifest import Manifest, read_by_host, written_by_host
from webmlc.package.write import ProgramParts
from webmlc.target.target import Variant


@dataclass(frozen=True, slots=True)
class HalfBuffers:
    """The names of the buffers, and by kernel the parameters that receive them."""

    buffers: frozenset[str] = frozenset()
    parameters: Mapping[str, frozenset[str]] = field(default_factory=dict)


def stores_halves(variants: Mapping[str, Variant[Any]]) -> bool:
    """True if some variant of the shaders stores halves."""
    return any("shader-f16" in variant.machine.features for variant in variants.values())


def half_buffers(
    program: ProgramParts, module: Module, signature: Manifest, device: Device
) -> HalfBuffers:
    """The buffers of a lowered module's program that `device` stores as halves. No buffer of the
    signature is stored as halves.
    """
    ports = {port.buffer for port in (*signature.inputs, *signature.outputs)}
    ports |= {port.past.buffer for port in signature.states}
    ports |= {check.value for check in module.checks}
    chosen = {
        b.name
        for b in program.buffers
        if b.name in module.halves and b.dtype is DType.float32 and b.kind in ("scratch", "derived")
    }
    chosen -= ports
    for item in program.body:
        chosen -= {*read_by_host(item), *written_by_host(item)}
    arguments: dict[tuple[str, int], set[str]] = {}
    for number, step in enumerate(program.steps):
        is_whole = number not in program.displacements
        if step.device == device and step.control is None and is_whole:
            for position, name in enumerate(step.arguments):
                arguments.setdefault((step.kernel, position), set()).add(name)
        else:
            chosen -= {*step.arguments}
    while mixed := {
        name for names in arguments.values() if not names <= chosen for name in names & chosen
    }:
        chosen -= mixed
    parameters: dict[str, frozenset[str]] = {}
    for (kernel, position), names in arguments.items():
        if names <= chosen:
            parameter = module.kernels[kernel].params[position].name
            parameters[kernel] = parameters.get(kernel, frozenset()) | {parameter}
    return HalfBuffers(frozenset(chosen), parameters)
