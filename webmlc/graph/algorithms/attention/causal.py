"""The operator of causal attention over caches of keys and values (domain `webmlc`).

Sizes: T new tokens, N keys and values, H heads of queries, G heads of keys, D elements of a head.

    CausalAttention(q [T, H, D], k [N, G, D], v [N, G, D])  ->  [T, H, D]

The keys of the new tokens are the last ones. So row `i` of the queries attends to the keys
`j <= i + N - T`. H / G heads of queries share a head of keys and of values. Keys and values may be
bfloat16. Attributes:

- `scale`: the factor of the scores.
- `softcap`: scores become `softcap * tanh(score / softcap)`; 0: scores stay as they are.
- `window`: the most keys, the last ones, that a query attends to; 0: all keys.
- `rows`: the first row of queries that the node computes, and the number of rows; all by default.

`tile_rows.py` replaces the attention of many rows by the operators below and a softmax, because
their products have register tiles. The keys are packed in P panels of eight (`ops/layout.py`):

    PackKeys(k [N, G, D])                         ->  [G, P, D, 8]
    CausalScores(q [T, H, D], packed, k)          ->  [H, rows, N]
    WeightedValues(weights [H, rows, N], v)       ->  [rows, H, D]

The rows that fill no tile attend to S sections of keys, of `section` keys each (Flash-Decoding, Dao
et al., 2023). Each section gives the average of its values, and the logarithm of the sum of its
exponentials. A softmax of these logarithms gives the weights of the averages:

    AttendSections(q, k, v)                       ->  averages [rows, H, S, D], [rows, H, S]
    MergeSections(weights [rows, H, S], averages) ->  [rows, H, D]
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, as_expr, as_int, call, const, maximum, minimum, select
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.layout import PACK
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator
from webmlc.graph.ops.shapes import ZERO, canonical, check_shapes, require

LOWEST = float(np.finfo(np.float32).min)
"""The logit of a hidden key in a section. It is finite because the difference of two infinities is
NaN.
"""

Hide = Callable[[Expr, Expr], Expr]


def _infer(context: Context) -> TensorType:
    check_shapes(context, "tokens heads size", "keys groups size", "keys groups size")
    heads, groups = (as_int(context.shape(i)[1]) for i in (0, 1))
    if heads is None or groups is None or heads % groups:
        raise NotSupportedError(f"{heads} heads of queries for {groups} heads of keys")
    require(context, "at most", context.shape(0)[0], context.shape(1)[0])
    return TensorType(context.dtype(0), (_rows(context)[1], *context.shape(0)[1:]))


def _rows(context: Context) -> tuple[Expr, Expr]:
    """The first row of queries that the node computes, and the number of its rows."""
    first, rows = context.attribute("rows", None) or (ZERO, context.shape(0)[0])
    return as_expr(first), as_expr(rows)


def _attention(context: Context, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The scores, the maximum, exponentials and sum of each row; the product; the quotient."""
    heads, size = queries.shape[1:]
    count = keys.shape[0]
    shared = _shared(heads, keys.shape[1])
    first, tokens = _rows(context)
    rows = (tokens, heads)
    logit = _logit(context, count, _select)

    scores = reduce(
        "scores", (*rows, count), (size,), "add",
        lambda t, h, j, d: queries[t + first, h, d] * wide(keys[j, h // shared, d]),
    )  # fmt: skip

    logits = compute(
        "logits", scores.shape, lambda t, h, j: logit(scores[t, h, j], t, j), keep=True
    )
    # A relaxed maximum may drop a NaN, but its exponential makes the row NaN anyway.
    top = reduce("max", rows, (count,), "relaxed_max", lambda t, h, j: logits[t, h, j])
    exponentials = compute(
        "exponential", scores.shape, lambda t, h, j: call("exp", logits[t, h, j] - top[t, h]),
        keep=True,
    )  # fmt: skip
    total = reduce("sum_exp", rows, (count,), "add", lambda t, h, j: exponentials[t, h, j])
    shape = (*rows, size)
    product = reduce(
        "product", shape, (count,), "add",
        lambda t, h, d, j: exponentials[t, h, j] * wide(values[j, h // shared, d]),
    )  # fmt: skip
    return compute("attention", shape, lambda t, h, d: product[t, h, d] / total[t, h])


def wide(element: Expr) -> Expr:
    """An element of keys or values, which may be bfloat16, as float32."""
    return element.astype(DType.float32)


def _shared(heads: Expr, groups: Expr) -> int:
    """The number of query heads that share each of `groups` heads of keys and values."""
    return (as_int(heads) or 1) // (as_int(groups) or 1)


def _logit(context: Context, keys: Expr, hide: Hide) -> Callable[[Expr, Expr, Expr], Expr]:
    """The logit of a score, by the row of the query and the key."""
    first, _ = _rows(context)
    past = canonical(keys - context.shape(0)[0] + first)
    window, softcap = context.attribute("window", 0), context.attribute("softcap", 0.0)
    dtype = context.dtype(0)
    scale = Const(context.attribute("scale", 1.0), dtype)

    def logit(score: Expr, t: Expr, j: Expr) -> Expr:
        score = score * scale
        if softcap:
            score = call("tanh", score * Const(1 / softcap, dtype)) * Const(softcap, dtype)
        last = t + past
        score = hide(score, last - j)
        return hide(score, j + window - last - 1) if window else score

    return logit


def _select(score: Expr, distance: Expr) -> Expr:
    """The score, or minus infinity if the distance is negative."""
    return select(call("ge", distance, 0), score, Const(-math.inf, score.dtype))


def _limit(score: Expr, distance: Expr) -> Expr:
    """The result of `_select` by arithmetic: the smaller of the score and an infinity with the sign
    of the distance. The distance may differ between the lanes of a vector, which a condition
    cannot.
    """
    dtype = score.dtype
    infinity = (distance.astype(dtype) + Const(0.5, dtype)) * Const(math.inf, dtype)
    return call("min", score, infinity)


def _infer_packed(context: Context) -> TensorType:
    keys, groups, size = context.shape(0)
    used = minimum(as_expr(context.attribute("rows")[1]), 1)
    panels = canonical((keys + (PACK - 1)) // PACK * used)
    return TensorType(DType.float32, (groups, panels, size, const(PACK)))


def _pack_keys(context: Context, keys: Tensor) -> Tensor:
    """Pack the keys as the right operand of the scores. Copies of the last key fill the last panel.
    There is no panel if there are no rows.
    """
    last = keys.shape[0] - 1
    return compute(
            "packed", context.outputs[0].shape,
            lambda g, p, d, c: wide(keys[minimum(p * PACK + c, last), g, d]),
        )  # fmt: skip


def _infer_scores(context: Context) -> TensorType:
    shape = (context.shape(0)[1], _rows(context)[1], context.shape(2)[0])
    return TensorType(context.dtype(0), shape)


def _scores(context: Context, queries: Tensor, packed: Tensor, _keys: Tensor) -> Tensor:
    """The logits of a block of rows. The keys themselves are not read, only counted."""
    shape, size = context.outputs[0].shape, queries.shape[2]
    first, _ = _rows(context)
    shared = _shared(queries.shape[1], packed.shape[0])
    scores = reduce(
        "scores", shape, (size,), "add",
        lambda h, t, j, d: queries[t + first, h, d] * packed[h // shared, j // PACK, d, j % PACK],
    )  # fmt: skip
    logit = _logit(context, shape[2], _limit)
    return compute("logits", shape, lambda h, t, j: logit(scores[h, t, j], t, j))


def _infer_values(context: Context) -> TensorType:
    (heads, rows, _), size = context.shape(0), context.shape(1)[2]
    return TensorType(context.dtype(0), (rows, heads, size))


def _values(context: Context, weights: Tensor, values: Tensor) -> Tensor:
    """The sums of the values by their weights."""
    shape, count = context.outputs[0].shape, values.shape[0]
    shared = _shared(shape[1], values.shape[1])
    return reduce(
            "product", shape, (count,), "add",
            lambda t, h, d, j: weights[h, t, j] * wide(values[j, h // shared, d]),
        )  # fmt: skip


def _infer_sections(context: Context) -> tuple[TensorType, ...]:
    (_, heads, size), count = context.shape(0), context.shape(1)[0]
    keys = context.attribute("section", 1)
    shape = (_rows(context)[1], heads, canonical((count + (keys - 1)) // keys))
    return (TensorType(context.dtype(0), (*shape, size)), TensorType(context.dtype(0), shape))


def _attend_sections(
    context: Context, queries: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, ...]:
    """The averages of the values of sections, and the logarithms of their sums of exponentials.

    Copies of the last key, which are hidden, fill the last section. If a row sees no key of a
    section, its average is some number, and its logarithm is so low that its weight is 0.
    """
    rows, (size, count) = context.outputs[1].shape, (queries.shape[2], keys.shape[0])
    section = const(context.attribute("section", 1))
    shared = _shared(queries.shape[1], keys.shape[1])
    first, _ = _rows(context)
    logit = _logit(context, count, _limit)
    lowest, last = Const(LOWEST, context.dtype(0)), maximum(count - 1, 0)

    def key(s: Expr, j: Expr) -> Expr:
        return minimum(s * section + j, last)

    scores = reduce(
        "scores", (*rows, section), (size,), "add",
        lambda t, h, s, j, d: queries[t + first, h, d] * wide(keys[key(s, j), h // shared, d]),
    )  # fmt: skip
    logits = compute(
        "logits", scores.shape,
        lambda t, h, s, j: maximum(logit(scores[t, h, s, j], t, s * section + j), lowest),
        keep=True,
    )  # fmt: skip
    top = reduce("max", rows, (section,), "relaxed_max", lambda *i: logits[i])
    exponentials = compute(
        "exponential", scores.shape, lambda *i: call("exp", logits[i] - top[i[:-1]]), keep=True
    )
    total = reduce("sum_exp", rows, (section,), "add", lambda *i: exponentials[i])
    product = reduce(
        "product", (*rows, size), (section,), "add",
        lambda t, h, s, d, j: exponentials[t, h, s, j] * wide(values[key(s, j), h // shared, d]),
    )  # fmt: skip
    return (
        compute("averages", product.shape, lambda *i: product[i] / total[i[:-1]]),
        compute("logarithms", rows, lambda *i: call("log", total[i]) + top[i]),
    )


def _infer_merged(context: Context) -> TensorType:
    rows, heads, _, size = context.shape(1)
    return TensorType(context.dtype(0), (rows, heads, size))


def _merge_sections(context: Context, weights: Tensor, averages: Tensor) -> Tensor:
    """The sums of the averages of sections by their weights."""
    return reduce(
            "merged", context.outputs[0].shape, (averages.shape[2],), "add",
            lambda t, h, d, s: weights[t, h, s] * averages[t, h, s, d],
        )  # fmt: skip


OPS: tuple[Operator, ...] = (
    Operator("CausalAttention", _infer, _attention, kind="contraction", domain="webmlc"),
    Operator("PackKeys", _infer_packed, _pack_keys, kind="injective", domain="webmlc"),
    Operator("CausalScores", _infer_scores, _scores, kind="contraction", domain="webmlc"),
    Operator("WeightedValues", _infer_values, _values, kind="contraction", domain="webmlc"),
    Operator(
        "AttendSections", _infer_sections, _attend_sections, kind="contraction", domain="webmlc"
    ),
    Operator("MergeSections", _infer_merged, _merge_sections, kind="contraction", domain="webmlc"),
)
