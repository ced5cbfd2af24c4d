"""Attention and MultiHeadAttention as onnxruntime fuses them: expanded into matrix products, masks
and softmax.

Sizes in the comments: batch B, new tokens S, past tokens P, all tokens T, heads N, head size H.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_int, const
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ops.index import require_within
from webmlc.graph.ops.microsoft.rows import check_score_bias, known_size, row
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, Result, case
from webmlc.graph.ops.shapes import (
    ZERO,
    canonical,
    check_shape,
    check_shapes,
    check_stretches,
    same,
)

HIDDEN = float("-inf")
"""The score that a mask writes for keys that a query does not see. A query gives such a key no
weight, however low the scores of the other keys are.
"""

ANY_LENGTH = const((1 << 31) - 1)
"""More than any length that an attention can have, in tokens: sizes are signed 32-bit integers."""


@dataclass(frozen=True, slots=True)
class AttentionWriter:
    """Write the parts that all three attention operators share."""

    context: Context
    build: Builder
    dtype: DType

    def heads(self, x: Value, count: int) -> Value:
        """Split the heads of [B, S, N·H]: [B, N, S, H]."""
        return x.reshape(0, 0, count, -1).transpose(0, 2, 1, 3)

    def merged(self, x: Value) -> Value:
        """Merge the heads of [B, N, S, H]: [B, S, N·H]."""
        return x.transpose(0, 2, 1, 3).reshape(0, 0, -1)

    def scores(self, q: Value, k: Value, scale: float) -> Value:
        """Compute scale · Q Kᵀ: [B, N, S, T]."""
        return q @ k.transpose(0, 1, 3, 2) * scale

    def number(self, value: float) -> Value:
        """A scalar constant of the operator's dtype."""
        return self.build.constant(value, self.dtype)

    def causal(self, scores: Value, q: Value, k: Value, past: Value | None, axis: int = 2) -> Value:
        """Mask the scores, so that no query sees a later key. The first query comes after the
        `past` tokens.
        """
        build = self.build
        start = build.constant(np.int64(0)) if past is None else past.size(axis)
        queries = build("Range", start, start + q.size(2), 1).unsqueeze(1)
        keys = build("Range", 0, k.size(2), 1)
        return keys.op("LessOrEqual", queries).where(scores, HIDDEN)

    def masked(self, scores: Value, mask: Value, rank: int, k: Value, fill: float) -> Value:
        """Add `fill` to the scores of padding tokens.

        A mask of shape [B] holds the number of tokens that are not padding. A mask of shape [B, T]
        or [B, S, T] is not zero for tokens that are not padding.
        """
        build = self.build
        if rank == 1:
            total = k.size(2).unsqueeze(0)
            keys = build("Range", 0, total.op("Squeeze"), 1)
            counts = mask.cast(DType.int64)
            if self.context.node.op == "Attention":  # which refuses negative counts
                counts = require_within(build, build("Min", counts, total), ANY_LENGTH)
            is_visible = keys.op("Less", counts.unsqueeze(1))
            rank = 2
        else:
            is_visible = mask.op("Greater", 0)
        axes = {2: (1, 2), 3: (1,)}.get(rank)
        if axes is None:
            raise NotSupportedError(f"a mask of rank {rank}")
        is_visible = is_visible.unsqueeze(*axes)
        bias = is_visible.where(self.number(0.0), self.number(fill))
        return scores + bias

    def output(self, scores: Value, v: Value, sink: Value | None = None) -> Value:
        """Compute softmax(scores) V and merge the heads. A `sink`, [N] or [1], is a further score
        of each row, for a key without a value.
        """
        build = self.build
        if sink is None:
            return self.merged(build("Softmax", scores, axis=-1) @ v)
        rows = build("Concat", scores.op("Shape", start=0, end=3), [1], axis=0)
        column = sink.reshape(1, -1, 1, 1).op("Expand", rows)
        shares = build("Concat", scores, column, axis=3).op("Softmax", axis=-1)
        return self.merged(shares.slice(0, -1, 3) @ v)

    def appended(self, past: Value | None, new: Value) -> Value:
        """Join the tokens of the past and the new tokens along axis 2."""
        return new if past is None else self.build("Concat", past, new, axis=2)

    def scale(self, head_size: int) -> float:
        """The factor of the scores: the attribute `scale`, or 1/sqrt(H)."""
        return float(self.context.attribute("scale", 0.0)) or 1 / math.sqrt(head_size)


def _attention(context: Context, build: Builder) -> tuple[Result, ...]:
    """Expand Attention: one product gives Q, K and V. Past and present are [2, B, N, T, H]."""
    if context.attribute("do_rotary", 0) or context.attribute("past_present_share_buffer", 0):
        raise NotSupportedError("rotary or a shared buffer inside Attention")
    check_shapes(context, "batch length features", "features columns", "columns")
    attention = AttentionWriter(context, build, context.dtype(0))
    x, weights, bias, mask, past, score_bias = (build.optional(i) for i in range(6))
    assert x is not None and weights is not None
    before = context.shape(4)[3] if past is not None else ZERO
    total = canonical(before + context.shape(0)[1])
    _check_mask(context, 3, total)
    heads = context.count("num_heads")
    check_score_bias(context, 5, context.shape(0)[0], heads, context.shape(0)[1], total)
    columns = known_size(context.shape(1)[1], "the number of columns of the weights")
    sizes = [int(s) for s in context.attribute("qkv_hidden_sizes", ()) or (columns // 3,) * 3]
    cache = {"batch": context.shape(0)[0], "heads": const(heads), "size": const(sizes[1] // heads)}
    check_shapes(context, "", "", "", "", "2 batch heads past size", **cache)
    product = x @ weights
    product = product if bias is None else product + bias
    parts = build.many("Split", product, sizes, outputs=3, axis=2)
    q, k, v = (attention.heads(part, heads) for part in parts)
    present = build("Concat", *(x.unsqueeze(0) for x in (k, v)), axis=0)
    if past is not None:  # joined as a pair, so that `use_states` finds a past and its present
        present = build("Concat", past, present, axis=3)
        k, v = (present.element(i, 0) for i in range(2))
    scores = attention.scores(q, k, attention.scale(sizes[0] // heads))
    if mask is not None:
        fill = float(context.attribute("mask_filter_value", -10000.0))
        scores = attention.masked(scores, mask, context.rank(3), k, fill)
    if score_bias is not None:
        scores = scores + score_bias
    if context.attribute("unidirectional", 0):
        scores = attention.causal(scores, q, k, past, axis=3)
    return attention.output(scores, v), present


def _check_mask(context: Context, index: int, total: Expr) -> None:
    """Check the shape of a mask: [B], [B, T] or [B, S, T]. A mask [B, 1] hides all keys of a row
    or none, which has no effect.
    """
    if not context.has(index):
        return
    batch, length = context.shape(0)[:2]
    if context.rank(index) == 2:
        check_shape(context, index, (batch, context.shape(index)[1]))
        check_stretches(context, index, (batch, total))
    elif context.rank(index) in (1, 3):
        check_shape(context, index, (batch, length, total)[: context.rank(index)])


def _separate(context: Context, build: Builder) -> tuple[Value, Value, Value]:
    """Separate Q, K and V, which may be packed, to [B, S, N·H]. K and V that already have heads, as
    [B, N, T, H], stay.
    """
    q, k, v = (build.optional(i) for i in range(3))
    assert q is not None
    packed, axis = (q, 3) if k is None else (k, 3)
    if k is None or (v is None and context.rank(1) == 5):
        count = 3 if k is None else 2
        split = build.many("Split", packed, outputs=count, axis=axis, num_outputs=count)
        parts = [s.reshape(0, 0, -1) for s in split]
        return (parts[0], parts[1], parts[2]) if k is None else (q, parts[0], parts[1])
    assert v is not None
    return q, k, v


def _multi_head(context: Context, build: Builder) -> tuple[Result, ...]:
    attention = AttentionWriter(context, build, context.dtype(0))
    heads = context.count("num_heads")
    if context.has(8) or context.has(9):
        raise NotSupportedError("a shared buffer or beams inside MultiHeadAttention")
    query = "heads parts size" if context.rank(0) == 5 else "heads*size"
    check_shapes(context, f"batch length {query}", "", "", "columns", heads=heads, parts=3)
    _check_keys(context, heads)
    before = context.shape(6)[2] if context.has(6) else ZERO
    keys = canonical(before + _key_count(context))
    _check_mask(context, 4, keys)
    check_score_bias(context, 5, context.shape(0)[0], heads, context.shape(0)[1], keys)
    parts = list(_separate(context, build))
    has_heads = context.has(1) and context.rank(1) == 4
    if (bias := build.optional(3)) is not None:
        hidden = _hidden_size(context, heads)
        total = known_size(context.shape(3)[0], "the number of biases")
        bounds = ((0, hidden), (hidden, 2 * hidden), (2 * hidden, total))
        for i, (start, stop) in enumerate(bounds[: 1 if has_heads else 3]):
            parts[i] = parts[i] + bias.slice(start, stop, 0)
    q = attention.heads(parts[0], heads)
    k, v = (p if has_heads else attention.heads(p, heads) for p in parts[1:])
    k = attention.appended(build.optional(6), k)
    v = attention.appended(build.optional(7), v)
    scores = attention.scores(q, k, attention.scale(_hidden_size(context, heads) // heads))
    if (mask := build.optional(4)) is not None:
        fill = float(context.attribute("mask_filter_value", -10000.0))
        scores = attention.masked(scores, mask, context.rank(4), k, fill)
    if (score_bias := build.optional(5)) is not None:
        scores = scores + score_bias
    if context.attribute("unidirectional", 0):
        _check_lengths(context)
        scores = attention.causal(scores, q, k, build.optional(6))
    return attention.output(scores, v), k, v, scores


def _check_lengths(context: Context) -> None:
    """Refuse a causal mask if there are more new keys than queries. onnxruntime does not define
    which keys the last query then sees.
    """
    if not context.has(1):
        return
    queries, keys = context.shape(0)[1], _key_count(context)
    query_count, key_count = as_int(queries), as_int(keys)
    if same(queries, keys) or (
        query_count is not None and key_count is not None and query_count >= key_count
    ):
        return
    raise NotSupportedError(f"unidirectional attention of {queries} queries to {keys} keys")


def _key_count(context: Context) -> Expr:
    """The number of new keys of a MultiHeadAttention."""
    if not context.has(1):
        return context.shape(0)[1]
    return context.shape(1)[2 if context.rank(1) == 4 else 1]


def _check_keys(context: Context, heads: int) -> None:
    """Check keys and values: equal counts, and the batches and heads of the queries."""
    batch, size = context.shape(0)[0], _hidden_size(context, heads) // heads
    for index in (1, 2):
        if not context.has(index):
            continue
        sizes: dict[str, Expr | int] = {"batch": batch, "keys": _key_count(context), "heads": heads}
        if context.rank(index) == 4:
            check_shapes(context, *[""] * index, "batch heads keys size", size=size, **sizes)
        elif context.rank(index) == 3:
            if index == 1:  # values may have another size
                sizes["size"] = size
            check_shapes(context, *[""] * index, "batch keys heads*size", **sizes)
        else:
            check_shapes(context, *[""] * index, "batch ...", batch=batch)


def _hidden_size(context: Context, heads: int) -> int:
    """The number of columns of Q, which is N·H."""
    if context.rank(0) == 5:
        return heads * known_size(context.shape(0)[4], "the head size")
    return known_size(context.shape(0)[2], "the hidden size")


X, WEIGHTS, BIAS = "float32[2, 3, 8]", "float32[8, 24]", "float32[24]"
PAST = "float32[2, 2, 2, 4, 4]"
MASK = np.array([[0, 1, 1], [1, 1, 1]], np.int32)
LONG = np.array([[0, 1, 1, 1, 1, 1, 1], [1] * 7], np.int32)

OPS: tuple[Operator, ...] = (
    row("Attention", 6, "do_rotary mask_filter_value num_heads past_present_share_buffer"
        " qkv_hidden_sizes rotary_embedding_dim scale unidirectional", _attention,
        case(X, WEIGHTS, BIAS, num_heads=2), case(X, WEIGHTS, BIAS, MASK, num_heads=2),
        case(X, WEIGHTS, BIAS, np.array([3, 2], np.int32), num_heads=2, scale=0.3),
        case(X, WEIGHTS, BIAS, LONG, PAST, num_heads=2, unidirectional=1, outputs=2),
        case(X, WEIGHTS, BIAS, None, None, "float32[1, 2, 3, 3]", num_heads=2)),
    row("MultiHeadAttention", 10, "mask_filter_value num_heads scale unidirectional", _multi_head,
        case(X, X, X, num_heads=2), case(X, X, X, BIAS, MASK, num_heads=2),
        case(X, "float32[2, 5, 8]", "float32[2, 5, 8]", num_heads=2, scale=0.4),
        case(X, "float32[2, 2, 5, 4]", "float32[2, 2, 5, 4]", num_heads=2),
        case(X, X, X, None, None, "float32[2, 2, 3, 7]", "float32[2, 2, 4, 4]",
             "float32[2, 2, 4, 4]", num_heads=2, outputs=3),
        case(X, X, X, num_heads=2, unidirectional=1),
        case(X, "float32[2, 2, 8]", "float32[2, 2, 8]", num_heads=2, unidirectional=1)),
)  # fmt: skip
