"""The GPU adapter of this machine, a device with the limits that a program needs, and the times of
its passes.

In: the needs of a package. Out: wgpu-py's objects. The choices of a device, its shaders and its
schedules use this module as well.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import wgpu  # type: ignore[import-untyped]

from webmlc.core.errors import AdapterError, UserError
from webmlc.core.machine import SHADER_FEATURES
from webmlc.host.executor import Loaded
from webmlc.package.manifest import Resources
from webmlc.package.placement import align

BINDING_MULTIPLE = 16
"""Round the size of a binding up to a multiple of this many bytes.

Kernels may read a whole `vec4<f32>`. Values begin at multiples of 256 bytes: there is room for it.
"""
WGPU_FEATURES = {"subgroups": "subgroup"}
"""The features with other names in wgpu-py than in WebGPU's specification."""
SUBGROUP_DIRECTIVES = ("enable subgroups;\n", "diagnostic(off, subgroup_uniformity);\n")
"""Directives that naga does not know, although it compiles the features that they enable."""
DEFAULT_LIMITS = {"max-storage-buffer-binding-size": 128 << 20, "max-buffer-size": 256 << 20}
"""The limits of every adapter, in bytes, from the specification of WebGPU."""


def bind_group_layout(device: Any, are_read_only: Sequence[bool], has_uniform: bool) -> Any:
    """The layout of a kernel's bindings: storage buffers, and the uniform of the symbols."""
    types = ["read-only-storage" if is_read else "storage" for is_read in are_read_only]
    types += ["uniform"] if has_uniform else []
    return device.create_bind_group_layout(
        entries=[
            {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": t}}
            for i, t in enumerate(types)
        ]
    )


def find_adapter() -> Any:
    """The adapter of this machine.

    Raises `AdapterError` if there is none, or if this process was forked from a process that has
    used the GPU: the driver would wait for threads of that process.
    """
    if os.getpid() != _driver_process():
        raise AdapterError(
            "a process that was forked cannot use the GPU that its parent has used; start it by "
            "multiprocessing's method 'spawn', or run with device='wasm'"
        )
    advice = "no GPU adapter is usable here; run with device='wasm', or install a Vulkan driver"
    try:
        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    except Exception as error:  # without a driver, the class of the error differs by platform
        raise AdapterError(f"{advice} ({error})") from error
    if adapter is None:
        raise AdapterError(advice)
    return adapter


@cache
def _driver_process() -> int:
    """The process in which the driver of the GPU was first used."""
    return os.getpid()


def is_software(adapter: Any) -> bool:
    """True if an adapter computes on the CPU."""
    return str(adapter.info["adapter_type"]) == "CPU"


def offered_features(adapter: Any) -> frozenset[str]:
    """The features that an adapter offers, by their names in WebGPU's specification."""
    names = {wgpu_name: name for name, wgpu_name in WGPU_FEATURES.items()}
    return frozenset(names.get(feature, feature) for feature in adapter.features)


def for_naga(text: str) -> str:
    """The text of shaders as naga compiles it."""
    for directive in SUBGROUP_DIRECTIVES:
        text = text.replace(directive, "", 1)
    return text


def larger_limits(resources: Resources, offered: Mapping[str, int]) -> dict[str, int]:
    """The limits that a program needs beyond the default limits.

    A program whose sizes depend on symbols needs the adapter's own limits. Raises `AdapterError` if
    the adapter offers less than the program needs. A device that asks for nothing gets the default
    limits in a browser, and the adapter's limits in wgpu-py.
    """
    largest = resources.largest_binding
    arena = resources.arena.get("webgpu") or 0
    needs = (largest, None if largest is None else max(largest, arena))
    limits = {}
    for (name, default), need in zip(DEFAULT_LIMITS.items(), needs, strict=True):
        size = offered[name] if need is None else align(need, BINDING_MULTIPLE)
        if size > offered[name]:
            raise AdapterError(
                f"the model needs a {name} of {size} bytes; this GPU adapter offers {offered[name]}"
            )
        if size > default:
            limits[name] = size
    return limits


def request_device(loaded: Loaded) -> Any:
    """Request a device with the limits and the features that the program needs. Raises
    `AdapterError` if the adapter lacks some of them, or opens no device.
    """
    adapter = find_adapter()
    resources = loaded.program.resources
    # The features of a program include the features of its modules.
    required = [f for f in resources.features if f in SHADER_FEATURES]
    offered = offered_features(adapter)
    if lacking := [f for f in required if f not in offered]:
        raise AdapterError(f"this GPU adapter lacks {', '.join(lacking)}, which the package needs")
    if "timestamp-query" in offered:
        required.append("timestamp-query")
    features = [WGPU_FEATURES.get(feature, feature) for feature in required]
    limits = larger_limits(resources, adapter.limits)
    try:
        return adapter.request_device_sync(required_features=features, required_limits=limits)
    except Exception as error:  # wgpu-py has no class for a driver without memory
        reason = " ".join(str(error).split())
        raise AdapterError(f"the GPU adapter opened no device: {reason}") from error


class Timestamps:
    """The times of passes on a device. Raises `UserError` where the adapter offers none."""

    def __init__(self, device: Any, passes: int) -> None:
        if "timestamp-query" not in device.features:
            raise UserError("this GPU adapter offers no timestamp-query, which profiling needs")
        self.device = device
        self.queries = device.create_query_set(type="timestamp", count=2 * passes)
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        self.ticks = device.create_buffer(size=16 * passes, usage=usage)

    def begin_pass(self, encoder: Any, number: int = 0) -> Any:
        """Begin the pass of this number."""
        return encoder.begin_compute_pass(
            timestamp_writes={
                "query_set": self.queries,
                "beginning_of_pass_write_index": 2 * number,
                "end_of_pass_write_index": 2 * number + 1,
            }
        )

    def submit(self, encoder: Any) -> list[float]:
        """Submit the passes, once. Returns the seconds of each pass."""
        count = self.ticks.size // 8
        encoder.resolve_query_set(self.queries, 0, count, self.ticks, 0)
        self.device.queue.submit([encoder.finish()])
        ticks = np.frombuffer(self.device.queue.read_buffer(self.ticks), np.uint64).astype(np.int64)
        self.ticks.destroy()
        return [float(t) * 1e-9 for t in ticks[1::2] - ticks[0::2]]
