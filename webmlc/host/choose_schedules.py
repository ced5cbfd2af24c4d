"""Choose the schedules of a package for the machine that runs it.

In: a manifest with variants of shaders and classes of machines. Out: the manifest with one variant,
whose steps launch the kernels for this machine's GPU. Also the number of this CPU's class: the
WebAssembly module reads the number from memory. The twin for JavaScript is
`runtime_js/machine_class.js`.
"""

from __future__ import annotations

from msgspec.structs import replace

from webmlc.core.errors import PackageError
from webmlc.core.machine import SOFTWARE_ADAPTERS, AdapterKind, Device
from webmlc.core.machine_class import MachineClass, adapter_name, machine_number
from webmlc.host.webgpu_adapter import find_adapter, is_software, offered_features
from webmlc.package.manifest import Manifest, Program


def choose_schedules(
    manifest: Manifest, device: Device, threads: int, shaders: AdapterKind | None = None
) -> tuple[Manifest, int]:
    """The manifest for this machine, and the number of its CPU's class (0 for none). `shaders`
    names a variant of the shaders to use on any GPU.

    Raises `PackageError` if the program has no such variant, and `AdapterError` if it has kernels
    for several GPUs, and this machine has no GPU.
    """
    cpu = MachineClass("wasm", "wasmtime", is_parallel=threads > 1)
    number = machine_number(manifest.machines, cpu)
    program = manifest.programs[device]
    if program.shaders:
        gpu_number = 0
        if any("@" in key for step in program.steps for key in step.launches):
            gpu = MachineClass("webgpu", "wgpu", adapter_name(find_adapter().info))
            gpu_number = machine_number(manifest.machines, gpu)
        program = program_in(program, choose_shaders(program, shaders), gpu_number)
    return replace(manifest, programs={**manifest.programs, device: program}), number


def choose_shaders(program: Program, choice: AdapterKind | None) -> str:
    """The variant of the shaders to run: `choice`, or the variant for software on a software
    adapter, or the variant that uses the most features of the adapter. If no variant was made for
    the adapter, the first variant.
    """
    shaders = program.shaders
    if choice is not None and choice not in shaders:
        raise PackageError(
            f"the package has no {choice!r} shaders (it has {', '.join(shaders)}); "
            "build it with --adapter all"
        )
    if choice is not None or len(shaders) == 1:
        return choice or next(iter(shaders))
    adapter = find_adapter()
    if is_software(adapter) and "software" in shaders:
        return "software"  # wgpu-py does not show the number of threads of a subgroup
    needs = {v: program.shader_features.get(v, ()) for v in shaders if v not in SOFTWARE_ADAPTERS}
    offered = offered_features(adapter)
    usable = [v for v, features in needs.items() if offered.issuperset(features)]
    return max(usable, key=lambda v: len(needs[v]), default=next(iter(shaders)))


def program_in(program: Program, variant: str, machine: int = 0) -> Program:
    """A program as the machines of a class run it with a variant of the shaders."""
    needs = program.shader_features.get(variant, ())
    program = program.with_halves() if "shader-f16" in needs else replace(program, halves=None)
    features = (*program.resources.features, *needs)
    steps = (
        replace(step, launches={variant: step.launch_in(variant, machine)}) if step.launches
        else step
        for step in program.steps
    )  # fmt: skip
    return replace(
        program,
        steps=tuple(steps),
        resources=replace(program.resources, features=features),
        shaders={variant: program.shaders[variant]},
        shader_features={},
    )
