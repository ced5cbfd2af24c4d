"""RotaryEmbedding and GroupQueryAttention as onnxruntime fuses them.

RotaryEmbedding rotates pairs of elements by angles of their positions. GroupQueryAttention has
fewer heads of K and V than of Q, a cache of keys and values, and rows of different lengths.

Sizes in the comments: batch B, new tokens S, past tokens P, all tokens T, heads N, head size H.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_expr, maximum
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ops.index import require_within
from webmlc.graph.ops.microsoft.attention import HIDDEN, AttentionWriter
from webmlc.graph.ops.microsoft.rows import check_score_bias, known_size, row
from webmlc.graph.ops.operator import Context, Missing, NotSupportedError, Operator, Result, case
from webmlc.graph.ops.shapes import ONE, canonical, check_shapes, require


def rotate(
    build: Builder,
    x: Value,
    tables: tuple[Value, Value],
    places: Value,
    width: int,
    interleaved: bool,
) -> Value:
    """Rotate the first `width` elements of each head of `x` [B, N, S, H] by the angles of its
    token. The other elements do not change.
    """
    cos, sin = (build("Gather", table, places, axis=0).unsqueeze(1) for table in tables)
    turning = x.slice(0, width, 3)
    tail = x.slice(width, 2**31 - 1, 3)
    if interleaved:
        pairs = turning.reshape(0, 0, 0, -1, 2)
        left, right = (pairs.element(i, 4) for i in range(2))
    else:
        left = turning.slice(0, width // 2, 3)
        right = turning.slice(width // 2, width, 3)
    first = left * cos - right * sin
    second = left * sin + right * cos
    if interleaved:
        columns = (part.unsqueeze(4) for part in (first, second))
        turned = build("Concat", *columns, axis=4).reshape(0, 0, 0, -1)
    else:
        turned = build("Concat", first, second, axis=3)
    return build("Concat", turned, tail, axis=3)


def _rotary(context: Context, build: Builder) -> Value:
    """Expand RotaryEmbedding. `position_ids` holds a row for each element of the batch, or one
    first position for all.
    """
    x, places, cos, sin = build.inputs[:4]
    if context.attribute("is_packed_batching", 0):
        raise NotSupportedError("packed batches inside RotaryEmbedding")
    flat = context.rank(0) == 3
    tokens = "batch length hidden" if flat else "batch heads length size"
    check_shapes(context, tokens, "batch length" if context.rank(1) == 2 else "1",
                 "positions half", "positions half")  # fmt: skip
    width = 2 * known_size(context.shape(2)[1], "the rotary size")
    rotated = int(context.attribute("rotary_embedding_dim", 0))
    if rotated:
        check_shapes(context, "", "", "positions half", half=rotated // 2)
    elif not flat:
        check_shapes(context, "batch heads length size", size=width)
    if flat:
        heads = int(context.attribute("num_heads", 0))
        hidden = known_size(context.shape(0)[2], "the hidden size")
        heads = heads or hidden // width
        value = x.reshape(0, 0, heads, -1).transpose(0, 2, 1, 3)
    else:
        value = x
    if context.rank(1) == 1:
        steps = build("Range", 0, value.size(2), 1)
        places = (steps + places).unsqueeze(0)
    places = require_within(build, places, context.shape(2)[0])
    interleaved = bool(context.attribute("interleaved", 0))
    y = rotate(build, value, (cos, sin), places, width, interleaved)
    if flat:
        y = y.transpose(0, 2, 1, 3).reshape(0, 0, -1)
    return y


CACHE = "float32[9, 4]"


@dataclass(frozen=True, slots=True)
class _Rows:
    """The lengths of the rows of a batch.

    `past`, [B], is the number of past tokens of each row. `places`, [B, S], holds the positions of
    the new tokens, which come after the past tokens. The cache holds keys and values of `total`
    tokens. `steps` numbers the new tokens. `is_first` is true for the first prompt.
    """

    build: Builder
    past: Value
    places: Value
    total: Value
    steps: Value
    is_first: Value

    @staticmethod
    def of(context: Context, build: Builder, queries: Value, past_k: Value | None) -> _Rows:
        """The lengths from two inputs: `seqlens_k`, the last position of each row, and
        `total_sequence_length`, the length of the longest row.

        A past that is longer than `total_sequence_length` is a buffer, which the present replaces.
        """
        count = context.known_value(6, "the total sequence length").reshape(-1)[0]
        if not all(
            require(context, "at most", n, as_expr(count)) for n in (ONE, context.shape(0)[1])
        ):
            raise NotSupportedError(f"a total sequence length of {count}")
        size = as_expr(count if past_k is None else maximum(count, context.shape(3)[2]))
        last, longest = (build.inputs[i].cast(DType.int64).reshape(n) for i, n in ((5, -1), (6, 1)))
        last = require_within(build, last, canonical(size))
        zero = build.constant(np.int64(0))
        new = queries.size(2)
        stored = zero if past_k is None else past_k.size(2)
        whole = build("Squeeze", longest)
        past = last + 1 - new
        is_first = new.op("Equal", whole)
        past = is_first.where(0, past)  # a first prompt has no past
        steps = build("Range", 0, new, 1)
        places = past.unsqueeze(1) + steps
        return _Rows(build, past, places, build("Max", stored, whole), steps, is_first)

    def rotated(self, position_ids: Value | None) -> Value:
        """The positions by which new tokens are rotated: their own, or `position_ids`, [B, S].

        For a first prompt, onnxruntime reads one position, at which all rows start.
        """
        if position_ids is None:
            return self.places
        all_rows = position_ids.reshape(-1).element(0, 0) + self.steps
        return self.is_first.where(all_rows, position_ids)

    def appended(
        self, past: Value | None, new: Value, groups: int, size: int, zero: Value
    ) -> Value:
        """The cache [B, groups, T, H]: the tokens of the past, and the new tokens at the end of
        each row.
        """
        build = self.build
        if past is None:
            batch = build("Shape", new, start=0, end=1)
            length = self.total.unsqueeze(0)
            empty = build("Concat", batch, [groups], length, [size], axis=0)
            cache = build("Expand", zero, empty)
        else:
            room = (self.total - past.size(2)).unsqueeze(0)
            cache = past.op("Pad", build("Concat", [0] * 6, room, [0], axis=0))
        return build("TensorScatter", cache, new, self.past, axis=2)

    def visible_scores(self, scores: Value, causal: bool, window: int) -> Value:
        """Mask the scores of the keys that a query does not see.

        A query sees the keys of its row. If `causal`, it sees no later key, and no key at distance
        `window` or more before it.
        """
        keys = self.build("Range", 0, self.total, 1)
        queries = self.places.unsqueeze(1, 3)
        visible = keys.op("LessOrEqual", queries if causal else queries.op("ReduceMax", [2]))
        if causal and window > 0:
            visible = visible & keys.op("Greater", queries - window)
        return visible.where(scores, HIDDEN)


def _group_query(context: Context, build: Builder) -> tuple[Result, ...]:
    """Expand GroupQueryAttention. Heads of Q share a head of K and V, and each row has its own
    length.
    """
    attention = AttentionWriter(context, build, context.dtype(0))
    attribute = context.attribute
    if any(context.has(i) for i in range(12, 17)) or attribute("sliding_window_cache", 0):
        raise NotSupportedError(
            "quantised or windowed caches, norms or packed queries inside GroupQueryAttention"
        )
    heads, groups = int(attribute("num_heads")), int(attribute("kv_num_heads"))
    query_heads = heads if context.has(1) else heads + 2 * groups
    key_signature = "batch length groups*size"
    check_shapes(
        context,
        "batch length heads*size",
        key_signature,
        key_signature,
        heads=query_heads,
        groups=groups,
    )
    hidden = known_size(context.shape(0)[2], "the hidden size")
    q, k, v = (build.optional(i) for i in range(3))
    assert q is not None
    size = hidden // heads if k is not None else hidden // (heads + 2 * groups)
    _check_caches(context, groups, size)
    if k is None or v is None:
        counts = [heads * size, groups * size, groups * size]
        q, k, v = build.many("Split", q, counts, outputs=3, axis=2)
    queries, keys = attention.heads(q, heads), attention.heads(k, groups)
    values = attention.heads(v, groups)
    past_k, past_v = build.optional(3), build.optional(4)
    rows = _Rows.of(context, build, queries, past_k)
    if attribute("do_rotary", 0):
        places = rows.rotated(build.optional(9))
        queries, keys = (_rotated(context, build, x, places) for x in (queries, keys))
    keys = rows.appended(past_k, keys, groups, size, attention.number(0))
    values = rows.appended(past_v, values, groups, size, attention.number(0))
    shared_k, shared_v = (_repeat_groups(build, x, heads, groups, size) for x in (keys, values))
    scores = attention.scores(queries, shared_k, attention.scale(size))
    cap = float(attribute("softcap", 0.0))
    if cap:
        scores = (scores / cap).op("Tanh") * cap
    if (bias := build.optional(10)) is not None:
        total = context.known_value(6, "the total sequence length").reshape(-1)[0]
        check_score_bias(context, 10, context.shape(0)[0], heads, context.shape(0)[1], total)
        scores = scores + bias
    window = int(attribute("local_window_size", -1))
    if window == 0:
        raise NotSupportedError("a local_window_size of 0: no token sees any")
    scores = rows.visible_scores(scores, bool(attribute("causal", 1)), window)
    sink = build.optional(11)
    if sink is None and int(attribute("smooth_softmax", 0)) > 0:
        sink = attention.number(0)
    return attention.output(scores, shared_v, sink), keys, values, Missing.RESULT


def _check_caches(context: Context, groups: int, size: int) -> None:
    """Check that the past holds equal numbers of keys and values, for the batches and groups of the
    node.
    """
    batch, past = context.shape(0)[0], "batch groups past size"
    check_shapes(context, "", "", "", past, past, batch=batch, groups=groups, size=size)
    check_shapes(context, *[""] * 7, "positions half", "positions half")


def _repeat_groups(build: Builder, x: Value, heads: int, groups: int, size: int) -> Value:
    """Repeat each group of [B, groups, T, H] for its heads: [B, N, T, H]."""
    if heads == groups:
        return x
    expanded = x.unsqueeze(2).op("Expand", [1, 1, heads // groups, 1, 1])
    length = x.op("Shape", start=2, end=3)
    return expanded.op("Reshape", build("Concat", [0, heads], length, [size], axis=0))


def _rotated(context: Context, build: Builder, x: Value, places: Value) -> Value:
    """Apply the rotary embedding to tokens at these positions, [B, S]."""
    cos, sin = build.optional(7), build.optional(8)
    assert cos is not None and sin is not None
    interleaved = bool(context.attribute("rotary_interleaved", 0))
    width = 2 * known_size(context.shape(7)[1], "the rotary size")
    return rotate(build, x, (cos, sin), places, width, interleaved)


KEYS = "float32[2, 2, 4, 16]"
LAST, TOTAL = np.array([4, 4], np.int32), np.int32(5)


OPS: tuple[Operator, ...] = (
    row("RotaryEmbedding", 4,
        "interleaved is_packed_batching num_heads rotary_embedding_dim scale", _rotary,
        case("float32[2, 2, 3, 8]", np.array([[0, 1, 2], [4, 5, 6]]), CACHE, CACHE),
        case("float32[2, 3, 16]", np.array([2]), CACHE, CACHE, interleaved=1)),
    row("GroupQueryAttention", 17, "causal do_rotary k_quant_type kv_num_heads local_window_size"
        " num_heads qk_output rotary_interleaved scale sliding_window_cache smooth_softmax softcap"
        " v_quant_type", _group_query,
        case("float32[2, 3, 32]", "float32[2, 3, 16]", "float32[2, 3, 16]", None, None,
             np.array([2, 2], np.int32), np.int32(3), num_heads=4, kv_num_heads=2, outputs=3),
        case("float32[2, 1, 64]", "float32[2, 1, 32]", "float32[2, 1, 32]", KEYS, KEYS, LAST, TOTAL,
             "float32[9, 8]", "float32[9, 8]", num_heads=4, kv_num_heads=2, do_rotary=1, outputs=3),
        case("float32[2, 1, 128]", None, None, KEYS, KEYS, LAST, TOTAL, num_heads=4, kv_num_heads=2,
             local_window_size=2, softcap=3.0, outputs=3),
        case("float32[1, 3, 64]", None, None, *("float32[1, 2, 2, 8]",) * 2,
             np.array([4], np.int32), TOTAL, None, None, None, "float32[1, 4, 3, 5]", "float32[4]",
             num_heads=4, kv_num_heads=2, outputs=3),
        case("float32[2, 3, 64]", None, None, None, None, np.array([2, 2], np.int32), np.int32(3),
             num_heads=4, kv_num_heads=2, smooth_softmax=1, outputs=3),
        case("float32[2, 3, 128]", None, None, None, None, np.array([2, 2], np.int32), np.int32(3),
             *("float32[9, 8]",) * 2, np.array([[4, 9, 6], [2, 8, 4]]), num_heads=4,
             kv_num_heads=2, do_rotary=1, outputs=3),
        case("float32[2, 1, 128]", None, None, KEYS, KEYS, LAST, TOTAL, *("float32[9, 8]",) * 2,
             np.array([[7], [5]]), num_heads=4, kv_num_heads=2, do_rotary=1, outputs=3),
        k_quant_type=("NONE",), v_quant_type=("NONE",)),
)  # fmt: skip
