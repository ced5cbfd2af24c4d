"""Write constructors of frozen dataclasses that set the slots of an object directly.

In: a frozen dataclass with slots. Out: the same class, whose objects are built twice as fast. The
constructor that `dataclass` writes calls `object.__setattr__`, which looks each slot up again.

before                                          after
    def __init__(self, low, high):                  def __init__(self, low, high):
        object.__setattr__(self, "low", low)            set_low(self, low)
        object.__setattr__(self, "high", high)          set_high(self, high)

A build makes millions of objects of some classes: expressions, statements and intervals. This
constructor is for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

T = TypeVar("T")


def quick(cls: type[T]) -> type[T]:
    """Replace the constructor of a frozen dataclass by a constructor that sets slots directly."""
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
