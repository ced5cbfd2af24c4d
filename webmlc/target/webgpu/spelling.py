"""The records that the WGSL tables are made of: what a shader has values of, and how an operator is
spelled.

    >>> function("add_long", 2).text
    'add_long({0}, {1})'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["float", "int", "uint", "bool", "long", "ulong"]
"""What a value is in a shader: `long` and `ulong` are 64-bit integers, as two words."""

LOOSE, SUM, PRODUCT, ATOM = range(4)
"""Precedences: LOOSE must be in parentheses inside any operator (WGSL does not mix most of them
without).
"""


@dataclass(frozen=True, slots=True)
class Spelling:
    """A template over operands and its precedence; `helper` names the function of `HELPERS` that it
    calls.
    """

    text: str
    level: int = ATOM
    helper: str | None = None


@dataclass(frozen=True, slots=True)
class Helper:
    """The definition of a function of ours, and the functions that it calls itself, on values of
    so many lanes.
    """

    text: str
    needs: tuple[str, ...] = ()
    lanes: int = 1


def function(name: str, arity: int) -> Spelling:
    """A call of a helper that is the same for all types."""
    operands = ", ".join(f"{{{i}}}" for i in range(arity))
    return Spelling(f"{name}({operands})", ATOM, name)


def template(name: str, arity: int) -> Spelling:
    """A call of a helper that has one definition for each type."""
    operands = ", ".join(f"{{{i}}}" for i in range(arity))
    return Spelling(f"{name}_{{suffix}}({operands})", ATOM, name)
