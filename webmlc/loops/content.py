"""Write the content that decides a kernel's code as bytes, which are the same for equal kernels of
all models.

In: a loop function. Out: a line for each distinct expression, operands first, then a line for each
statement. The name of the function and its origin take no part. A line names its operands by their
numbers. So the bytes grow with the nodes of an expression and not with its text, and two functions
that share nodes in different ways give the same bytes.

    >>> content(relu) == content(replace(relu, name="relu_7"))  # doctest: +SKIP
    True
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any

from webmlc.core.disk_cache import compiler_key
from webmlc.core.expr import Const, Expr
from webmlc.core.machine import Machine
from webmlc.core.rewrite import postorder
from webmlc.loops.ir import LoopFunction, Stmt, child_statements, walk_statements


def content(function: LoopFunction) -> bytes:
    """The bytes that decide the code of a function."""
    writer = _Writer()
    buffers = (function.params, function.outputs, function.symbols, function.allocations)
    head = writer.plain((*buffers, function.is_scheduled))
    statements = [writer.statement(stmt) for stmt in walk_statements(function.body)]
    return "\n".join([*writer.lines, repr(head), *map(repr, statements)]).encode()


class _Writer:
    """The numbers of the expressions so far, and their lines."""

    def __init__(self) -> None:
        self.numbers: dict[Expr, int] = {}
        self.lines: list[str] = []

    def number(self, root: Expr) -> int:
        """The number of an expression. Its operands are numbered first."""
        for node in postorder(root, attrgetter("children"), self.numbers):
            self.lines.append(repr(self.record(node)))
            self.numbers[node] = len(self.numbers)
        return self.numbers[root]

    def statement(self, stmt: Stmt) -> Any:
        """The fields of a statement, and how many statements are directly inside it."""
        inner = child_statements(stmt)
        values = [getattr(stmt, name) for name in _field_names(stmt)]
        parts = [
            self.plain(value)
            for value in values
            if value is not inner and all(value is not child for child in inner)
        ]
        return type(stmt).__name__, len(inner), parts

    def plain(self, value: Any) -> Any:
        """The value with numbers in place of expressions. Raises `TypeError` for a value that is no
        part of a kernel.
        """
        match value:
            case Expr():
                return self.number(value)
            case tuple():
                return tuple(map(self.plain, value))
            case str():
                return str(value)
            case int() | float() | None:
                return value
        if is_dataclass(value):
            return self.record(value)
        raise TypeError(f"no part of a kernel: {value!r}")

    def record(self, value: Any) -> Any:
        """The fields of a record, or of an expression whose operands have numbers."""
        if isinstance(value, Const):
            return "Const", repr(value.value), str(value.dtype)  # tells 0.0 from -0.0
        names = _field_names(value)
        return type(value).__name__, [self.plain(getattr(value, name)) for name in names]


def _field_names(record: Any) -> tuple[str, ...]:
    """The names of the fields that a record is made with."""
    kind: Any = type(record)
    return _names_of_class(kind)


@cache
def _names_of_class(kind: Any) -> tuple[str, ...]:
    """Cached: `dataclasses.fields` takes longer than to write a node."""
    return tuple(field.name for field in fields(kind) if field.init and field.compare)


def kernel_key(purpose: str, function: LoopFunction, machine: Machine, *others: str) -> str:
    """The key of a result for a kernel on a machine in the cache of builds (`core.disk_cache`).

    `purpose` names the result, and `others` is all else that decides it.
    """
    numbers = [(name, _ordered(getattr(machine, name))) for name in _field_names(machine)]
    parts = purpose, compiler_key(), numbers, others, content_digest(function).sha256
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ContentDigest:
    """The number of bytes of a function's content, and their hash."""

    size: int
    sha256: str


@lru_cache(maxsize=1024)
def content_digest(function: LoopFunction) -> ContentDigest:
    """Cached: each variant of a package asks for the same kernels."""
    data = content(function)
    return ContentDigest(len(data), hashlib.sha256(data).hexdigest())


def _ordered(value: Any) -> Any:
    """The value, whose text is the same in every process."""
    return sorted(value) if isinstance(value, frozenset) else value
