"""Give a command one parameter for each option, in place of records of options.

In: a command with parameters that are records, such as `BuildOptions`. Out: the same command in the
form that typer reads.

    def build(model: Model, options: BuildOptions) -> None: ...
    app.command()(spread(build))        # `webmlc build --help` lists every field
    app.command()(spread(check, options=("constants", "adapter")))     # only these fields

Each field with a `CommandOption` becomes a parameter. The values are read in the order of the
fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import Field, fields, is_dataclass
from typing import Annotated, Any

import typer

from webmlc.build_options import CommandOption


def spread(command: Callable[..., None], **offered: Collection[str]) -> Callable[..., None]:
    """Replace each parameter of a command that is a record by one parameter for each field of the
    record. `offered` names the fields of a record by its parameter; the others keep their defaults.
    """
    signature = inspect.signature(command, eval_str=True).parameters
    options = {
        name: option_fields(parameter.annotation, offered.get(name))
        for name, parameter in signature.items()
        if is_dataclass(parameter.annotation)
    }

    def run(**values: Any) -> None:
        for record, record_fields in options.items():
            chosen = {f.name: _value(f, values.pop(_name(record, f))) for f in record_fields}
            values[record] = signature[record].annotation(**chosen)
        command(**values)

    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.items():
        if name in options:
            parameters += [_parameter(name, f) for f in options[name]]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def option_fields(record: Any, names: Collection[str] | None = None) -> list[Field[Any]]:
    """The fields of a record that are options of the command line, or some of them."""
    options = [f for f in fields(record) if f.metadata.get("command") is not None]
    return [f for f in options if names is None or f.name in names]


def _value(field: Field[Any], value: Any) -> Any:
    """The value of a field for the value of its option."""
    read = field.metadata["command"].read
    return value if read is None or value is None else read(value)


def _name(record: str, field: Field[Any]) -> str:
    """The name of the parameter of a field. Without a flag, the name is the option's name."""
    return f"{record}_{field.name}" if field.metadata["command"].flag else field.name


def _parameter(record: str, field: Field[Any]) -> inspect.Parameter:
    """The parameter of a field, as typer reads it."""
    option: CommandOption = field.metadata["command"]
    information = typer.Option(
        *option.flag.split(),
        help=option.help,
        min=option.least,
        metavar=option.metavar,
        show_default=option.shown,
        rich_help_panel=option.panel,
    )
    return inspect.Parameter(
        _name(record, field),
        inspect.Parameter.KEYWORD_ONLY,
        default=field.default if option.read is None else option.default,
        annotation=Annotated[option.kind, information],
    )
