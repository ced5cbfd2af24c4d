"""List every target by its device."""

from __future__ import annotations

from collections.abc import Iterable

from webmlc.core.errors import UserError
from webmlc.core.machine import Device, Machine
from webmlc.loops.ir import LoopFunction
from webmlc.target.target import AnyTarget, Variant, run_passes
from webmlc.target.wasm.target import WASM
from webmlc.target.webgpu.target import BY_ADAPTER, SOFTWARE_WEBGPU, WEBGPU

TARGETS: dict[Device, AnyTarget] = {"wasm": WASM, "webgpu": WEBGPU}
"""Every target, by its device."""


def targets_of(adapter: str) -> dict[Device, AnyTarget]:
    """Every target by its device, with the variants of its code that a package for a kind of
    adapter has. Raises `UserError` for an unknown kind.
    """
    if adapter not in BY_ADAPTER:
        names = " or ".join([", ".join([*BY_ADAPTER][:-1]), [*BY_ADAPTER][-1]])
        raise UserError(f"unknown adapter {adapter!r}: choose {names}")
    return {**TARGETS, WEBGPU.device: BY_ADAPTER[adapter]}


def target_of(machine: Machine) -> AnyTarget:
    """The target of a package whose kernels are all compiled for the same machine."""
    is_software = any(machine == other.machine for other in SOFTWARE_WEBGPU.variants.values())
    return SOFTWARE_WEBGPU if is_software else TARGETS[machine.device]


def machine_of(kernel: LoopFunction, machine: Machine) -> Machine:
    """The machine to compile a kernel for, where its variant is made for `machine`."""
    variants: Iterable[Variant[Machine]] = TARGETS[machine.device].variants.values()
    variant = next((v for v in variants if v.machine == machine), Variant(machine, ""))
    return variant.machine_of(kernel)


def lower(function: LoopFunction, machine: Machine) -> LoopFunction:
    """Return the lowered form of a scheduled `function` for `machine`, as `webmlc.target` defines
    it: without blocks, with flat buffers, vectors and registers, and each value computed once.
    """
    return run_passes(function, TARGETS[machine.device].lowering(machine))
