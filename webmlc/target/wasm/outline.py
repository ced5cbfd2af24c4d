"""Which loop bodies become functions of their own.

V8 has no on-stack replacement: a function that is called once stays in slow baseline code to its
end, however long it loops. A body that is called once an iteration is optimised code from a few
iterations on, so that a model's first run is nearly as fast as the later ones.

In: a parallel loop and the printed text of its body. Out: whether the body is worth a call, and
the names that the text takes from outside.
"""

from __future__ import annotations

import re

from webmlc.core.expr import as_int
from webmlc.core.rewrite import walk
from webmlc.loops.ir import For, Stmt, child_statements, expressions

WORTH_A_CALL = 500
"""Operations in a body from which a call costs nothing beside it."""

UNKNOWN_EXTENT = 16
"""Iterations that a loop of symbolic extent is taken to have."""

_ACCESS = re.compile(r"\(local\.(get|set|tee) \$([^\s()]+)")


def worth_outlining(loop: For) -> bool:
    """True where one iteration is much work beside a call."""
    total = 0
    stack: list[tuple[Stmt, int]] = [(loop.body, 1)]
    while stack and total < WORTH_A_CALL:
        stmt, times = stack.pop()
        if isinstance(stmt, For):
            known = as_int(stmt.extent)
            times *= UNKNOWN_EXTENT if known is None else known
        total += times * sum(1 for e in expressions(stmt) for _ in walk(e))
        stack.extend((child, times) for child in child_statements(stmt))
    return total >= WORTH_A_CALL


def names_taken(lines: list[str]) -> list[str]:
    """The locals that printed lines read before they set them, by first appearance. Within a line,
    operands come before what they set.
    """
    taken: dict[str, None] = {}
    own: set[str] = set()
    for line in lines:
        accesses = _ACCESS.findall(line)
        taken |= dict.fromkeys(name for how, name in accesses if how == "get" and name not in own)
        own |= {name for how, name in accesses if how != "get"}
    return list(taken)
