"""Time passes on the GPU of this machine, through wgpu-py, and measure what its adapter reaches.

Multiply-adds in registers, a copy of a large buffer, and the time from one dispatch to the next are
what kernels are compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import wgpu  # type: ignore[import-untyped]

from webmlc.host.webgpu import WebGpuExecutor
from webmlc.host.webgpu_adapter import Timestamps, bind_group_layout, find_adapter

SECONDS = 0.02
"""The seconds that the shorter of two passes of a kernel takes."""
WARM_SECONDS = 0.1
"""The seconds of work right before each pass, in which the adapter raises its clock."""
ROUNDS = 5
REPEATS = 4
"""The dispatches of a pass that measures a limit."""
PAUSES = 2000
"""The dispatches of a pass that measures the time between them."""
MULTIPLY_ADDS = """
@group(0) @binding(0) var<storage, read_write> y: array<vec4f>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3u) {
 var a = vec4f(f32(id.x)); var b = a + 1.0; var c = a + 2.0; var d = a + 3.0;
 let s = vec4f(y[0].x); let t = vec4f(y[0].y);
 for (var i = 0u; i < 512u; i++) {
%s
 }
 y[id.x] = a + b + c + d;
}"""
"""Multiply-adds in registers, as many as `%s` repeats."""
STEP = """
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) { x[id.x] += 1.0; }"""
"""A shader that takes no time, and needs what the dispatch before it wrote."""
CHANGE = """
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read> c: array<f32>;
@group(0) @binding(4) var<uniform> u: vec4i;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
 x[id.x] += a[id.x] + b[id.x] + c[id.x] + f32(u.x) + %d;
}"""
"""A step with the bindings of a product by packed weights; `%d` tells pipelines apart."""
PIPELINES, GROUPS, WORKGROUPS = 6, 60, 120
"""What dispatches change between: the kernels of a layer of a language model, the bind groups of
ten layers, and a number of workgroups that such kernels have."""
COPY = """
@group(0) @binding(0) var<storage, read_write> x: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4f>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3u) { y[id.x] = x[id.x]; }"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Floating-point operations and bytes per second. The seconds from one dispatch to the next
    that needs its results: of one workgroup with the same pipeline and bind group (`pause`), and of
    many workgroups with others (`change`), as the steps of a model are.
    """

    flops: float
    bytes: float
    pause: float
    change: float


def seconds_of(executor: WebGpuExecutor, runs: Any) -> float:
    """The seconds of a run on the GPU: the median of some differences of two passes."""
    once = max(executor.time_runs(runs, 2) / 2, 1e-6)
    count = max(2, min(200, round(SECONDS / once)))
    before = min(2000, round(WARM_SECONDS / once))
    differences = [
        executor.time_runs(runs, 2 * count, before) - executor.time_runs(runs, count, before)
        for _ in range(ROUNDS)
    ]
    return median(differences) / count


def limits() -> Limits:
    """The limits that the adapter reaches."""
    device = find_adapter().request_device_sync(required_features=["timestamp-query"])
    lines = [f"  {v} = fma({v}, s, t);" for v in "abcd"] * 4
    threads, vectors = 1 << 20, 6 << 20
    products = MULTIPLY_ADDS % "\n".join(lines)
    seconds = fastest(device, products, [16 * threads], threads // 256)
    copy = fastest(device, COPY, [16 * vectors] * 2, vectors // 256)
    pause = fastest(device, STEP, [4 * 64], 1, PAUSES)
    rates = 512 * 16 * 8.0 * threads / seconds, 32.0 * vectors / copy
    return Limits(*rates, pause, seconds_of_changes(device))


def seconds_of_changes(device: Any) -> float:
    """The seconds from one dispatch to the next, with another pipeline and bind group each time."""
    layout = bind_group_layout(device, [False, True, True, True], has_uniform=True)
    together = device.create_pipeline_layout(bind_group_layouts=[layout])
    modules = [device.create_shader_module(code=CHANGE % n) for n in range(PIPELINES)]
    pipelines = [
        device.create_compute_pipeline(
            layout=together, compute={"module": module, "entry_point": "main"}
        )
        for module in modules
    ]
    uniform = device.create_buffer(size=16, usage=wgpu.BufferUsage.UNIFORM)
    size = 4 * 64 * WORKGROUPS
    shared = device.create_buffer(size=size, usage=wgpu.BufferUsage.STORAGE)
    groups = []
    for _ in range(GROUPS):
        own = [device.create_buffer(size=size, usage=wgpu.BufferUsage.STORAGE) for _ in range(3)]
        buffers = [shared, *own, uniform]
        groups.append(bind_group(device, layout, buffers))

    def encode(compute: Any, number: int) -> None:
        compute.set_pipeline(pipelines[number % PIPELINES])
        compute.set_bind_group(0, groups[number % GROUPS])
        compute.dispatch_workgroups(WORKGROUPS)

    return fastest_pass(device, encode, PAUSES)


def fastest(
    device: Any, code: str, sizes: list[int], workgroups: int, repeats: int = REPEATS
) -> float:
    """The seconds of a shader over buffers of these bytes, in the fastest pass."""
    module = device.create_shader_module(code=code)
    stage = {"module": module, "entry_point": "main"}
    pipeline = device.create_compute_pipeline(layout="auto", compute=stage)
    usage = wgpu.BufferUsage.STORAGE
    buffers = [device.create_buffer(size=size, usage=usage) for size in sizes]
    group = bind_group(device, pipeline.get_bind_group_layout(0), buffers)

    def encode(compute: Any, number: int) -> None:
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(workgroups)

    return fastest_pass(device, encode, repeats)


def bind_group(device: Any, layout: Any, buffers: list[Any]) -> Any:
    """A bind group of whole buffers, in the order of their bindings."""
    entries = [
        {"binding": n, "resource": {"buffer": b, "offset": 0, "size": b.size}}
        for n, b in enumerate(buffers)
    ]
    return device.create_bind_group(layout=layout, entries=entries)


def fastest_pass(device: Any, encode: Callable[[Any, int], None], repeats: int) -> float:
    """The seconds of one of so many dispatches, in the fastest of some passes."""
    seconds = []
    for _ in range(ROUNDS):
        times = Timestamps(device, 1)
        encoder = device.create_command_encoder()
        compute = times.begin_pass(encoder)
        for number in range(repeats):
            encode(compute, number)
        compute.end()
        seconds += times.submit(encoder)
    return min(seconds) / repeats
