"""The operator of causal attention over caches of keys and values (domain `webmlc`).

Sizes: T new tokens, N keys and values, H heads of queries, G heads of keys, D elements of a head.

    CausalAttention(q [T, H, D], k [N, G, D], v [N, G, D])  ->  [T, H, D]

The keys of the new tokens are the last ones. So row `i` of the queries attends to the keys
`j <= i + N - T`. H / G heads of queries share a head of keys and of values. Attributes:

- `scale`: the factor of the scores.
- `softcap`: scores become `softcap * tanh(score / softcap)`; 0: they stay.
- `window`: a query attends to so many keys at most, the last ones; 0: to all.
"""

from __future__ import annotations

import math

from webmlc.core.expr import Const, Expr, as_int, call, select
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator
from webmlc.graph.ops.shapes import canonical, check_shapes, operand, require

Tensors = tuple[Tensor | None, ...]


def _infer(context: Context) -> tuple[TensorType, ...]:
    check_shapes(context, "tokens heads size", "keys groups size", "keys groups size")
    heads, groups = (as_int(context.shape(i)[1]) for i in (0, 1))
    if heads is None or groups is None or heads % groups:
        raise NotSupportedError(f"{heads} heads of queries for {groups} heads of keys")
    require(context, "at most", context.shape(0)[0], context.shape(1)[0])
    return (context.type(0),)


def _attention(context: Context, tensors: Tensors) -> tuple[Tensor, ...]:
    """The scores, the maximum, exponentials and sum of each row; the product; the quotient."""
    queries, keys, values = (operand(tensors, slot) for slot in range(3))
    tokens, heads, size = queries.shape
    count, groups = keys.shape[:2]
    shared = (as_int(heads) or 1) // (as_int(groups) or 1)
    past = canonical(count - tokens)
    scale = context.attribute("scale", 1.0)
    window, softcap = context.attribute("window", 0), context.attribute("softcap", 0.0)
    rows = (tokens, heads)
    dtype = queries.dtype

    scores = reduce(
        "scores", (*rows, count), (size,), "add",
        lambda t, h, j, d: queries[t, h, d] * keys[j, h // shared, d],
    )  # fmt: skip

    def logit(t: Expr, h: Expr, j: Expr) -> Expr:
        score = scores[t, h, j] * Const(scale, dtype)
        if softcap:
            score = call("tanh", score * Const(1 / softcap, dtype)) * Const(softcap, dtype)
        visible = call("le", j, t + past)
        if window:
            visible = visible & call("gt", j, t + past - window)
        return select(visible, score, Const(-math.inf, dtype))

    logits = compute("logits", scores.shape, logit, keep=True)
    top = reduce("max", rows, (count,), "max", lambda t, h, j: logits[t, h, j])
    exponentials = compute(
        "exponential", scores.shape, lambda t, h, j: call("exp", logits[t, h, j] - top[t, h]),
        keep=True,
    )  # fmt: skip
    total = reduce("sum_exp", rows, (count,), "add", lambda t, h, j: exponentials[t, h, j])
    product = reduce(
        "product", queries.shape, (count,), "add",
        lambda t, h, d, j: exponentials[t, h, j] * values[j, h // shared, d],
    )  # fmt: skip
    return (compute("attention", queries.shape, lambda t, h, d: product[t, h, d] / total[t, h]),)


OPS: tuple[Operator, ...] = (
    Operator("CausalAttention", _infer, _attention, kind="contraction", domain="webmlc"),
)
