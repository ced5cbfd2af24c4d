"""Read the fields of a JSON object, and name the culprit where one is missing or wrong.

In: a value that `json.loads` returned, and its path in `manifest.json`. Out: its fields, checked.

    >>> JsonObject({"first": "one"}, "steps[3]").get("first", int)
    Traceback (most recent call last):
    webmlc.core.errors.PackageError: manifest.json: steps[3].first is 'one', expected int
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from webmlc.core.errors import PackageError
from webmlc.core.expr import Expr
from webmlc.package.size_json import from_size

T = TypeVar("T")


class JsonObject:
    """A JSON object, with its path in the manifest for error messages."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise PackageError(f"manifest.json: {where or 'the whole'} is not an object")
        self.data: dict[str, Any] = data
        self.where = where

    def path(self, key: str) -> str:
        """The path of a field."""
        return f"{self.where}.{key}" if self.where else key

    def get(self, key: str, kind: type[T]) -> T:
        """The field, which must be of this type."""
        if key not in self.data:
            raise PackageError(f"manifest.json: {self.path(key)} is missing")
        value = self.data[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise PackageError(
                f"manifest.json: {self.path(key)} is {value!r}, expected {kind.__name__}"
            )
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        """The field, which must be a list of strings."""
        return self._items(key, str, "a string")

    def integers(self, key: str) -> tuple[int, ...]:
        """The field, which must be a list of integers."""
        return self._items(key, int, "an integer")

    def _items(self, key: str, kind: type[T], noun: str) -> tuple[T, ...]:
        """The field, which must be a list of values of one type."""
        values = self.get(key, list)
        if not all(isinstance(value, kind) for value in values):
            raise PackageError(f"manifest.json: {self.path(key)} holds a value that is not {noun}")
        return tuple(values)

    def size(self, key: str) -> int | None:
        """The field, which must be an integer or null, or be missing."""
        return None if self.data.get(key) is None else self.get(key, int)

    def one_of(self, key: str, allowed: tuple[str, ...]) -> str:
        """The field, which must be one of the allowed strings."""
        value = self.get(key, str)
        if value not in allowed:
            raise PackageError(
                f"manifest.json: {self.path(key)} is {value!r}, not one of {', '.join(allowed)}"
            )
        return value

    def shape(self, key: str, named: Mapping[str, Expr] | None = None) -> tuple[Expr, ...]:
        """The field, which must be a list of sizes or of names of sizes."""
        return tuple(from_size(d, named) for d in self.get(key, list))

    def objects(self, key: str, read: Callable[[JsonObject], T]) -> tuple[T, ...]:
        """The records that `read` makes of the field, a list of objects."""
        items = self.get(key, list)
        return tuple(read(JsonObject(v, f"{self.path(key)}[{i}]")) for i, v in enumerate(items))

    def mapping(self, key: str, read: Callable[[JsonObject], T]) -> dict[str, T]:
        """The records that `read` makes of the field, an object of objects."""
        items = self.get(key, dict)
        return {name: read(JsonObject(v, f"{self.path(key)}.{name}")) for name, v in items.items()}
