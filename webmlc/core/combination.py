"""Linear combinations: one element of the product of a constant matrix and a vector of values.

Winograd's transforms and Strassen's sums are combinations. Their `row` is a short index, which the
schedule unrolls, so that each row becomes a sum of its own. A coefficient of zero leaves a value
out, so a matrix with a single 1 in each row chooses one of the values.

    >>> from webmlc.core.dtypes import DType
    >>> from webmlc.core.expr import Var
    >>> a, b = Var("a", DType.float32), Var("b", DType.float32)
    >>> sums = combination(((1, 1), (1, -1)), Var("i"), (a, b))
    >>> str(sums)
    'T.combination([[1, 1], [1, -1]], i, a, b)'
    >>> str(write_out(sums))
    'T.select(i == 0, a + b, a - b)'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, select, set_lanes, widest
from webmlc.core.interning import interned
from webmlc.core.rewrite import rewrite, walk

Row = tuple[float, ...]
Matrix = tuple[Row, ...]
Values = tuple[Expr, ...]


@interned
@dataclass(frozen=True, slots=True, eq=False)
class Combination(Expr):
    """The sum of `values` times the coefficients in row `row` of `matrix`.

    The matrix has one column for each value. `row` must be a row index of the matrix.
    """

    matrix: Matrix
    row: Expr
    values: Values

    def __post_init__(self) -> None:
        set_lanes(self, widest(self.children))

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.values[0].dtype

    @property
    def sums(self) -> Values:
        """The element of each row, computed with few operations.

        The rows share the sums and differences of values whose columns differ only by signs. Rows
        that differ only by signs share two sums: of their equal terms, and of their other terms.
        """
        return _sums(*_folded(self.matrix, self.values))

    @property
    def children(self) -> tuple[Expr, ...]:  # type: ignore[override]
        return (self.row, *self.values)

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        row, *values = children
        return Combination(self.matrix, row, tuple(values))

    def text(self, parts: list[str]) -> str:
        """`T.combination([[1, 0], [0.5, -1]], i, a, b)`."""
        rows = [[int(c) if c.is_integer() else c for c in row] for row in self.matrix]
        return f"T.combination({rows}, {', '.join(parts)})"


def combination(
    matrix: Sequence[Sequence[Fraction | float]], row: Expr, values: Sequence[Expr]
) -> Expr:
    """Build a combination of the values that `matrix` uses; the sum itself if it has one row."""
    used = [n for n in range(len(values)) if any(line[n] for line in matrix)]
    rows = tuple(tuple(float(line[n]) for n in used) for line in matrix)
    element = Combination(rows, row, tuple(values[n] for n in used))
    return element if len(rows) > 1 else element.sums[0]


def write_out(root: Expr) -> Expr:
    """Replace every combination by a chain of selects among its sums, which is its meaning."""
    if not any(isinstance(node, Combination) for node in walk(root)):
        return root
    return rewrite(root, lambda n: _selects(n) if isinstance(n, Combination) else None)


def _selects(element: Combination) -> Expr:
    *sums, result = element.sums
    for index, total in reversed(list(enumerate(sums))):
        result = select(element.row.equals(index), total, result)
    return result


@lru_cache(maxsize=1 << 10)
def _folded(matrix: Matrix, values: Values) -> tuple[Matrix, Values]:
    """An equal product, in which two columns that differ only by signs become the sum and the
    difference of their values. Every row then uses either the sum or the difference.
    """
    columns, remaining = list(zip(*matrix, strict=True)), list(values)
    folded: list[Row] = []
    terms: list[Expr] = []
    while columns:
        column, value = columns.pop(0), remaining.pop(0)
        twin = _twin(column, columns)
        if twin is None:
            folded, terms = [*folded, column], [*terms, value]
            continue
        folded += _equal_and_other(column, columns.pop(twin))
        twin_value = remaining.pop(twin)
        terms += [value + twin_value, value - twin_value]
    return tuple(zip(*folded, strict=True)), tuple(terms)


@lru_cache(maxsize=1 << 10)
def _sums(matrix: Matrix, values: Values) -> Values:
    """The product of each row and the values."""
    sums: dict[int, Expr] = {}
    for index, row in enumerate(matrix):
        if index in sums:
            continue
        twin = _twin(row, matrix[index + 1 :])
        if twin is None:
            sums[index] = _sum(row, values)
            continue
        equal, other = (_sum(r, values) for r in _equal_and_other(row, matrix[index + 1 + twin]))
        sums[index], sums[index + 1 + twin] = equal + other, equal - other
    return tuple(sums[index] for index in range(len(matrix)))


def _twin(row: Row, others: Sequence[Row]) -> int | None:
    """The index of the first other row that differs from `row` by the signs of some terms, not of
    all terms; `None` if no row does.
    """
    for index, other in enumerate(others):
        signs = [a == b for a, b in zip(row, other, strict=True) if a or b]
        if any(signs) and not all(signs) and list(map(abs, row)) == list(map(abs, other)):
            return index
    return None


def _equal_and_other(row: Row, twin: Row) -> tuple[Row, Row]:
    """The terms of a row that its twin has, too, and the other terms of the row."""
    pairs = list(zip(row, twin, strict=True))
    return tuple(a if a == b else 0.0 for a, b in pairs), tuple(
        a if a != b else 0.0 for a, b in pairs
    )


def _sum(coefficients: Row, values: Values) -> Expr:
    """The sum of values times coefficients: positive coefficients first, zeros left out."""
    used = [(c, v) for c, v in zip(coefficients, values, strict=True) if c]
    used.sort(key=lambda term: term[0] < 0)
    total: Expr | None = None
    for factor, value in used:
        if total is None:
            total = value if factor == 1 else value * factor
        elif factor in (1, -1):
            total = total + value if factor > 0 else total - value
        else:
            total = total + value * factor
    assert total is not None
    return total
