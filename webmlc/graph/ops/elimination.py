"""The determinant and the inverse of a matrix by Gaussian elimination with pivoting. All steps are
unrolled.
"""

from __future__ import annotations

import numpy as np

from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
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


def _determinant(context: Context, build: Builder) -> Value:
    """Eliminate step by step. Each step removes the row with the largest first element, and the
    first column.
    """
    size, dtype = _rows(context, "a determinant"), context.dtype(0)
    one, minus = (build.constant(v, dtype) for v in (1, -1))
    a, factors = build.inputs[0], []
    for row_count in range(size, 1, -1):
        column = a.slice(0, 1, -1)
        pivot_index = build("ArgMax", build("Abs", column), axis=-2, keepdims=1)
        is_pivot_row = pivot_index.op("Equal", np.arange(row_count)[:, None])
        pivot_row = build("ReduceSum", is_pivot_row.where(a, 0), [-2])
        first_row = a.slice(0, 1, -2)
        other_rows = is_pivot_row.where(first_row, a).slice(1, row_count, -2)
        pivot = pivot_row.slice(0, 1, -1)
        is_in_place = build("Equal", pivot_index, 0)
        factors.append(pivot * is_in_place.where(one, minus))
        is_singular = pivot.op("Equal", 0)
        divisor = is_singular.where(1, pivot)
        multipliers = other_rows.slice(0, 1, -1) / divisor
        reduced = other_rows - multipliers * pivot_row
        a = reduced.slice(1, row_count, -1)
    product = a
    for factor in factors:
        product = product * factor
    return build("Squeeze", product, [-2, -1])


def _inverse(context: Context, build: Builder) -> Value:
    """Turn the matrix into the identity, row by row, and do the same to an identity.

    Each step takes one column. It moves the row with the column's largest element to its place,
    scales the row so that this element is 1, and subtracts multiples of the row from all other
    rows.
    """
    size = _rows(context, "an inverse")
    numbers = np.arange(size)[:, None]
    matrix, inverse = build.inputs[0], build.constant(np.eye(size), context.dtype(0))
    for step in range(size):
        is_done, is_step = build.constant(numbers < step), build.constant(numbers == step)
        column = matrix.slice(step, step + 1, -1)
        candidates = is_done.where(-1, column.op("Abs"))
        pivot_index = candidates.op("ArgMax", axis=-2, keepdims=1)
        is_pivot_row = pivot_index.op("Equal", numbers)
        rows = [is_pivot_row.where(part, 0).op("ReduceSum", [-2]) for part in (matrix, inverse)]
        pivot = rows[0].slice(step, step + 1, -1)
        scaled, scaled_inverse = (part / pivot for part in rows)
        moved, moved_inverse = (
            is_pivot_row.where(part.slice(step, step + 1, -2), part) for part in (matrix, inverse)
        )
        factors = moved.slice(step, step + 1, -1)
        matrix = is_step.where(scaled, moved - factors * scaled)
        inverse = is_step.where(scaled_inverse, moved_inverse - factors * scaled_inverse)
    return inverse


MATRIX = np.array([[0.0, 2, 1], [3, 1, -1], [1, -4, 2]])

OPS: tuple[Operator, ...] = (
    Operator("Det", expand=_determinant, cases=(
        case("float32[3, 3]"), case("float32[2, 4, 4]"), case([[0.0, 2], [3, 1]]),
        case("float32[2, 1, 1]"))),
    Operator("Inverse", expand=_inverse, domain="com.microsoft", cases=(
        case("float32[3, 3]"), case("float32[2, 4, 4]"), case([[0.0, 2], [3, 1]]), case(MATRIX),
        case(np.stack([MATRIX, MATRIX.T + np.eye(3)])), case("float32[2, 1, 1] in 1..2"))),
)  # fmt: skip
