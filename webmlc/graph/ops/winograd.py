"""Winograd convolutions F(4x4, 3x3) and F(2x2, 3x3): 3x3 windows of stride 1 with a quarter, or
four ninths, of the products.

A map is cut into tiles of 4x4 outputs (`tile=4`), each seen through 6x6 inputs. The input and the
weights are transformed into 36 planes, each plane is a matrix product over channels
(`webmlc.MatMul`), and the result is transformed back (domain `webmlc`; `graph/use_winograd.py` puts
them together):

    planes = WinogradInput(map)              # [N, 4·TH + 2, 4·TW + 2, C] -> [6, 6, N, TH, TW, C]
    matrices = WinogradWeights(weights)      # [O/8, 3, 3, C, 8] -> [6, 6, O/8, C, 8]
    result = WinogradOutput(products)        # [6, 6, N, TH, TW, O] -> [N, H, W, O]

Tiles of 2x2 outputs (`tile=2`) are seen through 4x4 inputs, in 16 planes. Each transform is two
one-dimensional ones, along columns and along rows. Source: A. Lavin and S. Gray, "Fast Algorithms
for Convolutional Neural Networks" (2016), points 0, ±1, ±2 (of the larger form alone), ∞.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from webmlc.core.expr import Expr, const, select
from webmlc.core.simplify import simplify
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, Operator

Matrix = tuple[tuple[Fraction | int, ...], ...]


@dataclass(frozen=True, slots=True)
class Form:
    """The transforms F(n x n, 3x3) consists of, one-dimensional: n + 2 planes of inputs and of
    three weights, n outputs of n + 2 products.
    """

    input: Matrix
    weights: Matrix
    output: Matrix


FORMS: dict[int, Form] = {
    2: Form(
        input=(
            (1, 0, -1, 0),
            (0, 1, 1, 0),
            (0, -1, 1, 0),
            (0, -1, 0, 1),
        ),
        weights=(
            (1, 0, 0),
            (Fraction(1, 2), Fraction(1, 2), Fraction(1, 2)),
            (Fraction(1, 2), Fraction(-1, 2), Fraction(1, 2)),
            (0, 0, 1),
        ),
        output=(
            (1, 1, 1, 0),
            (0, 1, -1, 1),
        ),
    ),
    4: Form(
        input=(
            (4, 0, -5, 0, 1, 0),
            (0, -4, -4, 1, 1, 0),
            (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0),
            (0, 2, -1, -2, 1, 0),
            (0, 4, 0, -5, 0, 1),
        ),
        weights=(
            (Fraction(1, 4), 0, 0),
            (Fraction(-1, 6), Fraction(-1, 6), Fraction(-1, 6)),
            (Fraction(-1, 6), Fraction(1, 6), Fraction(-1, 6)),
            (Fraction(1, 24), Fraction(1, 12), Fraction(1, 6)),
            (Fraction(1, 24), Fraction(-1, 12), Fraction(1, 6)),
            (0, 0, 1),
        ),
        output=(
            (1, 1, 1, 1, 1, 0),
            (0, 1, -1, 2, -2, 0),
            (0, 1, 1, 4, 4, 0),
            (0, 1, -1, 8, -8, 1),
        ),
    ),
}
"""By the outputs of a tile along one dimension."""


def planes_of(tile: int) -> int:
    """Inputs of a tile along one dimension: its outputs, and two around them."""
    return tile + 2


def tiles(size: Expr, tile: int) -> Expr:
    """How many tiles cover `size` outputs."""
    return simplify((size + (tile - 1)) // tile)


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


def _sizes(context: Context) -> tuple[int, int]:
    """Outputs and inputs of a tile along one dimension."""
    tile: int = context.attribute("tile")
    return tile, planes_of(tile)


# -- input -----------------------------------------------------------------------------


def _infer_input(context: Context) -> tuple[TensorType, ...]:
    batch, height, width, channels = context.shape(0)
    tile, planes = _sizes(context)
    counts = tuple(simplify((size - (planes - tile)) // tile) for size in (height, width))
    both = (const(planes), const(planes))
    return (TensorType(context.dtype(0), (*both, batch, *counts, channels)),)


def _input(context: Context, tensors: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    data = _only(tensors)
    tile, count = _sizes(context)
    matrix = FORMS[tile].input
    *planes, batch, down, across, channels = context.outputs[0].shape

    def column(n: Expr, y: Expr, x: Expr, b: Expr, i: Expr, c: Expr) -> Expr:
        taps = [data[n, y * tile + a, x * tile + b, c] for a in range(count)]
        return _product(matrix, i, taps)

    columns = compute("columns", (batch, down, across, *planes, channels), column, keep=True)

    def plane(i: Expr, j: Expr, n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        return _product(matrix, j, [columns[n, y, x, b, i, c] for b in range(count)])

    return (compute("planes", context.outputs[0].shape, plane),)


# -- weights ---------------------------------------------------------------------------


def _infer_weights(context: Context) -> tuple[TensorType, ...]:
    panels, _, _, channels, lanes = context.shape(0)
    planes = const(_sizes(context)[1])
    return (TensorType(context.dtype(0), (planes, planes, panels, channels, lanes)),)


def _weights(context: Context, tensors: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    data = _only(tensors)
    tile, count = _sizes(context)
    matrix = FORMS[tile].weights
    panels, _, taps, channels, lanes = data.shape

    def column(o: Expr, k: Expr, b: Expr, i: Expr, lane: Expr) -> Expr:
        return _product(matrix, i, [data[o, a, b, k, lane] for a in range(3)])

    shape = (panels, channels, taps, const(count), lanes)
    columns = compute("columns", shape, column, keep=True)

    def plane(i: Expr, j: Expr, o: Expr, k: Expr, lane: Expr) -> Expr:
        return _product(matrix, j, [columns[o, k, b, i, lane] for b in range(3)])

    return (compute("planes", context.outputs[0].shape, plane),)


# -- output ----------------------------------------------------------------------------


def _infer_output(context: Context) -> tuple[TensorType, ...]:
    _, _, batch, _, _, channels = context.shape(0)
    return (TensorType(context.dtype(0), (batch, *context.attribute("sizes"), channels)),)


def _output(context: Context, tensors: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    data = _only(tensors)
    tile, count = _sizes(context)
    matrix = FORMS[tile].output
    _, planes, batch, down, across, channels = data.shape

    def column(n: Expr, y: Expr, x: Expr, j: Expr, a: Expr, o: Expr) -> Expr:
        return _product(matrix, a, [data[i, j, n, y, x, o] for i in range(count)])

    shape = (batch, down, across, planes, const(tile), channels)
    columns = compute("columns", shape, column, keep=True)

    def element(n: Expr, h: Expr, w: Expr, o: Expr) -> Expr:
        y, x, a, b = h // tile, w // tile, h % tile, w % tile
        return _product(matrix, b, [columns[n, y, x, j, a, o] for j in range(count)])

    return (compute("tile", context.outputs[0].shape, element),)


OPS: tuple[Operator, ...] = (
    Operator("WinogradInput", _infer_input, _input, domain="webmlc"),
    Operator("WinogradWeights", _infer_weights, _weights, domain="webmlc"),
    Operator("WinogradOutput", _infer_output, _output, kind="contraction", domain="webmlc"),
)
