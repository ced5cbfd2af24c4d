"""Strassen's algorithm, in Winograd's variant: seven products of half matrices instead of eight.

The left matrix is cut into even and odd rows, and into halves of columns. The right one, which is
packed, is cut into halves of rows, and into even and odd panels. Sums of these quarters are planes,
which are multiplied one by one. Each quarter of the result is a sum of the products (domain
`webmlc`; `use_strassen.py` chooses the layers):

    planes = StrassenInput(left)                # [N, M, K] -> [7, N, M/2, K/2]
    result = StrassenProduct(planes, matrix)    # [O/8, K, 8] -> [N, M, O]

The sums of the right matrix are a stage of the product, which computes the sums of a pair of panels
when it needs them. Sums computed at load would take seven quarters of the weights' memory.

Paired rows share sums. So the errors of both rows are relative to the larger row, and an infinity
or NaN in one row reaches results of the other row.

Source: V. Strassen, "Gaussian elimination is not optimal" (1969), and S. Winograd, "On
multiplication of 2x2 matrices" (1971); on how results err, N. Higham, "Exploiting fast matrix
multiplication within the level 3 BLAS" (1990).
"""

from __future__ import annotations

from webmlc.core.combination import combination
from webmlc.core.expr import Expr, const, minimum
from webmlc.core.simplify import simplify
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.layout import PACK
from webmlc.graph.ops.operator import Context, Operator
from webmlc.graph.ops.shapes import Shape

PRODUCTS = 7

LEFT_SUMS = (
    (1, 0, 0, 0, 0, 0),
    (0, 1, 0, 0, 0, 0),
    (0, 1, 0, 0, 0, -1),
    (0, 0, 0, 1, 0, 0),
    (0, 0, 0, 0, 1, 0),
    (0, 0, 0, 0, 0, 1),
    (1, 0, -1, 0, 0, 0),
)
"""The planes of the left matrix, of a11, a12, a21, a22, s1 = a21 + a22 and s2 = s1 - a11."""
RIGHT_SUMS = (
    (1, 0, 0, 0, 0, 0),
    (0, 0, 1, 0, 0, 0),
    (0, 0, 0, 1, 0, 0),
    (0, 0, -1, 0, 0, 1),
    (0, 0, 0, 0, 1, 0),
    (0, 0, 0, 0, 0, 1),
    (0, -1, 0, 1, 0, 0),
)
"""The planes of the right matrix, of b11, b12, b21, b22, t1 = b12 - b11 and t2 = b22 - t1."""
RESULT_SUMS = (
    (1, 1, 0, 0, 0, 0, 0),
    (0, 0, 1, 0, 1, 1, 0),
    (0, 0, 0, 1, 0, 0, -1),
    (0, 0, 0, 1, 1, 0, 0),
)
"""The quarters of the result, of p1, p2, u2 = p1 + p6, u3 = u2 + p7, p5, p3 and p4."""


def _infer_input(context: Context) -> TensorType:
    *batch, rows, depth = context.shape(0)
    shape = (const(PRODUCTS), *batch, simplify((rows + 1) // 2), simplify(depth // 2))
    return TensorType(context.dtype(0), shape)


def _input(context: Context, data: Tensor) -> Tensor:
    return left_planes(data, context.outputs[0].shape)


def left_planes(data: Tensor, shape: Shape) -> Tensor:
    """The planes (of `shape`) of the left matrix. If the number of rows is odd, the last row is
    paired with itself, and the surplus results of this pair are not read.
    """
    rows, half = data.shape[-2], shape[-1]

    def plane(p: Expr, *axes: Expr) -> Expr:
        *batch, i, k = axes
        pair = (i * 2, simplify(minimum(i * 2 + 1, rows - 1)))
        a11, a12, a21, a22 = (data[(*batch, row, c)] for row in pair for c in (k, k + half))
        s1 = a21 + a22
        s2 = s1 - a11
        return combination(LEFT_SUMS, p, (a11, a12, a21, a22, s1, s2))

    return compute("planes", shape, plane)


def _infer_product(context: Context) -> TensorType:
    batch = context.shape(0)[1:-2]
    rows, columns = (const(context.attribute(name)) for name in ("rows", "columns"))
    return TensorType(context.dtype(0), (*batch, rows, columns))


def _product(context: Context, planes: Tensor, matrix: Tensor) -> Tensor:
    return strassen_product(planes, matrix, context.outputs[0].shape)


def strassen_product(planes: Tensor, matrix: Tensor, shape: Shape) -> Tensor:
    """The product (of `shape`) of the matrix with these planes and a packed matrix."""
    half = planes.shape[-1]

    def panel(p: Expr, j: Expr, k: Expr, lane: Expr) -> Expr:
        b11, b12, b21, b22 = (matrix[j * 2 + h, r, lane] for r in (k, k + half) for h in range(2))
        t1 = b12 - b11
        t2 = b22 - t1
        return combination(RIGHT_SUMS, p, (b11, b12, b21, b22, t1, t2))

    pairs = (const(PRODUCTS), simplify(matrix.shape[0] // 2), half, const(PACK))
    panels = compute("panels", pairs, panel, keep=True)

    def element(p: Expr, *axes: Expr) -> Expr:
        *row, n, k = axes
        return planes[(p, *row, k)] * panels[p, n // PACK, k, n % PACK]

    product_shape = (*planes.shape[:-1], simplify(shape[-1] // 2))
    products = reduce("product", product_shape, (half,), "add", element)

    def tile(*axes: Expr) -> Expr:
        *batch, m, n = axes
        place = (*batch, m // 2, n // (2 * PACK) * PACK + n % PACK)
        p1, p2, p3, p4, p5, p6, p7 = (products[(const(p), *place)] for p in range(PRODUCTS))
        u2 = p1 + p6
        u3 = u2 + p7
        quarter = m % 2 * 2 + n // PACK % 2
        return combination(RESULT_SUMS, quarter, (p1, p2, u2, u3, p5, p3, p4))

    return compute("tile", shape, tile)


OPS: tuple[Operator, ...] = (
    Operator("StrassenInput", _infer_input, _input, domain="webmlc"),
    Operator("StrassenProduct", _infer_product, _product, kind="contraction", domain="webmlc"),
)
