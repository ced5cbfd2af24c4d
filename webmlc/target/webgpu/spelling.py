"""Define the records of the WGSL tables: the kinds of values in a shader, and the spelling of
operators.

    >>> function("add_long", 2).text
    'add_long({0}, {1})'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["float", "int", "uint", "bool", "long", "ulong"]
"""The kind of a value in a shader. `long` and `ulong` are 64-bit integers, as two words."""

LOOSE, SUM, PRODUCT, ATOM = range(4)
"""The precedences of expressions. A LOOSE expression needs parentheses inside any operator: WGSL
forbids most mixtures without them.
"""


@dataclass(frozen=True, slots=True)
class Spelling:
    """A template over operands, its precedence, and the function of `HELPERS` that it calls,
    if any.
    """

    text: str
    level: int = ATOM
    helper: str | None = None


@dataclass(frozen=True, slots=True)
class Helper:
    """The definition of a helper function, the helpers that it calls, and the lanes of the values
    that it calls them on.
    """

    text: str
    needs: tuple[str, ...] = ()
    lanes: int = 1


def function(name: str, arity: int) -> Spelling:
    """A call of a helper that has one definition for all types."""
    operands = ", ".join(f"{{{i}}}" for i in range(arity))
    return Spelling(f"{name}({operands})", ATOM, name)


def template(name: str, arity: int) -> Spelling:
    """A call of a helper that has one definition per type."""
    operands = ", ".join(f"{{{i}}}" for i in range(arity))
    return Spelling(f"{name}_{{suffix}}({operands})", ATOM, name)
