"""Operators of decoders (domain `webmlc`): rotary position embedding over halves of heads, and
values that a session keeps from run to run.

With H elements of a head and positions from `first` on:

    RotaryTables(coarse [C, 2, H/2], fine [F, 2, H/2])  ->  cos [rows, H/2], sin [rows, H/2]
    Rotate(x [rows, heads, H], cos, sin)                ->  [rows, heads, H]

A table for every position would have megabytes. So the angle of position `F * c + f` is the sum of
two angles. `coarse` holds the cosines and sines of the positions `F * c`. `fine` holds the cosines
and sines of `f`.

Source: Su et al., "RoFormer: enhanced transformer with rotary position embedding" (2021), with
elements paired as in GPT-NeoX: `i` with `i + H/2`.

`Append` adds rows to a state along its first axis. The attribute `length` is a symbol: the number
of rows that the session holds before the run.

    %k: float32[past + tokens, 3, 64] = webmlc.Append(%rows: float32[tokens, 3, 64]) {length=past}
"""

from __future__ import annotations

import numpy as np

from webmlc.core.expr import Const, Expr, as_int, call, select
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ir import Array, TensorType
from webmlc.graph.ops.operator import Context, Operator
from webmlc.graph.ops.shapes import canonical, check_shapes, require


def rotary_tables(
    build: Builder, frequencies: Array, positions: int, first: Expr, rows: Expr
) -> tuple[Value, Value]:
    """Write the cosines and sines of `rows` positions from `first` on, which are less than
    `positions`. `frequencies`, [H/2], are the angles of position 1.
    """
    fine = 1 << (max(positions - 1, 1).bit_length() + 1) // 2
    coarse = -(-positions // fine)
    tables = (
        _table(np.arange(coarse) * fine, frequencies),
        _table(np.arange(fine), frequencies),
    )
    constants = (build.constant(table.astype(np.float32)) for table in tables)
    cos, sin = build.many(
        "RotaryTables", *constants, outputs=2, domain="webmlc",
        first=first, rows=rows, positions=positions,
    )  # fmt: skip
    return cos, sin


def _table(positions: Array, frequencies: Array) -> Array:
    """The cosines and sines of the angles of these positions, [positions, 2, H/2]."""
    angles = positions[:, None].astype(np.float64) * frequencies
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _tables_type(context: Context) -> tuple[TensorType, ...]:
    first, rows = context.attribute("first"), context.attribute("rows")
    require(context, "at most", canonical(first + rows), Const(context.attribute("positions")))
    type_ = TensorType(context.dtype(0), (rows, context.shape(0)[2]))
    return (type_, type_)


def _tables(context: Context, coarse: Tensor, fine: Tensor) -> tuple[Tensor, ...]:
    count = fine.shape[0]

    def parts(row: Expr, column: Expr) -> tuple[Expr, ...]:
        position = context.attribute("first") + row
        high, low = position // count, position % count
        return tuple(t[p, s, column] for t, p in ((coarse, high), (fine, low)) for s in (0, 1))

    def cosine(row: Expr, column: Expr) -> Expr:
        cos_high, sin_high, cos_low, sin_low = parts(row, column)
        return cos_high * cos_low - sin_high * sin_low

    def sine(row: Expr, column: Expr) -> Expr:
        cos_high, sin_high, cos_low, sin_low = parts(row, column)
        return sin_high * cos_low + cos_high * sin_low

    shape = context.outputs[0].shape
    return compute("cos", shape, cosine), compute("sin", shape, sine)


def _rotate_type(context: Context) -> TensorType:
    check_shapes(context, "rows heads size", "rows half", "rows half")
    return context.type(0)


def _rotate(context: Context, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first elements of each head, as many as the tables have. The other elements do not
    change.
    """
    half, size = as_int(cos.shape[1]), as_int(x.shape[2])
    assert half is not None and size is not None

    def element(row: Expr, head: Expr, i: Expr) -> Expr:
        column = i % half
        left, right = x[row, head, column], x[row, head, column + half]
        c, s = cos[row, column], sin[row, column]
        rotated = select(call("lt", i, half), left * c - right * s, left * s + right * c)
        return rotated if size == 2 * half else select(i < 2 * half, rotated, x[row, head, i])

    return compute("rotate", x.shape, element)


APPEND = ("webmlc", "Append")


def _append_type(context: Context) -> TensorType:
    length: Expr = context.attribute("length")
    first, *inner = context.shape(0)
    return TensorType(context.dtype(0), (canonical(length + first), *inner))


OPS: tuple[Operator, ...] = (
    Operator("RotaryTables", _tables_type, _tables, kind="injective", domain="webmlc"),
    Operator("Rotate", _rotate_type, _rotate, kind="injective", domain="webmlc"),
    Operator("Append", _append_type, domain="webmlc"),
)  # fmt: skip
