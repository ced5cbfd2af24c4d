"""Write times, gains, shares and parameters as people read them.

duration(0.0123)                              ->  "12.3 µs"
own_name_in_words("scores.block_rows")        ->  "block rows"
explanations(default)["kernel.rows"]          ->  "Rows of a register tile."
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from webmlc.schedule.rules.space import Value, inside, parts_of, tag_of


def duration(milliseconds: float, scale: float | None = None) -> str:
    """A time, in the unit that suits `scale` (milliseconds, too), or itself.

    duration(0.0123)  ->  "12.3 µs"
    """
    scale = milliseconds if scale is None else scale
    if scale >= 1000:
        return f"{digits(milliseconds / 1000)} s"
    return f"{digits(milliseconds)} ms" if scale >= 1 else f"{digits(milliseconds * 1000)} µs"


def times(factor: float) -> str:
    """How many times as fast something is: "1.38×"."""
    return f"{digits(factor)}×"


def percent(share: float) -> str:
    """A share of 1: "87 %"."""
    return f"{100 * share:.0f} %"


def budget(seconds: float) -> str:
    """A budget or its remaining seconds: "40 s", "10 min", "1 h 30 min"."""
    whole = round(seconds)
    parts = ((whole // 3600, "h"), (whole // 60 % 60, "min"), (whole % 60, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or "0 s"


def count(number: int, noun: str) -> str:
    """A number of things: "1 call", "1,200 calls"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def digits(number: float) -> str:
    """A number to two or three digits: "1,234", "12.3", "1.23", "0.012"."""
    if number >= 99.95:
        return f"{number:,.0f}"
    if number >= 9.995:
        return f"{number:.1f}"
    return f"{number:.2f}" if number >= 0.0995 else f"{number:.2g}"


def part_in_words(name: str) -> str:
    """The part of the kernel that a parameter belongs to; "" for the kernel itself. Parts count
    from 1.
    """
    parts = name.split(".")[:-1]
    return " ".join(str(int(p) + 1) if p.isdigit() else p.replace("_", " ") for p in parts)


def own_name_in_words(name: str) -> str:
    """The name of a parameter within its part."""
    return name.split(".")[-1].replace("_", " ")


def value_in_words(value: Value) -> str:
    """The value of a parameter as a person says it."""
    match value:
        case bool():
            return "yes" if value else "no"
        case None:
            return "none"
        case int():
            return f"{value:,}"
        case _:
            return value.replace("_", " ")


def explanations(member: Any, path: str = "", text: str = "") -> dict[str, str]:
    """The meaning of each leaf of a member, by its path; leaves without a docstring are left out.
    `text` explains the member itself.
    """
    leaf = {path: text} if text else {}
    if not isinstance(member, Struct | tuple):
        return leaf
    documented: Mapping[str, str] = {}
    result: dict[str, str] = {}
    if isinstance(member, Struct):
        documented = _field_docstrings(type(member))
        if tag := tag_of(member):
            result, path = leaf, inside(path, tag)
    for name, part in parts_of(member).items():
        result |= explanations(part, inside(path, name), documented.get(name, ""))
    return result


@cache
def _field_docstrings(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a record, on one line each. Python does not keep them,
    so they are read from the source. The records of a user's space have no source.
    """
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):
        return {}
    (definition,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(definition, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, following in zip(definition.body, definition.body[1:], strict=False):
        match field, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = re.sub(r"\s+", " ", text).replace("`", "").strip()
    return texts
