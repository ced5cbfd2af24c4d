"""List every target by its device."""

from __future__ import annotations

from webmlc.core.machine import SOFTWARE_MACHINES, Device, Machine
from webmlc.loops.ir import LoopFunction
from webmlc.target import lower as lowering
from webmlc.target.target import Target
from webmlc.target.wasm.target import WASM
from webmlc.target.webgpu.target import SOFTWARE_WEBGPU, WEBGPU

TARGETS: dict[Device, Target] = {"wasm": WASM, "webgpu": WEBGPU}
"""Every target, by its device."""


def target_of(machine: Machine) -> Target:
    """The target of a package whose kernels are all made for one machine."""
    return SOFTWARE_WEBGPU if machine in SOFTWARE_MACHINES else TARGETS[machine.device]


def lower(function: LoopFunction, machine: Machine) -> LoopFunction:
    """Return the lowered form of `function` for `machine`, by the passes of its target."""
    return lowering.lower(function, machine, TARGETS[machine.device].lowering)
