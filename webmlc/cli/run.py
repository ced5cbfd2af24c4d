"""The commands that run a model: `webmlc run`, `webmlc check` and `webmlc bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from webmlc.build_options import BuildOptions
from webmlc.cli.console import console, escape, print_json, print_table
from webmlc.cli.options import AsJson, PackageOrModel, RunOptions, Schedules, building
from webmlc.host.check_options import INPUTS, CheckOptions


def run(
    package: PackageOrModel,
    *,
    inputs: Annotated[Path | None, typer.Option(help=INPUTS)] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the outputs to this .npz file.")
    ] = None,
    how: RunOptions,
    options: BuildOptions,
    text: Annotated[
        list[str] | None,
        typer.Option(help="A text for an input, as NAME=TEXT. Repeat it for more texts."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a model once and show its outputs."""
    from webmlc.host.try_model import (
        load_any,
        read_inputs,
        suggest_options,
        summarise,
        write_outputs,
    )
    from webmlc.pipeline import build_package

    with load_any(package, how.device, how.threads, build_package, options) as model:
        arrays = read_inputs(model, inputs, how.dims, how.seed, text or ())
        with suggest_options("--dim or --inputs", bool(how.dims or inputs or text)):
            outputs = model.run(arrays)
    if out is not None:
        write_outputs(out, outputs)
    rows = summarise(outputs)
    if as_json:
        print_json(rows)
    else:
        print_table("Outputs", rows)


def check(
    model: PackageOrModel,
    *,
    how: CheckOptions,
    options: BuildOptions,
    schedules: Schedules,
    as_json: AsJson = False,
) -> None:
    """Compare the results of a model or package with those of onnxruntime (or of onnx.reference).

    Inputs are random, unless --inputs names a file; batches of 1 and 2 are compared then. The exit
    code is 1 on a mismatch, and 2 if the result is inconclusive: the model draws random numbers, or
    the reference differs from itself as much.
    """
    from webmlc.host.check import check_model
    from webmlc.pipeline import build_package

    with building(options, schedules, f"Checking {model.name}", quiet=as_json) as options:
        result = check_model(model, build_package, how, options)
    first = result.first_difference
    if as_json:
        report = {"verdict": result.verdict, "outputs": result.rows(), "notes": result.notes()}
        print_json(report | {"first difference": first, "reference": result.reference})
    else:
        print_table(f"{model.name} on {how.device} against {result.reference}", result.rows())
        if first is not None:
            console.print(f"First node that differs: [bold red]{escape(first)}[/]")
        for note in result.notes():
            console.print(escape(note), highlight=False)
        console.print(f"[bold]{result.verdict}[/]")
    raise typer.Exit({"passed": 0, "failed": 1, "inconclusive": 2}[result.verdict])


def bench(
    package: PackageOrModel,
    *,
    how: RunOptions,
    runs: Annotated[int, typer.Option(min=1, help="Timed runs.")] = 10,
    kernels: Annotated[bool, typer.Option(help="Time every kernel instead of whole runs.")] = False,
    options: BuildOptions,
    as_json: AsJson = False,
) -> None:
    """Time a model in Python, through wasmtime or wgpu-py. Times in a browser differ."""
    from webmlc.host.try_model import load_any, suggest_options, time_kernels, time_runs
    from webmlc.pipeline import build_package

    with load_any(package, how.device, how.threads, build_package, options) as model:
        measure = time_kernels if kernels else time_runs
        with suggest_options("--dim", bool(how.dims)):
            rows = measure(model, how.dims, runs)
    if as_json:
        print_json(rows)
    else:
        print_table(f"{package.name} on {how.device}, {how.threads} thread(s)", rows)
