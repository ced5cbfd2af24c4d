"""Classes of machines, which the loader of a package can distinguish.

A package may hold several schedules of a kernel: one schedule for most machines, and further
schedules for some classes. The compiler numbers the classes from 1. A loader finds the number of
its own class:

    machine_number(manifest.machines, MachineClass("wasm", "firefox"))     # 0: it is of no class

The twin for JavaScript is `runtime_js/machine_class.js`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from webmlc.core.machine import Device
from webmlc.core.record import Record


class MachineClass(Record):
    """A loader's knowledge of the machine that it runs on.

    - `device`: the device that runs the kernels.
    - `engine`: the name of the browser or of the library, such as "chromium" or "wasmtime".
    - `adapter`: the vendor and the architecture of the GPU; "" on a CPU, which no browser names.
    - `is_parallel`: several threads run a kernel on the CPU.
    """

    device: Device
    engine: str
    adapter: str = ""
    is_parallel: bool = False


def adapter_name(info: Mapping[str, Any]) -> str:
    """The vendor and the architecture of a GPU adapter, from WebGPU's adapter information."""
    return " ".join(filter(None, (str(info.get(key, "")) for key in ("vendor", "architecture"))))


def machine_number(classes: Sequence[MachineClass], machine: MachineClass) -> int:
    """The number of a machine's class. If the machine has no class, the number of the first class
    with the same adapter in another engine; 0 if there is none.
    """
    for number, other in enumerate(classes, 1):
        if other == machine:
            return number
    for number, other in enumerate(classes, 1):
        if machine.adapter and other.adapter == machine.adapter:
            return number
    return 0
