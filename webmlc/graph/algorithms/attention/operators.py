"""The operator softmax(scale · Q Kᵀ + bias) V (domain `webmlc`).

`use_attention.py` writes it for a product, a softmax and a product.

K and V are packed like right operands (`ops/layout.py`). The sizes are M queries, N keys and D
columns of V. The sum of the exponentials divides the product, which is smaller than the scores:

    Attention(q [*, M, C], k [*, N/8, C, 8], v [*, D/8, N, 8], bias)  ->  [*, M, D]
"""

from __future__ import annotations

from webmlc.core.expr import Const, Expr, as_expr, call
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.layout import packed_product
from webmlc.graph.ops.operator import Context, Operator
from webmlc.graph.ops.shapes import aligned, operand

Tensors = tuple[Tensor | None, ...]


def _infer(context: Context) -> tuple[TensorType, ...]:
    columns = as_expr(context.attribute("columns"))
    return (TensorType(context.dtype(0), (*context.shape(0)[:-1], columns)),)


def _attention(context: Context, tensors: Tensors) -> tuple[Tensor, ...]:
    queries, keys, values = (operand(tensors, slot) for slot in range(3))
    bias = tensors[3] if len(tensors) > 3 else None
    shape = context.outputs[0].shape
    return (attention(shape, queries, keys, values, bias, context.attribute("scale")),)


def attention(
    shape: tuple[Expr, ...],
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor | None,
    scale: float,
) -> Tensor:
    """The scores, the maximum, exponentials and sum of each row; the product; the quotient."""
    rows, count = shape[:-1], values.shape[-2]
    scores = packed_product("scores", (*rows, count), queries, keys)

    def logit(*i: Expr) -> Expr:
        value = scores[i] if scale == 1 else scores[i] * Const(scale, scores.dtype)
        return value if bias is None else value + bias[aligned(i, bias.shape, scores.shape)]

    plain = scale == 1 and bias is None
    logits = scores if plain else compute("logits", scores.shape, logit, keep=True)
    # A relaxed maximum may drop a NaN, but its exponential makes the row NaN anyway.
    top = reduce("max", rows, (count,), "relaxed_max", lambda *i: logits[i])
    exponential = compute(
        "exponential", scores.shape, lambda *i: call("exp", logits[i] - top[i[:-1]]), keep=True
    )
    total = reduce("sum_exp", rows, (count,), "add", lambda *i: exponential[i])
    product = packed_product("product", shape, exponential, values)
    return compute("attention", shape, lambda *i: product[i] / total[i[:-1]])


OPS: tuple[Operator, ...] = (
    Operator("Attention", _infer, _attention, kind="contraction", domain="webmlc"),
)
