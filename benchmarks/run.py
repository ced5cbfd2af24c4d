"""Measure webmlc against ONNX Runtime Web and TF.js, in the same Chromium, in the same run.

In: models (named or files), devices, thread counts.
Out: one table, and the same figures as JSON. Latency is the median of the runs; the ratio is the
peer's latency over webmlc's, so more is better; the error is the largest difference from native
onnxruntime relative to the largest output; "first" is the time from navigation to the first
result, with a cold cache over the loopback interface.

    python benchmarks/run.py --models matmul,squeezenet --device wasm --threads 1 --json out.json
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import onnx
import typer
from models import NAMED, ROOT, Ready, prepare, source_of
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
MODULES = ROOT / "node_modules"
OUT = ROOT / "build" / "benchmarks"
DEFAULT_MODELS = "matmul,squeezenet,resnet50"

Row = dict[str, Any]


def groups_of(ready: Ready, gpu: bool, devices: Sequence[str], threads: Sequence[int]) -> list[Row]:
    """What takes turns: one device and one number of threads, every engine that can do it."""
    groups = []
    base = {"model": f"/models/{ready.name}/"}
    if "wasm" in devices:
        engines = ["webmlc", "onnxruntime", *(["tfjs"] if ready.tfjs else [])]
        groups += [{**base, "device": "wasm", "threads": n, "engines": engines} for n in threads]
    if "webgpu" in devices and gpu:
        engines = ["webmlc", "onnxruntime"]
        groups.append({**base, "device": "webgpu", "threads": 1, "engines": engines})
    return groups


def measure(groups: Sequence[Row], runs: int, warmup: int, loads: int) -> list[Row]:
    """Run `measure.mjs`; its progress goes to stderr."""
    mounts = {
        "/bench/": HERE / "page",
        "/models/": OUT,
        "/onnxruntime/": MODULES / "onnxruntime-web" / "dist",
        "/tfjs-core/": MODULES / "@tensorflow" / "tfjs-core" / "dist",
        "/tfjs-backend-wasm/": MODULES / "@tensorflow" / "tfjs-backend-wasm" / "dist",
    }
    missing = [
        str(p.relative_to(ROOT)) for p in mounts.values() if MODULES in p.parents and not p.is_dir()
    ]
    if missing:
        raise FileNotFoundError(f"run `npm ci` first: {', '.join(missing)} is not there")
    job = {
        "mounts": {prefix: str(folder) for prefix, folder in mounts.items()},
        "runs": runs,
        "warmup": warmup,
        "loads": loads,
        "groups": list(groups),
    }
    done = subprocess.run(
        ["node", str(HERE / "measure.mjs")],
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    rows: list[Row] = json.loads(done.stdout)
    return rows


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Medians, and each peer's latency as a multiple of webmlc's in the same group."""
    summary = []
    for row in rows:
        done: Row = {**row, "model": row["model"].removeprefix("/models/").rstrip("/")}
        if "failure" not in row:
            done["latency_ms"] = median(row["latencies"])
            done["first_ms"] = median(row["first"])
        summary.append(done)
    ours = {
        (row["model"], row["device"], row["threads"]): row["latency_ms"]
        for row in summary
        if row["engine"] == "webmlc" and "latency_ms" in row
    }
    for row in summary:
        own = ours.get((row["model"], row["device"], row["threads"]))
        if own is not None and "latency_ms" in row:
            row["ratio"] = row["latency_ms"] / own
    return summary


def print_table(console: Console, rows: Sequence[Row], runs: int) -> None:
    table = Table(title=f"medians of {runs} runs", caption="ratio: latency over webmlc's")
    for heading in ("model", "device", "engine"):
        table.add_column(heading)
    for heading in ("ms", "ratio", "error", "KB", "of it weights", "first, ms"):
        table.add_column(heading, justify="right")
    group = None
    for row in rows:
        if group not in (None, (row["model"], row["device"], row["threads"])):
            table.add_section()
        group = (row["model"], row["device"], row["threads"])
        device = row["device"] + (f" ×{row['threads']}" if row["device"] == "wasm" else "")
        head = (row["model"], device, f"{row['engine']} {row.get('version', '')}".strip())
        if "failure" in row:
            table.add_row(*head, "failed", style="red")
            continue
        ratio = f"{row['ratio']:.2f}" if "ratio" in row else ""
        sizes = (f"{row['bytes'] / 1e3:,.0f}", f"{row['weights'] / 1e3:,.0f}")
        figures = (f"{row['latency_ms']:.2f}", ratio, f"{row['error']:.0e}")
        table.add_row(*head, *figures, *sizes, f"{row['first_ms']:.0f}")
    console.print(table)
    for row in rows:
        if "failure" in row:
            console.print(f"{row['model']}, {row['device']}, {row['engine']}: {row['failure']}")


def main(
    models: Annotated[str, typer.Option(help=f"Of {', '.join(NAMED)}, or files")] = DEFAULT_MODELS,
    device: Annotated[str, typer.Option(help="wasm, webgpu or both")] = "wasm,webgpu",
    threads: Annotated[str, typer.Option(help="Numbers of threads on the CPU")] = "1,2",
    dims: Annotated[str, typer.Option(help="Symbolic dimensions: name=size,…; else 1")] = "",
    runs: Annotated[int, typer.Option(help="Timed runs of each engine", min=1)] = 15,
    warmup: Annotated[int, typer.Option(help="Runs before those", min=0)] = 4,
    loads: Annotated[int, typer.Option(help="Fresh loads of each page", min=1)] = 3,
    json_path: Annotated[Path | None, typer.Option("--json", help="Where to write JSON")] = None,
) -> None:
    """Measure webmlc against its peers in one Chromium."""
    console = Console(stderr=True)
    devices = device.split(",")
    counts = [int(n) for n in threads.split(",")]
    sizes = {name: int(size) for name, _, size in (d.partition("=") for d in dims.split(",") if d)}
    target = "both" if len(devices) > 1 else devices[0]
    groups: list[Row] = []
    builds: dict[str, float] = {}
    for model in models.split(","):
        try:
            with console.status(f"building {model}"):
                ready = prepare(model, OUT, target, sizes)
        except FileNotFoundError as error:
            console.print(f"{model} is left out: {error}")
            continue
        builds[ready.name] = ready.build_seconds
        # A big model takes minutes on a software GPU: measured there only when asked for alone.
        gpu = source_of(model).gpu or devices == ["webgpu"]
        groups += groups_of(ready, gpu, devices, counts)
    rows = summarise(measure(groups, runs, warmup, loads)) if groups else []
    print_table(Console(width=max(120, console.width)), rows, runs)
    if json_path is not None:
        machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        report = {"machine": machine, "runs": runs, "build_seconds": builds, "rows": rows}
        json_path.write_text(json.dumps({**report, "onnx": onnx.__version__}, indent=1) + "\n")
    if not rows or any("failure" in row for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
