"""Measure webmlc against ONNX Runtime Web, TF.js and LiteRT.js, in one Chromium, in one run.

In: models (names or files), devices, numbers of threads. Out: a table, the demands on the figures
and whether they hold, and the figures as JSON. `figures.py` writes them into the documentation.

- Latency is the median of the runs. The ratio is the peer's latency over webmlc's, so more is
  better.
- The error is the largest difference from native onnxruntime, relative to the largest output.
- "load" is the time until the engine is ready to run. "first" is the time from navigation to the
  first result, with a cold cache over the loopback interface, in a browser that is idle.
- "MB" is the peak memory of the page's process that no file backs.
- "native" is onnxruntime outside the browser, with one thread.

    python benchmarks/run.py --models matmul,squeezenet --threads 1 --json results.json
    python benchmarks/run.py --models mediapipe --peer litert --interval 33,0

A run of all models takes half an hour, and replaces the file of figures. `--reuse` measures the
models that an earlier run built. A run of some models adds their entries to the file.
TF.js runs the models that `tfjs_graph.py` can write as calls of it, and LiteRT.js the models of
TensorFlow Lite. With `--interval`, an engine's turn is a series of runs that begin every so many
milliseconds, as frames of a camera do; with 0, a run begins when the run before it ends.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.judge import judge
from benchmarks.limit import write_limit
from benchmarks.mediapipe import NAMES
from benchmarks.models import ROOT, Ready, named, native_latencies, prepare, reuse, source_of
from benchmarks.node_job import run_job
from benchmarks.results import Entry, Row, entry_of, header, merge, row_of
from webmlc.build_options import TargetName

HERE = Path(__file__).parent
MODULES = ROOT / "node_modules"
OUT = ROOT / "build" / "benchmarks"
PROFILES = 5
"""The profiles of each model, at most. A profile times every step."""
PACKAGES: Mapping[str, Mapping[str, str]] = {
    "onnxruntime": {"/onnxruntime/": "onnxruntime-web/dist"},
    "tfjs": {
        "/tfjs-core/": "@tensorflow/tfjs-core/dist",
        "/tfjs-backend-wasm/": "@tensorflow/tfjs-backend-wasm/dist",
    },
    "litert": {"/litert/": "@litertjs/core", "/litert-wasm-utils/": "@litertjs/wasm-utils/dist"},
}
"""The addresses at which a page reads the npm packages of an engine, and their folders."""
WEBMLC = ({"engine": "webmlc"}, {"engine": "webmlc", "variant": "simd128"})
"""The module that the page chooses for a user, and the one without relaxed SIMD."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is measured of each model: the devices, the numbers of threads, the peers on the CPU,
    and the milliseconds between the beginnings of runs. Without intervals, engines take turns.
    """

    devices: Sequence[str]
    threads: Sequence[int]
    peers: Sequence[str]
    intervals: Sequence[int]


def groups_of(ready: Ready, gpu: bool, conditions: Conditions) -> list[Row]:
    """The groups of engines that take turns: one per device, number of threads and interval, with
    every engine that supports it.
    """
    groups: list[Row] = []
    base = {"model": f"/models/{ready.name}/"}
    if "wasm" in conditions.devices:
        peers = [{"engine": peer} for peer in conditions.peers if peer in ready.peers]
        for count in conditions.threads:
            group = {**base, "device": "wasm", "threads": count}
            series = {**group, "engines": [WEBMLC[0], *peers]}
            groups += [{**series, "interval": n} for n in conditions.intervals]
            if not conditions.intervals:
                groups.append({**group, "engines": [*WEBMLC, *peers]})
    if "webgpu" in conditions.devices and gpu:
        engines = [{"engine": "webmlc"}, {"engine": "onnxruntime"}]
        groups.append({**base, "device": "webgpu", "threads": 1, "engines": engines})
    return groups


def measure(groups: Sequence[Row], runs: int, warmup: int, loads: int) -> dict[str, Any]:
    """Run `measure.mjs`, whose progress goes to stderr."""
    mounts = {
        "/bench/": HERE / "page",
        "/models/": OUT,
    }
    for engine in {engine["engine"] for group in groups for engine in group["engines"]}:
        mounts |= {prefix: MODULES / folder for prefix, folder in PACKAGES.get(engine, {}).items()}
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
        "profiles": min(runs, PROFILES),
        "flops": write_limit(OUT / "limit"),
        "groups": list(groups),
    }
    return run_job(HERE / "measure.mjs", job)


def print_table(console: Console, entries: Mapping[str, Entry], runs: int) -> None:
    """Print a row per engine. Ratios are relative to webmlc's row with the module that it chose."""
    table = Table(title=f"medians of {runs} runs", caption="ratio: latency over webmlc's")
    for heading in ("model", "device", "engine"):
        table.add_column(heading)
    for heading in ("ms", "ratio", "error", "KB", "of it weights", "MB", "load, ms", "first, ms"):
        table.add_column(heading, justify="right")
    failures = []
    for name, entry in entries.items():
        for row in entry["rows"]:
            device = row["device"] + (f" ×{row['threads']}" if row["device"] == "wasm" else "")
            interval = row.get("interval")
            if interval is not None:
                device += f", every {interval} ms" if interval else ", in a loop"
            engine = [row["engine"], row.get("variant", ""), row.get("version", "")]
            head = (name, device, " ".join(filter(None, engine)))
            if "failure" in row:
                table.add_row(*head, "failed", style="red")
                failures.append(f"{', '.join(head)}: {row['failure']}")
                continue
            ours = row_of(entry, "webmlc", row["threads"], None, row["device"], interval)
            ratio = f"{row['ms'] / ours['ms']:.2f}" if ours else ""
            memory = f"{row['memory'] / 1e6:.0f}" if row["memory"] else ""
            sizes = (f"{row['download'] / 1e3:,.0f}", f"{row['weights'] / 1e3:,.0f}", memory)
            times = (f"{row['load_ms']}", f"{row['first_ms']}")
            table.add_row(*head, f"{row['ms']:.3f}", ratio, f"{row['error']:.0e}", *sizes, *times)
        table.add_row(name, "native ×1", "onnxruntime", f"{entry['native_ms']:.3f}")
        table.add_section()
    console.print(table)
    for failure in failures:
        console.print(failure, markup=False)


def print_kernels(console: Console, entries: Mapping[str, Entry], count: int) -> None:
    """Print the steps that take longest, each with the ONNX nodes that it computes."""
    for name, entry in entries.items():
        table = Table(title=f"{name}: limit {entry['limit_gflops']} GFLOPS", title_justify="left")
        for heading in ("ms", "GFLOPS", "of limit", "KB moved", "KB least"):
            table.add_column(heading, justify="right")
        table.add_column("kernel", no_wrap=True)
        for step in entry.get("kernels", ())[:count]:
            sizes = (f"{step[key] / 1e3:,.0f}" for key in ("bytes_moved", "bytes_least"))
            figures = (f"{step['ms']:.3f}", f"{step['gflops']}", f"{step['share']:.0%}", *sizes)
            table.add_row(*figures, f"{step['kernel']}: {', '.join(step['nodes'])}")
        if convolutions := entry.get("convolutions"):
            figures = (
                f"{convolutions['ms']:.2f}",
                f"{convolutions['gflops']}",
                f"{convolutions['share']:.0%}",
            )
            table.add_row(*figures, "", "", "all convolutions, counted directly")
        console.print(table)


def print_verdicts(console: Console, results: Mapping[str, Any]) -> None:
    """Print the demands, and whether they hold."""
    table = Table(title="demanded", title_justify="left")
    for heading in ("", "demand", "found"):
        table.add_column(heading)
    for verdict in judge(dict(results)):
        mark = "[green]yes[/]" if verdict.holds else "[red]no[/]"
        table.add_row(mark, verdict.demand, verdict.found)
    console.print(table)


def main(
    models: Annotated[
        str, typer.Option(help="Names, files, all (every model with a name) or mediapipe")
    ] = "all",
    device: Annotated[str, typer.Option(help="wasm, webgpu or both: wasm,webgpu")] = "wasm",
    threads: Annotated[str, typer.Option(help="Numbers of threads on the CPU")] = "1,2",
    peer: Annotated[
        str, typer.Option(help="Other engines on the CPU: onnxruntime, tfjs, litert")
    ] = "onnxruntime,tfjs",
    interval: Annotated[
        str, typer.Option(help="Milliseconds from run to run of a series, 0 for a loop: 33,0")
    ] = "",
    dims: Annotated[str, typer.Option(help="Symbolic dimensions: name=size,…; else 1")] = "",
    runs: Annotated[int, typer.Option(help="Timed runs of each engine", min=1)] = 15,
    warmup: Annotated[int, typer.Option(help="Runs before those, at least", min=0)] = 4,
    loads: Annotated[int, typer.Option(help="Fresh loads of each page", min=1)] = 3,
    kernels: Annotated[int, typer.Option(help="How many steps of each model to list")] = 0,
    again: Annotated[bool, typer.Option("--reuse", help="Measure what was built before")] = False,
    json_path: Annotated[
        Path | None,
        typer.Option("--json", help="A file of figures to replace (all models) or add to"),
    ] = None,
) -> None:
    """Measure webmlc against its peers in one Chromium."""
    console = Console(stderr=True)
    devices = device.split(",")
    counts, intervals = ([int(n) for n in text.split(",") if n] for text in (threads, interval))
    conditions = Conditions(devices, counts, peer.split(","), intervals)
    sizes = {name: int(size) for name, _, size in (d.partition("=") for d in dims.split(",") if d)}
    target: TargetName = "both"
    if len(devices) == 1:
        target = "webgpu" if devices == ["webgpu"] else "wasm"
    groups: list[Row] = []
    ready: dict[str, tuple[Ready, bool]] = {}
    sets = {"all": list(named()), "mediapipe": NAMES}
    for model in sets.get(models, models.split(",")):
        try:
            with console.status(f"building {model}"):
                package = reuse(model, OUT) if again else prepare(model, OUT, target, sizes)
        except FileNotFoundError as error:
            console.print(f"{model} is left out: {error}")
            continue
        source = source_of(model)
        ready[package.name] = (package, source.judged)
        # A large model takes minutes on a software GPU: it runs there only if asked for alone.
        groups += groups_of(package, source.gpu or devices == ["webgpu"], conditions)
    if not groups:
        sys.exit(1)
    measured = measure(groups, runs, warmup, loads)
    entries = {}
    for name, (package, judged) in ready.items():
        rows = [row for row in measured["rows"] if row["model"] == f"/models/{name}/"]
        limit = measured["limits"][f"/models/{name}/"]
        native = median(native_latencies(OUT / name, runs, warmup))
        entries[name] = entry_of(package, rows, limit, native, runs, judged)
    results = merge(json_path, header(measured["browser"]), entries, replace=models == "all")
    wide = Console(width=max(150, console.width))
    print_table(wide, entries, runs)
    if kernels:
        print_kernels(wide, entries, kernels)
    print_verdicts(wide, results)
    if any("failure" in row for row in measured["rows"]):
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
