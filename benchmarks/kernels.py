"""Measure the steps of lessons 2 and 6 of the course in one Chromium, beside the machine's limit.

In: nothing; the lessons run first. Out: a table for each device: the median and the best GFLOPS of
each step, and their shares of the limit, which a kernel of multiply-adds on registers measures. The
second row is the schedule that our own rules choose. The kernels take turns, one run each, so that
other work of the machine affects all alike. With `--lavapipe`, the steps of the GPU also run
through wgpu-py.

    python -m benchmarks.kernels
    python -m benchmarks.kernels --rounds 40 --no-gpu
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import webmlc
from demos.kernels.build import LESSONS
from docs.site.lessons import run_lesson
from tests.browser.pages import Page, open_pages
from webmlc.core.machine import Device
from webmlc.core.sizes import evaluate_size
from webmlc.loops.count_work import count_work
from webmlc.programs.compiled import CompiledKernel
from webmlc.programs.limit import multiply_adds

Array = np.ndarray[Any, Any]
LIMIT, RULES = "limit", "by the rules"
"""The names of the rows that are no steps."""
BLANK = '<!doctype html><link rel="icon" href="data:,">'
PAGE_MS = 600_000
"""The time that a page may take, in milliseconds."""
RUN = """async ({ names, device, rounds }) => {
  const { load } = await import(`/${names[0]}/webmlc.js`);
  const kernels = [];
  for (const name of names) {
    const model = await load(`/${name}/`, { device, threads: 1 });
    const feeds = Object.fromEntries(model.inputs.map(({ name, shape }) => {
      const length = shape.reduce((a, b) => a * b, 1);
      return [name, { dtype: "float32", shape, data: Float32Array.from({ length }, Math.random) }];
    }));
    kernels.push({ model, feeds, times: [] });
  }
  for (let round = 0; round < rounds; round++) {
    for (const { model, feeds, times } of kernels) {
      const steps = await model.profile(feeds);
      times.push(steps.reduce((sum, { milliseconds }) => sum + milliseconds, 0));
    }
  }
  return kernels.map(({ times }) => times);
}"""
WARM = 5
"""The rounds that do not count, in which V8 optimises the code."""


def in_chromium(
    kernels: Mapping[str, CompiledKernel], device: Device, rounds: int
) -> dict[str, Array]:
    """The milliseconds of each round, by kernel."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "index.html").write_text(BLANK)
        packages = {kernel: f"kernel{number}" for number, kernel in enumerate(kernels)}
        for kernel, package in packages.items():
            kernels[kernel].save(folder / package)
        arg = {"names": list(packages.values()), "device": device, "rounds": rounds + WARM}
        [report] = open_pages({"/": folder}, Page("/", RUN, arg=arg, timeout=PAGE_MS))
    return {k: np.array(t[WARM:]) for k, t in zip(kernels, report.value, strict=True)}


def in_python(kernels: Mapping[str, CompiledKernel], rounds: int) -> dict[str, Array]:
    """The milliseconds of each round on this machine's adapter through wgpu-py, by kernel."""
    rng = np.random.default_rng(0)
    times: dict[str, list[float]] = {name: [] for name in kernels}
    for _ in range(rounds + 1):
        for name, kernel in kernels.items():
            inputs = kernel.function.input_params()
            shapes = {b.name: [evaluate_size(size, {}) for size in b.shape] for b in inputs}
            feeds = {n: rng.random(shape, np.float32) for n, shape in shapes.items()}
            steps = kernel.model.profile(feeds)
            times[name].append(1e3 * sum(step.seconds for step in steps))
    return {name: np.array(values[1:]) for name, values in times.items()}


def table_of(title: str, kernels: Mapping[str, CompiledKernel], times: dict[str, Array]) -> Table:
    """The figures of each kernel."""
    table = Table("step", "ms", "GFLOPS", "best", "of the limit", "best of the limit", title=title)
    speeds = {
        name: count_work(kernels[name].function, {}).flops / times[name] / 1e6 for name in times
    }
    middle, best = np.median(speeds[LIMIT]), speeds[LIMIT].max()
    for name, speed in speeds.items():
        share, best_share = np.median(speed) / middle, speed.max() / best
        table.add_row(
            name,
            f"{np.median(times[name]):.2f}",
            f"{np.median(speed):.2f}",
            f"{speed.max():.2f}",
            f"{share:.0%}",
            f"{best_share:.0%}",
        )
    return table


def main(
    rounds: Annotated[int, typer.Option(help="Runs of each kernel that count.")] = 20,
    gpu: Annotated[bool, typer.Option(help="Also measure the steps of the GPU.")] = True,
    lavapipe: Annotated[bool, typer.Option(help="Also measure them through wgpu-py.")] = False,
) -> None:
    """Measure, and print the tables."""
    console = Console()
    for lesson, device in LESSONS.items():
        if device == "webgpu" and not gpu:
            continue
        names = run_lesson(lesson)
        programs = {LIMIT: multiply_adds(device), RULES: names["mm_relu"]}
        programs |= {name: step() for name, step in names["steps"].items()}
        kernels = {name: webmlc.compile(p, device) for name, p in programs.items()}
        console.print(
            table_of(f"Chromium, {device}", kernels, in_chromium(kernels, device, rounds))
        )
        if device == "webgpu" and lavapipe:
            console.print(table_of("wgpu-py", kernels, in_python(kernels, rounds)))


if __name__ == "__main__":
    typer.run(main)
