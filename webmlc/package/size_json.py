"""Sizes as JSON: a number, the name of a symbol, or an operator with its operands.

>>> to_size(Var("n") * 2 + 1)
['add', ['mul', 'n', 2], 1]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from webmlc.core.errors import InternalError, PackageError
from webmlc.core.expr import Call, Const, Expr, Var, call, const
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.core.sizes import SIZE_OPERATORS, is_size_operator
from webmlc.package.manifest import Size


def to_size(expr: Expr) -> Size:
    """Convert a dimension to JSON. Raises `InternalError` if sizes may not use its operator."""
    match expr:
        case Const(value=value):
            return int(value)
        case Var(name=name):
            return name
        case Call(op=op, args=args) if is_size_operator(op, args):
            return [op, *map(to_size, args)]
    raise InternalError(
        f"package: a size may use {', '.join(SIZE_OPERATORS)} of symbols, not {expr}"
    )


def from_size(size: Any, named: Mapping[str, Any] | None = None) -> Expr:
    """Convert a JSON size, or the name of a size in `named`, to an expression.

    Raises `PackageError` if the size is malformed.
    """
    if named and isinstance(size, str):
        size = named.get(size, size)
    match size:
        case bool():
            pass
        case int():
            return const(size)
        case str():
            return Var(size)
        case [str(op), *args] if op in SIZE_OPERATORS and len(args) == SCALAR_OPERATORS[op].arity:
            return call(op, *map(from_size, args))
    raise PackageError(f"manifest.json: {size!r} is not a size")
