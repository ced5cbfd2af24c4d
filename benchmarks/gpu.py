"""Measure our shaders on the GPU of this machine, through wgpu-py.

In: names of kernels and models, or none for all. Out: a table of kernels with the share of what the
adapter reaches in the same run (multiply-adds in registers; a copy of a large buffer), and one of
models: milliseconds of a run on the GPU alone, and from inputs to outputs. With `--json`, a file.

- A kernel is a one-node ONNX model, compiled and loaded as any other. It is dispatched again and
  again in one pass between two timestamps: twice as often the second time, and the difference
  counts. So small kernels find their operands in a cache, and the pause between two dispatches is
  part of their time (`launch`).
- A model's runs follow each other in one pass in the same way.

    python benchmarks/gpu.py --kernels "product 2048,softmax" --models resnet50 --json gpu.json

With `--adapter all`, the variant of the shaders with the most features that the adapter offers is
measured; the JSON names it. On a machine without a GPU this measures lavapipe: build for it with
`--adapter software`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import typer
import wgpu  # type: ignore[import-untyped]
from models import QUIET, Source, named, random_inputs
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

import webmlc
from webmlc.compile import build
from webmlc.host.webgpu import WebGpuExecutor
from webmlc.host.webgpu_adapter import Timestamps, find_adapter

RNG = np.random.default_rng(0)
SECONDS = 0.02
"""The seconds that the shorter of two passes of a kernel takes."""
ROUNDS = 5
REPEATS = 4
"""The dispatches of a pass that measures a limit."""
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
COPY = """
@group(0) @binding(0) var<storage, read_write> x: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4f>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3u) { y[id.x] = x[id.x]; }"""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A one-node model: floating-point operations of a run, and the bytes that it has to move."""

    model: onnx.ModelProto
    flops: int
    least_bytes: int


def one_node(op: str, shape: list[int], weights: list[list[int]], **attributes: Any) -> Kernel:
    """A node over an input of `shape`, with weights of these shapes."""
    arrays = [RNG.normal(0, 0.05, w).astype(np.float32) for w in weights]
    constants = [numpy_helper.from_array(a, f"w{n}") for n, a in enumerate(arrays)]
    node = helper.make_node(op, ["x", *(c.name for c in constants)], ["y"], **attributes)
    source = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    target = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], op.lower(), [source], [target], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    inferred = onnx.shape_inference.infer_shapes(model)
    sizes = [d.dim_value for d in inferred.graph.output[0].type.tensor_type.shape.dim]
    results, read = int(np.prod(sizes)), int(np.prod(shape))
    depth = {"MatMul": shape[-1], "Conv": int(np.prod(weights[0][1:])) if weights else 0}
    moved = 4 * (read + results + sum(a.size for a in arrays))
    return Kernel(inferred, 2 * results * depth.get(op, 0), moved)


def convolution(size: int, channels: int, kernel: int = 3, groups: int = 1) -> Kernel:
    """A convolution of a square map that keeps its size and channels."""
    weights = [channels, channels // groups, kernel, kernel]
    pads = [kernel // 2] * 4
    return one_node("Conv", [1, channels, size, size], [weights], pads=pads, group=groups)


KERNELS: Mapping[str, Callable[[], Kernel]] = {
    **{
        f"product {n}": lambda n=n: one_node("MatMul", [n, n], [[n, n]]) for n in (1024, 2048, 4096)
    },
    "product 128x384x1536": lambda: one_node("MatMul", [128, 384], [[384, 1536]]),
    "product 1x2048x1000": lambda: one_node("MatMul", [1, 2048], [[2048, 1000]]),
    "convolution 56x56x64": lambda: convolution(56, 64),
    "convolution 28x28x128": lambda: convolution(28, 128),
    "convolution 14x14x256": lambda: convolution(14, 256),
    "convolution 7x7x512": lambda: convolution(7, 512),
    "convolution 224x224x64": lambda: convolution(224, 64),
    "depthwise 56x56x128": lambda: convolution(56, 128, 3, 128),
    "softmax 1024x1024": lambda: one_node("Softmax", [1024, 1024], []),
    "softmax 16384x1024": lambda: one_node("Softmax", [16384, 1024], []),
    "layer norm 16384x1024": lambda: one_node(
        "LayerNormalization", [16384, 1024], [[1024], [1024]]
    ),
    "transpose 1024x1024": lambda: one_node("Transpose", [1024, 1024], [], perm=[1, 0]),
    "transpose 4096x4096": lambda: one_node("Transpose", [4096, 4096], [], perm=[1, 0]),
}
MODELS = "resnet50,densenet121,squeezenet,shufflenet,inception_v2"


def seconds_of(executor: WebGpuExecutor, runs: Any) -> float:
    """The seconds of a run on the GPU: the median of some differences of two passes."""
    once = executor.time_runs(runs, 2) / 2
    count = max(2, min(200, round(SECONDS / max(once, 1e-6))))
    differences = [
        executor.time_runs(runs, 2 * count) - executor.time_runs(runs, count) for _ in range(ROUNDS)
    ]
    return median(differences) / count


def measure(model: onnx.ModelProto, source: Source, adapter: str) -> dict[str, Any]:
    """Seconds on the GPU, and from inputs to outputs; dispatches; the relative error; the variant
    of the shaders.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = QUIET
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    inputs = random_inputs(session, source)
    with tempfile.TemporaryDirectory() as folder:
        build(model, folder, "webgpu", adapter=adapter, cache=False)
        loaded = webmlc.load(folder, device="webgpu")
        try:
            outputs = loaded.run(inputs)
            start = time.perf_counter()
            for _ in range(ROUNDS):
                loaded.run(inputs)
            whole = (time.perf_counter() - start) / ROUNDS
            executor = loaded._executors["webgpu"]
            assert isinstance(executor, WebGpuExecutor)
            runs = [run for run in loaded.program.runs if not run.once]
            steps = sum(run.last - run.first for run in runs if run.device == "webgpu")
            error = error_of(session, inputs, outputs)
            row = {"gpu": seconds_of(executor, runs), "run": whole}
            return row | {"dispatches": steps, "error": error, "shaders": loaded.shaders}
        finally:
            loaded.dispose()


def error_of(
    session: onnxruntime.InferenceSession, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> float:
    """The largest difference from onnxruntime, relative to the largest result."""
    names = [output.name for output in session.get_outputs()]
    wanted = dict(zip(names, session.run(names, dict(inputs)), strict=True))
    floats = {n: w for n, w in wanted.items() if w.dtype.kind == "f" and w.size}
    return max(
        float(np.abs(outputs[n] - w).max() / max(np.abs(w).max(), 1e-30)) for n, w in floats.items()
    )


def limits() -> tuple[float, float]:
    """Floating-point operations and bytes per second that the adapter reaches."""
    device = find_adapter().request_device_sync(required_features=["timestamp-query"])
    lines = [f"  {v} = fma({v}, s, t);" for v in "abcd"] * 4
    threads, vectors = 1 << 20, 6 << 20
    products = MULTIPLY_ADDS % "\n".join(lines)
    seconds = fastest(device, products, [16 * threads], threads // 256)
    copy = fastest(device, COPY, [16 * vectors] * 2, vectors // 256)
    return 512 * 16 * 8.0 * threads / seconds, 32.0 * vectors / copy


def fastest(device: Any, code: str, sizes: list[int], workgroups: int) -> float:
    """The seconds of a shader over buffers of these bytes, in the fastest pass."""
    module = device.create_shader_module(code=code)
    stage = {"module": module, "entry_point": "main"}
    pipeline = device.create_compute_pipeline(layout="auto", compute=stage)
    usage = wgpu.BufferUsage.STORAGE
    buffers = [device.create_buffer(size=size, usage=usage) for size in sizes]
    group = device.create_bind_group(
        layout=pipeline.get_bind_group_layout(0),
        entries=[
            {"binding": n, "resource": {"buffer": b, "offset": 0, "size": b.size}}
            for n, b in enumerate(buffers)
        ],
    )
    seconds = []
    for _ in range(ROUNDS):
        times = Timestamps(device, 1)
        encoder = device.create_command_encoder()
        compute = times.begin_pass(encoder)
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        for _ in range(REPEATS):
            compute.dispatch_workgroups(workgroups)
        compute.end()
        seconds += times.submit(encoder)
    return min(seconds) / REPEATS


def main(
    kernels: Annotated[str, typer.Option(help="Names, or parts of names.")] = "",
    models: Annotated[str, typer.Option(help="Names of `benchmarks/models.py`; - for none.")] = "",
    adapter: Annotated[
        str, typer.Option(help="What to compile for: gpu, software, or all and let load choose.")
    ] = "gpu",
    as_json: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measure our shaders on the GPU of this machine."""
    console = Console(width=140)
    info = find_adapter().info
    name = f"{info['device']}, {info['description']}"
    flops, bandwidth = limits()
    console.print(f"{name}: {flops / 1e12:.1f} TFLOPS, {bandwidth / 1e12:.2f} TB/s in this run")
    table = Table(title="kernels", title_justify="left")
    for heading in ("kernel", "us", "TFLOPS", "GB/s", "of the limit", "dispatches", "error"):
        table.add_column(heading, justify="right" if heading != "kernel" else "left")
    rows: dict[str, Any] = {}
    for label, make in KERNELS.items():
        if kernels and not any(part.strip() in label for part in kernels.split(",")):
            continue
        kernel = make()
        row = measure(kernel.model, Source(make=onnx.ModelProto), adapter)
        rates = kernel.flops / row["gpu"], kernel.least_bytes / row["gpu"]
        share = max(rates[0] / flops, rates[1] / bandwidth)
        rows[label] = row | {"flops": rates[0], "bytes": rates[1], "share": share}
        figures = (f"{1e6 * row['gpu']:.1f}", f"{rates[0] / 1e12:.2f}", f"{rates[1] / 1e9:,.0f}")
        table.add_row(
            label, *figures, f"{share:.0%}", str(row["dispatches"]), f"{row['error']:.0e}"
        )
    console.print(table)
    table = Table(title="models", title_justify="left")
    for heading in ("model", "ms on the GPU", "ms of a run", "dispatches", "error"):
        table.add_column(heading, justify="right" if heading != "model" else "left")
    sources = named()
    for label in () if models == "-" else (models or MODELS).split(","):
        source = sources[label]
        model = source.make()
        row = measure(model, source, adapter)
        rows[label] = row
        milliseconds = (f"{1e3 * row[key]:.3f}" for key in ("gpu", "run"))
        table.add_row(label, *milliseconds, str(row["dispatches"]), f"{row['error']:.0e}")
    console.print(table)
    if as_json is not None:
        limit = {"flops": flops, "bytes": bandwidth}
        as_json.write_text(json.dumps({"adapter": name, "limits": limit, "rows": rows}, indent=1))


if __name__ == "__main__":
    typer.run(main)
