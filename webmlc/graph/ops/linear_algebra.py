"""Linear algebra of dense tensors: MatMul, Gemm, Einsum, and determinants and inverses.

A contraction is one `matmul` stage, then the bias. Determinants and inverses are computed by
Gaussian elimination with pivoting, in unrolled steps.
"""

from __future__ import annotations

import re

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, Layout, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import (
    Shape,
    accumulator,
    aligned,
    broadcast,
    check_shapes,
    check_stretches,
    require,
)


def check_inner(context: Context, left: Expr, right: Expr) -> None:
    """Raise `NotSupportedError` if the dimensions over which a product sums cannot be equal."""
    if not require(context, "equal", left, right):
        raise NotSupportedError(f"the contracted dimensions {left} and {right} differ")


def matmul_shape(context: Context, a: Shape, b: Shape) -> Shape:
    """The shape of numpy's `matmul`. A vector is a row on the left and a column on the right."""
    if not a or not b:
        raise NotSupportedError("a matrix product of scalars")
    check_inner(context, a[-1], b[-2] if len(b) > 1 else b[0])
    batch = broadcast(context, a[:-2], b[:-2])
    return (*batch, *(a[-2:-1] if len(a) > 1 else ()), *(b[-1:] if len(b) > 1 else ()))


def _matmul_type(context: Context) -> TensorType:
    return TensorType(context.dtype(0), matmul_shape(context, context.shape(0), context.shape(1)))


def matmul(a: Tensor, b: Tensor, shape: Shape, dtype: DType) -> Tensor:
    """The stage `matmul`, which sums in `dtype`."""
    batch = shape[: len(shape) - (a.rank > 1) - (b.rank > 1)]

    def element(*index: Expr) -> Expr:
        *row_index, k = index
        column_index = list(row_index[len(batch) :])
        row = (column_index.pop(0),) if a.rank > 1 else ()
        left = (*aligned(row_index[: len(batch)], a.shape[:-2], batch), *row, k)
        right = (*aligned(row_index[: len(batch)], b.shape[:-2], batch), k, *column_index)
        return a[left].astype(dtype) * b[right].astype(dtype)

    return reduce("matmul", shape, (a.shape[-1],), "add", element)


def rounded(tensor: Tensor, dtype: DType) -> Tensor:
    """The tensor in `dtype`. If it was summed in another type, a separate stage rounds it."""
    if tensor.dtype == dtype:
        return tensor
    return compute(f"{tensor.name}_out", tensor.shape, lambda *i: tensor[i].astype(dtype))


def _matmul(context: Context, a: Tensor, b: Tensor) -> Tensor:
    total = matmul(a, b, context.outputs[0].shape, accumulator(a.dtype))
    return rounded(total, a.dtype)


def _matmul_integer_type(context: Context) -> TensorType:
    for index, axis in ((0, -2), (1, -1)):
        sizes = context.shape(index)
        is_vector = context.has(index + 2) and context.rank(index + 2) == 1
        check_stretches(context, index + 2, sizes[axis:][:1] if is_vector else sizes)
    return TensorType(DType.int32, matmul_shape(context, context.shape(0), context.shape(1)))


def _matmul_integer(
    context: Context,
    a: Tensor,
    b: Tensor,
    a_zero: Tensor | None = None,
    b_zero: Tensor | None = None,
) -> Tensor:
    """A zero point belongs to a whole tensor, to a row of A, or to a column of B."""
    left, right = centred("a", a, a_zero, a.rank - 2), centred("b", b, b_zero, b.rank - 1)
    return matmul(left, right, context.outputs[0].shape, DType.int32)


def centred(name: str, x: Tensor, zero_point: Tensor | None, axis: int) -> Tensor:
    """Subtract the zero point from `x`, in int32. A zero point of rank 1 runs along `axis`."""

    def element(*i: Expr) -> Expr:
        value = x[i].astype(DType.int32)
        if zero_point is None:
            return value
        place, within = (
            ((i[axis],), x.shape[axis : axis + 1]) if zero_point.rank == 1 else (i, x.shape)
        )
        index = aligned(place, zero_point.shape, within)
        return value - zero_point[index].astype(DType.int32)

    return compute(f"{name}_centred", x.shape, element)


def _gemm_type(context: Context) -> TensorType:
    a, b = context.shape(0), context.shape(1)
    if len(a) != 2 or len(b) != 2:
        raise NotSupportedError("Gemm takes matrices")
    rows, inner = a[::-1] if context.attribute("transA", 0) else a
    depth, columns = b[::-1] if context.attribute("transB", 0) else b
    check_inner(context, inner, depth)
    check_stretches(context, 2, (rows, columns))
    return TensorType(context.dtype(0), (rows, columns))


def _gemm(context: Context, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    shape = context.outputs[0].shape
    transposes_a, transposes_b = context.attribute("transA", 0), context.attribute("transB", 0)
    alpha, beta = context.factor("alpha", a.dtype), context.factor("beta", a.dtype)
    wide_dtype = accumulator(a.dtype)

    def element(m: Expr, n: Expr, k: Expr) -> Expr:
        left = a[(k, m) if transposes_a else (m, k)]
        return left.astype(wide_dtype) * b[(n, k) if transposes_b else (k, n)].astype(wide_dtype)

    total = reduce("matmul", shape, (a.shape[0 if transposes_a else 1],), "add", element)
    if bias is None and alpha == 1.0 and wide_dtype == a.dtype:
        return total

    def finish(m: Expr, n: Expr) -> Expr:
        value = total[m, n] if alpha == 1.0 else total[m, n] * Const(alpha, wide_dtype)
        if bias is not None:
            term = bias[aligned((m, n), bias.shape, shape)].astype(wide_dtype)
            value = value + (term if beta == 1.0 else term * Const(beta, wide_dtype))
        return value.astype(a.dtype)

    return compute("gemm", shape, finish)


def einsum_terms(context: Context) -> tuple[list[list[str]], list[str], dict[str, Expr]]:
    """The labels of each operand, the labels of the result, and the size of each label. An ellipsis
    becomes the labels `.0`, `.1`, ...
    """
    equation = str(context.attribute("equation")).replace(" ", "")
    operands, arrow, result_term = equation.partition("->")
    operand_terms = operands.split(",")
    ranks = [context.rank(i) for i in range(len(context.node.inputs))]
    label_counts = [len(term.replace("...", "")) for term in operand_terms]
    fits = [
        r >= n if "..." in t else r == n
        for t, r, n in zip(operand_terms, ranks, label_counts, strict=False)
    ]
    if len(operand_terms) != len(ranks) or not all(fits):
        raise NotSupportedError(f"{equation!r} of tensors of ranks {ranks}")
    ellipsis_rank = 0
    for term, rank in zip(operand_terms, ranks, strict=True):
        if "..." in term:
            ellipsis_rank = max(ellipsis_rank, rank - len(term.replace("...", "")))

    def labels(term: str, rank: int) -> list[str]:
        before, dots, after = term.partition("...")
        count = rank - len(before) - len(after) if dots else 0
        return [*before, *(f".{d}" for d in range(ellipsis_rank - count, ellipsis_rank)), *after]

    terms = [labels(t, r) for t, r in zip(operand_terms, ranks, strict=True)]
    extents: dict[str, Expr] = {}
    for i, names in enumerate(terms):
        input_sizes: dict[str, Expr] = {}
        for label, size in zip(names, context.shape(i), strict=True):
            first_size = input_sizes.setdefault(label, size)
            if not require(context, "equal", first_size, size):
                raise NotSupportedError(
                    f"{label!r} is of sizes {first_size} and {size} in input {i}"
                )
            extents[label] = broadcast(context, (extents.get(label, size),), (size,))[0]
    if arrow:
        return (
            terms,
            labels(result_term, ellipsis_rank + len(result_term.replace("...", ""))),
            extents,
        )
    letters = re.sub(r"[.,]", "", operands)
    single_labels = sorted({x for x in letters if letters.count(x) == 1})
    return terms, [*(f".{d}" for d in range(ellipsis_rank)), *single_labels], extents


def _einsum_type(context: Context) -> TensorType:
    _, result, extents = einsum_terms(context)
    return TensorType(context.dtype(0), tuple(extents[label] for label in result))


def _einsum(context: Context, *tensors: Tensor) -> Tensor:
    terms, result, extents = einsum_terms(context)
    summed = [label for label in extents if label not in result]
    wide_dtype = accumulator(tensors[0].dtype)

    def element(*index: Expr) -> Expr:
        place = dict(zip([*result, *summed], index, strict=True))
        value: Expr | None = None
        for tensor, term in zip(tensors, terms, strict=True):
            term_index = tuple(place[label] for label in term)
            within = tuple(extents[label] for label in term)
            factor = tensor[aligned(term_index, tensor.shape, within)].astype(wide_dtype)
            value = factor if value is None else value * factor
        assert value is not None
        return value

    shape = context.outputs[0].shape
    if not summed:
        total = compute("einsum", shape, element)
    else:
        total = reduce("matmul", shape, [extents[label] for label in summed], "add", element)
    return rounded(total, tensors[0].dtype)


M, K = "float32[3, 4]", "float32[4, 5]"

_PRODUCT = Layout(form="matrix product")


MAX_ROWS = 32
"""The most rows of a matrix whose determinant or inverse is supported. Each row adds about 20
nodes. Chosen by hand.
"""


def _row_count(context: Context, what: str) -> int:
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
    size, dtype = _row_count(context, "a determinant"), context.dtype(0)
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


def inverse(context: Context, build: Builder) -> Value:
    """Turn the matrix into the identity, row by row, and do the same to an identity.

    Each step takes one column. It moves the row with the column's largest element to its place,
    scales the row so that this element is 1, and subtracts multiples of the row from all other
    rows.
    """
    size = _row_count(context, "an inverse")
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


OPS: tuple[Operator, ...] = (
    Operator("MatMul", _matmul_type, _matmul, kind="contraction", layout=_PRODUCT, cases=(
        case(M, K), case("float32[2, 1, 3, 4]", "float32[3, 4, 5]"), case("float32[4]", K),
        case("float32[2, 3, 4]", "float32[4]"), case("int32[2, 3] in 0..9", "int32[3, 2] in 0..9"),
    )),
    Operator("Gemm", _gemm_type, _gemm, kind="contraction", layout=_PRODUCT, cases=(
        case(M, K), case(M, K, "float32[5]"), case(M, K, "float32[3, 1]", alpha=0.5, beta=0.3),
        case("float32[4, 3]", "float32[5, 4]", "float32[1, 5]", transA=1, transB=1))),
    Operator("Einsum", _einsum_type, _einsum, kind="contraction", cases=(
        case(M, K, equation="ij,jk->ik"), case("float32[2, 3, 4]", equation="bij->bji"),
        case("float32[2, 3, 4]", "float32[2, 4, 5]", equation="...ij,...jk->...ik"),
        case("float32[3, 3]", equation="ii->i"), case("float32[3, 4]", equation="ij->"),
        case("float32[2, 3, 4, 8]", "float32[5, 8]", equation="bhid,jd->bhij"))),
    Operator("MatMulInteger", _matmul_integer_type, _matmul_integer, kind="contraction",
             layout=Layout(form="integer matrix product"), cases=(
        case("uint8[3, 4] in 0..255", "uint8[4, 2] in 0..255"),
        case("uint8[3, 4] in 0..255", "int8[4, 2] in -99..99", np.uint8(12), np.int8(3)))),
    Operator("Det", expand=_determinant, cases=(
        case("float32[3, 3]"), case("float32[2, 4, 4]"), case([[0.0, 2], [3, 1]]),
        case("float32[2, 1, 1]"))),
)  # fmt: skip
