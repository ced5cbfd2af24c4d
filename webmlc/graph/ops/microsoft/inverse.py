"""The inverse of a matrix by Gauss-Jordan elimination with pivoting. All steps are unrolled."""

from __future__ import annotations

import numpy as np

from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder
from webmlc.graph.ops.microsoft.rows import row
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import check_shapes

MAX_ROWS = 32
"""The most rows of a matrix whose inverse is supported. Each row adds about 20 nodes. Chosen by
hand, as for determinants.
"""


def _inverse(context: Context, build: Builder) -> tuple[str, ...]:
    """Turn the matrix into the identity, row by row, and do the same to an identity.

    Each step moves the row with the largest element of a column to its place, scales it so that
    this element is 1, and subtracts it from all other rows.
    """
    check_shapes(context, "... rows rows")
    count = as_int(context.shape(0)[-1])
    if count is None or count > MAX_ROWS:
        raise NotSupportedError(f"the inverse of a matrix of more than {MAX_ROWS} rows")
    dtype = context.dtype(0)
    numbers = np.arange(count)[:, None]
    zero, minus = (build.constant(v, dtype) for v in (0, -1))
    row_axis, column_axis = (build.constant(np.array([axis])) for axis in (-2, -1))
    matrix, inverse = context.node.inputs[0], build.constant(np.eye(count), dtype)
    for step in range(count):
        start, end = (build.constant(np.array([n])) for n in (step, step + 1))
        is_done, is_step = build.constant(numbers < step), build.constant(numbers == step)
        column = build("Slice", matrix, start, end, column_axis)
        size = build("Where", is_done, minus, build("Abs", column))
        pivot_row = build("ArgMax", size, axis=-2, keepdims=1)
        is_pivot_row = build("Equal", pivot_row, build.constant(numbers))
        rows = [
            build("ReduceSum", build("Where", is_pivot_row, part, zero), row_axis)
            for part in (matrix, inverse)
        ]
        pivot = build("Slice", rows[0], start, end, column_axis)
        rows = [build("Div", part, pivot) for part in rows]
        parts = []
        for part, scaled in zip((matrix, inverse), rows, strict=True):
            displaced = build("Slice", part, start, end, row_axis)
            parts.append((build("Where", is_pivot_row, displaced, part), scaled))
        factors = build("Slice", parts[0][0], start, end, column_axis)
        matrix, inverse = (
            build("Where", is_step, scaled, build("Sub", part, build("Mul", factors, scaled)))
            for part, scaled in parts
        )
    return (inverse,)


OPS: tuple[Operator, ...] = (
    row(
        "Inverse",
        _inverse,
        case("float32[3, 3]"),
        case("float32[2, 4, 4]"),
        case([[0.0, 2], [3, 1]]),
    ),
)
