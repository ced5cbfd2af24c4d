"""Sizes as JSON: a number, the name of a symbol, or an operator with its operands.

>>> to_size(Var("n") * 2 + 1)
['add', ['mul', 'n', 2], 1]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from webmlc.core.errors import InternalError, PackageError
from webmlc.core.expr import Call, Const, Expr, Var, call, const
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.core.sizes import SIZE_OPERATORS, is_size_operator
from webmlc.package.manifest import Size


def to_size(expr: Expr, names: Mapping[Expr, str] | None = None) -> Size:
    """Convert a dimension to JSON. Parts of it that are in `names` are written as their names.

    Raises `InternalError` if sizes may not use its operator.
    """
    names = names or {}
    match expr:
        case Const(value=value):
            return int(value)
        case Var(name=name):
            return name
        case Call(op=op, args=args) if is_size_operator(op, args):
            return [op, *(names.get(arg) or to_size(arg, names) for arg in args)]
    raise InternalError(
        f"package: a size may use {', '.join(SIZE_OPERATORS)} of symbols, not {expr}"
    )


def name_sizes(sizes: Iterable[Expr]) -> dict[Expr, str]:
    """Name the symbolic sizes, and the parts of sizes, that occur more than once.

    Names begin with `#`, which no symbol does. A part comes before the sizes that it is a part of.

    >>> n = Var("n")
    >>> list(name_sizes([n + 7, (n + 7) // 8, n]).values())
    ['#0', '#1']
    """
    counts: Counter[Expr] = Counter()
    order: list[Expr] = []

    def count(size: Expr) -> None:
        counts[size] += 1
        if counts[size] > 1 or isinstance(size, Const):
            return
        for part in size.args if isinstance(size, Call) else ():
            count(part)
        order.append(size)

    for size in sizes:
        count(size)
    return {size: f"#{i}" for i, size in enumerate(s for s in order if counts[s] > 1)}


def from_sizes(sizes: Mapping[str, Any]) -> dict[str, Expr]:
    """Read the sizes that have names. Raises `PackageError` if one is malformed."""
    named: dict[str, Expr] = {}
    for name, size in sizes.items():
        named[name] = from_size(size, named)
    return named


def from_size(size: Any, named: Mapping[str, Expr] | None = None) -> Expr:
    """Convert a JSON size to an expression. Strings are symbols, or names of the sizes in `named`.

    Raises `PackageError` if the size is malformed.
    """
    named = named or {}
    match size:
        case bool():
            pass
        case int():
            return const(size)
        case str():
            return named.get(size, Var(size))
        case [str(op), *args] if op in SIZE_OPERATORS and len(args) == SCALAR_OPERATORS[op].arity:
            return call(op, *(from_size(arg, named) for arg in args))
    raise PackageError(f"manifest.json: {size!r} is not a size")
