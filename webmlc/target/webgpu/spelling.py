"""Define the records of the WGSL tables: the kinds of values in a shader, and the spelling of
operators.

    >>> function("add_long", 2).text
    'add_long({0}, {1})'
"""

from __future__ import annotations

import re
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


_FUNCTION = re.compile(r"^fn (\w+?)(?:_\{suffix\})?\(", re.MULTILINE)


def helpers_of(text: str) -> dict[str, str]:
    """The helper functions of a WGSL text, by name. An empty line ends the definition of a helper,
    whose last function is the helper itself. Comments at the start of a line are left out.

    In a helper with one definition per type, `{T}` is the type, `{U}`, `{F}` and `{B}` are u32, f32
    and bool with the lanes of `{T}`, and `{suffix}` names the type.
    """
    code = "\n".join(line for line in text.split("\n") if not line.startswith("//"))
    parts = code.strip().split("\n\n")
    return {_FUNCTION.findall(part)[-1]: f"{part}\n" for part in parts}


def function(name: str, arity: int) -> Spelling:
    """A call of a helper that has one definition for all types."""
    operands = ", ".join(f"{{{i}}}" for i in range(arity))
    return Spelling(f"{name}({operands})", ATOM, name)


def template(name: str, arity: int) -> Spelling:
    """A call of a helper that has one definition per type."""
    operands = ", ".join(f"{{{i}}}" for i in range(arity))
    return Spelling(f"{name}_{{suffix}}({operands})", ATOM, name)
