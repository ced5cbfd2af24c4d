"""Time several packages of one model that take turns, run by run.

In: the folder of a model (see `models.py`) and the names of its packages. Out: the milliseconds of
each run of each package. Other work of the machine affects all packages alike, so the median of
the ratios of paired runs tells small differences.

    latencies = in_browser("squeezenet", ("package", "package-tuned"), "webgpu", runs=40)
    gain(*latencies)
"""

from __future__ import annotations

import filecmp
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.run import measure
from webmlc.core.machine import Device

HERE = Path(__file__).parent
MOST_ERROR = 1e-3
"""The largest difference from native onnxruntime, relative to the largest output."""


def in_python(
    packages: Sequence[tuple[Path, Path]], device: Device, runs: int
) -> list[list[float]]:
    """The milliseconds of each run in Python. `packages` are folders, each with the checkout of
    webmlc that loads it, in a process of its own.
    """
    latencies: list[list[float]] = [[] for _ in packages]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(HERE / "timed_runs.py"), str(folder), device],
                    env={**os.environ, "PYTHONPATH": str(checkout)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for folder, checkout in packages
        ]
        for number in range(runs + 1):
            for process, times in zip(processes, latencies, strict=True):
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write("\n")
                process.stdin.flush()
                answer = process.stdout.readline()
                if not answer:
                    raise RuntimeError(f"{process.args!s} ended")
                if number > 0:  # both are loaded after the first
                    times.append(float(answer))
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
    return latencies


def in_browser(
    name: str, folders: Sequence[str], device: Device, runs: int, loads: int = 2
) -> list[dict[str, list[float]]]:
    """The `latencies` and `first` results of each package in Chromium, in milliseconds. Raises
    RuntimeError where a package fails or differs from native onnxruntime.

    A page keeps its speed as long as it is open: on WebGPU, pages of equal packages differ by up to
    10 % (llama_15m, 14 pairs of pages), and a page that was opened later is slower by 2 to 5 %. So
    the pages are loaded `loads` times, in alternate orders, for a share of the runs each.
    """
    results: dict[str, dict[str, list[float]]] = {
        folder: {"latencies": [], "first": []} for folder in folders
    }
    for load in range(loads):
        opened = folders if load % 2 == 0 else folders[::-1]
        engines = [{"engine": "webmlc", "folder": folder} for folder in opened]
        group = {"model": f"/models/{name}/", "device": device, "threads": 1, "engines": engines}
        rows = measure([group], math.ceil(runs / loads), warmup=5, loads=1)["rows"]
        if failures := [row["failure"] for row in rows if "failure" in row]:
            raise RuntimeError("; ".join(failures))
        errors = [row["error"] for row in rows]
        if max(errors) > MOST_ERROR:
            raise RuntimeError(f"relative errors {errors} against onnxruntime")
        for folder, row in zip(opened, rows, strict=True):
            results[folder]["latencies"] += row["latencies"]
            results[folder]["first"] += row["first"]
    return list(results.values())


def gain(before: Sequence[float], after: Sequence[float]) -> float:
    """How many times as fast the second package is: the median over paired runs."""
    return median(b / a for b, a in zip(before, after, strict=True))


def is_same(package: Path, other: Path) -> bool:
    """True where both packages have the same files."""
    names = {file.name for folder in (package, other) for file in folder.iterdir()}
    _, different, missing = filecmp.cmpfiles(package, other, names, shallow=False)
    return not different and not missing
