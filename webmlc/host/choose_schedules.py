"""Choose the schedules of a package for the machine that runs it.

In: a manifest with classes of machines. Out: the manifest whose steps launch the kernels for this
machine's GPU, and the number of this CPU's class, which the WebAssembly module reads from memory.
The twin for JavaScript is `runtime_js/machine_class.js`.
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.machine import Device
from webmlc.core.machine_class import MachineClass, adapter_name, machine_number
from webmlc.host.webgpu_adapter import find_adapter
from webmlc.package.manifest import Manifest, Step


def choose_schedules(manifest: Manifest, device: Device, threads: int) -> tuple[Manifest, int]:
    """The manifest for this machine, and the number of its CPU's class (0 for none).

    Raises `AdapterError` if the program has kernels for several GPUs, and there is none.
    """
    cpu = MachineClass("wasm", "wasmtime", is_parallel=threads > 1)
    number = machine_number(manifest.machines, cpu)
    program = manifest.programs[device]
    if not any(step.alternatives for step in program.steps):
        return manifest, number
    gpu = MachineClass("webgpu", "wgpu", adapter_name(find_adapter().info))
    gpu_number = machine_number(manifest.machines, gpu)
    steps = tuple(_step_on(step, gpu_number) for step in program.steps)
    programs = {**manifest.programs, device: replace(program, steps=steps)}
    return replace(manifest, programs=programs), number


def _step_on(step: Step, number: int) -> Step:
    """A step as the machines of a class run it."""
    launch = step.alternatives.get(number)
    if launch is None:
        return replace(step, alternatives={})
    return replace(step, kernel=launch.kernel, workgroups=launch.workgroups, alternatives={})
