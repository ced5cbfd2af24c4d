"""The command line: `webmlc build | run | chat | check | bench | tune | report | serve | ...`.

It contains no logic: every command calls one function and prints its result.

webmlc build model.onnx -o build/model
webmlc check model.onnx --device webgpu
"""

from __future__ import annotations

import atexit
import gc
import sys
import warnings
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from webmlc.build_options import (
    DEFAULTS,
    PACKAGE,
    PRECISION,
    SPEED,
    BuildOptions,
    dimensions,
)
from webmlc.cli.cache import cache
from webmlc.cli.chat import chat
from webmlc.cli.console import (
    console,
    errors,
    escape,
    number,
    print_json,
    print_table,
)
from webmlc.cli.failures import fail
from webmlc.cli.options import AsJson, BuildPlatform, Dimensions, Model, SingleFile, Tuned
from webmlc.cli.quantise import measured_loss
from webmlc.cli.report import report
from webmlc.cli.run import bench, check, run
from webmlc.cli.single_file import print_use, temporary_folder, write_script
from webmlc.cli.spread import spread
from webmlc.cli.tune import chooser, search_first, tune, tune_worker
from webmlc.core.errors import UserError
from webmlc.core.garbage import collect_rarely
from webmlc.core.stage_progress import StageProgress
from webmlc.core.stages import Listing, Stage
from webmlc.version import VERSION

UNUSED = ("dims", "force", "jobs", "cache")
"""The options of a build that `inspect` does not have. Its --dim gives the sizes for its counts."""

app = typer.Typer(
    name="webmlc",
    no_args_is_help=True,
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


def build(
    command: typer.Context,
    model: Model,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Package folder.",
            show_default="build/<model>",
            rich_help_panel=PACKAGE,
        ),
    ] = None,
    single_file: SingleFile = False,
    options: BuildOptions = DEFAULTS,
    inputs: Annotated[
        Path | None,
        typer.Option(
            help="With --quantise: measure the loss on the arrays of this .npz file; inputs that "
            "it does not hold are random.",
            show_default=False,
            rich_help_panel=PRECISION,
        ),
    ] = None,
    tuned: Tuned = None,
    platform: BuildPlatform = "",
    tune_for: Annotated[
        str | None,
        typer.Option(
            "--tune",
            metavar="TIME",
            help="Search for so long first, in the file of --tuned (tuned.db).",
            rich_help_panel=SPEED,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compile a model into a package that any browser runs."""
    from webmlc.cached_build import CachedBuild

    if options.quantise is None and inputs:
        raise UserError("--inputs needs --quantise: its loss is measured with them")
    if tune_for is not None and options.dims:
        raise UserError("--tune searches kernels of all sizes, and --dim fixes sizes: leave one")
    out = out or Path("build") / (f"{model.stem}.js" if single_file else model.stem)
    folder = temporary_folder(command) if single_file else out
    if tune_for is not None:
        tuned = tuned or Path("tuned.db")
        search_first(model, tuned, options, tune_for)
    is_kept = options.keeps_package and not (tuned or platform)
    cached_build = CachedBuild.of(model, options) if is_kept else None
    restored = None if cached_build is None else cached_build.restore(folder, options.force)
    if restored is not None:
        report = restored.report
    else:
        with ExitStack() as stack:
            stack.enter_context(collect_rarely())  # before the imports, which make many objects
            from webmlc.host.report import package_report
            from webmlc.pipeline import build_package

            choose, algorithms = chooser(stack, tuned, platform, options.adapter)
            advance = stack.enter_context(StageProgress(f"Building {model.name}", quiet=as_json))
            options = replace(options, choose=choose, algorithms=algorithms, on_stage=advance)
            manifest = build_package(model, folder, options, cached_build)
        report = package_report(manifest, folder)
    if single_file:
        report |= write_script(folder, out, force=options.force)
    if options.quantise is not None:
        loss = measured_loss(model, folder, options, inputs)
        report |= {"quantisation": loss.rows(), "weights bytes before": loss.float_bytes}
    if as_json:
        print_json(report)
        return
    for device, program in report["programs"].items():
        print_table(f"{report['name']} for {device}", _resource_rows(program))
        if nodes := program["cpu nodes"]:
            rows = [{"on the CPU": node, "why": reason} for node, reason in nodes.items()]
            print_table("Nodes that the GPU cannot run", rows)
    if options.quantise is not None:
        print_table(f"{options.quantise} against float", loss.rows())
        before, after = number(loss.float_bytes), number(loss.quantised_bytes)
        console.print(f"Bytes of the weights: {before} before, {after} after")
    if report["tuned"]:
        print_table("Kernels with tuned schedules", report["tuned"])
    if single_file:
        print_use(out, report["bytes"])
    else:
        console.print(f"Open it in a browser: [bold]webmlc serve {escape(str(folder))}[/]")


app.command("build")(spread(build))
app.command()(run)
app.command()(check)
app.command()(bench)


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


def inspect(
    model: Model,
    stage: Annotated[
        list[str], typer.Option(help="Print only stages whose title contains this (repeatable).")
    ] = [],  # noqa: B006
    kernel: Annotated[
        str | None, typer.Option(help="Print only the stages of this kernel.")
    ] = None,
    options: BuildOptions = DEFAULTS,
    dim: Dimensions = [],  # noqa: B006
) -> None:
    """Print the stages of the pipeline, from the graph to the emitted text.

    A numbered list comes first, then the result of each stage that changed something. Last comes
    the work of each step (with the sizes of --dim): its operations, and the bytes that it moves
    beside the least possible bytes. For each dispatch on a GPU, it also says how large it is, and
    what bounds its time on an H100, an M2, an Adreno 740 and an Intel Iris Xe. With --adapter all,
    the stages of all variants of the shaders are printed, and the work of that for any GPU.

    --stage code prints the text of each kernel, with the ONNX nodes that its lines compute.
    """
    from webmlc.core.machine import DEVICES
    from webmlc.core.symbol_names import symbol_sizes
    from webmlc.package.step_work import print_dispatches, print_work
    from webmlc.pipeline import compile_model

    stages = Listing()
    options = replace(options, on_stage=stages)
    parts = compile_model(model, options)
    sizes = symbol_sizes(dimensions(dim), {symbol.name for symbol in parts.manifest.symbols})
    for device in parts.programs:
        work = partial(print_work, parts, device, sizes, kernel)
        stages(Stage(f"{device}: work", work, kernel if kernel in stages.kernels else None))
        if not all(DEVICES[s.device].runs_steps for s in parts.programs[device].steps):
            dispatches = partial(print_dispatches, parts, sizes, kernel)
            shown = kernel if kernel in stages.kernels else None
            stages(Stage(f"{device}: dispatches", dispatches, shown))
    for line in stages.lines(stage, kernel):
        print(line)


app.command("inspect")(spread(inspect, UNUSED))


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
app.command("report")(spread(report, ("dims", "force")))
app.command()(cache)


def main() -> None:
    """Run the command line, and end the process with its exit code."""
    warnings.showwarning = _show_warning
    atexit.register(gc.freeze)  # else the process collects garbage at its end: 0.6 s after a build
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # not every terminal has all characters
    as_json = "--json" in sys.argv
    try:
        sys.exit(app(prog_name="webmlc", standalone_mode=not as_json))
    except Exception as error:
        sys.exit(fail(error, as_json))


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    errors.print(f"[bold yellow]warning:[/] {escape(str(message))}", highlight=False)


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
