"""The options and arguments that several commands share."""

# ruff: noqa: RUF009  # `option` returns a field, as `dataclasses.field` does

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from webmlc.build_options import SPEED, BuildOptions, CommandOption, DeviceName, option
from webmlc.core.errors import UserError
from webmlc.core.stage_progress import StageProgress
from webmlc.host.check_options import DEVICE, SEED, SIZES, THREADS
from webmlc.tune.options import duration

Model = Annotated[
    Path,
    typer.Argument(
        help="An ONNX model, a language model in a GGUF file, or a model of PyTorch (.pt2), Keras "
        "(.keras) or TensorFlow (.tflite, or a SavedModel folder).",
        show_default=False,
    ),
]
PackageOrModel = Annotated[
    Path, typer.Argument(help="A package folder, or a model to build first.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a command runs a model. `dims` are the sizes of symbolic dimensions of its inputs."""

    device: DeviceName = option("wasm", DEVICE)
    threads: int = option(1, THREADS)
    dims: Mapping[str, int] = option(None, SIZES)
    seed: int = option(0, SEED)


@dataclass(frozen=True, slots=True)
class Schedules:
    """The database whose schedules a build uses. A search of `seconds` comes first."""

    tuned: Path | None = option(
        None,
        CommandOption(
            "Use the schedules that `webmlc tune` kept in this file, or those that come with "
            "webmlc.",
            SPEED,
            kind=Path | None,
            metavar="FILE|shipped",
        ),
    )
    platform: str = option(
        "",
        CommandOption(
            "With --tuned: a part of the name of the platform to build for (webmlc tune --list).",
            SPEED,
            shown="this machine",
            kind=str,
        ),
    )
    seconds: float | None = option(
        None,
        CommandOption(
            "Search for so long first, in the file of --tuned (tuned.db).",
            SPEED,
            "--tune",
            kind=str | None,
            metavar="TIME",
            read=duration,
        ),
    )


@contextmanager
def building(
    options: BuildOptions, schedules: Schedules, title: str, *, quiet: bool = False
) -> Iterator[BuildOptions]:
    """The options of a build that chooses from the database, with a line of progress. Without a
    database, every kernel has its default schedule.
    """
    if schedules.tuned is None:
        if schedules.platform:
            raise UserError("--platform: it chooses among the records of --tuned FILE")
        with StageProgress(title, quiet=quiet) as advance:
            yield replace(options, on_stage=advance)
        return
    from webmlc.tune.choose import TunedChooser
    from webmlc.tune.json_lines import open_records

    with open_records(schedules.tuned) as records:
        choose = TunedChooser(records, schedules.platform, options.adapter)
        algorithms = choose.algorithms()
        with StageProgress(title, quiet=quiet) as advance:
            yield replace(options, choose=choose, algorithms=algorithms, on_stage=advance)
