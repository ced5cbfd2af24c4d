"""Classes of machines, which the loader of a package can tell apart.

A package may hold several schedules of a kernel: the one for most machines, and others for some
classes. The compiler numbers the classes from 1. A loader finds the number of its own:

    machine_number(manifest.machines, MachineClass("wasm", "firefox"))     # 0: it is of no class

The twin for JavaScript is `runtime_js/machine_class.js`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from webmlc.core.machine import Device
from webmlc.core.record import Record


class MachineClass(Record):
    """What a loader knows of the machine that it runs on.

    - `device`: what runs the kernels.
    - `engine`: the name of the browser or of the library, such as "chromium" or "wasmtime".
    - `adapter`: the vendor and the architecture of the GPU; "" on a CPU, which no browser names.
    - `is_parallel`: several threads run a kernel on the CPU.
    """

    device: Device
    engine: str
    adapter: str = ""
    is_parallel: bool = False


def adapter_name(info: Mapping[str, Any]) -> str:
    """The vendor and the architecture of a GPU adapter, from what WebGPU says of it."""
    return " ".join(filter(None, (str(info.get(key, "")) for key in ("vendor", "architecture"))))


def machine_number(classes: Sequence[MachineClass], machine: MachineClass) -> int:
    """The number of the class of a machine: of its class, or else of its adapter in another engine;
    0 if there is neither.
    """
    for number, other in enumerate(classes, 1):
        if other == machine:
            return number
    for number, other in enumerate(classes, 1):
        if machine.adapter and other.adapter == machine.adapter:
            return number
    return 0
