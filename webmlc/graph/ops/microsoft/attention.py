"""Attention as onnxruntime fuses it: expanded into matrix products, masks and softmax.

Attention, QAttention and DecoderMaskedSelfAttention multiply the input by weights first.
MultiHeadAttention and DecoderMaskedMultiHeadAttention have Q, K and V.

Sizes in the comments: batch B, new tokens S, past tokens P, all tokens T, heads N, head size H.
A buffer of keys or values holds M tokens, of which the first P are past.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_int, const
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ops.index import require_within
from webmlc.graph.ops.microsoft.rows import DOMAIN, check_score_bias, int64_scalar, known_size, row
from webmlc.graph.ops.operator import (
    Context,
    Missing,
    NotSupportedError,
    Operator,
    Result,
    case,
)
from webmlc.graph.ops.shapes import (
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

PLACES: Mapping[str, Mapping[str, int]] = {
    "Attention": {"mask": 3, "past": 4, "score_bias": 5, "length": 6},
    "QAttention": {"mask": 5, "past": 8},
    "DecoderMaskedSelfAttention": {
        "mask": 3, "past": 4, "score_bias": 5, "length": 6, "origins": 8,
    },
    "MultiHeadAttention": {
        "bias": 3, "mask": 4, "score_bias": 5, "past": 6, "length": 8, "origins": 9,
    },
    "DecoderMaskedMultiHeadAttention": {
        "mask": 3, "score_bias": 4, "past": 5, "length": 7, "origins": 9, "bias": 10,
    },
}  # fmt: skip
"""The inputs of each operator, by their role. A past of keys comes before the past of values;
`length` is the number of past tokens in a buffer; `origins` names the beams of past tokens.
"""


ONE_QUERY = ("DecoderMaskedSelfAttention", "DecoderMaskedMultiHeadAttention")
"""The operators that take one new token, so that they need no causal mask."""


@dataclass(frozen=True, slots=True)
class AttentionWriter:
    """Write the parts that all attention operators share."""

    context: Context
    build: Builder
    dtype: DType

    @property
    def places(self) -> Mapping[str, int]:
        """The operator's inputs by their role."""
        return PLACES.get(self.context.node.op, {})

    def input(self, role: str) -> Value | None:
        """The input of a role. None if the operator lacks the role, or the node the input."""
        return self.build.optional(self.places[role]) if role in self.places else None

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

    def causal(self, scores: Value, q: Value, k: Value, start: Value | None) -> Value:
        """Mask the scores, so that no query sees a later key. The first query comes after `start`
        tokens.
        """
        build = self.build
        first = build.constant(np.int64(0)) if start is None else start
        queries = build("Range", first, first + q.size(2), 1).unsqueeze(1)
        keys = build("Range", 0, k.size(2), 1)
        return keys.op("LessOrEqual", queries).where(scores, HIDDEN)

    def masked(self, scores: Value, q: Value, k: Value, start: Value | None) -> Value:
        """Add `mask_filter_value` to the scores of padding tokens.

        A mask of shape [B] holds the number of tokens before the padding. A mask [2·B] also holds
        the number of padding tokens at the start, of all rows after all ends. A mask of shape
        [B, T], [B, S, T] or [B, 1, M, M] is not zero for tokens that are not padding.
        """
        build, index = self.build, self.places["mask"]
        mask = build.optional(index)
        if mask is None:
            return scores
        rank = self.context.rank(index)
        if rank == 1:
            is_visible = self._within_ends(mask, index, k).unsqueeze(1, 2)
        else:
            if rank == 4:
                first = (
                    build.constant(np.zeros(1, np.int64)) if start is None else start.unsqueeze(0)
                )
                ends = build("Concat", first + q.size(2), k.size(2).unsqueeze(0), axis=0)
                starts = build("Concat", first, [0], axis=0)
                mask = build("Slice", mask, starts, ends, [2, 3])
            axes = {2: (1, 2), 3: (1,), 4: ()}.get(rank)
            if axes is None:
                raise NotSupportedError(f"a mask of rank {rank}")
            is_visible = mask.op("Greater", 0)
            is_visible = is_visible.unsqueeze(*axes) if axes else is_visible
        fill = float(self.context.attribute("mask_filter_value", -10000.0))
        return scores + is_visible.where(self.number(0.0), self.number(fill))

    def _within_ends(self, mask: Value, index: int, k: Value) -> Value:
        """The keys [B, T] between the starts and the ends of a mask of one axis."""
        build, context = self.build, self.context
        total = k.size(2).unsqueeze(0)
        keys = build("Range", 0, total.op("Squeeze"), 1)
        counts = mask.cast(DType.int64)
        batch, size = context.shape(0)[0], context.shape(index)[0]
        has_starts = same(size, canonical(batch * 2)) and not same(size, batch)
        if not has_starts:
            check_shape(context, index, (batch,))
        if context.node.op != "MultiHeadAttention":  # the others refuse negative counts
            counts = require_within(build, build("Min", counts, total), ANY_LENGTH)
        if not has_starts:
            return keys.op("Less", counts.unsqueeze(1))
        ends, starts = build.many("Split", counts, outputs=2, axis=0, num_outputs=2)
        return keys.op("Less", ends.unsqueeze(1)) & keys.op("GreaterOrEqual", starts.unsqueeze(1))

    def all_scores(self, q: Value, k: Value, start: Value | None, head_size: int) -> Value:
        """The scores with masks and bias. `start` is the number of past tokens."""
        scores = self.masked(self.scores(q, k, self.scale(head_size)), q, k, start)
        bias = self.input("score_bias")
        if bias is not None:
            scores = scores + bias
        if self.context.attribute("unidirectional", 0):
            scores = self.causal(scores, q, k, start)
        return scores

    @property
    def has_buffer(self) -> bool:
        """True if past and present share a buffer. MultiHeadAttention has no attribute for it."""
        has_length = self.input("length") is not None
        is_multi_head = self.context.node.op == "MultiHeadAttention"
        is_shared = self.context.attribute(
            "past_present_share_buffer", is_multi_head and has_length
        )
        if is_shared and not has_length:
            raise NotSupportedError("a shared buffer without a number of past tokens")
        return bool(is_shared)

    def past_length(self) -> Value | None:
        """The number P of past tokens in a buffer, a scalar. None if the past has no buffer."""
        if not self.has_buffer:
            return None
        count = self.input("length")
        assert count is not None
        return int64_scalar(count)

    def joined(
        self, past: Value | None, new: Value, length: Value | None, axis: int = 2
    ) -> tuple[Value, Value]:
        """Append the new tokens to the past along an axis. Return the present and all tokens: of a
        buffer, the tokens are a part.
        """
        build = self.build
        if past is None or length is None:
            present = new if past is None else build("Concat", past, new, axis=axis)
            return present, present
        start = length.unsqueeze(0)
        rows = build("Expand", start, new.op("Shape", start=0, end=1))
        present = build("TensorScatter", past, new, rows, axis=axis)
        return present, build("Slice", present, [0], start + new.size(axis), [axis])

    def from_beams(self, tokens: Value) -> Value:
        """Keys or values [B, N, T, H] of beams: row b reads the past token t of the beam that
        `origins` [batch, beams, M] names.
        """
        build, origins = self.build, self.input("origins")
        if origins is None:
            return tokens
        beams = known_size(self.context.shape(self.places["origins"])[1], "the number of beams")
        count = tokens.size(2)
        rows = build("Range", 0, tokens.size(0), 1).unsqueeze(1)
        flat = build("Slice", origins.op("Flatten", axis=2), [0], count.unsqueeze(0), [1])
        flat = require_within(build, flat.cast(DType.int64), const(beams))
        is_past = build("Range", 0, count, 1).op("Less", count - 1)
        sources = is_past.where(rows / beams * beams + flat, rows)
        indices = build("Expand", sources.unsqueeze(1, 3), tokens.op("Shape"))
        return build("GatherElements", tokens, indices, axis=0)

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

    def scale(self, head_size: int) -> float:
        """The factor of the scores: the attribute `scale`, or 1/sqrt(H)."""
        return float(self.context.attribute("scale", 0.0)) or 1 / math.sqrt(head_size)


def _projected(context: Context, build: Builder) -> Value:
    """Multiply the input [B, S, features] by the weights of Q, K and V, and add the bias."""
    length = "1" if context.node.op in ONE_QUERY else "length"
    check_shapes(context, f"batch {length} features", "features columns", "columns")
    x, weights, bias = (build.optional(i) for i in range(3))
    assert x is not None and weights is not None
    if context.node.op == "QAttention":
        scales, zeros = (3, 4), (6, 7)
        inputs = (x, weights, *(build.optional(i) for i in scales + zeros), bias)
        return build("MatMulIntegerToFloat", *inputs, domain=DOMAIN)
    product = x @ weights
    return product if bias is None else product + bias


def _attention(context: Context, build: Builder) -> tuple[Result, ...]:
    """Expand an attention of which one product gives Q, K and V. Past and present are pairs of keys
    and values, [2, B, N, T, H].
    """
    if context.attribute("do_rotary", 0):
        raise NotSupportedError("rotary inside Attention: use a RotaryEmbedding")
    dtype = context.dtype(3 if context.node.op == "QAttention" else 0)
    attention = AttentionWriter(context, build, dtype)
    product = _projected(context, build)
    heads, (batch, length, _) = context.count("num_heads"), context.shape(0)
    columns = known_size(context.shape(1)[1], "the number of columns of the weights")
    sizes = [int(s) for s in context.attribute("qkv_hidden_sizes", ()) or (columns // 3,) * 3]
    _check_sizes(sizes, columns, heads)
    if context.has(place := attention.places["past"]):
        pair = {"batch": batch, "heads": const(heads), "size": const(sizes[1] // heads)}
        check_shapes(context, *[""] * place, "2 batch heads past size", **pair)
    total = _token_count(context, attention, length, 3)
    _check_mask(context, attention.places["mask"], total)
    if "score_bias" in attention.places:
        check_score_bias(context, attention.places["score_bias"], batch, heads, length, total)
    parts = build.many("Split", product, sizes, outputs=3, axis=2)
    q, k, v = (attention.heads(part, heads) for part in parts)
    past, count = build.optional(place), attention.past_length()
    start = count if past is None or count is not None else past.size(3)
    present: Result = Missing.RESULT
    if sizes[1] == sizes[2]:
        # Joined as a pair, so that `use_states` finds a past and its present.
        pair_of_new = build("Concat", k.unsqueeze(0), v.unsqueeze(0), axis=0)
        size = sizes[1] // heads
        has_grouped_keys = context.node.op == "DecoderMaskedSelfAttention" and count is not None
        if has_grouped_keys and past is not None:
            past = _in_order(build, past, size, dtype)
        present, tokens = attention.joined(past, pair_of_new, count, 3)
        if past is not None:
            k, v = (attention.from_beams(tokens.element(i, 0)) for i in range(2))
        if has_grouped_keys:
            present = _in_order(build, present, size, dtype, back=True)
    elif past is not None or context.output_count > 1:
        raise NotSupportedError(f"a past or present of keys and values of the sizes {sizes[1:]}")
    scores = attention.all_scores(q, k, start, sizes[0] // heads)
    return attention.output(scores, v), present


def _in_order(build: Builder, pair: Value, size: int, dtype: DType, back: bool = False) -> Value:
    """The pair of keys and values in plain order. DecoderMaskedSelfAttention holds the keys of a
    buffer as [B, N, H / words, M, words] of 16 bytes. `back` orders a plain pair so.
    """
    words = 16 // dtype.bytes
    keys, values = (pair.element(i, 0) for i in range(2))
    if back:
        keys = keys.reshape(0, 0, 0, size // words, words).transpose(0, 1, 3, 2, 4)
        keys = keys.reshape(0, 0, -1, size)
    else:
        keys = keys.reshape(0, 0, size // words, -1, words).transpose(0, 1, 3, 2, 4)
        keys = keys.reshape(0, 0, 0, -1)
    return build("Concat", keys.unsqueeze(0), values.unsqueeze(0), axis=0)


def _check_sizes(sizes: Sequence[int], columns: int, heads: int) -> None:
    """Check the numbers of columns of Q, K and V."""
    q, k, v = sizes
    if q != k or q + k + v != columns or q % heads or v % heads:
        raise NotSupportedError(
            f"{columns} columns of weights for Q, K and V of {q}, {k} and {v} columns in {heads} "
            "heads"
        )


def _token_count(context: Context, attention: AttentionWriter, new: Expr, axis: int) -> Expr | None:
    """The number of all tokens. None if only a run knows how many tokens of a buffer are past."""
    past = attention.places["past"]
    if not context.has(past):
        return new
    return None if attention.has_buffer else canonical(context.shape(past)[axis] + new)


def _check_mask(context: Context, index: int, total: Expr | None) -> None:
    """Check the shape of a mask: [B, T] or [B, S, T]. A mask [B, 1] hides all keys of a row or
    none, which has no effect.
    """
    if not context.has(index) or total is None:
        return
    batch, length = context.shape(0)[:2]
    if context.rank(index) == 2:
        check_shape(context, index, (batch, context.shape(index)[1]))
        check_stretches(context, index, (batch, total))
    elif context.rank(index) == 3:
        check_shape(context, index, (batch, length, total))


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
    """Expand an attention of Q, K and V. Past and present are keys and values, [B, N, T, H]."""
    attention = AttentionWriter(context, build, context.dtype(0))
    heads = context.count("num_heads")
    query = "heads parts size" if context.rank(0) == 5 else "heads*size"
    bias_place, past_place = attention.places["bias"], attention.places["past"]
    queries = "1" if context.node.op in ONE_QUERY else "length"
    signatures = [
        f"batch {queries} {query}",
        *("columns" if i == bias_place else "" for i in range(1, 11)),
    ]
    check_shapes(context, *signatures, heads=heads, parts=3)
    _check_keys(context, heads)
    length, new = context.shape(0)[1], _key_count(context)
    keys = _token_count(context, attention, new, 2)
    _check_mask(context, attention.places["mask"], keys)
    check_score_bias(
        context, attention.places["score_bias"], context.shape(0)[0], heads, length, keys
    )
    parts = list(_separate(context, build))
    has_heads = context.has(1) and context.rank(1) == 4
    hidden = _hidden_size(context, heads)
    if (bias := build.optional(bias_place)) is not None:
        total = known_size(context.shape(bias_place)[0], "the number of biases")
        bounds = ((0, hidden), (hidden, 2 * hidden), (2 * hidden, total))
        for i, (first, stop) in enumerate(bounds[: 1 if has_heads else 3]):
            parts[i] = parts[i] + bias.slice(first, stop, 0)
    q = attention.heads(parts[0], heads)
    k, v = (p if has_heads else attention.heads(p, heads) for p in parts[1:])
    pasts = (build.optional(past_place), build.optional(past_place + 1))
    count = attention.past_length()
    past = pasts[0]
    start = None if past is None else past.size(2) if count is None else count
    (present_k, k), (present_v, v) = (
        attention.joined(p, x, count) for p, x in zip(pasts, (k, v), strict=True)
    )
    if not has_heads:
        k, v = attention.from_beams(k), attention.from_beams(v)
    if context.attribute("unidirectional", 0):
        _check_lengths(context)
    scores = attention.all_scores(q, k, start, hidden // heads)
    y = attention.output(scores, v)
    if context.attribute("unidirectional", 0) and context.output_count > 3:
        # onnxruntime hides later keys by the least number, and callers may compute with it.
        lowest = build.constant(np.finfo(np.float32).min, DType.float32)
        scores = build("Max", scores.cast(DType.float32), lowest).cast(context.dtype(0))
    return y, present_k, present_v, scores


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
CACHE, COUNT = "float32[2, 2, 4, 4]", np.array([2], np.int32)
NEW = "float32[2, 1, 8]"
BEAMS = np.array([[[0, 1, 0, 1, 0, 0], [1, 0, 0, 1, 1, 0]]], np.int32)
QUANTISED = ("uint8[2, 3, 8] in 0..255", "int8[8, 24] in -60..60", BIAS, np.float32(0.02),
             np.float32(0.01))  # fmt: skip
ATTENTION = "do_rotary mask_filter_value num_heads past_present_share_buffer scale"
DECODER = "mask_filter_value num_heads past_present_share_buffer scale"

OPS: tuple[Operator, ...] = (
    row("Attention", 7, f"{ATTENTION} qkv_hidden_sizes rotary_embedding_dim unidirectional",
        _attention,
        case(X, WEIGHTS, BIAS, num_heads=2), case(X, WEIGHTS, BIAS, MASK, num_heads=2),
        case(X, WEIGHTS, BIAS, np.array([3, 2], np.int32), num_heads=2, scale=0.3),
        case(X, WEIGHTS, BIAS, np.array([3, 2, 1, 0], np.int32), num_heads=2),
        case(X, WEIGHTS, BIAS, LONG, PAST, num_heads=2, unidirectional=1, outputs=2),
        case(X, WEIGHTS, BIAS, np.stack([LONG] * 3, 1), PAST, num_heads=2, outputs=2),
        case(X, WEIGHTS, BIAS, None, None, "float32[1, 2, 3, 3]", num_heads=2, outputs=2),
        case(X, "float32[8, 22]", "float32[22]", num_heads=2, qkv_hidden_sizes=(8, 8, 6)),
        case(X, "float32[8, 22]", "float32[22]", MASK, None, "float32[2, 1, 3, 3]", num_heads=2,
             qkv_hidden_sizes=(8, 8, 6), unidirectional=1, mask_filter_value=-50.0)),
    row("QAttention", 9, f"{ATTENTION} unidirectional", _attention,
        case(*QUANTISED, None, np.uint8(113), np.int8(3), num_heads=2),
        case(*QUANTISED, LONG, np.uint8(113), np.int8(0), PAST, num_heads=2, unidirectional=1,
             outputs=2),
        case(*QUANTISED[:4], np.linspace(0.01, 0.02, 24, dtype=np.float32),
             np.array([3, 2], np.int32), np.uint8(99), np.zeros(24, np.int8), num_heads=2)),
    row("DecoderMaskedSelfAttention", 9, ATTENTION, _attention,
        case(NEW, WEIGHTS, BIAS, None, PAST, None, np.array([4], np.int32), num_heads=2,
             outputs=2),
        case("float32[2, 1, 16]", "float32[16, 48]", "float32[48]",
             np.array([[1, 1, 1], [0, 1, 1]], np.int32), "float32[2, 2, 2, 6, 8]",
             "float32[1, 2, 1, 3]", COUNT, np.array([2], np.int32), BEAMS, num_heads=2,
             past_present_share_buffer=1, outputs=2)),
    row("MultiHeadAttention", 10, "mask_filter_value num_heads scale unidirectional", _multi_head,
        case(X, X, X, num_heads=2), case(X, X, X, BIAS, MASK, num_heads=2),
        case(X, "float32[2, 5, 8]", "float32[2, 5, 8]", num_heads=2, scale=0.4),
        case(X, "float32[2, 2, 5, 4]", "float32[2, 2, 5, 4]", num_heads=2),
        case(X, X, X, None, None, "float32[2, 2, 3, 7]", "float32[2, 2, 4, 4]",
             "float32[2, 2, 4, 4]", num_heads=2, outputs=3),
        case(X, X, X, num_heads=2, unidirectional=1),
        case(X, "float32[2, 2, 8]", "float32[2, 2, 8]", num_heads=2, unidirectional=1),
        case("float32[2, 3, 2, 3, 4]", None, None, BIAS, num_heads=2),
        case(X, "float32[2, 5, 2, 2, 4]", num_heads=2),
        case(X, X, "float32[2, 3, 6]", "float32[22]", num_heads=2),
        case(NEW, NEW, NEW, None, None, None, CACHE, CACHE, COUNT, num_heads=2, outputs=3),
        case(NEW, NEW, NEW, None, None, None, CACHE, CACHE, COUNT, BEAMS[..., :4].copy(),
             num_heads=2, outputs=3)),
    row("DecoderMaskedMultiHeadAttention", 11, f"{DECODER} output_qk", _multi_head,
        case(NEW, NEW, NEW, None, None, CACHE, CACHE, np.array([4], np.int32), num_heads=2,
             outputs=3),
        case(NEW, NEW, NEW, np.array([[1, 1, 1], [0, 1, 1]], np.int32), None, CACHE, CACHE, COUNT,
             None, None, BIAS, num_heads=2, past_present_share_buffer=1, outputs=3),
        case(NEW, NEW, NEW, None, "float32[1, 2, 1, 3]", CACHE, CACHE, COUNT,
             np.array([2], np.int32), BEAMS[..., :4].copy(), num_heads=2,
             past_present_share_buffer=1, outputs=3),
        case(NEW, CACHE, CACHE, num_heads=2)),
)  # fmt: skip
