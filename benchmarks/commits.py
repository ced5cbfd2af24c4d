"""Measure the packages of an earlier commit beside today's, by turns.

In: a commit and models. Out: a row for each model: milliseconds of both packages, the gain in
paired runs, and in Chromium the times to the first result. The earlier compiler runs from its own
worktree, `build/commits/<commit>`, in today's environment; each package has its own runtime. A
model of which a package fails has no row.

    python benchmarks/commits.py 10242770 --models squeezenet,minilm_l6 --device webgpu
    python benchmarks/commits.py HEAD~1 --models squeezenet --engine python

With `--engine python`, both packages run in wasmtime or wgpu-py.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.models import ROOT, name_of, prepare
from benchmarks.pairs import gain, in_browser, in_python, is_same
from benchmarks.run import OUT
from webmlc.core.machine import Device

FOLDER = "package-earlier"


def main(
    commit: Annotated[str, typer.Argument(help="The earlier commit.")],
    models: Annotated[str, typer.Option()],
    device: Annotated[str, typer.Option()] = "wasm",
    engine: Annotated[str, typer.Option(help="chromium or python.")] = "chromium",
    runs: Annotated[int, typer.Option()] = 20,
    loads: Annotated[int, typer.Option(help="Pages of each package, one after another.")] = 2,
    again: Annotated[bool, typer.Option("--reuse", help="Measure what was built before.")] = False,
    out: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Build with both compilers, and measure each model."""
    chosen: Device = "webgpu" if device == "webgpu" else "wasm"
    checkout = worktree(commit)
    table = Table(title=f"{commit} and now, {device} in {engine}: medians of {runs} paired runs")
    headings = ("model", "before: ms", "now: ms", "gain", "first before: ms", "first now: ms")
    for heading in headings:
        table.add_column(heading, justify="right")
    rows: list[dict[str, Any]] = []
    for model in models.split(","):
        name = name_of(model)
        if not again:
            prepare(model, OUT, chosen, {})
            build_earlier(checkout, OUT / name, chosen)
        folders = (FOLDER, "package")
        row: dict[str, Any] = {"model": name, "gain": 1.0}
        if not is_same(*(OUT / name / folder for folder in folders)):
            try:
                if engine == "python":
                    both = [(OUT / name / FOLDER, checkout), (OUT / name / "package", ROOT)]
                    before, now = in_python(both, chosen, runs)
                else:
                    measured = in_browser(name, folders, chosen, runs, loads)
                    before, now = (figures["latencies"] for figures in measured)
                    row["first_ms"] = [median(figures["first"]) for figures in measured]
            except RuntimeError as error:
                print(f"{name} was not measured: {error}", file=sys.stderr)
                continue
            row |= {"ms": [median(before), median(now)], "gain": gain(before, now)}
        rows.append(row)
        print(json.dumps(row), flush=True)
        cells = [f"{ms:.1f}" for ms in row.get("ms", [math.nan] * 2)]
        firsts = [f"{ms:.0f}" for ms in row.get("first_ms", ())]
        table.add_row(name, *cells, f"{row['gain']:.3f}", *firsts)
    if not rows:
        raise typer.Exit(1)
    mean = math.exp(sum(math.log(row["gain"]) for row in rows) / len(rows))
    table.add_row("geometric mean", "", "", f"{mean:.3f}")
    Console(width=120).print(table)
    if out is not None:
        out.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


def worktree(commit: str) -> Path:
    """A checkout of the commit, which is made once."""
    command = ["git", "rev-parse", "--short=8", f"{commit}^{{commit}}"]
    hash_line = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    folder = ROOT / "build" / "commits" / hash_line.strip()
    if not folder.is_dir():
        command = ["git", "worktree", "add", "--detach", str(folder), commit]
        subprocess.run(command, cwd=ROOT, check=True)
    return folder


def build_earlier(checkout: Path, folder: Path, device: Device) -> None:
    """Build `FOLDER` with the earlier compiler, as `prepare` builds with today's."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    webmlc = [sys.executable, "-c", "from webmlc.cli import main; main()", "build"]
    run = partial(
        subprocess.run, cwd=checkout, env=environment, check=True, capture_output=True, text=True
    )
    usage = run([*webmlc, "--help"]).stdout
    choices = {"--state": "off", "--adapter": "software"}
    options = [word for pair in choices.items() if pair[0] in usage for word in pair]
    paths = [str(folder / "model.onnx"), "--out", str(folder / FOLDER), "--target", device]
    run([*webmlc, *paths, *options])


if __name__ == "__main__":
    typer.run(main)
