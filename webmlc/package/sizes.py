"""Sizes as a manifest holds them: a number, a name, or an operator with its operands.

The compiler converts an expression by `to_size`. Hosts evaluate sizes (`evaluate`, `values_of`),
without the compiler; the twin is `runtime_js/sizes.js`.

    >>> to_size(Var("n") * 2 + 1)
    ['add', ['mul', 'n', 2], 1]
    >>> evaluate(["add", ["mul", "n", 2], 1], {"n": 3})
    7
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Any

from msgspec import Meta

from webmlc.core.dtypes import DType
from webmlc.core.errors import InputError, InternalError, PackageError
from webmlc.core.expr import Call, Const, Expr, Var, call, const
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.core.sizes import LARGEST_SIZE, SIZE_OPERATORS, is_size_operator

Size = Annotated[int | str | list[Any], Meta(title="Size")]
"""A dimension in JSON: an integer, a symbol's name, or `[operator, Size, ...]`."""


def to_size(expr: Expr) -> Size:
    """Convert a dimension. Raises `InternalError` if sizes may not use its operator."""
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


def to_shape(shape: Iterable[Expr]) -> tuple[Size, ...]:
    """Convert the dimensions of a shape."""
    return tuple(map(to_size, shape))


def from_size(size: Size) -> Expr:
    """Convert a size to an expression. Raises `PackageError` if it is malformed."""
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


def size_text(size: Size) -> str:
    """A size as an error message prints it: `n * 2`."""
    return str(from_size(size))


def shape_text(shape: Iterable[Size]) -> str:
    """A shape as an error message prints it: `[batch, 3]`."""
    return f"[{', '.join(map(size_text, shape))}]"


def evaluate(size: Size, values: Mapping[str, int]) -> int:
    """Evaluate a size.

    Raises `InputError` if its magnitude exceeds `LARGEST_SIZE`, and `KeyError` if a symbol has no
    value.
    """
    if isinstance(size, int):
        return size
    if isinstance(size, str):
        return values[size]
    op, *operands = size
    value = int(SIZE_OPERATORS[op](*[evaluate(operand, values) for operand in operands]))
    if abs(value) > LARGEST_SIZE:
        raise InputError(f"with these inputs a size is beyond {LARGEST_SIZE}")
    return value


def values_of(sizes: Mapping[str, Size], symbols: Mapping[str, int]) -> dict[str, int]:
    """The symbols, and the named `sizes` that these symbols determine."""
    values = dict(symbols)
    for name, size in sizes.items():
        with suppress(KeyError):
            values[name] = evaluate(size, values)
    return values


def symbols_of(shape: Iterable[Size]) -> set[str]:
    """The symbols in a shape."""
    names: set[str] = set()
    for size in shape:
        if isinstance(size, list):
            names |= symbols_of(size[1:])
        elif isinstance(size, str):
            names.add(size)
    return names


def without_names(size: Size, sizes: Mapping[str, Size]) -> Size:
    """Replace the names of `sizes` in a size, so that only names of symbols remain."""
    if isinstance(size, list):
        return [size[0], *(without_names(part, sizes) for part in size[1:])]
    return without_names(sizes[size], sizes) if isinstance(size, str) and size in sizes else size


def name_sizes(sizes: Iterable[Size]) -> dict[str, list[Any]]:
    """Name the integers, whole sizes or parts of sizes, that occur more than once.

    Names begin with `#`, as no symbol's name does. A part comes before the sizes that contain it.

    >>> name_sizes([["add", "n", 7], ["floordiv", ["add", "n", 7], 8], "n"])
    {'#0': ['add', 'n', 7]}
    """
    counts: Counter[str] = Counter()
    order: list[list[Any]] = []

    def count(size: Size) -> None:
        if not isinstance(size, list):
            return
        counts[str(size)] += 1
        if counts[str(size)] == 1:
            for part in size[1:]:
                count(part)
            order.append(size)

    for size in sizes:
        count(size)
    repeated = (
        size for size in order if counts[str(size)] > 1 and from_size(size).dtype is not DType.bool
    )
    return {f"#{number}": size for number, size in enumerate(repeated)}


def with_names(size: Size, names: Mapping[str, str]) -> Size:
    """A size with names in place of its parts. `names` maps the text of a part to its name."""
    if not isinstance(size, list):
        return size
    return names.get(str(size)) or [size[0], *(with_names(part, names) for part in size[1:])]
