"""The commands that run a model: `webmlc run`, `webmlc check` and `webmlc bench`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from webmlc.build_options import BuildOptions, dimensions
from webmlc.cli.console import console, escape, print_json, print_table
from webmlc.cli.options import (
    AsJson,
    BuildAdapter,
    BuildAdapterChoice,
    BuildPlatform,
    ConstantInputs,
    Device,
    DeviceChoice,
    Dimensions,
    Inputs,
    PackageOrModel,
    PageInputs,
    PageOutputs,
    Seed,
    Threads,
    Tuned,
)
from webmlc.cli.tune import chooser
from webmlc.core.stage_progress import StageProgress

if TYPE_CHECKING:
    from webmlc.host.load import Model as LoadedModel


def run(
    package: PackageOrModel,
    inputs: Inputs = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the outputs to this .npz file.")
    ] = None,
    device: Device = DeviceChoice.wasm,
    threads: Threads = 1,
    dim: Dimensions = [],  # noqa: B006
    constant: ConstantInputs = [],  # noqa: B006
    page_input: PageInputs = [],  # noqa: B006
    page_output: PageOutputs = [],  # noqa: B006
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Run a model once and show its outputs."""
    from webmlc.host.try_model import read_inputs, suggest_options, summarise, write_outputs

    with _loaded(package, device, threads, constant, page_input, page_output) as model:
        arrays = read_inputs(model, inputs, dimensions(dim), seed)
        with suggest_options("--dim or --inputs", bool(dim or inputs)):
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
    device: Device = DeviceChoice.wasm,
    threads: Threads = 1,
    inputs: Inputs = None,
    dim: Dimensions = [],  # noqa: B006
    constant: ConstantInputs = [],  # noqa: B006
    seed: Seed = 0,
    tolerance: Annotated[
        float,
        typer.Option(help="Largest error to accept, relative to an output's largest magnitude."),
    ] = 1e-3,
    adapter: BuildAdapter = BuildAdapterChoice.gpu,
    tuned: Tuned = None,
    platform: BuildPlatform = "",
    model_file: Annotated[
        Path | None,
        typer.Option(
            "--model",
            help="The model that a package was built from. Without it, the programs of the package "
            "are compared with each other.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the results of a model or package with those of onnxruntime (or of onnx.reference).

    Inputs are random, unless --inputs names a file; batches of 1 and 2 are compared then. The exit
    code is 1 on a mismatch, and 2 if the result is inconclusive: the model draws random numbers, or
    the reference differs from itself as much.
    """
    from webmlc.frontend.bind_constants import read_constants
    from webmlc.host.check import check_model
    from webmlc.host.try_model import read_arrays
    from webmlc.pipeline import build_package

    with ExitStack() as stack:
        choose, algorithms = chooser(stack, tuned, platform, adapter.value)
        advance = stack.enter_context(StageProgress(f"Checking {model.name}", quiet=as_json))
        options = BuildOptions(
            constants=read_constants(constant),
            adapter=adapter.value,
            choose=choose,
            algorithms=algorithms,
            on_stage=advance,
        )
        sizes = dimensions(dim)
        result = check_model(
            model,
            build_package,
            device.value,
            threads,
            sizes,
            seed,
            tolerance,
            None if inputs is None else read_arrays(inputs),
            options,
            model_file,
            batches=inputs is None,
        )
    first = result.first_difference
    if as_json:
        report = {"verdict": result.verdict, "outputs": result.rows(), "notes": result.notes()}
        print_json(report | {"first difference": first, "reference": result.reference})
    else:
        print_table(f"{model.name} on {device.value} against {result.reference}", result.rows())
        if first is not None:
            console.print(f"First node that differs: [bold red]{escape(first)}[/]")
        for note in result.notes():
            console.print(escape(note), highlight=False)
        console.print(f"[bold]{result.verdict}[/]")
    raise typer.Exit({"passed": 0, "failed": 1, "inconclusive": 2}[result.verdict])


def bench(
    package: PackageOrModel,
    device: Device = DeviceChoice.wasm,
    threads: Threads = 1,
    runs: Annotated[int, typer.Option(min=1, help="Timed runs.")] = 10,
    kernels: Annotated[bool, typer.Option(help="Time every kernel instead of whole runs.")] = False,
    dim: Dimensions = [],  # noqa: B006
    constant: ConstantInputs = [],  # noqa: B006
    page_input: PageInputs = [],  # noqa: B006
    page_output: PageOutputs = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Time a model in Python, through wasmtime or wgpu-py. Times in a browser differ."""
    from webmlc.host.try_model import suggest_options, time_kernels, time_runs

    with _loaded(package, device, threads, constant, page_input, page_output) as model:
        sizes = dimensions(dim)
        measure = time_kernels if kernels else time_runs
        with suggest_options("--dim", bool(dim)):
            rows = measure(model, sizes, runs)
    if as_json:
        print_json(rows)
    else:
        print_table(f"{package.name} on {device.value}, {threads} thread(s)", rows)


@contextmanager
def _loaded(
    package: Path,
    device: DeviceChoice,
    threads: int,
    constant: list[str],
    page_input: list[str],
    page_output: list[str],
) -> Iterator[LoadedModel]:
    """Load a package, or a model that is built first with these options."""
    from webmlc.frontend.bind_constants import read_constants
    from webmlc.graph.typed.options import read_texts
    from webmlc.host.try_model import load_any
    from webmlc.pipeline import build_package

    options = BuildOptions(
        constants=read_constants(constant),
        inputs=read_texts("--input", page_input),
        outputs=read_texts("--output", page_output),
    )
    with load_any(package, device.value, threads, build_package, options) as model:
        yield model
