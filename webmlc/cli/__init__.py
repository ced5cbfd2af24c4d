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

from webmlc.build_options import BuildOptions
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
from webmlc.cli.options import (
    MODEL,
    PACKAGE,
    PRECISION,
    SPEED,
    AsJson,
    BuildAdapter,
    BuildAdapterChoice,
    BuildPlatform,
    ConstantInputs,
    Context,
    Dimensions,
    FixedDimensions,
    Jobs,
    Model,
    NoCache,
    PageInputs,
    PageOutputs,
    QuantisationChoice,
    SingleFile,
    StateChoice,
    Target,
    TargetChoice,
    Tokenizer,
    Tuned,
    constants_of,
    dimensions,
    processors,
)
from webmlc.cli.quantise import measured_loss
from webmlc.cli.report import report
from webmlc.cli.run import bench, check, run
from webmlc.cli.single_file import print_use, temporary_folder, write_script
from webmlc.cli.tune import chooser, search_first, tune, tune_worker
from webmlc.core.errors import UserError
from webmlc.core.garbage import collect_rarely
from webmlc.core.stage_progress import StageProgress
from webmlc.core.stages import Listing, Stage
from webmlc.version import VERSION

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


@app.command()
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
    target: Target = TargetChoice.both,
    constant: ConstantInputs = [],  # noqa: B006
    page_input: PageInputs = [],  # noqa: B006
    page_output: PageOutputs = [],  # noqa: B006
    tokenizer: Tokenizer = None,
    emit_text: Annotated[
        bool, typer.Option(help="Also write the code as text.", rich_help_panel=PACKAGE)
    ] = False,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            rich_help_panel=PRECISION,
            help="Multiply weights of a few bits by float32 activations, not by int8, and keep the "
            "keys and values of a session in float32, not in bfloat16: slower.",
        ),
    ] = False,
    state: Annotated[
        StateChoice,
        typer.Option(
            help="Keep pasts and recurrent states in sessions, or leave them inputs and outputs.",
            rich_help_panel=MODEL,
        ),
    ] = StateChoice.auto,
    quantise: Annotated[
        QuantisationChoice | None,
        typer.Option(
            help="Quantise the weights of products and embeddings in blocks. Reports the loss.",
            show_default=False,
            rich_help_panel=PRECISION,
        ),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            help="With --quantise: measure the loss on the arrays of this .npz file; inputs that "
            "it does not hold are random.",
            show_default=False,
            rich_help_panel=PRECISION,
        ),
    ] = None,
    dim: FixedDimensions = [],  # noqa: B006
    context: Context = None,
    adapter: BuildAdapter = BuildAdapterChoice.gpu,
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
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace files that no build of webmlc wrote.",
            rich_help_panel=PACKAGE,
        ),
    ] = False,
    jobs: Jobs = 0,
    no_cache: NoCache = False,
    as_json: AsJson = False,
) -> None:
    """Compile a model into a package that any browser runs."""
    from webmlc.cached_build import CachedBuild

    if quantise is None and inputs:
        raise UserError("--inputs needs --quantise: its loss is measured with them")
    if tune_for is not None and dim:
        raise UserError("--tune searches kernels of all sizes, and --dim fixes sizes: leave one")
    out = out or Path("build") / (f"{model.stem}.js" if single_file else model.stem)
    folder = temporary_folder(command) if single_file else out
    constants = constants_of(constant)
    if tune_for is not None:
        tuned = tuned or Path("tuned.db")
        search_first(model, tuned, target.value, adapter.value, constants, tune_for)
    options = BuildOptions(
        target.value,
        constants=constants,
        dims=dimensions(dim),
        tokenizer=tokenizer,
        emit_text=emit_text,
        exact=exact,
        state=state.value,
        quantise=quantise.value if quantise else None,
        context=context,
        adapter=adapter.value,
        force=force,
        jobs=jobs or processors(),
        cache=not no_cache,
    )
    chooses = tuned or platform or page_input or page_output
    cached_build = None if no_cache or chooses else CachedBuild.of(model, options)
    restored = None if cached_build is None else cached_build.restore(folder, force)
    if restored is not None:
        report = restored.report
    else:
        with ExitStack() as stack:
            stack.enter_context(collect_rarely())  # before the imports, which make many objects
            from webmlc.compile import build_package
            from webmlc.graph.typed.options import read_texts
            from webmlc.host.report import package_report

            choose, algorithms = chooser(stack, tuned, platform, adapter.value)
            advance = stack.enter_context(StageProgress(f"Building {model.name}", quiet=as_json))
            options = replace(
                options,
                inputs=read_texts("--input", page_input),
                outputs=read_texts("--output", page_output),
                choose=choose,
                algorithms=algorithms,
                on_stage=advance,
            )
            manifest = build_package(model, folder, options, cached_build)
        report = package_report(manifest, folder)
    if single_file:
        report |= write_script(folder, out, force=force)
    if quantise is not None:
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
    if quantise is not None:
        print_table(f"{quantise.value} against float", loss.rows())
        before, after = number(loss.float_bytes), number(loss.quantised_bytes)
        console.print(f"Bytes of the weights: {before} before, {after} after")
    if report["tuned"]:
        print_table("Kernels with tuned schedules", report["tuned"])
    if single_file:
        print_use(out, report["bytes"])
    else:
        console.print(f"Open it in a browser: [bold]webmlc serve {escape(str(folder))}[/]")


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


@app.command()
def inspect(
    model: Model,
    stage: Annotated[
        list[str], typer.Option(help="Print only stages whose title contains this (repeatable).")
    ] = [],  # noqa: B006
    kernel: Annotated[
        str | None, typer.Option(help="Print only the stages of this kernel.")
    ] = None,
    target: Target = TargetChoice.both,
    dim: Dimensions = [],  # noqa: B006
    constant: ConstantInputs = [],  # noqa: B006
    page_input: PageInputs = [],  # noqa: B006
    page_output: PageOutputs = [],  # noqa: B006
    adapter: BuildAdapter = BuildAdapterChoice.gpu,
) -> None:
    """Print the stages of the pipeline, from the graph to the emitted text.

    A numbered list comes first, then the result of each stage that changed something. Last comes
    the work of each step (with the sizes of --dim): its operations, and the bytes that it moves
    beside the least possible bytes. For each dispatch on a GPU, it also says how large it is, and
    what bounds its time on an H100, an M2, an Adreno 740 and an Intel Iris Xe. With --adapter all,
    the stages of all variants of the shaders are printed, and the work of that for any GPU.

    --stage code prints the text of each kernel, with the ONNX nodes that its lines compute.
    """
    from webmlc.compile import compile_model
    from webmlc.core.machine import DEVICES
    from webmlc.core.symbol_names import symbol_sizes
    from webmlc.frontend.bind_constants import read_constants
    from webmlc.graph.typed.options import read_texts
    from webmlc.package.step_work import print_dispatches, print_work

    stages = Listing()
    options = BuildOptions(
        target.value,
        constants=read_constants(constant),
        inputs=read_texts("--input", page_input),
        outputs=read_texts("--output", page_output),
        adapter=adapter.value,
        on_stage=stages,
    )
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
app.command()(cache)


def main() -> None:
    """Run the command line, and end the process with its exit code."""
    warnings.showwarning = _show_warning
    atexit.register(gc.freeze)  # else the end of the process collects garbage: 0.6 s after a build
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
