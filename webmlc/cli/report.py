"""The command `webmlc report`: a page that shows where everything of a model comes from."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from webmlc.build_options import BuildOptions
from webmlc.cli.console import console, number
from webmlc.cli.options import (
    BuildAdapter,
    BuildAdapterChoice,
    ConstantInputs,
    Context,
    Dimensions,
    Jobs,
    NoCache,
    Target,
    TargetChoice,
    Tuned,
    dimensions,
    processors,
)
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
    target: Target = TargetChoice.both,
    dim: Dimensions = [],  # noqa: B006
    constant: ConstantInputs = [],  # noqa: B006
    context: Context = None,
    adapter: BuildAdapter = BuildAdapterChoice.gpu,
    tuned: Tuned = None,
    jobs: Jobs = 0,
    no_cache: NoCache = False,
) -> None:
    """Write a page that shows a model's nodes, kernels, code, memory and times.

    The report of a package lacks what a package does not hold: the model's graph, and schedules.
    """
    from webmlc.frontend.bind_constants import read_constants
    from webmlc.report.write_report import write_report

    with ExitStack() as stack:
        choose, algorithms = chooser(stack, tuned, "", adapter.value)
        advance = stack.enter_context(StageProgress(f"Reporting {source.name}", quiet=False))
        options = BuildOptions(
            target.value,
            constants=read_constants(constant),
            context=context,
            adapter=adapter.value,
            choose=choose,
            algorithms=algorithms,
            on_stage=advance,
            jobs=jobs or processors(),
            cache=not no_cache,
        )
        write_report(source, out, options, dimensions(dim))
    console.print(f"Wrote {out} ({number(out.stat().st_size)} bytes). Open it in a browser.")
