"""The command `webmlc build`."""

# ruff: noqa: RUF009  # `option` returns a field, as `dataclasses.field` does

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from webmlc.build_options import PACKAGE, PRECISION, BuildOptions, CommandOption, option
from webmlc.cli.console import console, escape, number, print_json, print_table
from webmlc.cli.options import AsJson, Model, Schedules, building
from webmlc.cli.tune import search_first
from webmlc.core.errors import UserError
from webmlc.core.garbage import collect_rarely

if TYPE_CHECKING:
    from webmlc.host.quantisation_loss import QuantisationLoss


@dataclass(frozen=True, slots=True)
class Output:
    """Where a build writes its package: a folder, or one script with everything inside."""

    path: Path | None = option(
        None,
        CommandOption(
            "Package folder.",
            PACKAGE,
            "-o --out",
            shown="build/<model>",
            kind=Path | None,
        ),
    )
    single_file: bool = option(
        False,
        CommandOption(
            "Write one script with everything inside, for a small model. Its default name is "
            "build/<model>.js.",
            PACKAGE,
            "--single-file",
        ),
    )

    @contextmanager
    def folder(self, out: Path) -> Iterator[Path]:
        """The package's folder, which exists until the end of the command for a script."""
        if not self.single_file:
            yield out
            return
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)


def build(
    model: Model,
    *,
    output: Output,
    options: BuildOptions,
    inputs: Annotated[
        Path | None,
        typer.Option(
            help="With --quantise: measure the loss on the arrays of this .npz file; inputs that "
            "it does not hold are random.",
            show_default=False,
            rich_help_panel=PRECISION,
        ),
    ] = None,
    schedules: Schedules,
    as_json: AsJson = False,
) -> None:
    """Compile a model into a package that any browser runs."""
    if options.quantise is None and inputs:
        raise UserError("--inputs needs --quantise: its loss is measured with them")
    if schedules.seconds is not None:
        schedules = replace(schedules, tuned=schedules.tuned or Path("tuned.db"))
        search_first(model, schedules, options)
    name = f"{model.stem}.js" if output.single_file else model.stem
    out = output.path or Path("build") / name
    loss = None
    with output.folder(out) as folder:
        report = _build(model, folder, options, schedules, quiet=as_json)
        if output.single_file:
            from webmlc.package.single_file import write_single_file

            length = write_single_file(folder, out, force=options.force)
            report |= {"folder": None, "file": str(out), "bytes": length}
        if options.quantise is not None:
            loss = _measured_loss(model, folder, options, inputs)
            report |= {"quantisation": loss.rows(), "weights bytes before": loss.float_bytes}
    if as_json:
        print_json(report)
        return
    _print_report(report)
    if loss is not None:
        print_table(f"{options.quantise} against float", loss.rows())
        before, after = number(loss.float_bytes), number(loss.quantised_bytes)
        console.print(f"Bytes of the weights: {before} before, {after} after")
    if report["operators"]:
        print_table("Operators of your own", report["operators"])
    if report["tuned"]:
        print_table("Kernels with tuned schedules", report["tuned"])
    _print_use(out, report)


def _build(
    model: Path, folder: Path, options: BuildOptions, schedules: Schedules, *, quiet: bool
) -> dict[str, Any]:
    """Build a package, or restore it from the cache. Return the report of the package."""
    from webmlc.cached_build import CachedBuild

    is_kept = options.keeps_package and not (schedules.tuned or schedules.platform)
    cached_build = CachedBuild.of(model, options) if is_kept else None
    restored = None if cached_build is None else cached_build.restore(folder, options.force)
    if restored is not None:
        return restored.report
    with collect_rarely():  # before the imports, which make many objects
        from webmlc.host.report import package_report
        from webmlc.pipeline import build_package

        with building(options, schedules, f"Building {model.name}", quiet=quiet) as options:
            manifest = build_package(model, folder, options, cached_build)
    return package_report(manifest, folder)


def _measured_loss(
    model: Path, package: Path, options: BuildOptions, inputs: Path | None
) -> QuantisationLoss:
    """Build the float model in a temporary folder, and compare the quantised `package` with it.
    `options` are the options of `package`.

    A package without a program for the CPU is built again for the CPU, which every machine has.
    """
    from webmlc.core.machine import DEVICES
    from webmlc.host.quantisation_loss import quantisation_loss
    from webmlc.pipeline import build_package

    with tempfile.TemporaryDirectory(prefix="webmlc-quantise-") as scratch:
        before, after = Path(scratch) / "float", package
        build_package(model, before, replace(options, target="wasm", quantise=None))
        if options.target != "both" and not DEVICES[options.target].runs_steps:
            after = Path(scratch) / "quantised"
            build_package(model, after, replace(options, target="wasm"))
        return quantisation_loss(before, after, inputs)


def _print_report(report: dict[str, Any]) -> None:
    """Print the figures of each program."""
    for device, program in report["programs"].items():
        rows = []
        for name, value in program.items():
            if name == "arena bytes":
                rows += [(f"arena bytes ({place})", bytes) for place, bytes in value.items()]
            elif name != "cpu nodes":
                rows.append((name, value))
        table = [{"figure": figure, "value": number(value)} for figure, value in rows]
        print_table(f"{report['name']} for {device}", table)
        if nodes := program["cpu nodes"]:
            reasons = [{"on the CPU": node, "why": reason} for node, reason in nodes.items()]
            print_table("Nodes that the GPU cannot run", reasons)


def _print_use(out: Path, report: dict[str, Any]) -> None:
    """Print how a page uses the folder or the script `out`."""
    if "file" not in report:
        console.print(f"Open it in a browser: [bold]webmlc serve {escape(str(out))}[/]")
        return
    size = number(report["bytes"])
    console.print(f"{out} has {size} bytes. Import it in a page, in a worker or in Node:")
    console.print(f'  [bold]import {{ load }} from "./{out.name}";[/]', highlight=False)
