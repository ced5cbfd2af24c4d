"""Turn measurements into figures: medians, shares of the limit, and the JSON that holds them.

In: rows of `measure.mjs` and the compiler's figures of each model. Out: an `Entry` per model, and
`benchmarks/results.json`, in which a new entry replaces the earlier one of the same model.

    entry = entry_of(ready, rows, limit, native_ms, runs=15, judged=True)
    merge(Path("benchmarks/results.json"), header(browser, rows), {"resnet50": entry})
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import onnxruntime

from benchmarks.models import ROOT, Ready

Row = dict[str, Any]
"""One engine's measurements of one model."""
Entry = dict[str, Any]
"""The figures of one model."""
LEAST_PART = 0.01
"""The share of a run's time from which a step is listed. Chosen by hand."""

Results = dict[str, Any]
"""The figures of all models, and where they were measured."""


def entry_of(
    ready: Ready, rows: Sequence[Row], limit: float, native: float, runs: int, judged: bool
) -> Entry:
    """The figures of one model. `rows` are those of `measure.mjs` for it."""
    entry: Entry = {
        "date": date.today().isoformat(),
        "commit": commit(),
        "runs": runs,
        "judged": judged,
        "limit_gflops": round(limit, 1),
        "build_seconds": round(ready.build_seconds, 1),
        "native_ms": _rounded(native),
        "rows": [_figures(row) for row in rows],
    }
    for row in rows:
        if "profile" in row:
            steps = _steps(row["profile"], ready.steps[row["device"]], limit)
            entry["convolutions"] = _convolutions(steps, ready.convolutions, limit)
            entry["kernels"] = _listed(steps)
    return entry


def _figures(row: Row) -> Row:
    """A row with medians in place of its lists."""
    description = {
        k: row[k]
        for k in ("device", "threads", "interval", "engine", "variant", "version")
        if row.get(k) not in (None, "")
    }
    if "failure" in row:
        return {**description, "failure": row["failure"]}
    return {
        **description,
        "ms": _rounded(median(row["latencies"])),
        "load_ms": round(median(row["load"])),
        "first_ms": round(median(row["first"])),
        "error": float(f"{row['error']:.1e}"),
        "download": row["bytes"],
        "weights": row["weights"],
        "memory": row.get("memory"),
    }


def _steps(
    profile: Sequence[Row], works: Sequence[Sequence[int]], limit: float
) -> list[dict[str, Any]]:
    """The milliseconds, GFLOPS and bytes of every step."""
    steps = []
    for step, (flops, moved, least) in zip(profile, works, strict=True):
        milliseconds = median(step["milliseconds"])
        gflops = flops / milliseconds / 1e6 if milliseconds else 0.0
        steps.append(
            {
                "kernel": step["kernel"],
                "nodes": step["origin"],
                "ms": _rounded(milliseconds),
                "gflops": round(gflops, 1),
                "share": round(gflops / limit, 3),
                "bytes_moved": moved,
                "bytes_least": least,
            }
        )
    return steps


def _convolutions(
    steps: Sequence[Mapping[str, Any]], direct: Mapping[str, int], limit: float
) -> dict[str, float] | None:
    """All convolutions together, with the operators fused into them: the flops of the direct
    algorithm over the time of every step that computes part of one. None where there is none.
    """
    convolving = [step for step in steps if direct.keys() & set(step["nodes"])]
    milliseconds = sum(step["ms"] for step in convolving)
    if not milliseconds:
        return None
    gflops = sum(direct.values()) / milliseconds / 1e6
    return {
        "ms": _rounded(milliseconds),
        "gflops": round(gflops, 1),
        "share": round(gflops / limit, 3),
    }


def _listed(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps that take a listed share of the time, longest first."""
    least = LEAST_PART * sum(step["ms"] for step in steps)
    return sorted((s for s in steps if s["ms"] >= least), key=lambda s: -s["ms"])


def _rounded(milliseconds: float) -> float:
    """Milliseconds with four significant digits."""
    return float(f"{milliseconds:.4g}")


def commit() -> str:
    """The short hash of the commit that is measured. A `+` follows where files are changed."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    process = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return process.stdout.strip()


def header(browser: str) -> dict[str, Any]:
    """The machine and the versions of a measurement."""
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        lines = information.read_text().splitlines()
        cpu = next((s.split(":")[1].strip() for s in lines if s.startswith("model name")), cpu)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "browser": f"Chromium {browser}",
        "onnxruntime": onnxruntime.__version__,
    }


def merge(
    path: Path | None,
    header_: Mapping[str, Any],
    entries: Mapping[str, Entry],
    replace: bool = False,
) -> Results:
    """The results with these entries, also written to the file at `path`. With `replace`, the file
    holds nothing else afterwards. Raises `ValueError` where the file was measured on another
    machine.
    """
    models: dict[str, Entry] = {}
    if path is not None and path.is_file() and not replace:
        earlier = json.loads(path.read_text())
        if {k: v for k, v in earlier.items() if k != "models"} != header_:
            raise ValueError(f"{path} was measured on another machine, or with other versions")
        models = earlier["models"]
    results = {**header_, "models": dict(sorted({**models, **entries}.items()))}
    if path is not None:
        path.write_text(_text(results) + "\n", "utf-8")
    return results


def _text(results: Results) -> str:
    """JSON with a line per row and per kernel, so that a change of one shows as one line."""
    lines = ["{"]
    lines += [f" {json.dumps(k)}: {json.dumps(v)}," for k, v in results.items() if k != "models"]
    lines.append(' "models": {')
    for i, (name, entry) in enumerate(results["models"].items()):
        lines.append(f"  {json.dumps(name)}: {{")
        for j, (key, value) in enumerate(entry.items()):
            comma = "," if j + 1 < len(entry) else ""
            if isinstance(value, list):
                inner = ",\n    ".join(json.dumps(item) for item in value)
                lines.append(f"   {json.dumps(key)}: [\n    {inner}\n   ]{comma}")
            else:
                lines.append(f"   {json.dumps(key)}: {json.dumps(value)}{comma}")
        lines.append("  }" + ("," if i + 1 < len(results["models"]) else ""))
    return "\n".join([*lines, " }", "}"])


def row_of(
    entry: Entry,
    engine: str,
    threads: int,
    variant: str | None = None,
    device: str = "wasm",
    interval: int | None = None,
) -> Row | None:
    """The row of an engine if it did not fail. Without a variant, the row of the variant that it
    chose. Without an interval, the row of runs in turns.
    """
    for row in entry["rows"]:
        key = (row["engine"], row["threads"], row["device"], row.get("interval"))
        if key == (engine, threads, device, interval) and variant in (None, row.get("variant")):
            result: Row = row
            return None if "failure" in result else result
    return None


def ratio(
    entry: Entry,
    threads: int,
    variant: str | None = None,
    engine: str = "onnxruntime",
    interval: int | None = None,
) -> float | None:
    """The latency of a peer over webmlc's on the CPU, of one variant or of the chosen variant, in
    turns or in series of this interval. None where either is missing.
    """
    ours = row_of(entry, "webmlc", threads, variant, interval=interval)
    peer = row_of(entry, engine, threads, interval=interval)
    return peer["ms"] / ours["ms"] if ours and peer else None
