"""Search spaces: the parameters that the schedule of a kernel may have.

In: a rule's facts of a kernel. Out: a `Space`, whose members are the rule's parameters, frozen
`msgspec.Struct` records. A space is a choice of plain values, a product (a record of spaces), or a
sum (alternative spaces, whose records have tags):

    >>> from msgspec import Struct
    >>> class Tiles(Struct, frozen=True, tag="tiles"):
    ...     rows: int
    ...     columns: int
    >>> class Parameters(Struct, frozen=True):
    ...     tiles: Tiles | None
    ...     workgroup: int
    >>> tiles = Space.of(Tiles, rows=(1, 2, 4), columns=(8, 16)).where(
    ...     "the tile fits the registers", lambda rows, columns: rows * columns <= 32
    ... )
    >>> space = Space.of(Parameters, tiles=Space.either(None, tiles), workgroup=(64, 128))
    >>> len(list(space.members()))
    12
    >>> Parameters(Tiles(4, 16), 64) in space
    False
    >>> space.read({"tiles": {"type": "tiles", "rows": 1, "columns": 8}, "workgroup": 64})
    Parameters(tiles=Tiles(rows=1, columns=8), workgroup=64)
    >>> leaves_of(Parameters(Tiles(1, 8), 64))
    {'tiles': 'tiles', 'tiles.tiles.rows': 1, 'tiles.tiles.columns': 8, 'workgroup': 64}

A *leaf* is a single choice: a plain value, or a space of a sum. Leaves have paths. A choice without
values empties its product, and a sum drops its empty spaces: a rule that has no tiles leaves the
sizes of tiles empty.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from random import Random
from typing import Any, Generic, TypeVar, cast

from msgspec import json, to_builtins
from msgspec.structs import asdict

Value = bool | int | str | None
"""The value of a leaf: JSON data."""
Leaves = Mapping[str, Value]
"""The value of each leaf of a member, by its path."""

P = TypeVar("P")

DRAWS = 1000
"""Draws of a constrained part before a search for a member gives up. A constraint that one draw in
a hundred meets is missed once in 20,000 searches."""
NEXT_SHARE = 0.75
"""The share of changed leaves that get the value before or after. Searches by `evolve` came near to
a schedule by hand in 73 % (share 0), 81 % (0.5) and 84 % (1) of 300 cases (see
`tune.search.population`). Larger steps leave local optima."""


class Space(ABC, Generic[P]):
    """The members of type `P` that may be chosen."""

    @staticmethod
    def of(record: type[P], **parts: Space[Any] | Sequence[Value]) -> Product[P]:
        """The records whose fields are members of their spaces; plain values are a `Choice`."""
        spaces = {n: p if isinstance(p, Space) else Choice(tuple(p)) for n, p in parts.items()}
        return Product(record, spaces)

    @staticmethod
    def each(spaces: Sequence[Space[Any]]) -> Product[tuple[Any, ...]]:
        """The tuples that have a member of each space."""
        return Product(tuple, {str(number): space for number, space in enumerate(spaces)})

    @staticmethod
    def either(*spaces: Product[Any] | None) -> Sum:
        """The members of several products, whose records have tags; `None` stands for itself."""
        every = [Choice((None,)) if space is None else space for space in spaces]
        return Sum({space.tag: space for space in every if space.size})

    @property
    @abstractmethod
    def size(self) -> int:
        """The members if there were no constraints."""

    @abstractmethod
    def members(self) -> Iterator[P]:
        """Every member, the last part changing fastest."""

    @abstractmethod
    def random(self, generator: Random) -> P:
        """A member drawn at random. Raises `ValueError` if the constraints leave next to none."""

    @abstractmethod
    def near(self, member: P, generator: Random) -> P:
        """A member that differs in one leaf, and in parts of constraints that this one violates.
        Raises `ValueError` if none is found.
        """

    @abstractmethod
    def freedom(self, member: P) -> int:
        """The leaves of a member that can have another value."""

    @abstractmethod
    def mended(self, member: P, generator: Random) -> P:
        """A member that differs in parts of violated constraints. Raises `ValueError` if none is
        found.
        """

    @abstractmethod
    def leaves(self, path: str = "") -> Iterator[tuple[str, tuple[Value, ...]]]:
        """The path of every leaf, and its choices. The leaf of a sum has tags as choices."""

    @abstractmethod
    def choose(self, leaves: Leaves, path: str = "") -> P:
        """See `at`. Raises `KeyError` where a leaf is missing, or is no choice."""

    @abstractmethod
    def __contains__(self, member: object) -> bool:
        """True for a member."""

    def at(self, leaves: Leaves) -> P | None:
        """The value with these leaves, whether it meets all constraints or not; `None` if a leaf is
        missing or is not a choice of the space. Leaves with other paths are ignored.
        """
        try:
            return self.choose(leaves)
        except KeyError:
            return None

    def read(self, data: Any) -> P | None:
        """The member with this JSON data (see `plain`); `None` if there is no such member."""
        member = self.at(leaves_of(data))
        is_exact = member is not None and leaves_of(member) == leaves_of(data)
        return member if is_exact and member in self else None


@dataclass(frozen=True, slots=True)
class Choice(Space[Any]):
    """Plain values, in a sensible order."""

    values: tuple[Value, ...]

    @property
    def tag(self) -> None:
        """No plain value has a tag."""

    @property
    def size(self) -> int:
        return len(self.values)

    def members(self) -> Iterator[Value]:
        return iter(self.values)

    def random(self, generator: Random) -> Value:
        return self.values[int(generator.random() * len(self.values))]  # faster than `choice`

    def near(self, member: Value, generator: Random) -> Value:
        """Choose another value, mostly the value before or after: values have an order."""
        place = next(i for i, v in enumerate(self.values) if _is_same(v, member))
        candidates = [i for i in range(len(self.values)) if i != place]
        if not candidates:
            raise ValueError("a choice of one value has no other value")
        if generator.random() < NEXT_SHARE:
            candidates = [i for i in candidates if abs(i - place) == 1]
        return self.values[generator.choice(candidates)]

    def freedom(self, member: Value) -> int:
        return int(len(self.values) > 1)

    def mended(self, member: Value, generator: Random) -> Value:
        return member

    def leaves(self, path: str = "") -> Iterator[tuple[str, tuple[Value, ...]]]:
        yield path, self.values

    def choose(self, leaves: Leaves, path: str = "") -> Value:
        if leaves[path] not in self:
            raise KeyError(path)
        return leaves[path]

    def __contains__(self, member: object) -> bool:
        return any(_is_same(v, member) for v in self.values)


def _is_same(value: Value, other: object) -> bool:
    """True if two values of leaves are the same: 1 is not True."""
    return value == other and type(value) is type(other)


def _holds(_member: object) -> bool:
    """The proof of a space that needs none."""
    return True


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on some parts together that every member of a product meets."""

    text: str
    names: tuple[str, ...]
    holds: Callable[..., bool]


@dataclass(frozen=True, slots=True)
class Product(Space[P]):
    """The records, or tuples, with a member of each space, which meet all constraints. A `proof`
    takes the whole member, and builds its schedule: it takes as long as all constraints of a
    hundred members.
    """

    record: Any
    parts: Mapping[str, Space[Any]]
    constraints: tuple[Constraint, ...] = ()
    proof: Callable[[P], bool] = _holds

    def where(self, text: str, holds: Callable[..., bool]) -> Product[P]:
        """The members for which `holds` is true. Each parameter of `holds` has the name of a part,
        and gets the value of a leaf, or the record of another space.
        """
        names = tuple(inspect.signature(holds).parameters)
        missing = set(names) - set(self.parts)
        assert not missing, f"the constraint {text!r} is on {missing}, which are no parts"
        return replace(self, constraints=(*self.constraints, Constraint(text, names, holds)))

    def without_proofs(self) -> Product[P]:
        """A space that holds every member of this space, and also members that cannot be built."""
        return replace(self, proof=_holds)

    @property
    def tag(self) -> str | None:
        """The tag that distinguishes its records from the records of other spaces in a sum."""
        tag: str | None = self.record.__struct_config__.tag
        return tag

    @property
    def size(self) -> int:
        return prod(space.size for space in self.parts.values())

    def members(self) -> Iterator[P]:
        return self._members({}, list(self.parts))

    def _members(self, values: dict[str, Any], missing: list[str]) -> Iterator[P]:
        """The members with some values. A constraint is checked when its last part is chosen."""
        if not missing:
            yield from filter(self.proof, [self._made(values)])
            return
        name, *others = missing
        due = [c for c in self.constraints if name in c.names and not set(others) & set(c.names)]
        for value in self.parts[name].members():
            chosen = {**values, name: value}
            if all(self._meets(chosen, constraint) for constraint in due):
                yield from self._members(chosen, others)

    def random(self, generator: Random) -> P:
        values = {name: space.random(generator) for name, space in self.parts.items()}
        return self._meeting_all(values, generator)

    def near(self, member: P, generator: Random) -> P:
        values = parts_of(member)
        weights = [self.parts[name].freedom(value) for name, value in values.items()]
        (name,) = generator.choices(list(values), weights)  # raises ValueError if all are 0
        values[name] = self.parts[name].near(values[name], generator)
        return self._meeting_all(values, generator)

    def freedom(self, member: P) -> int:
        return sum(self.parts[name].freedom(part) for name, part in parts_of(member).items())

    def mended(self, member: P, generator: Random) -> P:
        parts = parts_of(member).items()
        values = {name: self.parts[name].mended(value, generator) for name, value in parts}
        return self._meeting_all(values, generator)

    def _meeting_all(self, values: dict[str, Any], generator: Random) -> P:
        """The member with these values, after parts of violated constraints are drawn again."""
        for _ in range(DRAWS):
            violated = next((c for c in self.constraints if not self._meets(values, c)), None)
            if violated is None and self.proof(member := self._made(values)):
                return member
            name = generator.choice(tuple(self.parts) if violated is None else violated.names)
            values[name] = self.parts[name].random(generator)
        raise ValueError(f"{DRAWS} draws did not meet the constraints of the space")

    def leaves(self, path: str = "") -> Iterator[tuple[str, tuple[Value, ...]]]:
        for name, space in self.parts.items():
            yield from space.leaves(inside(path, name))

    def choose(self, leaves: Leaves, path: str = "") -> P:
        parts = self.parts.items()
        return self._made({name: space.choose(leaves, inside(path, name)) for name, space in parts})

    def __contains__(self, member: object) -> bool:
        if type(member) is not self.record:
            return False
        values = parts_of(member)
        if values.keys() != self.parts.keys():
            return False
        listed = all(value in self.parts[name] for name, value in values.items())
        fits = listed and all(self._meets(values, c) for c in self.constraints)
        return fits and self.proof(cast("P", member))

    def _meets(self, values: Mapping[str, Any], constraint: Constraint) -> bool:
        return constraint.holds(*(values[name] for name in constraint.names))

    def _made(self, values: Mapping[str, Any]) -> P:
        is_tuple = self.record is tuple
        return cast("P", tuple(values.values()) if is_tuple else self.record(**values))


@dataclass(frozen=True, slots=True)
class Sum(Space[Any]):
    """The members of all `spaces`, which are there by their tags."""

    spaces: Mapping[str | None, Product[Any] | Choice]

    @property
    def size(self) -> int:
        return sum(space.size for space in self.spaces.values())

    def members(self) -> Iterator[Any]:
        return chain.from_iterable(space.members() for space in self.spaces.values())

    def random(self, generator: Random) -> Any:
        return generator.choice(list(self.spaces.values())).random(generator)

    def near(self, member: Any, generator: Random) -> Any:
        alternatives = [space for tag, space in self.spaces.items() if tag != tag_of(member)]
        if alternatives and generator.random() * self.freedom(member) < 1:
            return generator.choice(alternatives).random(generator)
        return self.spaces[tag_of(member)].near(member, generator)

    def freedom(self, member: Any) -> int:
        return int(len(self.spaces) > 1) + self.spaces[tag_of(member)].freedom(member)

    def mended(self, member: Any, generator: Random) -> Any:
        return self.spaces[tag_of(member)].mended(member, generator)

    def leaves(self, path: str = "") -> Iterator[tuple[str, tuple[Value, ...]]]:
        yield path, tuple(self.spaces)
        for tag, space in self.spaces.items():
            if tag is not None:
                yield from space.leaves(inside(path, tag))

    def choose(self, leaves: Leaves, path: str = "") -> Any:
        space = self.spaces[str(leaves[path]) if leaves[path] is not None else None]
        return space.choose(leaves, path if space.tag is None else inside(path, space.tag))

    def __contains__(self, member: object) -> bool:
        return any(member in space for space in self.spaces.values())


def plain(member: Any) -> Any:
    """A member as JSON data: records are objects, which have their tag under `type`."""
    return json.decode(json.encode(member))


def leaves_of(member: Any, path: str = "") -> dict[str, Value]:
    """The leaves of a member, or of a member's JSON data."""
    match to_builtins(member):
        case dict(parts):
            tag = parts.pop("type", None)
            leaves: dict[str, Value] = {} if tag is None else {path: tag}
            path = path if tag is None else inside(path, tag)
        case list(items) | tuple(items):
            parts, leaves = parts_of(tuple(items)), {}
        case value:
            return {path: value}
    for name, part in parts.items():
        leaves |= leaves_of(part, inside(path, name))
    return leaves


def changes(default: Any, member: Any) -> dict[str, Value]:
    """The leaves of a member that the default lacks, or has with another value."""
    before = leaves_of(default)
    after = leaves_of(member).items()
    return {path: v for path, v in after if path not in before or before[path] != v}


def parts_of(member: Any) -> dict[str, Any]:
    """The parts of a record, or of a tuple, by their names in paths."""
    if isinstance(member, tuple):
        return {str(number): part for number, part in enumerate(member)}
    return asdict(member)


def inside(path: str, name: str) -> str:
    """The path of a part of the value at `path`."""
    return f"{path}.{name}" if path else name


def tag_of(member: Any) -> str | None:
    """The tag of a record of a sum; `None` for other records, and for `None`."""
    tag: str | None = None if member is None else member.__struct_config__.tag
    return tag
