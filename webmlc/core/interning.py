"""Build equal objects once, so that comparing them is a comparison of addresses.

In: a class of immutable objects. Out: the same class, whose constructor returns the object of the
same fields if such an object is in use. Comparing and hashing then cost the same for a large
expression as for a small one. A table of results by object finds the results of equal objects.

    a = Call("add", (i, j), INDEX)
    b = Call("add", (i, j), INDEX)      ->      a is b

The constructors set the slots of an object directly, which `dataclass` does not: `quick` gives the
same to other records.

Source: hash-consing, as in A. P. Ershov, "On programming of arithmetic operations", 1958.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from threading import Lock
from typing import Any, TypeVar
from weakref import ReferenceType, ref

Key = tuple[object, ...]
T = TypeVar("T")

LEAST_ENTRIES = 1 << 15
"""The number of entries up to which the table keeps entries of unused objects.

Chosen by hand: a small kernel has fewer entries, and this many entries take a few megabytes.
"""


def interned(cls: type[T]) -> type[T]:
    """Make equal objects of a class one object.

    A class may define `identity`, a static method with the parameters of the constructor. It
    returns hashable values that are equal if and only if the objects are equal. Objects of a class
    without `identity` differ by their fields. An object must have a slot `__weakref__`. The
    constructor runs for new objects only. A pickle holds the fields: the process that reads them
    builds or finds the object.

    A decorator, not a metaclass, because `isinstance` is twice as slow for a class of a metaclass.
    """
    names: tuple[str, ...] = cls.__match_args__  # type: ignore[attr-defined]

    def reduce(self: T) -> tuple[object, ...]:
        return cls, tuple([getattr(self, name) for name in names])

    cls.__reduce__ = reduce  # type: ignore[method-assign, assignment]
    cls.__new__ = _find_or_build(cls)  # type: ignore[method-assign]
    del cls.__init__
    return cls


def _find_or_build(cls: type) -> Callable[..., Any]:
    """The constructor that returns the object in use, or builds a new object."""
    key = "key = (cls, *identity(FIELDS))" if hasattr(cls, "identity") else "key = (cls, FIELDS)"
    names = {
        "cls": cls,
        "identity": getattr(cls, "identity", None),
        "find": _ENTRIES.get,
        "build": object.__new__,
        "add": _OBJECTS.add,
    }
    return write_constructor(
        cls, f"{key}\n{_RETURN_EXISTING}", "new", "return add(key, new)", names
    )


_RETURN_EXISTING = """
reference = find(key)
if reference is not None:
    existing = reference()
    if existing is not None:
        return existing
new = build(cls)
"""


class _Objects:
    """All interned objects in use, by their classes and identities.

    The entries of unused objects are removed later, many at a time, because that costs less than a
    callback for each object. The key of an entry holds the parts of its object. The entry of an
    object therefore follows the entries of its parts.
    """

    def __init__(self) -> None:
        self.entries: dict[Key, ReferenceType[object]] = {}
        self.capacity = LEAST_ENTRIES
        self.lock = Lock()
        os.register_at_fork(
            before=self.lock.acquire,
            after_in_parent=self.lock.release,
            after_in_child=self.lock.release,
        )

    def add(self, key: Key, new: object) -> object:
        """Return the object of a key: `new`, unless another thread has added one since."""
        reference = ref(new)
        other = self.entries.setdefault(key, reference)
        if other is not reference:  # of another thread, or of an object that nothing uses
            with self.lock:
                existing = self.entries.get(key, reference)()
                if existing is not None:
                    return existing
                self.entries[key] = reference
        elif len(self.entries) >= self.capacity:
            with self.lock:
                self.remove_unused()
                self.capacity = max(LEAST_ENTRIES, 2 * len(self.entries))
        return new

    def remove_unused(self) -> None:
        """Remove the entries of unused objects, last first: removal may free an object's parts."""
        keys = list(self.entries)
        while keys:
            key = keys.pop()
            if self.entries[key]() is None:
                del self.entries[key]


_OBJECTS = _Objects()
_ENTRIES = _OBJECTS.entries


def quick(cls: type[T]) -> type[T]:
    """Replace the constructor of a frozen dataclass by a constructor that sets slots directly: a
    build makes millions of intervals and statements.

    before                                          after
        def __init__(self, low, high):                  def __init__(self, low, high):
            object.__setattr__(self, "low", low)            set_low(self, low)
            object.__setattr__(self, "high", high)          set_high(self, high)
    """
    cls.__init__ = write_constructor(cls, "", "self", "", {})  # type: ignore[method-assign]
    return cls


def write_constructor(
    cls: type, before: str, instance: str, after: str, names: Mapping[str, object]
) -> Callable[..., Any]:
    """Write a function that takes the fields of a dataclass, and sets the fields of the object that
    `instance` names. `before` and `after` are lines of code around the setting of the fields. Both
    may use `names`, and `before` may use the name `FIELDS` for all fields.
    """
    all_fields: tuple[Field[Any], ...] = fields(cls)
    scope: dict[str, Any] = dict(names)
    parameters = ["self"]
    body: list[str] = []
    for field in all_fields:
        assert field.init and field.default_factory is MISSING, f"{cls}: {field.name}"
        scope[f"set_{field.name}"] = vars(cls)[field.name].__set__
        body.append(f"set_{field.name}({instance}, {field.name})")
        has_default = field.default is not MISSING
        parameters.append(f"{field.name}=default_{field.name}" if has_default else field.name)
        scope[f"default_{field.name}"] = field.default
    if hasattr(cls, "__post_init__"):
        scope["post_init"] = cls.__post_init__
        body.append(f"post_init({instance})")
    names_of_fields = ", ".join(field.name for field in all_fields)
    lines = [*before.replace("FIELDS", names_of_fields).splitlines(), *body, *after.splitlines()]
    head = f"def constructor({', '.join(parameters)}):"
    exec("\n    ".join([head, *lines]), scope)
    function: Callable[..., Any] = scope["constructor"]
    return function
