"""Map each line of an emitted text to its kernel, and to the stages of the kernel that it computes.

In: a lowered body, whose stores have the number of their stage. A printer writes the mark of a
statement at the end of its lines. Out: the text without the marks, and the stages of each line:

    marks = stage_marks(function.body)       # by the identity of a statement
    text, stages = split_marks(f"a{marks[id(statement)]}\\nb")       # "a\\nb", [(0,), ()]

A loop or a condition is for the stages inside it. A value that a pass binds, such as an address or
a shared load, is for all stages that read it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from webmlc.core.rewrite import variables
from webmlc.loops.ir import (
    NO_STAGE,
    Let,
    Stmt,
    Store,
    child_statements,
    expressions,
    loads_in,
    walk_statements,
)

Stages = tuple[int, ...]
"""The numbers of stages, in order."""
_MARK = re.compile("\x00([0-9,]*)\x00")


def stage_marks(body: Stmt) -> dict[int, str]:
    """The mark of each statement by its identity, for a printer to end lines with."""
    return {key: f"\x00{','.join(map(str, s))}\x00" for key, s in statement_stages(body).items()}


def split_marks(text: str) -> tuple[str, list[Stages]]:
    """A text without its marks, and the stages of each line."""
    lines = text.split("\n")
    stages = [_stages("".join(_MARK.findall(line))) for line in lines]
    return _MARK.sub("", text), stages


def _stages(numbers: str) -> Stages:
    return tuple(map(int, numbers.split(","))) if numbers else ()


def statement_stages(body: Stmt) -> dict[int, Stages]:
    """The stages of each statement of a lowered body, by the identity of the statement."""
    statements = list(walk_statements(body))
    inside: dict[int, frozenset[int]] = {}
    for stmt in reversed(statements):
        stage = [stmt.stage] if isinstance(stmt, Store) and stmt.stage != NO_STAGE else []
        children = (inside[id(child)] for child in child_statements(stmt))
        inside[id(stmt)] = frozenset(stage).union(*children)
    values = [s for s in statements if isinstance(s, Let) or _is_unmarked(s)]
    readers = _readers(statements)
    stages = inside | {id(stmt): frozenset[int]() for stmt in values}
    while True:
        changed = False
        for stmt in reversed(values):
            name = stmt.var.name if isinstance(stmt, Let) else _written(stmt)
            union = frozenset[int]().union(*(stages[reader] for reader in readers[name]))
            changed |= union != stages[id(stmt)]
            stages[id(stmt)] = union
        if not changed:
            return {key: tuple(sorted(numbers)) for key, numbers in stages.items() if numbers}


def _is_unmarked(stmt: Stmt) -> bool:
    return isinstance(stmt, Store) and stmt.stage == NO_STAGE


def _written(stmt: Stmt) -> str:
    assert isinstance(stmt, Store)
    return stmt.buffer.name


def _readers(statements: Iterable[Stmt]) -> dict[str, set[int]]:
    """The identities of the statements that read each variable and each buffer."""
    readers: dict[str, set[int]] = defaultdict(set)
    for stmt in statements:
        for root in expressions(stmt):
            names = {var.name for var in variables(root)}
            names |= {load.buffer.name for load in loads_in(root)}
            for name in names:
                readers[name].add(id(stmt))
    return readers


def line_ranges(texts: Iterable[str], first: int) -> list[range]:
    """The lines of each text, if a newline joins them and the first one begins at line `first`.

    >>> line_ranges(["a\\nb", "c"], first=10)
    [range(10, 12), range(12, 13)]
    """
    ranges = []
    for text in texts:
        end = first + text.count("\n") + 1
        ranges.append(range(first, end))
        first = end
    return ranges
