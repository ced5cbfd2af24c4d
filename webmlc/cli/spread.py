"""Give a command one parameter for each option of a build, in place of one record.

In: a command with a `BuildOptions` parameter. Out: the same command in the form that typer reads.

    def build(model: Model, options: BuildOptions) -> None: ...
    app.command()(spread(build))        # `webmlc build --help` lists every field

Each field with a `CommandOption` becomes a parameter. The values are read in the order of the
fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any

import typer

from webmlc.build_options import BuildOptions, CommandOption


def spread(command: Callable[..., None], without: tuple[str, ...] = ()) -> Callable[..., None]:
    """Replace the parameter `options` of a command by one parameter for each field that is offered.
    Fields in `without` keep their defaults.
    """
    offered: dict[str, CommandOption] = {
        f.name: f.metadata["command"]
        for f in fields(BuildOptions)
        if f.metadata.get("command") is not None and f.name not in without
    }
    defaults = {f.name: f.default for f in fields(BuildOptions)}
    names = {field: _name(field, option) for field, option in offered.items()}

    def run(**values: Any) -> None:
        chosen = {field: values.pop(names[field]) for field in offered}
        chosen |= {f: o.read(chosen[f]) for f, o in offered.items() if o.read is not None}
        command(**values, options=BuildOptions(**chosen))

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if parameter.name == "options":
            parameters += [
                _parameter(names[field], option, defaults[field])
                for field, option in offered.items()
            ]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _name(field: str, option: CommandOption) -> str:
    """The name of the parameter of a field."""
    return option.flag.removeprefix("--").replace("-", "_") or field


def _parameter(name: str, option: CommandOption, default: Any) -> inspect.Parameter:
    """The parameter of a field, as typer reads it."""
    information = typer.Option(
        *([option.flag] if option.flag else []),
        help=option.help,
        min=option.least,
        show_default=option.shown,
        rich_help_panel=option.panel,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default if option.read is None else option.kind(),
        annotation=Annotated[option.kind, information],
    )
