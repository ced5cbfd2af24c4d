"""The command line: `webmlc build | run | chat | check | bench | tune | report | serve | ...`.

It contains no logic: every command calls one function and prints its result.

webmlc build model.onnx -o build/model
webmlc check model.onnx --device webgpu
"""

from __future__ import annotations

import sys
import warnings
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from webmlc.cli.chat import chat
from webmlc.cli.console import (
    StageProgress,
    console,
    errors,
    escape,
    number,
    print_json,
    print_table,
)
from webmlc.cli.options import (
    AsJson,
    ConstantInputs,
    Device,
    DeviceChoice,
    Dimensions,
    Inputs,
    Model,
    PackageOrModel,
    PageInputs,
    PageOutputs,
    QuantisationChoice,
    Seed,
    SingleFile,
    StateChoice,
    TargetChoice,
    Threads,
    Tokenizer,
    dimensions,
)
from webmlc.cli.quantise import measured_loss
from webmlc.cli.report import report
from webmlc.cli.single_file import print_use, temporary_folder, write_script
from webmlc.cli.tune import SHIPPED, chooser, search_first, tune, tune_worker
from webmlc.core.errors import InternalError, UserError, WebmlcError
from webmlc.core.stages import Listing, Stage, Watcher
from webmlc.version import VERSION

if TYPE_CHECKING:
    from webmlc.frontend.bind_constants import Constants
    from webmlc.host.try_model import Build

app = typer.Typer(
    name="webmlc",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print(f"webmlc {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Compile a trained ONNX model to WebAssembly and WebGPU, ahead of time."""


@app.command()
def build(
    command: typer.Context,
    model: Model,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Package folder.", show_default="build/<model>"),
    ] = None,
    single_file: SingleFile = False,
    target: Annotated[TargetChoice, typer.Option(help="What to compile for.")] = TargetChoice.both,
    constant: ConstantInputs = [],  # noqa: B006
    page_input: PageInputs = [],  # noqa: B006
    page_output: PageOutputs = [],  # noqa: B006
    tokenizer: Tokenizer = None,
    emit_text: Annotated[bool, typer.Option(help="Also write the code as text.")] = False,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Multiply weights of a few bits by float32 activations, not by int8: slower.",
        ),
    ] = False,
    state: Annotated[
        StateChoice,
        typer.Option(
            help="Keep pasts and recurrent states in sessions, or leave them inputs and outputs."
        ),
    ] = StateChoice.auto,
    quantise: Annotated[
        QuantisationChoice | None,
        typer.Option(
            help="Quantise the weights of products and embeddings in blocks. Reports the loss.",
            show_default=False,
        ),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            help="With --quantise: measure the loss on the arrays of this .npz file; inputs that "
            "it does not hold are random.",
            show_default=False,
        ),
    ] = None,
    dim: Dimensions = [],  # noqa: B006
    context: Annotated[
        int | None,
        typer.Option(
            min=2, help="The most tokens of a language model.", show_default="as it was trained"
        ),
    ] = None,
    tuned: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|shipped",
            help="Use the schedules that `webmlc tune` kept in this file, or those that come with "
            "webmlc.",
        ),
    ] = None,
    platform: Annotated[
        str,
        typer.Option(
            help="With --tuned: a part of the name of the platform to build for (webmlc tune "
            "--list).",
            show_default="this machine",
        ),
    ] = "",
    tune_for: Annotated[
        str | None,
        typer.Option(
            "--tune",
            metavar="TIME",
            help="Search for so long first, in the file of --tuned (tuned.db).",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that no build of webmlc wrote.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compile a model into a package that any browser runs."""
    from webmlc.compile import build as build_package
    from webmlc.frontend.bind_constants import read_constants
    from webmlc.graph.typed.options import read_texts
    from webmlc.host.report import package_report

    sizes = dimensions(dim)
    if quantise is None and (inputs or sizes):
        raise UserError("--inputs and --dim say on what to measure the loss of --quantise")
    out = out or Path("build") / (f"{model.stem}.js" if single_file else model.stem)
    folder = temporary_folder(command) if single_file else out
    constants = read_constants(constant)
    if tune_for is not None:
        tuned = tuned or Path("tuned.db")
        if tuned == SHIPPED:
            raise UserError("--tune: name a file with --tuned that keeps what it finds")
        search_first(model, tuned, target.value, constants, tune_for)
    with ExitStack() as stack:
        choose, algorithms = chooser(stack, tuned, platform)
        advance = stack.enter_context(StageProgress(f"Building {model.name}", quiet=as_json))
        build_package(
            model,
            folder,
            target.value,
            constants=constants,
            inputs=read_texts("--input", page_input),
            outputs=read_texts("--output", page_output),
            tokenizer=tokenizer,
            emit_text=emit_text,
            exact=exact,
            state=state.value,
            quantise=quantise.value if quantise else None,
            context=context,
            force=force,
            choose=choose,
            algorithms=algorithms,
            on_stage=advance,
        )
    report = package_report(folder)
    if single_file:
        report |= write_script(folder, out, force=force)
    if quantise is not None:
        loss = measured_loss(
            model, folder, target.value, constants, quantise.value, exact, inputs, sizes
        )
        report |= {"quantisation": loss.rows(), "weights bytes before": loss.float_bytes}
    if as_json:
        print_json(report)
        return
    for device, program in report["programs"].items():
        print_table(f"{report['name']} for {device}", _resource_rows(program))
        if nodes := program["cpu nodes"]:
            rows = [{"on the CPU": node, "why": reason} for node, reason in nodes.items()]
            print_table("Nodes that the GPU cannot run", rows)
    if quantise is not None:
        print_table(f"{quantise.value} against float", loss.rows())
        before, after = number(loss.float_bytes), number(loss.quantised_bytes)
        console.print(f"Bytes of the weights: {before} before, {after} after")
    if report["tuned"]:
        print_table("Kernels with tuned schedules", report["tuned"])
    if single_file:
        print_use(out, report["bytes"])
    else:
        console.print(f"Open it in a browser: [bold]webmlc serve {folder}[/]")


@app.command()
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
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Run a model once and show its outputs."""
    from webmlc.frontend.bind_constants import read_constants
    from webmlc.host.try_model import load_any, read_inputs, summarise, write_outputs

    constants = read_constants(constant)
    with load_any(package, device.value, threads, _build_for(device), constants) as model:
        arrays = read_inputs(model, inputs, dimensions(dim), seed)
        outputs = model.run(arrays)
    if out is not None:
        write_outputs(out, outputs)
    rows = summarise(outputs)
    if as_json:
        print_json(rows)
    else:
        print_table("Outputs", rows)


@app.command()
def check(
    model: Model,
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
    as_json: AsJson = False,
) -> None:
    """Compare the results of a model with those of onnxruntime (or of onnx.reference).

    Inputs are random, unless --inputs names a file. The exit code is 1 on a mismatch, and 2 if the
    references disagree with each other.
    """
    from webmlc.frontend.bind_constants import read_constants
    from webmlc.host.check import check_model

    with StageProgress(f"Checking {model.name}", quiet=as_json) as advance:
        build_package = _build_for(device, advance)
        sizes, constants = dimensions(dim), read_constants(constant)
        result = check_model(
            model, build_package, device.value, threads, sizes, seed, tolerance, inputs, constants
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


@app.command()
def bench(
    package: PackageOrModel,
    device: Device = DeviceChoice.wasm,
    threads: Threads = 1,
    runs: Annotated[int, typer.Option(min=1, help="Timed runs.")] = 10,
    kernels: Annotated[bool, typer.Option(help="Time every kernel instead of whole runs.")] = False,
    dim: Dimensions = [],  # noqa: B006
    constant: ConstantInputs = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Time a model in Python, through wasmtime or wgpu-py. Times in a browser differ."""
    from webmlc.frontend.bind_constants import read_constants
    from webmlc.host.try_model import load_any, time_kernels, time_runs

    constants = read_constants(constant)
    with load_any(package, device.value, threads, _build_for(device), constants) as model:
        sizes = dimensions(dim)
        rows = time_kernels(model, sizes, runs) if kernels else time_runs(model, sizes, runs)
    if as_json:
        print_json(rows)
    else:
        print_table(f"{package.name} on {device.value}, {threads} thread(s)", rows)


@app.command()
def serve(
    folder: Annotated[Path, typer.Argument(help="A package, or any folder with a web page.")],
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1. With 0, any free port.")] = 8000,
) -> None:
    """Serve a folder to this machine's browsers, with the headers that threads need."""
    from contextlib import suppress

    from webmlc.host.serve import serve as start_server

    with start_server(folder, port) as server, suppress(KeyboardInterrupt):
        console.print(f"Serving {folder} at [bold]{server.url}[/] (Ctrl-C stops)")
        server.serve_forever()


@app.command()
def inspect(
    model: Model,
    stage: Annotated[
        list[str], typer.Option(help="Print only stages whose title contains this (repeatable).")
    ] = [],  # noqa: B006
    kernel: Annotated[
        str | None, typer.Option(help="Print only the stages of this kernel.")
    ] = None,
    target: Annotated[TargetChoice, typer.Option(help="What to compile for.")] = TargetChoice.both,
    dim: Dimensions = [],  # noqa: B006
    constant: ConstantInputs = [],  # noqa: B006
) -> None:
    """Print the stages of the pipeline, from the graph to the emitted text.

    A numbered list comes first, then the result of each stage that changed something. Last comes
    the work of each step (with the sizes of --dim): its operations, and the bytes that it moves
    beside the least possible bytes.
    """
    from webmlc.compile import compile_model
    from webmlc.frontend.bind_constants import read_constants
    from webmlc.package.step_work import print_work

    stages = Listing()
    constants = read_constants(constant)
    parts = compile_model(model, target.value, constants=constants, on_stage=stages)
    sizes = dimensions(dim)
    for device in parts.programs:
        work = partial(print_work, parts, device, sizes, kernel)
        stages(Stage(f"{device}: work", work, kernel if kernel in stages.kernels else None))
    for line in stages.lines(stage, kernel):
        print(line)


@app.command()
def ops(
    as_json: AsJson = False,
) -> None:
    """List the operators that can be compiled."""
    from webmlc.frontend.operator_versions import first_opset
    from webmlc.graph.table import OPS

    rows = [
        {
            "domain": domain or "ai.onnx",
            "operator": name,
            "since opset": first_opset(domain, name),
            "kind": row.kind,
        }
        for (domain, name), row in sorted(OPS.items())
        if domain != "webmlc"
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(f"{len(rows)} operators", rows)


app.command()(chat)
app.command()(tune)
app.command()(tune_worker)
app.command()(report)


def main() -> None:
    """Run the command line. A user's error is one message; a bug of webmlc says that it is one."""
    warnings.showwarning = _show_warning
    try:
        app()
    except (UserError, OSError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            text = f"{error.filename}: {error.strerror}"
        errors.print(f"[bold red]error:[/] {escape(text)}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except (InternalError, WebmlcError) as error:
        errors.print(
            "[bold red]internal error[/] (a bug of webmlc, please report it): "
            f"{escape(str(error))}\n"
            "WEBMLC_DUMP=dir writes every stage of the build there.",
            highlight=False,
            soft_wrap=True,
        )
        sys.exit(3)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    errors.print(f"[bold yellow]warning:[/] {escape(str(message))}", highlight=False)


def _build_for(device: DeviceChoice, on_stage: Watcher | None = None) -> Build:
    """Return a function that builds a model for one device into a folder, with some constants."""
    from webmlc.compile import build as build_package

    def build_one(model: Path, folder: Path, /, *, constants: Constants) -> object:
        return build_package(model, folder, device.value, constants=constants, on_stage=on_stage)

    return build_one


def _resource_rows(program: dict[str, Any]) -> list[dict[str, Any]]:
    """Build a row per figure of a program."""
    rows = []
    for name, value in program.items():
        if name == "arena bytes":
            rows += [{"figure": f"arena bytes ({d})", "value": number(v)} for d, v in value.items()]
        elif name != "cpu nodes":
            rows.append({"figure": name, "value": number(value)})
    return rows


if __name__ == "__main__":
    main()
