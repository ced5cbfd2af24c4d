"""Search spaces: the parameters of a rule, the choices for each, and what rules some members out.

In: what a rule knows of a kernel. Out: a `Space`, whose members are `Values`: plain data, one value
for each parameter's name. A rule's own parameters are a frozen dataclass; `values_of` makes plain
data of one (for a database), and `from_values` the other way.

    >>> space = Space.of(rows=(1, 2, 4, 8), columns=(8, 16)).where(
    ...     "the tile fits the registers", lambda rows, columns: rows * columns <= 48
    ... )
    >>> len(list(space.members()))
    6
    >>> {"rows": 8, "columns": 8} in space
    False
    >>> space.under("scores").names
    ('scores.rows', 'scores.columns')

Parameters may hold others: those of a kernel's parts stand under the part's name, and their space
is `space_of_part.under(name)`.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from random import Random
from typing import Any, TypeVar

Value = bool | int | str | None
"""What one parameter may be: JSON data."""
Values = Mapping[str, Value]
"""A value for every parameter of a space, by name."""

P = TypeVar("P")

DRAWS = 1000
"""Draws of the parameters of a violated constraint before `Space.random` gives up: a constraint
that one draw in a hundred meets is missed once in 20,000 calls."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A parameter and the values it may have, in a sensible order."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What is true of the values of some parameters together in every member of a space.

    `is_proof` says that it builds the schedule, which takes as long as all other constraints of a
    hundred members.
    """

    text: str
    names: tuple[str, ...]
    holds: Callable[..., bool]
    is_proof: bool = False

    def is_met(self, values: Values) -> bool:
        """True where the constraint holds of some values."""
        return self.holds(*(values[name] for name in self.names))


@dataclass(frozen=True, slots=True)
class Space:
    """The parameters that a schedule may have: all combinations of choices that meet all
    constraints.
    """

    choices: tuple[Choice, ...] = ()
    constraints: tuple[Constraint, ...] = ()

    @staticmethod
    def of(**choices: tuple[Value, ...]) -> Space:
        """A space of named choices, without constraints."""
        empty = [name for name, values in choices.items() if not values]
        assert not empty, f"nothing to choose for {empty}"
        return Space(tuple(Choice(name, values) for name, values in choices.items()))

    def where(self, text: str, holds: Callable[..., bool]) -> Space:
        """The members of which `holds` is true; it takes the parameters that its own are named
        for.
        """
        names = tuple(inspect.signature(holds).parameters)
        missing = set(names) - set(self.names)
        assert not missing, f"the constraint {text!r} is on {missing}, which are no parameters"
        return Space(self.choices, (*self.constraints, Constraint(text, names, holds)))

    def without_proofs(self) -> Space:
        """A space that holds every member of this one, and combinations that do not build."""
        return Space(self.choices, tuple(c for c in self.constraints if not c.is_proof))

    def under(self, name: str) -> Space:
        """The same space, with every parameter's name under that of a part."""
        return Space(
            tuple(Choice(f"{name}.{c.name}", c.values) for c in self.choices),
            tuple(
                replace(c, text=f"{name}: {c.text}", names=tuple(f"{name}.{n}" for n in c.names))
                for c in self.constraints
            ),
        )

    def __add__(self, other: Space) -> Space:
        """The parameters of both spaces, which have no name in common."""
        assert not set(self.names) & set(other.names)
        return Space((*self.choices, *other.choices), (*self.constraints, *other.constraints))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(choice.name for choice in self.choices)

    def __contains__(self, values: object) -> bool:
        """True for one choice for each parameter, if they meet all constraints."""
        if not isinstance(values, Mapping) or set(values) != set(self.names):
            return False
        listed = all(_is_listed(values[choice.name], choice.values) for choice in self.choices)
        return listed and all(constraint.is_met(values) for constraint in self.constraints)

    def members(self) -> Iterator[dict[str, Value]]:
        """Every member, the last parameter changing fastest."""
        for combination in itertools.product(*(choice.values for choice in self.choices)):
            values = dict(zip(self.names, combination, strict=True))
            if all(constraint.is_met(values) for constraint in self.constraints):
                yield values

    def random(self, generator: Random) -> dict[str, Value]:
        """A member drawn at random. Raises `ValueError` if the constraints leave next to none."""
        draw = generator.random  # several times as fast as `choice`
        values = {c.name: c.values[int(draw() * len(c.values))] for c in self.choices}
        for _ in range(DRAWS):
            violated = next((c for c in self.constraints if not c.is_met(values)), None)
            if violated is None:
                return values
            choices = {choice.name: choice.values for choice in self.choices}
            for name in violated.names:
                values[name] = generator.choice(choices[name])
        raise ValueError(f"{DRAWS} draws did not meet the constraints of the space")


def _is_listed(value: object, choices: tuple[Value, ...]) -> bool:
    """True where a value is a choice: 1 is not True."""
    return any(value == choice and type(value) is type(choice) for choice in choices)


def values_of(parameters: Any, prefix: str = "") -> dict[str, Value]:
    """Parameters as plain data: those of parts under the parts' names, those of a list of parts
    under their numbers.

        Attention(rows=12, scores=Product(columns=8), stages=(Stage(vectors=4),))
            ->  {"rows": 12, "scores.columns": 8, "stages.0.vectors": 4}
    """
    result: dict[str, Value] = {}
    for name, value in _items(parameters):
        if isinstance(value, tuple) or is_dataclass(value):
            result |= values_of(value, f"{prefix}{name}.")
        else:
            result[f"{prefix}{name}"] = value
    return result


def from_values(like: P, values: Values) -> P:
    """The parameters that `values_of` made plain data of. `like`: others of the same rule and
    kernel, the default ones for example.
    """
    changed = {
        name: (
            from_values(value, _below(name, values))
            if isinstance(value, tuple) or is_dataclass(value)
            else values[name]
        )
        for name, value in _items(like)
    }
    copy: Any = tuple(changed.values()) if isinstance(like, tuple) else type(like)(**changed)
    result: P = copy
    return result


def changes(default: Values, values: Values) -> dict[str, Value]:
    """The values that differ from the default ones, by name."""
    return {name: value for name, value in values.items() if value != default[name]}


def _items(parameters: Any) -> list[tuple[str, Any]]:
    """The names and values of a dataclass' fields, or of a tuple's items."""
    if isinstance(parameters, tuple):
        return [(str(position), item) for position, item in enumerate(parameters)]
    return [(field.name, getattr(parameters, field.name)) for field in fields(parameters)]


def _below(name: str, values: Values) -> dict[str, Value]:
    """The values under a part's name, without it."""
    start = f"{name}."
    return {key.removeprefix(start): v for key, v in values.items() if key.startswith(start)}
