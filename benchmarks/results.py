"""What was measured, as figures: medians, shares of the limit, and the JSON that holds them.

In: rows of `measure.mjs` and what is known of each model. Out: an `Entry` a model, and
`benchmarks/results.json`, in which an entry replaces the one before it of the same model.

    entry = entry_of(ready, rows, limit, native_ms, runs=15, judged=True)
    merge(Path("benchmarks/results.json"), header(browser, rows), {"resnet50": entry})
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import onnxruntime
from models import Ready

Row = dict[str, Any]
Entry = dict[str, Any]
LEAST_PART = 0.01  # of a run's time: steps that take less are not listed

Results = dict[str, Any]


def entry_of(
    ready: Ready, rows: Sequence[Row], limit: float, native: float, runs: int, judged: bool
) -> Entry:
    """The figures of one model; `rows` are those of `measure.mjs` for it."""
    entry: Entry = {
        "date": date.today().isoformat(),
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
    """A row with medians for its lists."""
    kept = {k: row[k] for k in ("device", "threads", "engine", "variant", "version") if row.get(k)}
    if "failure" in row:
        return {**kept, "failure": row["failure"]}
    return {
        **kept,
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
    """Milliseconds, GFLOPS and bytes of every step."""
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
    """All convolutions together, with what is fused into them: the flops of the direct algorithm
    over the time of every step that computes a part of one. None where there is none.
    """
    taken = [step for step in steps if direct.keys() & set(step["nodes"])]
    milliseconds = sum(step["ms"] for step in taken)
    if not milliseconds:
        return None
    gflops = sum(direct.values()) / milliseconds / 1e6
    return {
        "ms": _rounded(milliseconds),
        "gflops": round(gflops, 1),
        "share": round(gflops / limit, 3),
    }


def _listed(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps that take time, longest first."""
    least = LEAST_PART * sum(step["ms"] for step in steps)
    return sorted((s for s in steps if s["ms"] >= least), key=lambda s: -s["ms"])


def _rounded(milliseconds: float) -> float:
    """To a microsecond, or four digits."""
    return float(f"{milliseconds:.4g}")


def header(browser: str) -> dict[str, Any]:
    """Where it was measured."""
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


def merge(path: Path | None, where: Mapping[str, Any], entries: Mapping[str, Entry]) -> Results:
    """The results with these entries, in the file at `path` too. Raises `ValueError` where the
    file's were measured elsewhere.
    """
    models: dict[str, Entry] = {}
    if path is not None and path.is_file():
        known = json.loads(path.read_text())
        if {k: v for k, v in known.items() if k != "models"} != where:
            raise ValueError(f"{path} was measured on another machine, or with other versions")
        models = known["models"]
    results = {**where, "models": dict(sorted({**models, **entries}.items()))}
    if path is not None:
        path.write_text(_text(results) + "\n", "utf-8")
    return results


def _text(results: Results) -> str:
    """JSON with a line for every row and every kernel: a change of one shows as one."""
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
    entry: Entry, engine: str, threads: int, variant: str | None = None, device: str = "wasm"
) -> Row | None:
    """A row that did not fail; without a variant, the first: the one that the engine chose."""
    for row in entry["rows"]:
        given = (row["engine"], row["threads"], row["device"])
        if given == (engine, threads, device) and variant in (None, row.get("variant")):
            found: Row = row
            return None if "failure" in found else found
    return None


def ratio(entry: Entry, threads: int, variant: str | None = None) -> float | None:
    """ONNX Runtime Web's latency over webmlc's on the CPU, of a variant or of the one that was
    chosen; None where one of them is not there.
    """
    own, peer = row_of(entry, "webmlc", threads, variant), row_of(entry, "onnxruntime", threads)
    return peer["ms"] / own["ms"] if own and peer else None
