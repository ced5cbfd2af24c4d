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
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from webmlc.build_options import BuildOptions
from webmlc.cli.build import build
from webmlc.cli.chat import chat
from webmlc.cli.console import console, errors, escape, fail, number, print_json, print_table
from webmlc.cli.options import AsJson, Model, RunOptions, Schedules, building
from webmlc.cli.run import bench, check, run
from webmlc.cli.spread import spread
from webmlc.cli.tune import tune, tune_worker
from webmlc.core.stages import Listing, Stage
from webmlc.version import VERSION

if TYPE_CHECKING:
    from webmlc.graph.ops.operator import Operator

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
    *,
    stage: Annotated[
        list[str], typer.Option(help="Print only stages whose title contains this (repeatable).")
    ] = [],  # noqa: B006
    kernel: Annotated[
        str | None, typer.Option(help="Print only the stages of this kernel.")
    ] = None,
    options: BuildOptions,
    example: RunOptions,
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
    sizes = symbol_sizes(example.dims, {symbol.name for symbol in parts.manifest.symbols})
    for device in parts.programs:
        work = partial(print_work, parts, device, sizes, kernel)
        stages(Stage(f"{device}: work", work, kernel if kernel in stages.kernels else None))
        if not all(DEVICES[s.device].runs_steps for s in parts.programs[device].steps):
            dispatches = partial(print_dispatches, parts, sizes, kernel)
            shown = kernel if kernel in stages.kernels else None
            stages(Stage(f"{device}: dispatches", dispatches, shown))
    for line in stages.lines(stage, kernel):
        print(line)


def ops(options: BuildOptions, as_json: AsJson = False) -> None:
    """List the operators that can be compiled, with those of installed packages and --operators,
    and the operators of ONNX and onnxruntime that are refused, with the reason.
    """
    from webmlc.frontend.expand_functions import FUNCTIONS
    from webmlc.graph.ops.refused import REFUSED
    from webmlc.graph.table import OPS, installed_rows

    rows = [
        {**_operator(domain, name), "kind": row.kind}
        for (domain, name), row in sorted(OPS.items())
        if domain != "webmlc" and row.custom is None
    ]
    defined = [
        {**_operator(domain, name), "kind": "defined by others"}
        for domain, names in FUNCTIONS.items()
        for name in sorted(names)
    ]
    refused = [
        {**_operator(domain, name), "kind": "refused", "reason": reason}
        for (domain, _, name), reason in ((n.rpartition("."), r) for n, r in REFUSED.items())
    ]
    custom = {key: installed.row for key, installed in installed_rows().items()}
    custom |= {(o.row.domain, o.row.name): o.row for o in options.operators}
    custom_rows = [_custom_row(row) for _, row in sorted(custom.items())]
    if as_json:
        print_json([*rows, *defined, *refused, *custom_rows])
        return
    print_table(f"{len(rows)} operators", rows)
    print_table(f"{len(defined)} operators that ONNX defines by other operators", defined)
    print_table(
        f"{len(refused)} operators that are refused",
        [{k: r[k] for k in ("domain", "operator", "reason")} for r in refused],
    )
    if custom_rows:
        printed = (
            {**row, "inputs": ", ".join(row["inputs"]), "attributes": _named(row["attributes"])}
            for row in custom_rows
        )
        print_table(f"{len(custom_rows)} operators of your own", list(printed))


def _operator(domain: str, name: str) -> dict[str, Any]:
    from webmlc.frontend import protos

    opset = protos.first_opset(domain, name)
    return {"domain": domain or "ai.onnx", "operator": name, "since opset": opset}


def _custom_row(row: Operator) -> dict[str, Any]:
    """The facts about an operator that people defined."""
    assert row.custom is not None, row.name
    return {
        "domain": row.domain,
        "operator": row.name,
        "since opset": 1,
        "kind": "kernel of its own" if row.is_apart else row.kind,
        "inputs": list(row.custom.inputs),
        "attributes": dict(row.custom.defaults),
        "from": row.custom.origin,
    }


def _named(attributes: Mapping[str, Any]) -> str:
    return ", ".join(n if v is None else f"{n}={v}" for n, v in attributes.items())


def report(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL|PACKAGE",
            help="A model file, or the folder of a package.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path(
        "report.html"
    ),
    options: BuildOptions,
    sizes: RunOptions,
    schedules: Schedules,
) -> None:
    """Write a page that shows a model's nodes, kernels, code, memory and times.

    The report of a package lacks what a package does not hold: the model's graph, and schedules.
    """
    from webmlc.report.write_report import write_report

    with building(options, schedules, f"Reporting {source.name}") as options:
        write_report(source, out, options, sizes.dims)
    console.print(f"Wrote {out} ({number(out.stat().st_size)} bytes). Open it in a browser.")


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove everything.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show where builds keep packages and kernels for later builds, and how much they keep.

    WEBMLC_CACHE=DIR keeps them elsewhere, and WEBMLC_CACHE=off keeps nothing.
    """
    from webmlc.core.disk_cache import LIMIT, user_cache

    disk = user_cache()
    if disk is None:
        print_json(None) if as_json else console.print("The cache is off.")
        return
    if clear:
        disk.clear()
    entries, size = disk.size()
    if as_json:
        print_json({"folder": str(disk.folder), "entries": entries, "bytes": size, "limit": LIMIT})
        return
    console.print(f"{disk.folder}", highlight=False, soft_wrap=True)
    console.print(f"{entries} entries, {number(size)} of at most {number(LIMIT)} bytes")


def _add_commands() -> None:
    """Add the commands, in the order of the help, with the options that each offers."""
    options = [f.name for f in fields(BuildOptions)]
    inspected = [name for name in options if name not in ("dims", "force", "jobs", "cache")]
    reported = [name for name in options if name not in ("dims", "force")]
    inputs = ("constants", "inputs", "outputs", "operators")
    checked = ("constants", "adapter", "operators")
    run_options = ("device", "threads", "dims")
    commands: dict[str, Callable[..., None]] = {
        "build": spread(build),
        "run": spread(run, options=inputs),
        "check": spread(check, options=checked, schedules=("tuned", "platform")),
        "bench": spread(bench, how=run_options, options=inputs),
        "serve": serve,
        "inspect": spread(inspect, options=inspected, example=("dims",)),
        "ops": spread(ops, options=("operators",)),
        "chat": spread(chat, how=("device", "threads")),
        "tune": spread(tune),
        "tune-worker": tune_worker,
        "report": spread(report, options=reported, sizes=("dims",), schedules=("tuned",)),
        "cache": cache,
    }
    for name, command in commands.items():
        app.command(name)(command)


_add_commands()


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


if __name__ == "__main__":
    main()
