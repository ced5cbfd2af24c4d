"""Attention as onnxruntime fuses it: Attention, MultiHeadAttention, GroupQueryAttention and the
rotary embedding, written out as matrix products, masks and softmax.

Sizes in the comments: batch B, new tokens S, past tokens P, all tokens T, heads N, head size H.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder
from webmlc.graph.ops.microsoft.rows import (
    known_size,
    number,
    optional,
    piece,
    reshape,
    row,
    size_of,
    wanted,
)
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import check_shape, check_shapes, same

LOWEST = float(np.finfo(np.float32).min)
"""What a causal mask writes: below every padding mask."""


@dataclass(frozen=True, slots=True)
class _Attention:
    """What the three operators share."""

    context: Context
    build: Builder
    dtype: DType

    def heads(self, x: str, count: int) -> str:
        """[B, S, N·H] as [B, N, S, H]."""
        return self.build("Transpose", reshape(self.build, x, (0, 0, count, -1)), perm=(0, 2, 1, 3))

    def merged(self, x: str) -> str:
        """[B, N, S, H] as [B, S, N·H]."""
        return reshape(self.build, self.build("Transpose", x, perm=(0, 2, 1, 3)), (0, 0, -1))

    def scores(self, q: str, k: str, scale: float) -> str:
        """scale · Q Kᵀ: [B, N, S, T]."""
        across = self.build("Transpose", k, perm=(0, 1, 3, 2))
        return self.build("Mul", self.build("MatMul", q, across), self.number(scale))

    def number(self, value: float) -> str:
        return number(self.build, value, self.dtype)

    def causal(self, scores: str, q: str, k: str, past: str | None, axis: int = 2) -> str:
        """No query sees a later key. The first query stands behind the `past` tokens."""
        build = self.build
        zero, one = build.constant(np.int64(0)), build.constant(np.int64(1))
        start = zero if past is None else size_of(build, past, axis)
        end = build("Add", start, size_of(build, q, 2))
        queries = build("Unsqueeze", build("Range", start, end, one), axes=(1,))
        keys = build("Range", zero, size_of(build, k, 2), one)
        return build("Where", build("LessOrEqual", keys, queries), scores, self.number(LOWEST))

    def masked(self, scores: str, mask: str, rank: int, k: str, fill: float) -> str:
        """The scores with `fill` added where the mask says padding.

        A mask is [B]: tokens that count; [B, T] or [B, S, T]: nonzero where they do; [B, 1, M, M]:
        the last rows of such.
        """
        build = self.build
        zero = number(build, 0, self.context.dtype(self.context.node.inputs.index(mask)))
        if rank == 1:
            total = build("Unsqueeze", size_of(build, k, 2), axes=(0,))
            one = build.constant(np.int64(1))
            keys = build("Range", build.constant(np.int64(0)), build("Squeeze", total), one)
            lengths = build("Unsqueeze", build("Cast", mask, to=7), axes=(1,))
            kept = build("Less", keys, lengths)
            rank = 2
        else:
            kept = build("Greater", mask, zero)
        axes = {2: (1, 2), 3: (1,)}.get(rank)
        if axes is None:
            raise NotSupportedError(f"a mask of rank {rank}")
        kept = build("Unsqueeze", kept, axes=axes)
        bias = build("Where", kept, self.number(0.0), self.number(fill))
        return build("Add", scores, bias)

    def output(self, scores: str, v: str, sink: str | None = None) -> str:
        """softmax(scores) V, heads merged. A `sink` [N] or [1] is one more score of every row, of
        a key without a value.
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
        """The past's tokens, then the new ones, along axis 2."""
        return new if past is None else self.build("Concat", past, new, axis=2)

    def scale(self, head_size: int) -> float:
        return float(self.context.attribute("scale", 0.0)) or 1 / math.sqrt(head_size)


def _attention(context: Context, build: Builder) -> tuple[str, ...]:
    """Q, K and V of one product; past and present are [2, B, N, T, H]."""
    if context.attribute("do_rotary", 0) or context.attribute("past_present_share_buffer", 0):
        raise NotSupportedError("rotary or a shared buffer inside Attention")
    check_shapes(context, "batch length features", "features columns", "columns")
    attention = _Attention(context, build, context.dtype(0))
    x, weights, bias, mask, past, added = (optional(context, i) for i in range(6))
    assert x is not None and weights is not None
    if mask is not None and context.rank(3) == 1:
        check_shape(context, 3, context.shape(0)[:1])
    heads = context.count("num_heads")
    columns = known_size(context.shape(1)[1], "the number of columns of the weights")
    sizes = [int(s) for s in context.attribute("qkv_hidden_sizes", ()) or (columns // 3,) * 3]
    product = build("MatMul", x, weights)
    product = product if bias is None else build("Add", product, bias)
    lengths = build.constant(np.array(sizes, np.int64))
    parts = build.many("Split", product, lengths, outputs=3, axis=2)
    q, k, v = (attention.heads(part, heads) for part in parts)
    if past is not None:
        before = [build("Gather", past, build.constant(np.int64(i)), axis=0) for i in range(2)]
        k, v = (attention.appended(p, n) for p, n in zip(before, (k, v), strict=True))
    scores = attention.scores(q, k, attention.scale(sizes[0] // heads))
    if mask is not None:
        fill = float(context.attribute("mask_filter_value", -10000.0))
        scores = attention.masked(scores, mask, context.rank(3), k, fill)
    if added is not None:
        scores = build("Add", scores, added)
    if context.attribute("unidirectional", 0):
        scores = attention.causal(scores, q, k, past, axis=3)
    stacked = (build("Unsqueeze", part, axes=(0,)) for part in (k, v))
    return wanted(context, attention.output(scores, v), build("Concat", *stacked, axis=0))


def _separate(context: Context, build: Builder) -> tuple[str, str, str]:
    """Q, K and V as [B, S, N·H], of packed forms too; K and V that already have heads as
    [B, N, T, H] stay.
    """
    q, k, v = (optional(context, i) for i in range(3))
    assert q is not None
    packed, axis = (q, 3) if k is None else (k, 3)
    if k is None or (v is None and context.rank(1) == 5):
        count = 3 if k is None else 2
        split = build.many("Split", packed, outputs=count, axis=axis, num_outputs=count)
        own = [reshape(build, s, (0, 0, -1)) for s in split]
        return (own[0], own[1], own[2]) if k is None else (q, own[0], own[1])
    assert v is not None
    return q, k, v


def _multi_head(context: Context, build: Builder) -> tuple[str, ...]:
    attention = _Attention(context, build, context.dtype(0))
    heads = context.count("num_heads")
    if context.has(8) or context.has(9):
        raise NotSupportedError("a shared buffer or beams inside MultiHeadAttention")
    query = "heads parts size" if context.rank(0) == 5 else "heads*size"
    check_shapes(context, f"batch length {query}", "", "", "columns", heads=heads, parts=3)
    for index in (1, 2):
        if context.has(index):
            check_shapes(context, *[""] * index, "batch ...", batch=context.shape(0)[0])
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
    if (added := optional(context, 5)) is not None:
        scores = build("Add", scores, added)
    if context.attribute("unidirectional", 0):
        _check_lengths(context)
        scores = attention.causal(scores, q, k, optional(context, 6))
    return wanted(context, attention.output(scores, v), k, v, scores)


def _check_lengths(context: Context) -> None:
    """Refuse a causal mask where there are more new keys than queries: which of them the last query
    sees, onnxruntime does not define.
    """
    if not context.has(1):
        return
    queries, keys = context.shape(0)[1], context.shape(1)[2 if context.rank(1) == 4 else 1]
    new, seen = as_int(queries), as_int(keys)
    if same(queries, keys) or (new is not None and seen is not None and new >= seen):
        return
    raise NotSupportedError(f"unidirectional attention of {queries} queries to {keys} keys")


def _hidden_size(context: Context, heads: int) -> int:
    """The number of columns of Q: N·H."""
    if context.rank(0) == 5:
        return heads * known_size(context.shape(0)[4], "the head size")
    return known_size(context.shape(0)[2], "the hidden size")


@dataclass(frozen=True, slots=True)
class _Rows:
    """How long the rows of a batch are: new tokens stand at `places`, [B, S], behind the `past`
    tokens, [B], of their row; keys and values are stored for `total` tokens.
    """

    build: Builder
    past: str
    places: str
    total: str
    steps: str
    is_first: str

    @staticmethod
    def of(context: Context, build: Builder, queries: str, past_k: str | None) -> _Rows:
        """From `seqlens_k`, the last position of each row, and `total_sequence_length`, that of the
        longest. A past that is longer than that is a buffer: present takes its place.
        """
        context.known(6, "the total sequence length")
        last, longest = (
            build("Reshape", build("Cast", context.node.inputs[i], to=7), build.constant([n]))
            for i, n in ((5, -1), (6, 1))
        )
        one, zero = build.constant(np.int64(1)), build.constant(np.int64(0))
        new = size_of(build, queries, 2)
        stored = zero if past_k is None else size_of(build, past_k, 2)
        whole = build("Squeeze", longest)
        past = build("Sub", build("Add", last, one), new)
        is_first = build("Equal", new, whole)
        past = build("Where", is_first, zero, past)  # a first prompt has none
        steps = build("Range", zero, new, one)
        places = build("Add", build("Unsqueeze", past, axes=(1,)), steps)
        return _Rows(build, past, places, build("Max", stored, whole), steps, is_first)

    def rotated(self, given: str | None) -> str:
        """The places that new tokens are turned by: their own, or those that are `given`, [B, S].
        Of a first prompt onnxruntime reads one place, at which all rows start.
        """
        if given is None:
            return self.places
        build = self.build
        flat, zero = reshape(build, given, (-1,)), build.constant(np.int64(0))
        all_rows = build("Add", build("Gather", flat, zero, axis=0), self.steps)
        return build("Where", self.is_first, all_rows, given)

    def appended(self, past: str | None, new: str, groups: int, size: int, zero: str) -> str:
        """[B, groups, T, H]: the past's tokens, and the new ones where each row ends."""
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

    def seen(self, scores: str, causal: bool, window: int, fill: str) -> str:
        """The scores of the keys that each query sees: those of its row, none later than itself
        (`causal`), nor one that is `window` or more before it.
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


def _group_query(context: Context, build: Builder) -> tuple[str, ...]:
    """Fewer heads of K and V than of Q; every row of the batch has a length of its own."""
    attention = _Attention(context, build, context.dtype(0))
    attribute = context.attribute
    if any(context.has(i) for i in range(12, 17)) or attribute("sliding_window_cache", 0):
        raise NotSupportedError(
            "quantised or windowed caches, norms or packed queries inside GroupQueryAttention"
        )
    heads, groups = int(attribute("num_heads")), int(attribute("kv_num_heads"))
    own = heads if context.has(1) else heads + 2 * groups
    other = "batch length groups*size"
    check_shapes(context, "batch length heads*size", other, other, heads=own, groups=groups)
    hidden = known_size(context.shape(0)[2], "the hidden size")
    q, k, v = (optional(context, i) for i in range(3))
    assert q is not None
    size = hidden // heads if k is not None else hidden // (heads + 2 * groups)
    if k is None or v is None:
        counts = np.array([heads * size, groups * size, groups * size], np.int64)
        q, k, v = build.many("Split", q, build.constant(counts), outputs=3, axis=2)
    queries, keys = attention.heads(q, heads), attention.heads(k, groups)
    values = attention.heads(v, groups)
    past_k, past_v = optional(context, 3), optional(context, 4)
    rows = _Rows.of(context, build, queries, past_k)
    if attribute("do_rotary", 0):
        places = rows.rotated(optional(context, 9))
        queries, keys = (_turned(context, build, x, places) for x in (queries, keys))
    keys = rows.appended(past_k, keys, groups, size, attention.number(0))
    values = rows.appended(past_v, values, groups, size, attention.number(0))
    shared_k, shared_v = (_repeated(build, x, heads, groups, size) for x in (keys, values))
    scores = attention.scores(queries, shared_k, attention.scale(size))
    cap = float(attribute("softcap", 0.0))
    if cap:
        divided = build("Tanh", build("Div", scores, attention.number(cap)))
        scores = build("Mul", divided, attention.number(cap))
    if (added := optional(context, 10)) is not None:
        scores = build("Add", scores, added)
    window = int(attribute("local_window_size", -1))
    if window == 0:
        raise NotSupportedError("a local_window_size of 0: no token sees any")
    scores = rows.seen(scores, bool(attribute("causal", 1)), window, attention.number(LOWEST))
    sink = optional(context, 11)
    if sink is None and int(attribute("smooth_softmax", 0)) > 0:
        sink = attention.number(0)
    return wanted(context, attention.output(scores, shared_v, sink), keys, values, None)


def _repeated(build: Builder, x: str, heads: int, groups: int, size: int) -> str:
    """[B, groups, T, H] with each group repeated for its heads: [B, N, T, H]."""
    if heads == groups:
        return x
    apart = build("Unsqueeze", x, axes=(2,))
    times = build.constant(np.array([1, 1, heads // groups, 1, 1], np.int64))
    wide = build("Expand", apart, times)
    length = build("Shape", x, start=2, end=3)
    front = build.constant(np.array([0, heads], np.int64))
    back = build.constant(np.array([size], np.int64))
    return build("Reshape", wide, build("Concat", front, length, back, axis=0))


def _turned(context: Context, build: Builder, x: str, places: str) -> str:
    """The rotary embedding of tokens at these places, [B, S]."""
    cos, sin = optional(context, 7), optional(context, 8)
    assert cos is not None and sin is not None
    interleaved = bool(context.attribute("rotary_interleaved", 0))
    width = 2 * known_size(context.shape(7)[1], "the rotary size")
    return rotate(build, x, (cos, sin), places, width, interleaved)


def rotate(
    build: Builder, x: str, tables: tuple[str, str], places: str, width: int, interleaved: bool
) -> str:
    """Turn the first `width` elements of every head of `x` [B, N, S, H] by its token's angles;
    what is behind them stays.
    """
    cos, sin = (
        build("Unsqueeze", build("Gather", table, places, axis=0), axes=(1,)) for table in tables
    )
    turning = piece(build, x, 3, 0, width)
    rest = piece(build, x, 3, width, 2**31 - 1)
    if interleaved:
        pairs = reshape(build, turning, (0, 0, 0, -1, 2))
        left, right = (
            build("Gather", pairs, build.constant(np.int64(i)), axis=4) for i in range(2)
        )
    else:
        left = piece(build, turning, 3, 0, width // 2)
        right = piece(build, turning, 3, width // 2, width)
    first = build("Sub", build("Mul", left, cos), build("Mul", right, sin))
    second = build("Add", build("Mul", left, sin), build("Mul", right, cos))
    if interleaved:
        apart = (build("Unsqueeze", part, axes=(4,)) for part in (first, second))
        turned = reshape(build, build("Concat", *apart, axis=4), (0, 0, 0, -1))
    else:
        turned = build("Concat", first, second, axis=3)
    return build("Concat", turned, rest, axis=3)


def _rotary(context: Context, build: Builder) -> tuple[str, ...]:
    """`position_ids` is one row a batch, or the first position of all."""
    x, places, cos, sin = context.node.inputs[:4]
    if context.attribute("is_packed_batching", 0):
        raise NotSupportedError("packed batches inside RotaryEmbedding")
    check_shapes(context, "", "", "positions half", "positions half")
    width = 2 * known_size(context.shape(2)[1], "the rotary size")
    flat = context.rank(0) == 3
    if flat:
        heads = int(context.attribute("num_heads", 0))
        hidden = known_size(context.shape(0)[2], "the hidden size")
        heads = heads or hidden // width
        value = build("Transpose", reshape(build, x, (0, 0, heads, -1)), perm=(0, 2, 1, 3))
    else:
        value = x
    if context.rank(1) == 1:
        one, zero = build.constant(np.int64(1)), build.constant(np.int64(0))
        steps = build("Range", zero, size_of(build, value, 2), one)
        places = build("Unsqueeze", build("Add", steps, places), axes=(0,))
    interleaved = bool(context.attribute("interleaved", 0))
    y = rotate(build, value, (cos, sin), places, width, interleaved)
    if flat:
        y = reshape(build, build("Transpose", y, perm=(0, 2, 1, 3)), (0, 0, -1))
    return (y,)


X, WEIGHTS, BIAS = "float32[2, 3, 8]", "float32[8, 24]", "float32[24]"
PAST = "float32[2, 2, 2, 4, 4]"
MASK = np.array([[0, 1, 1], [1, 1, 1]], np.int32)
LONG = np.array([[0, 1, 1, 1, 1, 1, 1], [1] * 7], np.int32)
CACHE = "float32[9, 4]"
KEYS = "float32[2, 2, 4, 16]"
LAST, TOTAL = np.array([4, 4], np.int32), np.int32(5)

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
    row("RotaryEmbedding", _rotary,
        case("float32[2, 2, 3, 8]", np.array([[0, 1, 2], [4, 5, 6]]), CACHE, CACHE),
        case("float32[2, 3, 16]", np.array([2]), CACHE, CACHE, interleaved=1)),
)  # fmt: skip
