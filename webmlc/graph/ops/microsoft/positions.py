"""Positions in attention: rotary embeddings, which rotate pairs of elements by angles of their
positions, and biases of scores by the distance of query and key.

Sizes in the comments: batch B, tokens S, keys T, heads N, head size H.
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Array
from webmlc.graph.ops.index import require_within
from webmlc.graph.ops.microsoft.rows import DOMAIN, known_size, row
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import check_shapes


def angles(build: Builder, tables: tuple[Value, Value], places: Value) -> tuple[Value, Value]:
    """The cosines and the sines of tokens at these positions [B, S], as [B, 1, S, width / 2]."""
    cos, sin = (build("Gather", table, places, axis=0).unsqueeze(1) for table in tables)
    return cos, sin


def rotate(
    build: Builder,
    x: Value,
    turns: tuple[Value, Value],
    width: int,
    interleaved: bool,
) -> Value:
    """Rotate the first `width` elements of each head of `x` [B, N, S, H] by the angles of its
    token, whose cosines and sines `turns` holds. The other elements do not change.
    """
    cos, sin = turns
    channels = x.slice(0, width, 3)
    tail = x.slice(width, 2**31 - 1, 3)
    if interleaved:
        pairs = channels.reshape(0, 0, 0, -1, 2)
        left, right = (pairs.element(i, 4) for i in range(2))
    else:
        left = channels.slice(0, width // 2, 3)
        right = channels.slice(width // 2, width, 3)
    first = left * cos - right * sin
    second = left * sin + right * cos
    if interleaved:
        columns = (part.unsqueeze(4) for part in (first, second))
        rotated_channels = build("Concat", *columns, axis=4).reshape(0, 0, 0, -1)
    else:
        rotated_channels = build("Concat", first, second, axis=3)
    return build("Concat", rotated_channels, tail, axis=3)


def _rotary(context: Context, build: Builder) -> Value:
    """Expand RotaryEmbedding and MRotaryEmbedding. `position_ids` holds a row for each element of
    the batch, or one first position for all. MRotaryEmbedding has three such rows (`_sections`).
    """
    x, places, cos, sin = build.inputs[:4]
    flat = context.rank(0) == 3
    tokens = "batch length hidden" if flat else "batch heads length size"
    positions = {1: "1", 2: "batch length"}.get(context.rank(1), "3 batch length")
    check_shapes(context, tokens, positions, "positions half", "positions half")
    width = 2 * known_size(context.shape(2)[1], "the rotary size")
    rotated = int(context.attribute("rotary_embedding_dim", 0))
    if rotated % 2:
        raise NotSupportedError(f"rotary_embedding_dim is {rotated}, and pairs are rotated")
    if rotated and flat and not context.attribute("num_heads", 0):
        raise NotSupportedError("rotary_embedding_dim without num_heads")
    is_multiple = context.node.op == "MRotaryEmbedding"
    if is_multiple and context.attribute("scale", 1.0) != 1.0:
        raise NotSupportedError("a scale inside MRotaryEmbedding: multiply its tables by it")
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
    if is_multiple:
        turns = _sections(context, build, places, width // 2)
    else:
        turns = angles(build, (cos, sin), places)
    y = rotate(build, value, turns, width, interleaved)
    if flat:
        y = y.transpose(0, 2, 1, 3).reshape(0, 0, -1)
    return y


def _sections(context: Context, build: Builder, places: Value, half: int) -> tuple[Value, Value]:
    """The cosines and sines of tokens with three positions [3, B, S] (time, height and width), each
    of which decides some columns: a section each, or every third column.
    """
    sizes = [int(n) for n in context.attribute("mrope_section")]
    if len(sizes) != 3 or sum(sizes) != half:
        raise NotSupportedError(f"sections {sizes} of {half} angles")
    streams = np.repeat(np.arange(3), sizes)
    if context.attribute("mrope_layout", 0):
        streams = np.zeros(half, np.int64)
        for stream in (1, 2):
            streams[stream : 3 * sizes[stream] : 3] = stream
    _, _, cosines, sines = build.inputs
    turns = [angles(build, (cosines, sines), places.element(i, 0)) for i in range(3)]
    second, third = (build.constant(streams == i) for i in (1, 2))
    cos, sin = (third.where(c, second.where(b, a)) for a, b, c in zip(*turns, strict=True))
    return cos, sin


def _gemma(context: Context, build: Builder) -> tuple[Value, ...]:
    """Rotate Q and K by the angles `emb`. Their halves were swapped before."""
    heads = "batch heads length size"
    check_shapes(context, "batch length size", heads, heads, "batch groups length size",
                 "batch groups length size")  # fmt: skip
    emb, *states = build.inputs
    cos, sin = (build(op, emb).cast(context.dtype(1)).unsqueeze(1) for op in ("Cos", "Sin"))
    q, q_swapped, k, k_swapped = states
    return q * cos + q_swapped * sin, k * cos + k_swapped * sin


# -- biases of scores ------------------------------------------------------------------------------


def _buckets(buckets: int, limit: int, is_bidirectional: bool) -> Array:
    """The bucket of each distance from -limit to limit, as onnxruntime computes it: near
    distances have a bucket each, and far distances share buckets of growing widths. Unlike in T5,
    a later key has the bucket of an earlier one also if `is_bidirectional` is false.
    """
    distances = np.arange(limit, -limit - 1, -1)  # query less key
    first: Array = np.zeros(len(distances), np.int64)
    if is_bidirectional:
        buckets //= 2
        first = np.where(distances < 0, buckets, 0)
    distances = np.abs(distances)
    near = buckets // 2
    growths = np.log(np.maximum(distances, 1) / near).astype(np.float32)
    shares = growths / np.log(limit / near).astype(np.float32)
    far = near + (shares * np.float32(buckets - near)).astype(np.int64)
    return first + np.where(distances < near, distances, np.minimum(far, buckets - 1))


def _relative_bias(context: Context, build: Builder) -> Value:
    """Look a bias up for each head and each distance of query and key. The bytes of the table,
    which has the shape [buckets, N], are in the order [N, buckets].
    """
    check_shapes(context, "buckets heads")
    table, queries, keys = build.inputs
    count, heads = (known_size(n, "the size of the table") for n in context.shape(0))
    limit = context.count("max_distance")
    buckets = _buckets(count, limit, bool(context.attribute("is_bidirectional", 0)))
    rows, columns = (
        build("Range", 0, n.cast(DType.int64).reshape(1).op("Squeeze"), 1) for n in (queries, keys)
    )
    distances = columns - rows.unsqueeze(1)
    places = build("Clip", distances, -limit, limit) + limit
    numbers = build("Gather", build.constant(buckets), places, axis=0)
    return build("Gather", table.reshape(heads, count), numbers, axis=1).unsqueeze(0)


def _gated_bias(context: Context, build: Builder) -> Value:
    """Scale a bias [1, N, S, S] by gates, which are computed from the queries."""
    query, query_bias, bias, weights, weights_bias, factor, offset = (
        build.optional(i) for i in range(7)
    )
    assert query and query_bias and bias and weights and weights_bias and factor
    heads = context.count("num_heads")
    if offset is not None:
        query = build("RestorePadding", query, offset, domain=DOMAIN)
    layer = (query + query_bias).reshape(0, 0, heads, -1).transpose(0, 2, 1, 3)
    columns = known_size(context.shape(3)[1], "the number of columns of the weights")
    parts = (layer @ weights + weights_bias).reshape(0, 0, 0, 2, columns // 2)
    gates = build("ReduceSum", parts, [-1], keepdims=0).op("Sigmoid")
    update, reset = (gates.slice(i, i + 1, 3) for i in (0, 1))
    return (update * (reset * factor - 1.0) + 2.0) * bias


CACHE = "float32[9, 4]"
ROTARY = "interleaved is_packed_batching num_heads rotary_embedding_dim scale"
THREE = np.array([[[0, 1, 2], [4, 5, 6]], [[0, 2, 2], [3, 5, 8]], [[1, 1, 7], [4, 0, 6]]])
HEADS = "float32[2, 2, 3, 8]"
LENGTH = np.array(5, np.int64)
BIASES = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)

OPS: tuple[Operator, ...] = (
    row("RotaryEmbedding", 4, ROTARY, _rotary,
        case(HEADS, np.array([[0, 1, 2], [4, 5, 6]]), CACHE, CACHE),
        case("float32[2, 3, 16]", np.array([2]), CACHE, CACHE, interleaved=1),
        case("float32[2, 3, 24]", np.array([[0, 1, 2], [4, 5, 6]]), CACHE, CACHE, num_heads=2,
             rotary_embedding_dim=8),
        case(HEADS, np.array([3]), "float32[9, 2]", "float32[9, 2]", num_heads=2,
             rotary_embedding_dim=4, interleaved=1, is_packed_batching=1)),
    row("MRotaryEmbedding", 4, f"{ROTARY} mrope_layout mrope_section", _rotary,
        case(HEADS, THREE, CACHE, CACHE, mrope_section=(2, 1, 1)),
        case("float32[2, 3, 16]", THREE, CACHE, CACHE, mrope_section=(2, 1, 1), mrope_layout=1,
             interleaved=1, num_heads=2, rotary_embedding_dim=8)),
    row("GemmaRotaryEmbedding", 5, "", _gemma,
        case("float32[2, 3, 8]", *[HEADS] * 4, outputs=2)),
    row("RelativePositionBias", 3, "is_bidirectional max_distance", _relative_bias,
        case("float32[8, 3]", LENGTH, LENGTH, max_distance=6, is_bidirectional=1),
        case("float32[8, 3]", LENGTH, np.array(20, np.int64), max_distance=9),
        case(BIASES, "int64[] in 3..9", "int64[] in 3..9", max_distance=6)),
    row("GatedRelativePositionBias", 7, "num_heads", _gated_bias,
        case("float32[2, 3, 8]", "float32[8]", "float32[1, 2, 3, 3]", "float32[4, 6]",
             "float32[6]", "float32[1, 2, 1, 1]", num_heads=2),
        case("float32[4, 8]", "float32[8]", "float32[1, 2, 3, 3]", "float32[4, 6]",
             "float32[6]", "float32[1, 2, 1, 1]", np.array([[0, 1, 3], [4, 2, 5]], np.int32),
             num_heads=2)),
)  # fmt: skip
