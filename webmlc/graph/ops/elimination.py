"""The determinant and the inverse of a matrix by Gaussian elimination with pivoting. All steps are
unrolled.
"""

from __future__ import annotations

import numpy as np

from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder
from webmlc.graph.ops.operator import (
    Context,
    NotSupportedError,
    Operator,
    always_expands,
    case,
)
from webmlc.graph.ops.shapes import check_shapes

MAX_ROWS = 32
"""The most rows of a matrix whose determinant or inverse is supported. Each row adds about 20
nodes. Chosen by hand.
"""


def _rows(context: Context, what: str) -> int:
    """The number of rows of the square matrices that a node reads."""
    check_shapes(context, "... rows rows")
    size = as_int(context.shape(0)[-1])
    if size is None or size > MAX_ROWS:
        raise NotSupportedError(f"{what} of more than {MAX_ROWS} rows")
    return size


def _determinant(context: Context, build: Builder) -> tuple[str, ...]:
    """Eliminate step by step. Each step removes the row with the largest first element, and the
    first column.
    """
    size, dtype = _rows(context, "a determinant"), context.dtype(0)
    zero, one, minus = (build.constant(v, dtype) for v in (0, 1, -1))
    rows, columns = (build.constant(np.array([a])) for a in (-2, -1))
    first, second = (build.constant(np.array([n])) for n in (0, 1))
    a, factors = context.node.inputs[0], []
    for row_count in range(size, 1, -1):
        end = build.constant(np.array([row_count]))
        column = build("Slice", a, first, second, columns)
        pivot_index = build("ArgMax", build("Abs", column), axis=-2, keepdims=1)
        row_numbers = build.constant(np.arange(row_count)[:, None])
        is_pivot_row = build("Equal", pivot_index, row_numbers)
        pivot_row = build("ReduceSum", build("Where", is_pivot_row, a, zero), rows)
        first_row = build("Slice", a, first, second, rows)
        other_rows = build("Slice", build("Where", is_pivot_row, first_row, a), second, end, rows)
        pivot = build("Slice", pivot_row, first, second, columns)
        is_in_place = build("Equal", pivot_index, build.constant(np.int64(0)))
        factors.append(build("Mul", pivot, build("Where", is_in_place, one, minus)))
        is_singular = build("Equal", pivot, zero)
        divisor = build("Where", is_singular, one, pivot)
        multipliers = build("Div", build("Slice", other_rows, first, second, columns), divisor)
        reduced = build("Sub", other_rows, build("Mul", multipliers, pivot_row))
        a = build("Slice", reduced, second, end, columns)
    product = a
    for factor in factors:
        product = build("Mul", product, factor)
    return (build("Squeeze", product, build.constant(np.array([-2, -1]))),)


def _inverse(context: Context, build: Builder) -> tuple[str, ...]:
    """Eliminate in the matrix beside the identity, [n, 2n], from which each step drops the first
    column. Before step k, rows from k on are searched for the largest first element. Its row trades
    places with row k, is divided by it, and is subtracted from all other rows.
    """
    size, dtype = _rows(context, "an inverse"), context.dtype(0)
    zero = build.constant(0, dtype)
    rows, columns = (build.constant(np.array([a])) for a in (-2, -1))
    first, second, end = (build.constant(np.array([n])) for n in (0, 1, 2 * size))
    numbers = build.constant(np.arange(size)[:, None])
    matrix = context.node.inputs[0]
    identity = build.constant(np.eye(size), dtype)
    beside = build("Expand", identity, build("Shape", matrix))
    a = build("Concat", matrix, beside, axis=-1)
    for step in range(size):
        column = build("Abs", build("Slice", a, first, second, columns))
        searched = build.constant(np.arange(size)[:, None] >= step)
        candidates = build("Where", searched, column, build.constant(-1, dtype))
        place = build("ArgMax", candidates, axis=-2, keepdims=1)
        is_pivot_row = build("Equal", place, numbers)
        pivot_row = build("ReduceSum", build("Where", is_pivot_row, a, zero), rows)
        here = build.constant(np.array([step]))
        row = build("Slice", a, here, build.constant(np.array([step + 1])), rows)
        traded = build("Where", is_pivot_row, row, a)
        pivot = build("Slice", pivot_row, first, second, columns)
        divided = build("Div", pivot_row, pivot)
        factors = build("Slice", traded, first, second, columns)
        reduced = build("Sub", traded, build("Mul", factors, divided))
        is_row = build.constant(np.arange(size)[:, None] == step)
        a = build("Slice", build("Where", is_row, divided, reduced), second, end, columns)
    return (a,)


MATRIX = np.array([[0.0, 2, 1], [3, 1, -1], [1, -4, 2]])

OPS: tuple[Operator, ...] = (
    Operator("Det", always_expands, expand=_determinant, cases=(
        case("float32[3, 3]"), case("float32[2, 4, 4]"), case([[0.0, 2], [3, 1]]),
        case("float32[2, 1, 1]"))),
    Operator("Inverse", always_expands, expand=_inverse, domain="com.microsoft", cases=(
        case(MATRIX), case(np.stack([MATRIX, MATRIX.T + np.eye(3)])),
        case("float32[2, 1, 1] in 1..2"))),
)  # fmt: skip
