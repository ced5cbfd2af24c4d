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
from webmlc.graph.builder import Builder
from webmlc.graph.ops.index import require_within
from webmlc.graph.ops.microsoft.rows import (
    check_score_bias,
    known_size,
    number,
    optional,
    piece,
    reshape,
    row,
    select_outputs,
    size_of,
)
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

    def heads(self, x: str, count: int) -> str:
        """Split the heads of [B, S, N·H]: [B, N, S, H]."""
        return self.build("Transpose", reshape(self.build, x, (0, 0, count, -1)), perm=(0, 2, 1, 3))

    def merged(self, x: str) -> str:
        """Merge the heads of [B, N, S, H]: [B, S, N·H]."""
        return reshape(self.build, self.build("Transpose", x, perm=(0, 2, 1, 3)), (0, 0, -1))

    def scores(self, q: str, k: str, scale: float) -> str:
        """Compute scale · Q Kᵀ: [B, N, S, T]."""
        across = self.build("Transpose", k, perm=(0, 1, 3, 2))
        return self.build("Mul", self.build("MatMul", q, across), self.number(scale))

    def number(self, value: float) -> str:
        """A scalar constant of the operator's dtype."""
        return number(self.build, value, self.dtype)

    def causal(self, scores: str, q: str, k: str, past: str | None, axis: int = 2) -> str:
        """Mask the scores, so that no query sees a later key. The first query comes after the
        `past` tokens.
        """
        build = self.build
        zero, one = build.constant(np.int64(0)), build.constant(np.int64(1))
        start = zero if past is None else size_of(build, past, axis)
        end = build("Add", start, size_of(build, q, 2))
        queries = build("Unsqueeze", build("Range", start, end, one), axes=(1,))
        keys = build("Range", zero, size_of(build, k, 2), one)
        return build("Where", build("LessOrEqual", keys, queries), scores, self.number(HIDDEN))

    def masked(self, scores: str, mask: str, rank: int, k: str, fill: float) -> str:
        """Add `fill` to the scores of padding tokens.

        A mask of shape [B] holds the number of tokens that are not padding. A mask of shape [B, T]
        or [B, S, T] is not zero for tokens that are not padding.
        """
        build = self.build
        zero = number(build, 0, self.context.dtype(self.context.node.inputs.index(mask)))
        if rank == 1:
            total = build("Unsqueeze", size_of(build, k, 2), axes=(0,))
            one = build.constant(np.int64(1))
            keys = build("Range", build.constant(np.int64(0)), build("Squeeze", total), one)
            counts = build("Cast", mask, to=7)
            if self.context.node.op == "Attention":  # which refuses negative counts
                counts = require_within(build, build("Min", counts, total), ANY_LENGTH)
            lengths = build("Unsqueeze", counts, axes=(1,))
            is_visible = build("Less", keys, lengths)
            rank = 2
        else:
            is_visible = build("Greater", mask, zero)
        axes = {2: (1, 2), 3: (1,)}.get(rank)
        if axes is None:
            raise NotSupportedError(f"a mask of rank {rank}")
        is_visible = build("Unsqueeze", is_visible, axes=axes)
        bias = build("Where", is_visible, self.number(0.0), self.number(fill))
        return build("Add", scores, bias)

    def output(self, scores: str, v: str, sink: str | None = None) -> str:
        """Compute softmax(scores) V and merge the heads. A `sink`, [N] or [1], is a further score
        of each row, for a key without a value.
        """
        build = self.build
        if sink is None:
            return self.merged(build("MatMul", build("Softmax", scores, axis=-1), v))
        one, minus = build.constant([1]), build.constant([-1])
        column = build("Concat", build("Shape", scores, start=0, end=3), one, axis=0)
        column = build("Expand", reshape(build, sink, (1, -1, 1, 1)), column)
        shares = build("Softmax", build("Concat", scores, column, axis=3), axis=-1)
        zero, axis = build.constant([0]), build.constant([3])
        return self.merged(build("MatMul", build("Slice", shares, zero, minus, axis), v))

    def appended(self, past: str | None, new: str) -> str:
        """Join the tokens of the past and the new ones along axis 2."""
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
    x, weights, bias, mask, past, score_bias = (optional(context, i) for i in range(6))
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
    product = build("MatMul", x, weights)
    product = product if bias is None else build("Add", product, bias)
    lengths = build.constant(np.array(sizes, np.int64))
    parts = build.many("Split", product, lengths, outputs=3, axis=2)
    q, k, v = (attention.heads(part, heads) for part in parts)
    present = build("Concat", *(build("Unsqueeze", x, axes=(0,)) for x in (k, v)), axis=0)
    if past is not None:  # joined as a pair, so that `use_states` finds a past and its present
        present = build("Concat", past, present, axis=3)
        k, v = (build("Gather", present, build.constant(np.int64(i)), axis=0) for i in range(2))
    scores = attention.scores(q, k, attention.scale(sizes[0] // heads))
    if mask is not None:
        fill = float(context.attribute("mask_filter_value", -10000.0))
        scores = attention.masked(scores, mask, context.rank(3), k, fill)
    if score_bias is not None:
        scores = build("Add", scores, score_bias)
    if context.attribute("unidirectional", 0):
        scores = attention.causal(scores, q, k, past, axis=3)
    return select_outputs(context, attention.output(scores, v), present)


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


def _separate(context: Context, build: Builder) -> tuple[str, str, str]:
    """Separate Q, K and V, which may be packed, to [B, S, N·H]. K and V that already have heads, as
    [B, N, T, H], stay.
    """
    q, k, v = (optional(context, i) for i in range(3))
    assert q is not None
    packed, axis = (q, 3) if k is None else (k, 3)
    if k is None or (v is None and context.rank(1) == 5):
        count = 3 if k is None else 2
        split = build.many("Split", packed, outputs=count, axis=axis, num_outputs=count)
        parts = [reshape(build, s, (0, 0, -1)) for s in split]
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
    if (bias := optional(context, 3)) is not None:
        hidden = _hidden_size(context, heads)
        total = known_size(context.shape(3)[0], "the number of biases")
        bounds = ((0, hidden), (hidden, 2 * hidden), (2 * hidden, total))
        for i, (start, stop) in enumerate(bounds[: 1 if has_heads else 3]):
            parts[i] = build("Add", parts[i], piece(build, bias, 0, start, stop))
    q = attention.heads(parts[0], heads)
    k, v = (p if has_heads else attention.heads(p, heads) for p in parts[1:])
    k = attention.appended(optional(context, 6), k)
    v = attention.appended(optional(context, 7), v)
    scores = attention.scores(q, k, attention.scale(_hidden_size(context, heads) // heads))
    if (mask := optional(context, 4)) is not None:
        fill = float(context.attribute("mask_filter_value", -10000.0))
        scores = attention.masked(scores, mask, context.rank(4), k, fill)
    if (score_bias := optional(context, 5)) is not None:
        scores = build("Add", scores, score_bias)
    if context.attribute("unidirectional", 0):
        _check_lengths(context)
        scores = attention.causal(scores, q, k, optional(context, 6))
    return select_outputs(context, attention.output(scores, v), k, v, scores)


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
    """Check that there are as many values as keys, of the batches and heads of the queries."""
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
    row("Attention", _attention,
        case(X, WEIGHTS, BIAS, num_heads=2), case(X, WEIGHTS, BIAS, MASK, num_heads=2),
        case(X, WEIGHTS, BIAS, np.array([3, 2], np.int32), num_heads=2, scale=0.3),
        case(X, WEIGHTS, BIAS, LONG, PAST, num_heads=2, unidirectional=1, outputs=2),
        case(X, WEIGHTS, BIAS, None, None, "float32[1, 2, 3, 3]", num_heads=2)),
    row("MultiHeadAttention", _multi_head,
        case(X, X, X, num_heads=2), case(X, X, X, BIAS, MASK, num_heads=2),
        case(X, "float32[2, 5, 8]", "float32[2, 5, 8]", num_heads=2, scale=0.4),
        case(X, "float32[2, 2, 5, 4]", "float32[2, 2, 5, 4]", num_heads=2),
        case(X, X, X, None, None, "float32[2, 2, 3, 7]", "float32[2, 2, 4, 4]",
             "float32[2, 2, 4, 4]", num_heads=2, outputs=3),
        case(X, X, X, num_heads=2, unidirectional=1),
        case(X, "float32[2, 2, 8]", "float32[2, 2, 8]", num_heads=2, unidirectional=1)),
)  # fmt: skip
