"""The commands that search schedules: `webmlc tune` and `webmlc tune-worker`."""

# ruff: noqa: RUF009  # `option` returns a field, as `dataclasses.field` does

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from webmlc.build_options import BuildOptions, CommandOption, option
from webmlc.cli.console import console, errors, escape, print_json, print_table
from webmlc.cli.options import AsJson, Schedules
from webmlc.core.errors import UserError
from webmlc.core.replace_file import replace_file
from webmlc.tune.options import LOOPBACK, TuneOptions

if TYPE_CHECKING:
    from webmlc.tune.run import Result

SHOWN = 15
"""The most kernels that the terminal shows after a search."""


@dataclass(frozen=True, slots=True)
class RecordsOptions:
    """What to do with a database instead of searching."""

    shows: bool = option(
        False,
        CommandOption(
            "List what the database holds instead of searching; with MODEL, what its kernels "
            "can use of it.",
            flag="--list",
        ),
    )
    merge: Sequence[Path] = option(
        (),
        CommandOption(
            "Add the records of this database, or exported .jsonl file (repeatable), instead "
            "of searching.",
            kind=list[Path],
            metavar="FILE|shipped",
        ),
    )
    export: Path | None = option(
        None,
        CommandOption(
            "Write the records as JSON lines to this file instead of searching.",
            kind=Path | None,
        ),
    )


def tune(
    model: Annotated[
        Path | None, typer.Argument(help="An ONNX model file.", show_default=False)
    ] = None,
    *,
    options: TuneOptions,
    records: RecordsOptions,
    as_json: AsJson = False,
) -> None:
    """Find faster schedules for a model's kernels by measuring them on this machine.

    Then build with them: webmlc build MODEL --tuned tuned.db. Ctrl-C ends the search early, and
    keeps what it found.
    """
    if records.shows or records.merge or records.export is not None:
        _manage(options.database, model, records, as_json)
        return
    if model is None:
        raise UserError("name a model to tune, or use --list, --merge or --export")
    from webmlc.tune.report.write_report import rows_of

    result = _search(model, options, model.name)
    if options.adapter == "gpu" and any(s.platform.is_software for s in result.searches):
        errors.print(
            "This adapter runs shaders on the CPU, so that a build for other GPUs takes nothing "
            "from it. With --adapter software, tune and build for such adapters."
        )
    rows = rows_of(result.searches)
    if not as_json:
        _print_result(model, options, result, rows)
        return
    chosen = {layer: {"name": n, "ratio": r} for layer, (n, r) in result.algorithms.items()}
    print_json(
        {
            "gain": result.gain,
            "kernels": rows,
            "algorithms": chosen,
            "model gains": dict(result.model_gains),
            "report": str(result.report),
            "database": str(result.database),
        }
    )


def _search(model: Path, options: TuneOptions, title: str) -> Result:
    """Search as requested, and show the progress."""
    from webmlc.tune.report.progress import Progress
    from webmlc.tune.run import run

    def show_page(url: str) -> None:
        errors.print(f"Open [bold]{url}[/] on a device to let it join.")

    with Progress(errors, title) as progress:
        return run(model, replace(options, on_change=progress, on_listen=show_page))


def _print_result(
    model: Path, options: TuneOptions, result: Result, rows: Sequence[dict[str, Any]]
) -> None:
    """Print the gains of a search. `rows` are those of `report.rows_of`."""
    if rows:
        table = [
            {
                "kernel": row["kernel"],
                "calls": str(row["calls"]),
                "default ms": f"{row['default_ms']:.4f}",
                "tuned ms": f"{row['tuned_ms']:.4f}",
                "gain": f"{row['gain']:.2f}×",
                "candidates": str(row["candidates"]),
            }
            for row in rows[:SHOWN]
        ]
        print_table(f"{model.name}: kernels {result.gain:.2f}× as fast", table)
    else:
        time = f"{options.seconds:g} s"
        console.print(f"{model.name}: no kernel was measured in {time}. Try a longer --budget.")
    if len(rows) > SHOWN:
        console.print(f"{len(rows) - SHOWN} more kernels are on the page.")
    if refused := sum(row["refused"] for row in rows):
        console.print(f"{refused} candidates could not be built. The page says why.")
    for key, gain in result.model_gains.items():
        text = "no faster with these schedules, and keeps its defaults"
        text = f"[bold]{gain:.2f}×[/] as fast" if gain > 1 else text
        console.print(f"{escape(key)}: the whole model is {text}")
    for layer, (algorithm, ratio) in result.algorithms.items():
        console.print(f"{layer}: [bold]{algorithm}[/] takes {ratio:.2f} of the default's time")
    console.print(f"A page to look at: [bold]{escape(str(result.report))}[/]")
    console.print(f"Build with it: [bold]webmlc build {model} --tuned {result.database}[/]")


def search_first(model: Path, schedules: Schedules, options: BuildOptions) -> None:
    """Search the schedules of a model before it is built. The devices share the time evenly. With
    the adapter "all", each variant of the shaders that needs no features counts as a device.
    Records of an earlier build are used again.
    """
    from webmlc.core.machine import DEVICES, PLAIN_ADAPTERS

    assert schedules.tuned is not None and schedules.seconds is not None
    if options.dims:
        raise UserError("--tune searches kernels of all sizes, and --dim fixes sizes: leave one")
    if schedules.seconds == 0:
        raise UserError("--tune: a search needs more than no time; try --tune 5m")
    adapters = PLAIN_ADAPTERS if options.adapter == "all" else (options.adapter,)
    searches = [
        TuneOptions(
            device,
            adapter=kind,
            constants=options.constants,
            operators=options.operators,
            resume=True,
        )
        for device, facts in DEVICES.items()
        if options.target in (device, "both")
        for kind in (adapters if facts.has_adapters else adapters[:1])
    ]
    seconds = schedules.seconds / len(searches)
    for search in searches:
        request = replace(search, database=schedules.tuned, seconds=seconds)
        _search(model, request, f"{model.name} on {search.device}")


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


def _manage(database: Path, model: Path | None, options: RecordsOptions, as_json: bool) -> None:
    """Merge, then export, then list records, as the options ask."""
    from webmlc.tune.json_lines import add_lines, open_records, open_to_change, to_lines
    from webmlc.tune.usage import summary, usage_of

    with open_to_change(database) if options.merge else open_records(database) as records:
        for path in options.merge:
            if path.suffix == ".jsonl" and path.is_file():
                count = add_lines(records, path)
            else:
                with open_records(path) as other:
                    count = records.merge(other)
            errors.print(f"{escape(str(path))}: {count} records added")
        if options.export is not None:
            lines = to_lines(records)
            replace_file(options.export, lines.encode())
            errors.print(
                f"{escape(str(options.export))}: {len(lines.splitlines())} records written"
            )
        if options.shows:
            rows = summary(records, None if model is None else usage_of([model], records))
            if as_json:
                print_json(rows)
                return
            for platform in dict.fromkeys(row["platform"] for row in rows):
                platform_rows = [row for row in rows if row["platform"] == platform]
                print_table(platform, [_listed(row) for row in platform_rows])


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
