"""Read the search space of a schedule function from plain data.

In: a mapping with a list of candidate values for each parameter. Out: a `Space`, and the arguments
of each of its members.

    space = read_space({
        "rows": [1, 2, 4],                               # one of three values
        "tile": tir.perfect_tiles(512, 3),               # one of some tuples of equal length
        "packing": [None, {"type": "panel", "columns": [8, 16]}],
    })                                                   # nothing, or a mapping of parameters
    arguments_of(space.random(Random(0)))
    {"rows": 2, "tile": (None, 16, 4), "packing": {"type": "panel", "columns": 8}}

A list with mappings is a union. Several mappings of a list are told apart by their `type`. The
numbers of a tuple are separate leaves, so that a strategy learns about each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import defstruct, to_builtins

from webmlc.core.errors import UserError
from webmlc.schedule.rules.space import Choice, Constraint, Product, Space

TAG = "type"
"""The key of a mapping's name in a union, as in the data of a member (`rules.space.plain`)."""
Values = Mapping[str, Any]
"""The candidate values of each parameter, by its name."""


def read_space(values: Values) -> Product[Any]:
    """The space that a mapping describes. Raises `UserError` if it describes none."""
    if not isinstance(values, Mapping) or not values:
        raise UserError(
            "a space is a mapping of each parameter's name to its candidate values, such as "
            '{"rows": [1, 2, 4]}'
        )
    return _product(values, "", "Parameters", tag=None)


def arguments_of(member: Any) -> dict[str, Any]:
    """The arguments of a member: its parameters as plain data. Tuples stay tuples."""
    arguments: dict[str, Any] = to_builtins(member)
    return arguments


def _product(values: Values, path: str, name: str, tag: str | None) -> Product[Any]:
    """The records with a value of each parameter. `path` leads to them."""
    parts: dict[str, Space[Any]] = {}
    for parameter, candidates in values.items():
        place = f"{path}.{parameter}" if path else parameter
        if not isinstance(parameter, str) or not parameter.isidentifier() or parameter == TAG:
            raise UserError(f"{place!r} is not the name of a parameter")
        parts[parameter] = _part(candidates, parameter, place)
    record = defstruct(name, [(parameter, Any) for parameter in parts], frozen=True, tag=tag)
    return Space.of(record, **parts)


def _part(candidates: Any, name: str, path: str) -> Space[Any]:
    """The space of one parameter."""
    if isinstance(candidates, Mapping):
        return _product(candidates, path, name, tag=None)
    if isinstance(candidates, str) or not isinstance(candidates, Sequence) or not candidates:
        raise UserError(f"the candidate values of {path!r} are {candidates!r}, which is no list")
    if any(isinstance(value, Mapping) for value in candidates):
        return _union(candidates, name, path)
    if any(isinstance(value, tuple) for value in candidates):
        return _tuples(candidates, path)
    return _choice(candidates, path)


def _union(candidates: Sequence[Any], name: str, path: str) -> Space[Any]:
    """The members of several mappings, and None."""
    mappings = [value for value in candidates if isinstance(value, Mapping)]
    if any(value is not None and not isinstance(value, Mapping) for value in candidates):
        raise UserError(f"the candidates of {path!r} are mappings, so the others can only be None")
    tags = [mapping.get(TAG, name) for mapping in mappings]
    if len(set(tags)) < len(tags) or not all(isinstance(tag, str) for tag in tags):
        raise UserError(f"the mappings of {path!r} need different names: give each a {TAG!r}")
    products = [
        _product({n: v for n, v in mapping.items() if n != TAG}, f"{path}.{tag}", tag, tag)
        for mapping, tag in zip(mappings, tags, strict=True)
    ]
    return Space.either(*([None] if None in candidates else []), *products)


def _tuples(candidates: Sequence[Any], path: str) -> Space[Any]:
    """Tuples of equal length: the members are these tuples alone."""
    lengths = {len(value) if isinstance(value, tuple) else -1 for value in candidates}
    if len(lengths) > 1:
        raise UserError(f"the candidates of {path!r} are not all tuples of equal length")
    positions = [_choice(items, path) for items in zip(*candidates, strict=True)]
    members = frozenset(candidates)
    names = tuple(str(number) for number in range(len(positions)))
    listed = Constraint("the tuple is a candidate", names, lambda *items: items in members)
    product = Space.each(positions)
    return Product(product.record, product.parts, (listed,))


def _choice(values: Sequence[Any], path: str) -> Choice:
    """The different values of a list. Raises `UserError` for a value that no record of the database
    can hold.
    """
    for value in values:
        if value is not None and not isinstance(value, bool | int | str):
            raise UserError(
                f"{value!r} is no candidate of {path!r}: a value is an int, a bool, a string, "
                "None, or a tuple of these"
            )
    unique = {(type(value), value): value for value in values}  # True equals 1
    return Choice(tuple(unique.values()))
