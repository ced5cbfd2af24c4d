"""The command `webmlc report`: a page that shows where everything of a model comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from webmlc.build_options import BuildOptions
from webmlc.cli.console import console, number
from webmlc.cli.options import RunOptions, Schedules, building


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
