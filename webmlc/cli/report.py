"""The command `webmlc report`: a page that shows where everything of a model comes from."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from webmlc.build_options import DEFAULTS, BuildOptions, dimensions
from webmlc.cli.console import console, number
from webmlc.cli.options import Dimensions, Tuned
from webmlc.cli.tune import chooser
from webmlc.core.stage_progress import StageProgress


def report(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL|PACKAGE",
            help="A model file, or the folder of a package.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path(
        "report.html"
    ),
    options: BuildOptions = DEFAULTS,
    dim: Dimensions = [],  # noqa: B006
    tuned: Tuned = None,
) -> None:
    """Write a page that shows a model's nodes, kernels, code, memory and times.

    The report of a package lacks what a package does not hold: the model's graph, and schedules.
    """
    from webmlc.report.write_report import write_report

    with ExitStack() as stack:
        choose, algorithms = chooser(stack, tuned, "", options.adapter)
        advance = stack.enter_context(StageProgress(f"Reporting {source.name}", quiet=False))
        options = replace(options, choose=choose, algorithms=algorithms, on_stage=advance)
        write_report(source, out, options, dimensions(dim))
    console.print(f"Wrote {out} ({number(out.stat().st_size)} bytes). Open it in a browser.")
