"""The commands that search schedules: `webmlc tune` and `webmlc tune-worker`."""

from __future__ import annotations

import re
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from webmlc.build_options import BuildOptions, dimensions
from webmlc.cli.console import console, errors, escape, print_json, print_table
from webmlc.cli.options import (
    Adapter,
    AdapterChoice,
    AsJson,
    ConstantInputs,
    Device,
    DeviceChoice,
    Dimensions,
    Seed,
    Threads,
)
from webmlc.core.errors import UserError
from webmlc.core.replace_file import replace_file

if TYPE_CHECKING:
    from webmlc.core.machine import Device as MachineDevice
    from webmlc.schedule.rules import Chooser

LOOPBACK = "127.0.0.1"
"""The address that only this machine reaches."""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
SHOWN = 15
"""The most kernels that the terminal shows after a search."""


class VariantChoice(StrEnum):
    """The WebAssembly variants whose kernels can be searched."""

    relaxed = "relaxed"
    simd128 = "simd128"
    dot = "dot"
    pairs = "pairs"


def duration(text: str) -> float:
    """The seconds of "90s", "10m" or "1h". Raises `UserError` for another form."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text)
    if parts is None:
        raise UserError(f"{text!r} is not a time: write 90s, 10m or 1h")
    return float(parts[1]) * _UNITS[parts[2] or "s"]


def address(text: str) -> tuple[str, int]:
    """The host and the port of "HOST:PORT" or "PORT". Raises `UserError` for another form."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal():
        raise UserError(f"--listen {text!r}: write HOST:PORT, for instance 0.0.0.0:8000")
    return host or LOOPBACK, int(port)


def tune(
    model: Annotated[
        Path | None, typer.Argument(help="An ONNX model file.", show_default=False)
    ] = None,
    device: Device = DeviceChoice.wasm,
    engine: Annotated[
        str | None,
        typer.Option(
            help="What measures: chromium, node, wasmtime or firefox (wasm); chromium or wgpu "
            "(webgpu).",
            show_default="the first of them that is installed",
        ),
    ] = None,
    variant: Annotated[
        VariantChoice,
        typer.Option(help="The WebAssembly variant whose kernels are searched (wasm)."),
    ] = VariantChoice.relaxed,
    adapter: Adapter = AdapterChoice.gpu,
    threads: Threads = 1,
    dim: Dimensions = [],  # noqa: B006
    constant: ConstantInputs = [],  # noqa: B006
    budget: Annotated[
        str,
        typer.Option(
            help="Time to search, as 90s, 10m or 1h: from the first measurement to the last "
            "confirmed winner. Reading the model and starting the engine come before it, and one "
            "comparison of the whole model (wasm) after it."
        ),
    ] = "10m",
    strategy: Annotated[
        str,
        typer.Option(
            help="How to search: auto, race, evolve (a genetic algorithm), tpe, model (a learned "
            "cost model) or random."
        ),
    ] = "auto",
    database: Annotated[
        Path,
        typer.Option(
            metavar="FILE|shipped",
            help="The file that keeps what was measured. With --list and --export also the records "
            "that come with webmlc.",
        ),
    ] = Path("tuned.db"),
    algorithms: Annotated[
        bool,
        typer.Option(
            help="Also search how layers become kernels: Winograd's and Strassen's algorithms, "
            "where to pad, how to split reductions."
        ),
    ] = True,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what the database has of this model.")
    ] = False,
    seed: Seed = 0,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Let other devices join by opening a page at this address."
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="tcp://HOST:PORT",
            help="Measure on the `webmlc tune-worker`s of this Dask scheduler.",
        ),
    ] = None,
    list_records: Annotated[
        bool,
        typer.Option(
            "--list",
            help="List what the database holds instead of searching; with MODEL, what its kernels "
            "can use of it.",
        ),
    ] = False,
    merge: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE|shipped",
            help="Add the records of this database, or exported .jsonl file (repeatable), instead "
            "of searching.",
        ),
    ] = [],  # noqa: B006
    export: Annotated[
        Path | None,
        typer.Option(help="Write the records as JSON lines to this file instead of searching."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find faster schedules for a model's kernels by measuring them on this machine.

    Then build with them: webmlc build MODEL --tuned tuned.db. Ctrl-C ends the search early, and
    keeps what it found.
    """
    if list_records or merge or export is not None:
        _manage(database, model, list_records, merge, export, as_json)
        return
    if model is None:
        raise UserError("name a model to tune, or use --list, --merge or --export")
    from webmlc import tune as run_search
    from webmlc.frontend.bind_constants import read_constants
    from webmlc.tune.progress import Progress
    from webmlc.tune.report import rows_of

    with Progress(errors, model.name) as progress:
        result = run_search(
            model,
            database=database,
            device=device.value,
            engine=engine,
            variant=variant.value,
            adapter=adapter.value,
            threads=threads,
            sizes=dimensions(dim),
            constants=read_constants(constant),
            seconds=duration(budget),
            strategy=strategy,
            algorithms=algorithms,
            resume=resume,
            seed=seed,
            listen_at=None if listen is None else address(listen),
            scheduler=scheduler,
            on_change=progress,
            on_listen=lambda url: errors.print(f"Open [bold]{url}[/] on a device to let it join."),
        )
    if adapter == AdapterChoice.gpu and any(s.platform.is_software for s in result.searches):
        errors.print(
            "This adapter runs shaders on the CPU, so that a build for other GPUs takes nothing "
            "from it. With --adapter software, tune and build for such adapters."
        )
    rows = rows_of(result.searches)
    if as_json:
        report, file = str(result.report), str(result.database)
        chosen = {layer: {"name": n, "ratio": r} for layer, (n, r) in result.algorithms.items()}
        report_rows = {"gain": result.gain, "kernels": rows, "algorithms": chosen}
        report_rows["model gains"] = dict(result.model_gains)
        print_json(report_rows | {"report": report, "database": file})
        return
    title = f"{model.name}: kernels {result.gain:.2f}× as fast"
    if rows:
        print_table(title, [_short(row) for row in rows[:SHOWN]])
    else:
        console.print(f"{model.name}: no kernel was measured in {budget}. Try a longer --budget.")
    if len(rows) > SHOWN:
        console.print(f"{len(rows) - SHOWN} more kernels are on the page.")
    if refused := sum(row["refused"] for row in rows):
        console.print(f"{refused} candidates could not be built. The page says why.")
    for key, gain in result.model_gains.items():
        console.print(f"{escape(key)}: {_whole_model(gain)}")
    for layer, (algorithm, ratio) in result.algorithms.items():
        console.print(f"{layer}: [bold]{algorithm}[/] takes {ratio:.2f} of the default's time")
    console.print(f"A page to look at: [bold]{escape(str(result.report))}[/]")
    console.print(f"Build with it: [bold]webmlc build {model} --tuned {result.database}[/]")


def search_first(model: Path, database: Path, options: BuildOptions, time: str) -> None:
    """Search the schedules of a model before it is built. `time` is a duration such as "10m". The
    devices share it evenly. With the adapter "all", each variant of the shaders that needs no
    features counts as a device. Records of an earlier build are used again.
    """
    from webmlc import tune as run_search
    from webmlc.core.machine import DEVICES, PLAIN_ADAPTERS
    from webmlc.tune.progress import Progress

    seconds = duration(time)
    if seconds == 0:
        raise UserError("--tune: a search needs more than no time; try --tune 5m")
    adapters = PLAIN_ADAPTERS if options.adapter == "all" else (options.adapter,)
    searches = [
        (device, kind)
        for device, facts in DEVICES.items()
        if options.target in (device, "both")
        for kind in (adapters if facts.has_adapters else adapters[:1])
    ]
    for device, kind in searches:
        with Progress(errors, f"{model.name} on {device}") as progress:
            run_search(
                model,
                database=database,
                device=device,
                adapter=kind,
                constants=options.constants,
                seconds=seconds / len(searches),
                resume=True,
                on_change=progress,
            )


def chooser(
    stack: ExitStack, database: Path | None, platform: str, adapter: str = "gpu"
) -> tuple[Chooser | None, dict[MachineDevice, dict[str, str]]]:
    """The chooser of a build's schedules, and the algorithms for the layers of each device. Both
    come from the database, which `stack` closes. Without a database there is no chooser.
    """
    if database is None:
        if platform:
            raise UserError("--platform: it chooses among the records of --tuned FILE")
        return None, {}
    from webmlc.tune.choose import TunedChooser
    from webmlc.tune.json_lines import open_records

    choose = TunedChooser(stack.enter_context(open_records(database)), platform, adapter)
    return choose, choose.algorithms()


def tune_worker(
    scheduler: Annotated[
        str, typer.Option(metavar="tcp://HOST:PORT", help="The address of a Dask scheduler.")
    ],
    engine: Annotated[str, typer.Option(help="What measures: wasmtime or wgpu.")] = "wasmtime",
    threads: Annotated[
        int, typer.Option(min=1, help="Trials that are measured at the same time.")
    ] = 1,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="The address of this machine at which the scheduler reaches the worker. Everyone "
            "who reaches it can run code here: name one of a network that you trust.",
        ),
    ] = LOOPBACK,
) -> None:
    """Measure for a `webmlc tune --scheduler`, until that scheduler ends.

    The worker says on which address it listens. A scheduler on another machine needs --listen.
    """
    from webmlc.tune.cluster import run_worker

    run_worker(scheduler, engine, threads, listen)


def _manage(
    database: Path,
    model: Path | None,
    list_records: bool,
    merge: list[Path],
    export: Path | None,
    as_json: bool,
) -> None:
    """Merge, then export, then list records, as the options ask."""
    from webmlc.tune.json_lines import add_lines, open_records, open_to_change, to_lines
    from webmlc.tune.summary import summary
    from webmlc.tune.usage import usage_of

    with open_to_change(database) if merge else open_records(database) as records:
        for path in merge:
            if path.suffix == ".jsonl" and path.is_file():
                count = add_lines(records, path)
            else:
                with open_records(path) as other:
                    count = records.merge(other)
            errors.print(f"{escape(str(path))}: {count} records added")
        if export is not None:
            lines = to_lines(records)
            replace_file(export, lines.encode())
            errors.print(f"{escape(str(export))}: {len(lines.splitlines())} records written")
        if list_records:
            rows = summary(records, None if model is None else usage_of([model], records))
            if as_json:
                print_json(rows)
                return
            for platform in dict.fromkeys(row["platform"] for row in rows):
                platform_rows = [row for row in rows if row["platform"] == platform]
                print_table(platform, [_listed(row) for row in platform_rows])


def _whole_model(gain: float) -> str:
    """The sentence about the trial of the whole model."""
    if gain > 1:
        return f"the whole model is [bold]{gain:.2f}×[/] as fast"
    return "the whole model is no faster with these schedules, and keeps its defaults"


def _short(row: dict[str, Any]) -> dict[str, str]:
    """A kernel's row in the terminal after a search (`report.rows_of`)."""
    return {
        "kernel": row["kernel"],
        "calls": str(row["calls"]),
        "default ms": f"{row['default_ms']:.4f}",
        "tuned ms": f"{row['tuned_ms']:.4f}",
        "gain": f"{row['gain']:.2f}×",
        "candidates": str(row["candidates"]),
    }


def _listed(row: dict[str, Any]) -> dict[str, str]:
    """A kernel's row in the list of a database (`summary`). Its gain is a text."""
    default = row["default ms"]
    return {
        "model": row["model"],
        "kernel": row["kernel"],
        "sizes": row["sizes"],
        "candidates": str(row["candidates"]),
        "default ms": "–" if default is None else f"{default:.4f}",
        "gain": row["gain"],
        "date": row["date"],
    }
