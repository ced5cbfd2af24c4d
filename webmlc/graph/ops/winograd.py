"""Winograd convolution F(4x4, 3x3): 3x3 windows of stride 1 with a quarter of the products.

A map is cut into tiles of 4x4 outputs, each seen through 6x6 inputs. The input and the weights are
transformed into 36 planes, each plane is a matrix product over channels (`webmlc.MatMul`), and the
result is transformed back (domain `webmlc`; `graph/use_winograd.py` puts them together):

    planes = WinogradInput(map)              # [N, 4·TH + 2, 4·TW + 2, C] -> [6, 6, N, TH, TW, C]
    matrices = WinogradWeights(weights)      # [O/8, 3, 3, C, 8] -> [6, 6, O/8, C, 8]
    result = WinogradOutput(products)        # [6, 6, N, TH, TW, O] -> [N, H, W, O]

Each transform is two one-dimensional ones, along columns and along rows. Source: A. Lavin and S.
Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), points 0, ±1, ±2, ∞.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from webmlc.core.expr import Expr, const, select
from webmlc.core.simplify import simplify
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, Operator

TILE = 4
"""Outputs of a tile along one dimension."""
PLANES = 6
"""Inputs of a tile along one dimension."""

Matrix = tuple[tuple[Fraction | int, ...], ...]

INPUT: Matrix = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
WEIGHTS: Matrix = (
    (Fraction(1, 4), 0, 0),
    (Fraction(-1, 6), Fraction(-1, 6), Fraction(-1, 6)),
    (Fraction(-1, 6), Fraction(1, 6), Fraction(-1, 6)),
    (Fraction(1, 24), Fraction(1, 12), Fraction(1, 6)),
    (Fraction(1, 24), Fraction(-1, 12), Fraction(1, 6)),
    (0, 0, 1),
)
OUTPUT: Matrix = (
    (1, 1, 1, 1, 1, 0),
    (0, 1, -1, 2, -2, 0),
    (0, 1, 1, 4, 4, 0),
    (0, 1, -1, 8, -8, 1),
)


def tiles(size: Expr) -> Expr:
    """How many tiles cover `size` outputs."""
    return simplify((size + (TILE - 1)) // TILE)


def _product(matrix: Matrix, row: Expr, values: Sequence[Expr]) -> Expr:
    """Element `row` of the matrix times a vector: the schedule unrolls `row`, which leaves the
    sum of one row.
    """
    result: Expr | None = None
    for index in reversed(range(len(matrix))):
        total = _sum(matrix[index], values)
        result = total if result is None else select(row.equals(index), total, result)
    assert result is not None
    return result


def _sum(coefficients: Sequence[Fraction | int], values: Sequence[Expr]) -> Expr:
    """The sum of values times coefficients, positive ones first, without the zeros."""
    used = [(float(c), v) for c, v in zip(coefficients, values, strict=True) if c]
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


def _only(tensors: tuple[Tensor | None, ...]) -> Tensor:
    (tensor,) = tensors
    assert tensor is not None
    return tensor


# -- input -----------------------------------------------------------------------------


def _infer_input(context: Context) -> tuple[TensorType, ...]:
    batch, height, width, channels = context.shape(0)
    counts = tuple(simplify((size - (PLANES - TILE)) // TILE) for size in (height, width))
    planes = (const(PLANES), const(PLANES))
    return (TensorType(context.dtype(0), (*planes, batch, *counts, channels)),)


def _input(context: Context, tensors: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    data = _only(tensors)
    *planes, batch, down, across, channels = context.outputs[0].shape

    def column(n: Expr, y: Expr, x: Expr, b: Expr, i: Expr, c: Expr) -> Expr:
        taps = [data[n, y * TILE + a, x * TILE + b, c] for a in range(PLANES)]
        return _product(INPUT, i, taps)

    columns = compute("columns", (batch, down, across, *planes, channels), column, keep=True)

    def plane(i: Expr, j: Expr, n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        return _product(INPUT, j, [columns[n, y, x, b, i, c] for b in range(PLANES)])

    return (compute("planes", context.outputs[0].shape, plane),)


# -- weights ---------------------------------------------------------------------------


def _infer_weights(context: Context) -> tuple[TensorType, ...]:
    panels, _, _, channels, lanes = context.shape(0)
    planes = (const(PLANES), const(PLANES))
    return (TensorType(context.dtype(0), (*planes, panels, channels, lanes)),)


def _weights(context: Context, tensors: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    data = _only(tensors)
    panels, _, taps, channels, lanes = data.shape

    def column(o: Expr, k: Expr, b: Expr, i: Expr, lane: Expr) -> Expr:
        return _product(WEIGHTS, i, [data[o, a, b, k, lane] for a in range(3)])

    shape = (panels, channels, taps, const(PLANES), lanes)
    columns = compute("columns", shape, column, keep=True)

    def plane(i: Expr, j: Expr, o: Expr, k: Expr, lane: Expr) -> Expr:
        return _product(WEIGHTS, j, [columns[o, k, b, i, lane] for b in range(3)])

    return (compute("planes", context.outputs[0].shape, plane),)


# -- output ----------------------------------------------------------------------------


def _infer_output(context: Context) -> tuple[TensorType, ...]:
    _, _, batch, _, _, channels = context.shape(0)
    return (TensorType(context.dtype(0), (batch, *context.attribute("sizes"), channels)),)


def _output(context: Context, tensors: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    data = _only(tensors)
    _, planes, batch, down, across, channels = data.shape

    def column(n: Expr, y: Expr, x: Expr, j: Expr, a: Expr, o: Expr) -> Expr:
        return _product(OUTPUT, a, [data[i, j, n, y, x, o] for i in range(PLANES)])

    shape = (batch, down, across, planes, const(TILE), channels)
    columns = compute("columns", shape, column, keep=True)

    def element(n: Expr, h: Expr, w: Expr, o: Expr) -> Expr:
        y, x, a, b = h // TILE, w // TILE, h % TILE, w % TILE
        return _product(OUTPUT, b, [columns[n, y, x, j, a, o] for j in range(PLANES)])

    return (compute("tile", context.outputs[0].shape, element),)


OPS: tuple[Operator, ...] = (
    Operator("WinogradInput", _infer_input, _input, domain="webmlc"),
    Operator("WinogradWeights", _infer_weights, _weights, domain="webmlc"),
    Operator("WinogradOutput", _infer_output, _output, kind="contraction", domain="webmlc"),
)
