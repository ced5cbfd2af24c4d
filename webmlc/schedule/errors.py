"""The error of a refused schedule step: which primitive, why, and where in the printed function.

split: factors [3, 4] cover 12 of the 16 iterations of loop 'i'

    for i, j in T.grid(16, 8):
        ^
"""

from __future__ import annotations

import re

from webmlc.core.errors import WebmlcError
from webmlc.loops.ir import LoopFunction


class ScheduleError(WebmlcError):
    """A primitive that cannot be applied as asked. `culprits` are the loops and blocks to
    underline.
    """

    def __init__(self, primitive: str, reason: str, function: LoopFunction, *culprits: str) -> None:
        super().__init__(f"{primitive}: {reason}")
        self.primitive = primitive
        self.reason = reason
        self.function = function
        self.culprits = culprits

    def __str__(self) -> str:
        return f"{self.primitive}: {self.reason}\n\n{underline(self.function, self.culprits)}"


def underline(function: LoopFunction, names: tuple[str, ...]) -> str:
    """The function's text with a line of carets under the loops and blocks called `names`."""
    from webmlc.loops.text import print_function  # only an error needs the printer

    lines: list[str] = []
    for line in print_function(function).splitlines():
        lines.append(f"    {line}")
        marks = [" "] * len(line)
        for name in names:
            for start, end in _places(line, name):
                marks[start:end] = "^" * (end - start)
        if any(mark != " " for mark in marks):
            lines.append(f"    {''.join(marks)}".rstrip())
    return "\n".join(lines)


def _places(line: str, name: str) -> list[tuple[int, int]]:
    """Where `line` declares the loop or the block `name`."""
    quoted = re.escape(name)
    block = re.search(rf'T\.block\("({quoted})"', line)
    if block:
        return [block.span(1)]
    head = re.match(r"\s*for (.*?) in ", line)
    if head is None:
        return []
    name_match = re.search(rf"\b{quoted}\b", head.group(1))
    offset = head.start(1)
    return [] if name_match is None else [(offset + name_match.start(), offset + name_match.end())]
