"""GroupQueryAttention as onnxruntime fuses it: fewer heads of K and V than of Q, a cache of keys
and values, and rows of different lengths.

Sizes in the comments: batch B, new tokens S, past tokens P, all tokens T, heads N, head size H.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from webmlc.core.expr import as_expr, maximum
from webmlc.graph.builder import Builder
from webmlc.graph.ops.index import require_within
from webmlc.graph.ops.microsoft.attention import HIDDEN, AttentionWriter
from webmlc.graph.ops.microsoft.rotary import rotate
from webmlc.graph.ops.microsoft.rows import (
    check_score_bias,
    known_size,
    optional,
    reshape,
    row,
    select_outputs,
    size_of,
)
from webmlc.graph.ops.operator import Context, Missing, NotSupportedError, Operator, Result, case
from webmlc.graph.ops.shapes import ONE, canonical, check_shapes, require


@dataclass(frozen=True, slots=True)
class _Rows:
    """The lengths of the rows of a batch.

    `past`, [B], is the number of past tokens of each row. `places`, [B, S], holds the positions of
    the new tokens, which come after these. The cache holds keys and values of `total` tokens.
    `steps` numbers the new tokens. `is_first` is true for the first prompt.
    """

    build: Builder
    past: str
    places: str
    total: str
    steps: str
    is_first: str

    @staticmethod
    def of(context: Context, build: Builder, queries: str, past_k: str | None) -> _Rows:
        """The lengths from two inputs: `seqlens_k`, the last position of each row, and
        `total_sequence_length`, the length of the longest row.

        A past that is longer than that is a buffer, which the present replaces.
        """
        count = context.known_value(6, "the total sequence length").reshape(-1)[0]
        if not all(
            require(context, "at most", n, as_expr(count)) for n in (ONE, context.shape(0)[1])
        ):
            raise NotSupportedError(f"a total sequence length of {count}")
        size = as_expr(count if past_k is None else maximum(count, context.shape(3)[2]))
        last, longest = (
            build("Reshape", build("Cast", context.node.inputs[i], to=7), build.constant([n]))
            for i, n in ((5, -1), (6, 1))
        )
        last = require_within(build, last, canonical(size))
        one, zero = build.constant(np.int64(1)), build.constant(np.int64(0))
        new = size_of(build, queries, 2)
        stored = zero if past_k is None else size_of(build, past_k, 2)
        whole = build("Squeeze", longest)
        past = build("Sub", build("Add", last, one), new)
        is_first = build("Equal", new, whole)
        past = build("Where", is_first, zero, past)  # a first prompt has no past
        steps = build("Range", zero, new, one)
        places = build("Add", build("Unsqueeze", past, axes=(1,)), steps)
        return _Rows(build, past, places, build("Max", stored, whole), steps, is_first)

    def rotated(self, position_ids: str | None) -> str:
        """The positions by which new tokens are rotated: their own, or `position_ids`, [B, S].

        For a first prompt, onnxruntime reads one position, at which all rows start.
        """
        if position_ids is None:
            return self.places
        build = self.build
        flat, zero = reshape(build, position_ids, (-1,)), build.constant(np.int64(0))
        all_rows = build("Add", build("Gather", flat, zero, axis=0), self.steps)
        return build("Where", self.is_first, all_rows, position_ids)

    def appended(self, past: str | None, new: str, groups: int, size: int, zero: str) -> str:
        """The cache [B, groups, T, H]: the tokens of the past, and the new ones at the end of each
        row.
        """
        build = self.build
        if past is None:
            batch = build("Shape", new, start=0, end=1)
            head, back = build.constant([groups]), build.constant([size])
            length = build("Unsqueeze", self.total, axes=(0,))
            empty = build("Concat", batch, head, length, back, axis=0)
            cache = build("Expand", zero, empty)
        else:
            room = build("Sub", self.total, size_of(build, past, 2))
            after = build("Unsqueeze", room, axes=(0,))
            pads = build("Concat", build.constant([0] * 6), after, build.constant([0]), axis=0)
            cache = build("Pad", past, pads)
        return build("TensorScatter", cache, new, self.past, axis=2)

    def visible_scores(self, scores: str, causal: bool, window: int, fill: str) -> str:
        """Mask the scores of the keys that a query does not see.

        A query sees the keys of its row. If `causal`, it sees no later key, and no key at distance
        `window` or more before it.
        """
        build = self.build
        one, zero = build.constant(np.int64(1)), build.constant(np.int64(0))
        keys = build("Range", zero, self.total, one)
        queries = build("Unsqueeze", self.places, axes=(1, 3))
        if causal:
            visible = build("LessOrEqual", keys, queries)
        else:
            ends = build("ReduceMax", queries, build.constant([2]))
            visible = build("LessOrEqual", keys, ends)
        if causal and window > 0:
            first = build("Sub", queries, build.constant(np.int64(window)))
            visible = build("And", visible, build("Greater", keys, first))
        return build("Where", visible, scores, fill)


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
    q, k, v = (optional(context, i) for i in range(3))
    assert q is not None
    size = hidden // heads if k is not None else hidden // (heads + 2 * groups)
    _check_caches(context, groups, size)
    if k is None or v is None:
        counts = np.array([heads * size, groups * size, groups * size], np.int64)
        q, k, v = build.many("Split", q, build.constant(counts), outputs=3, axis=2)
    queries, keys = attention.heads(q, heads), attention.heads(k, groups)
    values = attention.heads(v, groups)
    past_k, past_v = optional(context, 3), optional(context, 4)
    rows = _Rows.of(context, build, queries, past_k)
    if attribute("do_rotary", 0):
        places = rows.rotated(optional(context, 9))
        queries, keys = (_rotated(context, build, x, places) for x in (queries, keys))
    keys = rows.appended(past_k, keys, groups, size, attention.number(0))
    values = rows.appended(past_v, values, groups, size, attention.number(0))
    shared_k, shared_v = (_repeat_groups(build, x, heads, groups, size) for x in (keys, values))
    scores = attention.scores(queries, shared_k, attention.scale(size))
    cap = float(attribute("softcap", 0.0))
    if cap:
        limited = build("Tanh", build("Div", scores, attention.number(cap)))
        scores = build("Mul", limited, attention.number(cap))
    if (bias := optional(context, 10)) is not None:
        total = context.known_value(6, "the total sequence length").reshape(-1)[0]
        check_score_bias(context, 10, context.shape(0)[0], heads, context.shape(0)[1], total)
        scores = build("Add", scores, bias)
    window = int(attribute("local_window_size", -1))
    if window == 0:
        raise NotSupportedError("a local_window_size of 0: no token sees any")
    scores = rows.visible_scores(
        scores, bool(attribute("causal", 1)), window, attention.number(HIDDEN)
    )
    sink = optional(context, 11)
    if sink is None and int(attribute("smooth_softmax", 0)) > 0:
        sink = attention.number(0)
    return select_outputs(
        context, attention.output(scores, shared_v, sink), keys, values, Missing.RESULT
    )


def _check_caches(context: Context, groups: int, size: int) -> None:
    """Check that the past holds as many keys as values, of the batches and groups of the node."""
    batch, past = context.shape(0)[0], "batch groups past size"
    check_shapes(context, "", "", "", past, past, batch=batch, groups=groups, size=size)
    check_shapes(context, *[""] * 7, "positions half", "positions half")


def _repeat_groups(build: Builder, x: str, heads: int, groups: int, size: int) -> str:
    """Repeat each group of [B, groups, T, H] for its heads: [B, N, T, H]."""
    if heads == groups:
        return x
    grouped = build("Unsqueeze", x, axes=(2,))
    repeats = build.constant(np.array([1, 1, heads // groups, 1, 1], np.int64))
    expanded = build("Expand", grouped, repeats)
    length = build("Shape", x, start=2, end=3)
    front = build.constant(np.array([0, heads], np.int64))
    back = build.constant(np.array([size], np.int64))
    return build("Reshape", expanded, build("Concat", front, length, back, axis=0))


def _rotated(context: Context, build: Builder, x: str, places: str) -> str:
    """Apply the rotary embedding to tokens at these positions, [B, S]."""
    cos, sin = optional(context, 7), optional(context, 8)
    assert cos is not None and sin is not None
    interleaved = bool(context.attribute("rotary_interleaved", 0))
    width = 2 * known_size(context.shape(7)[1], "the rotary size")
    return rotate(build, x, (cos, sin), places, width, interleaved)


KEYS = "float32[2, 2, 4, 16]"
LAST, TOTAL = np.array([4, 4], np.int32), np.int32(5)

OPS: tuple[Operator, ...] = (
    row("GroupQueryAttention", _group_query,
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
             np.array([[7], [5]]), num_heads=4, kv_num_heads=2, do_rotary=1, outputs=3)),
)  # fmt: skip
