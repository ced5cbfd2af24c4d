"""The operator softmax(L) V, the second half of attention (domain `webmlc`).

`use_attention.py` writes it for a softmax and a product. The nodes before it, which compute the
logits L (the product of queries and keys, a scale, a mask), stay nodes. Fusion puts them into the
kernel of the attention (`nodes.py`).

The sizes are M queries, N keys and D columns of V. The sum of the exponentials divides the product,
which is smaller than the logits. V may be packed like a right operand (`ops/layout.py`):

    Attention(logits [*, M, N], v [*, N, D])                ->  [*, M, D]
    Attention(logits [*, M, N], v [*, D/8, N, 8], columns)  ->  [*, M, D]

If several heads of queries share a head of keys and values, that head is repeated:

    RepeatHeads(x [*, G, N, D], times)                      ->  [*, G * times, N, D]
"""

from __future__ import annotations

from collections.abc import Callable

from webmlc.core.expr import Const, Expr, as_expr, as_int, call, select
from webmlc.graph.compute import Reduction, Tensor, compute, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.layout import packed_product
from webmlc.graph.ops.operator import Context, Operator
from webmlc.graph.ops.shapes import aligned, canonical

FEWEST_KEYS = 32
"""The fewest keys of attention in one GPU dispatch, if their number is known at build time: two
steps of a small workgroup. Products of fewer keys are short (chosen by hand)."""
MOST_COLUMNS = 256
"""The most columns of the values in one GPU dispatch: a workgroup keeps a few rows of the result in
its memory."""
FEWEST_COLUMNS = 4
"""The fewest columns of the values in one GPU dispatch: one vector."""

Multiply = Callable[[tuple[Expr, ...], Tensor, Tensor], Tensor]


def _infer(context: Context) -> TensorType:
    columns = context.attribute("columns", context.shape(1)[-1])
    return TensorType(context.dtype(0), (*context.shape(0)[:-1], as_expr(columns)))


def _attention(context: Context, logits: Tensor, values: Tensor) -> Tensor:
    multiply = plain_values if context.attribute("columns") is None else packed_values
    return attention(context.outputs[0].shape, logits, values, multiply)


def attention(
    shape: tuple[Expr, ...], source: Tensor, values: Tensor, multiply: Multiply
) -> Tensor:
    """The maximum, exponentials and sum of each row; the product; the quotient. The logits are a
    separate stage, unless they are a product beside packed values, which is stored anyway.
    """
    rows, count = source.shape[:-1], source.shape[-1]
    is_stage = isinstance(source.body, Reduction) and multiply is packed_values
    logits = (
        source if is_stage else compute("logits", source.shape, lambda *i: source[i], keep=True)
    )
    # A relaxed maximum may drop a NaN, but its exponential makes the row NaN anyway.
    top = reduce("max", rows, (count,), "relaxed_max", lambda *i: logits[i])
    exponential = compute(
        "exponential", logits.shape, lambda *i: call("exp", logits[i] - top[i[:-1]]), keep=True
    )
    total = reduce("sum_exp", rows, (count,), "add", lambda *i: exponential[i])
    product = multiply(shape, exponential, values)

    def quotient(*i: Expr) -> Expr:
        divisor = total[i[:-1]]
        if as_int(count) is None:  # without keys, the product is 0
            divisor = select(call("gt", count, 0), divisor, Const(1.0, total.dtype))
        return product[i] / divisor

    return compute("attention", shape, quotient)


def packed_values(shape: tuple[Expr, ...], weights: Tensor, values: Tensor) -> Tensor:
    """The sums of packed values by their weights."""
    return packed_product("product", shape, weights, values)


def plain_values(shape: tuple[Expr, ...], weights: Tensor, values: Tensor) -> Tensor:
    """The sums of the values by their weights. The batch of the values may be broadcast."""
    batch = shape[:-2]

    def element(*axes: Expr) -> Expr:
        *rows, column, key = axes
        place = aligned(rows[: len(batch)], values.shape[:-2], batch)
        return weights[(*rows, key)] * values[(*place, key, column)]

    return reduce("product", shape, weights.shape[-1:], "add", element)


def _infer_repeated(context: Context) -> TensorType:
    *batch, heads, rows, columns = context.shape(0)
    repeated = canonical(heads * as_expr(context.attribute("times")))
    return TensorType(context.dtype(0), (*batch, repeated, rows, columns))


def _repeated(context: Context, source: Tensor) -> Tensor:
    times = as_expr(context.attribute("times"))

    def element(*axes: Expr) -> Expr:
        *batch, head, row, column = axes
        return source[(*batch, head // times, row, column)]

    return compute("repeat", context.outputs[0].shape, element)


OPS: tuple[Operator, ...] = (
    Operator("Attention", _infer, _attention, kind="contraction", domain="webmlc"),
    Operator("RepeatHeads", _infer_repeated, _repeated, kind="injective", domain="webmlc"),
)
