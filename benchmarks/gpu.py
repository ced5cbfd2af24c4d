"""Measure our shaders on the GPU of this machine, through wgpu-py.

In: names of kernels and models, or none for all. Out: a table of kernels with the share of what the
adapter reaches in the same run (multiply-adds in registers; a copy of a large buffer), and one of
models: milliseconds of a run on the GPU alone, and from inputs to outputs. With `--json`, a file.

- A kernel is a one-node ONNX model, compiled and loaded as any other. It is dispatched again and
  again in one pass between two timestamps: twice as often the second time, and the difference
  counts. So small kernels find their operands in a cache, and the pause between two dispatches is
  part of their time (`launch`).
- A model's runs follow each other in one pass in the same way.
- With `--llm`, a token of a language model (GGUF) is compared with its limits: the time to read
  every weight once, and that from dispatch to dispatch (`gpu_limits.py`).
- With `--engines`, the models run in Dawn for Node as well, beside ONNX Runtime Web on the same
  adapter: from inputs to outputs, the engines by turns.

    python benchmarks/gpu.py --kernels "product 2048,softmax" --models resnet50 --json gpu.json
    python benchmarks/gpu.py --kernels - --models squeezenet --engines

With `--adapter all`, the variant of the shaders with the most features that the adapter offers is
measured; the JSON names it. On a machine without a GPU this measures lavapipe: build for it with
`--adapter software`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import typer
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

import webmlc
from benchmarks.gpu_decode import CAPACITY, TOKENS, measure_decode
from benchmarks.gpu_limits import ROUNDS, Limits, limits, seconds_of
from benchmarks.models import QUIET, ROOT, Source, named, prepare, random_inputs
from benchmarks.node_job import run_job
from webmlc.build_options import AdapterName
from webmlc.host.webgpu import WebGpuExecutor
from webmlc.host.webgpu_adapter import find_adapter
from webmlc.pipeline import build

RNG = np.random.default_rng(0)
DAWN = Path(__file__).parent / "dawn.mjs"
OUT = ROOT / "build" / "gpu"
DECODER = OUT / "decoder"
"""The package of a language model."""
RUNS, WARMUP = 10, 3
"""The runs of each engine that count, and those before them."""
CONTEXT = 256
"""The tokens before the one that is measured."""


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
    **{f"product {n}": partial(one_node, "MatMul", [n, n], [[n, n]]) for n in (1024, 2048, 4096)},
    "product 128x384x1536": lambda: one_node("MatMul", [128, 384], [[384, 1536]]),
    "product 1x2048x1000": lambda: one_node("MatMul", [1, 2048], [[2048, 1000]]),
    # as many multiply-adds as the four 3x3 convolutions of ResNet-50 below have
    "product 3136x576x64": lambda: one_node("MatMul", [3136, 576], [[576, 64]]),
    "product 784x1152x128": lambda: one_node("MatMul", [784, 1152], [[1152, 128]]),
    "product 196x2304x256": lambda: one_node("MatMul", [196, 2304], [[2304, 256]]),
    "product 49x4608x512": lambda: one_node("MatMul", [49, 4608], [[4608, 512]]),
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


def measure(model: onnx.ModelProto, source: Source, adapter: AdapterName) -> dict[str, Any]:
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


def table_of(title: str, *headings: str) -> Table:
    """A table whose first column holds names."""
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    return table


def measure_kernels(
    parts: list[str], adapter: AdapterName, limit: Limits
) -> tuple[Table, dict[str, Any]]:
    """The kernels whose names contain one of `parts`, or all where it is empty."""
    headings = ("us", "TFLOPS", "GB/s", "of the limit", "dispatches", "error")
    table, rows = table_of("kernels", "kernel", *headings), {}
    for label, make in KERNELS.items():
        if parts and not any(part in label for part in parts):
            continue
        kernel = make()
        row = measure(kernel.model, Source(make=onnx.ModelProto), adapter)
        rates = kernel.flops / row["gpu"], kernel.least_bytes / row["gpu"]
        share = max(rates[0] / limit.flops, rates[1] / limit.bytes)
        rows[label] = row | {"flops": rates[0], "bytes": rates[1], "share": share}
        figures = (f"{1e6 * row['gpu']:.1f}", f"{rates[0] / 1e12:.2f}", f"{rates[1] / 1e9:,.0f}")
        table.add_row(
            label, *figures, f"{share:.0%}", str(row["dispatches"]), f"{row['error']:.0e}"
        )
    return table, rows


def measure_models(names: list[str], adapter: AdapterName) -> tuple[Table, dict[str, Any]]:
    """Each model on the GPU alone, and from inputs to outputs in Python."""
    headings = ("ms on the GPU", "ms of a run", "dispatches", "error")
    table, rows = table_of("models", "model", *headings), {}
    for label in names:
        source = named()[label]
        row = rows[label] = measure(source.make(), source, adapter)
        milliseconds = (f"{1e3 * row[key]:.3f}" for key in ("gpu", "run"))
        table.add_row(label, *milliseconds, str(row["dispatches"]), f"{row['error']:.0e}")
    return table, rows


def measure_engines(names: list[str], adapter: AdapterName) -> tuple[Table, list[dict[str, Any]]]:
    """webmlc and ONNX Runtime Web by turns, in Dawn for Node."""
    for name in names:
        prepare(name, OUT, "webgpu", {}, adapter)
    folders = [str(OUT / name) for name in names]
    job = {"runs": RUNS, "warmup": WARMUP, "folders": folders}
    rows: list[dict[str, Any]] = run_job(DAWN, job)["rows"]
    headings = ("engine", "ms of a run", "ratio", "ms to the first result", "error")
    table = table_of("in Dawn for Node, from inputs to outputs", "model", *headings)
    ours = {row["model"]: row for row in rows if row["engine"] == "webmlc"}
    for row in rows:
        if "failure" in row:
            table.add_row(row["model"], row["engine"], row["failure"])
            continue
        row["ms"] = median(row.pop("latencies"))
        ratio = f"{row['ms'] / ours[row['model']]['ms']:.2f}" if "ms" in ours[row["model"]] else ""
        figures = (f"{row['ms']:.2f}", ratio, f"{row['first']:.0f}", f"{row['error']:.0e}")
        table.add_row(row["model"], f"{row['engine']} {row['version']}", *figures)
    return table, rows


def print_decode(console: Console, row: dict[str, Any]) -> None:
    """Print what a token takes, and which limit binds it."""
    console.print(
        f"a token after {CONTEXT}: {1e3 * row['gpu']:.2f} ms on the GPU, {1e3 * row['run']:.2f} in "
        "Python; of that at least"
    )
    limits = {
        "to read the weights": row["least"],
        f"for {row['dispatches']} dispatches": row["changes"],
        "for as many without changes": row["pauses"],
    }
    for name, least in limits.items():
        console.print(f"  {1e3 * least:.2f} ms {name}: {least / row['gpu']:.0%}")


def main(
    kernels: Annotated[
        str, typer.Option(help="Names, or parts of names; all if empty; - for none.")
    ] = "",
    models: Annotated[str, typer.Option(help="Names of `benchmarks/models.py`; - for none.")] = "",
    adapter: Annotated[
        AdapterName,
        typer.Option(help="What to compile for: gpu, software, or all and let load choose."),
    ] = "gpu",
    engines: Annotated[
        bool, typer.Option(help="Run the models beside ONNX Runtime Web, in Dawn for Node.")
    ] = False,
    llm: Annotated[Path | None, typer.Option(help="A GGUF file, to measure a token.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measure our shaders on the GPU of this machine."""
    console = Console(width=140)
    info = find_adapter().info
    name = f"{info['device']}, {info['description']}"
    limit = limits()
    reached = f"{limit.flops / 1e12:.2f} TFLOPS, {limit.bytes / 1e12:.3f} TB/s"
    console.print(
        f"{name}: {reached}, {1e6 * limit.pause:.1f} us from dispatch to dispatch, "
        f"{1e6 * limit.change:.1f} with another pipeline and bind group"
    )
    results: dict[str, Any] = {"adapter": name, "limits": asdict(limit), "rows": {}}
    if kernels != "-":
        parts = [part.strip() for part in kernels.split(",") if part.strip()]
        table, rows = measure_kernels(parts, adapter, limit)
        console.print(table)
        results["rows"] |= rows
    names = [] if models == "-" else (models or MODELS).split(",")
    if names:
        table, rows = measure_models(names, adapter)
        console.print(table)
        results["rows"] |= rows
    if llm is not None:
        build(llm, DECODER, "webgpu", adapter=adapter, cache=False)
        results["token"] = measure_decode(DECODER, CONTEXT, limit)
        print_decode(console, results["token"])
    if engines:
        table, results["engines"] = measure_engines(names, adapter)
        console.print(table)
    if engines and llm is not None:
        job = {"package": str(DECODER), "capacity": CAPACITY, "context": CONTEXT, "tokens": TOKENS}
        (results["token_in_dawn"],) = run_job(DAWN, {"folders": [], "decoder": job})["rows"]
        console.print(f"a token in Dawn for Node: {results['token_in_dawn']['ms']:.2f} ms")
    if as_json is not None:
        as_json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    typer.run(main)
