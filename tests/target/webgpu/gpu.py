"""Run one kernel on a real adapter through wgpu-py, for comparison with the interpreter.

    outputs = run_on_gpu(lower(function, WEBGPU), {"A": a, "B": b}, {"n": 3})

A missing adapter is an error that says what to install. It never skips a test.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from webmlc.core.machine import SHADER_FEATURES
from webmlc.core.rewrite import evaluate
from webmlc.host.webgpu_adapter import WGPU_FEATURES, for_naga
from webmlc.loops.ir import LoopFunction
from webmlc.target.webgpu.emit_shaders import Entry, emit_shaders

Array = np.ndarray[Any, Any]


@lru_cache(maxsize=1)
def device() -> Any:
    """A device with the default limits of WebGPU, and the features that shaders may use."""
    os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")
    import wgpu  # type: ignore[import-untyped]

    adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    if adapter is None:
        raise RuntimeError("no WebGPU adapter: install mesa-vulkan-drivers (lavapipe)")
    features = [WGPU_FEATURES.get(feature, feature) for feature in SHADER_FEATURES]
    return adapter.request_device_sync(required_features=features)


def run_on_gpu(
    function: LoopFunction,
    arrays: Mapping[str, Array],
    symbols: Mapping[str, int] | None = None,
    constants: frozenset[str] = frozenset(),
    features: frozenset[str] = frozenset(),
) -> dict[str, Array]:
    """The outputs of a lowered kernel, by name. They start as the arrays of the same name. The
    shader may use some features.
    """
    shaders = emit_shaders({function.name: function}, {function.name: constants}, features)
    return launch(
        shaders.text, shaders.entries[function.name], function, arrays, symbols or {}, constants
    )


def launch(
    text: str,
    entry: Entry,
    function: LoopFunction,
    arrays: Mapping[str, Array],
    symbols: Mapping[str, int],
    constants: frozenset[str] = frozenset(),
) -> dict[str, Array]:
    """Dispatch one entry point of a module, and read its outputs back."""
    import wgpu

    gpu = device()
    storage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
    resources, layout = [], []
    for position, parameter in enumerate(function.params):
        data = np.ascontiguousarray(arrays[parameter.name]).tobytes() or bytes(4)
        data += bytes(-len(data) % 4)
        resources.append(gpu.create_buffer_with_data(data=data, usage=storage))
        kind = "read-only-storage" if parameter.name in constants else "storage"
        layout.append({"binding": position, "visibility": 4, "buffer": {"type": kind}})
    if entry.symbols or entry.integers:
        words = [*(symbols[name] for name in entry.symbols), *entry.integers]
        values = np.zeros(-(-len(words) // 4) * 4, np.int32)
        values[: len(words)] = words
        resources.append(
            gpu.create_buffer_with_data(data=values.tobytes(), usage=wgpu.BufferUsage.UNIFORM)
        )
        layout.append({"binding": len(layout), "visibility": 4, "buffer": {"type": "uniform"}})
    groups = gpu.create_bind_group_layout(entries=layout)
    pipeline = gpu.create_compute_pipeline(
        layout=gpu.create_pipeline_layout(bind_group_layouts=[groups]),
        compute={
            "module": gpu.create_shader_module(code=for_naga(text)),
            "entry_point": entry.name,
        },
    )
    entries = [
        {"binding": i, "resource": {"buffer": r, "offset": 0, "size": r.size}}
        for i, r in enumerate(resources)
    ]
    encoder = gpu.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, gpu.create_bind_group(layout=groups, entries=entries))
    compute.dispatch_workgroups(
        *(int(evaluate(extent, dict(symbols))) for extent in entry.workgroups)
    )
    compute.end()
    gpu.queue.submit([encoder.finish()])
    results = {}
    for parameter, resource in list(zip(function.params, resources, strict=False))[
        -function.outputs :
    ]:
        like = arrays[parameter.name]
        raw = gpu.queue.read_buffer(resource)
        results[parameter.name] = (
            np.frombuffer(raw, like.dtype)[: like.size].reshape(like.shape).copy()
        )
    return results
