"""GroupQueryAttention and SparseAttention as onnxruntime fuses them. They have fewer heads of K and
V than of Q, a cache of keys and values, and rows of different lengths.

Sizes in the comments: batch B, new tokens S, past tokens P, all tokens T, heads N, head size H.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_expr, maximum
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Array
from webmlc.graph.ops.index import require_within
from webmlc.graph.ops.microsoft.attention import HIDDEN, AttentionWriter
from webmlc.graph.ops.microsoft.positions import angles, rotate
from webmlc.graph.ops.microsoft.rows import DOMAIN, check_score_bias, int64_scalar, known_size, row
from webmlc.graph.ops.operator import Context, Missing, NotSupportedError, Operator, Result, case
from webmlc.graph.ops.shapes import ONE, ZERO, canonical, check_shapes, require


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
        last = build.inputs[5].cast(DType.int64).reshape(-1)
        last = require_within(build, last, canonical(size))
        zero = build.constant(np.int64(0))
        new = queries.size(2)
        stored = zero if past_k is None else past_k.size(2)
        longest = int64_scalar(build.inputs[6])
        past = last + 1 - new
        is_first = new.op("Equal", longest)
        past = is_first.where(0, past)  # a first prompt has no past
        steps = build("Range", 0, new, 1)
        places = past.unsqueeze(1) + steps
        return _Rows(build, past, places, build("Max", stored, longest), steps, is_first)

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

        Places after the end of a row stay as the past holds them, and no query sees them.
        onnxruntime leaves them, too, if past and present share a buffer. Otherwise it writes 0.
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
        if past_k is not None:  # the cache may be longer than the tokens that the bias is of
            room = (rows.total - bias.size(3)).unsqueeze(0)
            bias = bias.op("Pad", build("Concat", [0] * 7, room, axis=0))
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
    return rotate(build, x, angles(build, (cos, sin), places), width, interleaved)


def _sparse(context: Context, build: Builder) -> tuple[Result, ...]:
    """Expand SparseAttention to a GroupQueryAttention with a bias that hides blocks of keys. The
    heads have the layouts of the block mask in turn.
    """
    q, k, v, past_k, past_v, _, _, total, lengths, cos, sin = (build.optional(i) for i in range(11))
    assert q is not None and total is not None and lengths is not None
    attribute, heads, block = context.attribute, context.count("num_heads"), _block_size(context)
    mask = _block_mask(context)
    lengths = lengths.cast(DType.int64)
    longest = int64_scalar(total)
    new = q.size(1)
    past = new.op("Equal", longest).where(0, lengths - new)
    rows = (past.unsqueeze(1) + build("Range", 0, new, 1)) / block
    rows = build("Min", rows, build.constant(np.int64(mask.shape[1] - 1)))
    columns = build("Range", 0, longest, 1) / block
    by_row = build("Gather", build.constant(mask), rows, axis=1)
    is_visible = build("Gather", by_row, columns, axis=3).transpose(1, 0, 2, 3)
    if len(mask) > 1:
        is_visible = build("Tile", is_visible, [1, heads // len(mask), 1, 1])
    number = AttentionWriter(context, build, context.dtype(0)).number
    bias = is_visible.where(number(0.0), number(HIDDEN))
    names = ("num_heads", "kv_num_heads", "do_rotary", "rotary_interleaved", "scale")
    attributes = {n: attribute(n) for n in names if attribute(n) is not None}
    inputs = (q, k, v, past_k, past_v, lengths - 1, total, cos, sin, None, bias)
    return build.many("GroupQueryAttention", *inputs, outputs=3, domain=DOMAIN, **attributes)


def _block_size(context: Context) -> int:
    heads, layouts = context.count("num_heads"), context.shape(5)[0]
    if not require(context, "equal", canonical(as_expr(heads) % layouts), ZERO):
        raise NotSupportedError(f"{heads} heads with {layouts} layouts")
    return context.count("sparse_block_size")


def _block_mask(context: Context) -> Array:
    """The mask [layouts, rows, columns] of blocks, from the start of each row (input 5) among the
    columns (input 6).
    """
    starts, columns = context.constant(5), context.constant(6)
    if starts is None or columns is None:
        raise NotSupportedError("a block mask that is not constant")
    count = starts.shape[1] - 1
    mask = np.zeros((len(starts), count, count), np.bool_)
    for layout, row_starts in enumerate(starts):
        for index, (start, end) in enumerate(pairwise(row_starts)):
            blocks = columns[layout, start:end]
            mask[layout, index, blocks[(blocks >= 0) & (blocks < count)]] = True
    return mask


KEYS = "float32[2, 2, 4, 16]"
LAST, TOTAL = np.array([4, 4], np.int32), np.int32(5)

SPARSE_CACHE = ("float32[1, 2, 64, 8]",) * 2
BLOCKS = (
    np.array([[0, 1, 3, 5, 8], [0, 1, 3, 6, 9]], np.int32),
    np.array([[0, 0, 1, 1, 2, 1, 2, 3, -1], [0, 0, 1, 0, 1, 2, 0, 2, 3]], np.int32),
)

OPS: tuple[Operator, ...] = (
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
    row("SparseAttention", 11,
        "do_rotary kv_num_heads num_heads rotary_interleaved scale sparse_block_size", _sparse,
        case("float32[1, 40, 32]", "float32[1, 40, 16]", "float32[1, 40, 16]", *SPARSE_CACHE,
             *BLOCKS, np.array([40], np.int32), np.array([40], np.int32), num_heads=4,
             kv_num_heads=2, sparse_block_size=16, outputs=3),
        case("float32[1, 1, 64]", None, None, *SPARSE_CACHE, *BLOCKS, np.array([61], np.int32),
             np.array([61], np.int32), "float32[64, 4]", "float32[64, 4]", num_heads=4,
             kv_num_heads=2, sparse_block_size=16, do_rotary=1, scale=0.3, outputs=3)),
)  # fmt: skip
