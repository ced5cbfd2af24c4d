"""Packed tokens: the rows of a batch without their padding, as onnxruntime's packing mode writes.

The offsets of tokens are [B, S]: first the places of all tokens in the padded batch, row by row,
then the places of the padding. Of [a, b, -] and [c, -, -], the offsets are 0, 1, 3, 2, 4, 5.
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ops.index import require_within
from webmlc.graph.ops.microsoft.attention import HIDDEN
from webmlc.graph.ops.microsoft.rows import DOMAIN, known_size, row
from webmlc.graph.ops.operator import Context, Operator, case
from webmlc.graph.ops.shapes import canonical, check_shapes, product


def _remove_padding(context: Context, build: Builder) -> tuple[Value, ...]:
    """Expand RemovePadding to the tokens, their offsets, the ends of the rows, and the length of
    the longest row.
    """
    check_shapes(context, "batch length hidden", "batch")
    x, counts = build.inputs
    counts = counts.cast(DType.int64)
    counts = require_within(build, counts, canonical(context.shape(0)[1] + 1))
    steps = build("Range", 0, x.size(1), 1)
    is_token = steps.op("Less", counts.unsqueeze(1)).reshape(-1)
    ahead, behind = (
        build("CumSum", mask.cast(DType.int64), np.int64(0)) - 1
        for mask in (is_token, is_token.op("Not"))
    )
    total = build("ReduceSum", counts, keepdims=0)
    places = is_token.where(ahead, behind + total)
    numbers = build("Range", 0, is_token.size(0), 1)
    offsets = build("ScatterElements", numbers, places, numbers, axis=0)
    tokens = build("Compress", x.op("Flatten", axis=2), is_token, axis=0)
    ends = build("Concat", [0], build("CumSum", counts, np.int64(0)), axis=0)
    longest = build("ReduceMax", counts, [0], keepdims=1)
    shape = build("Shape", x, start=0, end=2)
    indices = (offsets.op("Reshape", shape), ends, longest)
    return (tokens, *(value.cast(DType.int32) for value in indices))


def _restore_padding(context: Context, build: Builder) -> Value:
    """Expand RestorePadding: scatter the tokens to their places among zeros."""
    check_shapes(context, "tokens hidden", "batch length")
    x, offsets = build.inputs
    places = _places(context, build, x, 1).unsqueeze(1)
    sizes = build("Concat", offsets.op("Size").reshape(1), x.op("Shape", start=1), axis=0)
    zeros = build("ConstantOfShape", sizes, value=np.zeros(1, context.dtype(0).numpy))
    shape = build("Concat", offsets.op("Shape"), x.op("Shape", start=1), axis=0)
    return build("ScatterND", zeros, places, x).op("Reshape", shape)


def _places(context: Context, build: Builder, tokens: Value, index: int) -> Value:
    """The places of the tokens [tokens] from the offsets at input `index`."""
    offsets = build.inputs[index].cast(DType.int64).reshape(-1)
    places = build("Slice", offsets, [0], tokens.op("Shape", start=0, end=1), [0])
    return require_within(build, places, product(context.shape(index)))


def _packed_attention(context: Context, build: Builder) -> Value:
    """Expand an attention of packed tokens: pad them, and let MultiHeadAttention mask the padding.
    PackedAttention first multiplies the tokens by the weights of Q, K and V.
    """
    is_projected = context.node.op == "PackedMultiHeadAttention"
    heads, first = context.count("num_heads"), 4 if is_projected else 3
    q, k, v, bias = (build.optional(i) for i in range(4))
    ends, score_bias = build.optional(first + 1), build.optional(first + 2)
    assert q is not None and ends is not None
    tokens = q
    if not is_projected:
        assert k is not None and v is not None
        columns = known_size(context.shape(1)[1], "the number of columns of the weights")
        sizes = [int(n) for n in context.attribute("qkv_hidden_sizes", ()) or (columns // 3,) * 3]
        q, k, v = build.many("Split", q @ k + v, sizes, outputs=3, axis=1)
        bias = None
    elif k is None:
        parts = (q.element(i, 2) for i in range(3))
        q, k, v = (part.reshape(0, -1) for part in parts)
    offsets = build.inputs[first]
    padded = (build("RestorePadding", x, offsets, domain=DOMAIN) for x in (q, k, v))
    starts, stops = (ends.slice(i, end, 0) for i, end in ((0, -1), (1, 2**31 - 1)))
    scale = context.attribute("scale", 0.0)
    y = build("MultiHeadAttention", *padded, bias, stops - starts, score_bias, domain=DOMAIN,
              num_heads=heads, scale=scale, mask_filter_value=HIDDEN)  # fmt: skip
    places = _places(context, build, tokens, first)
    return build("Gather", y.op("Flatten", axis=2), places, axis=0)


OFFSETS = np.array([[0, 1, 2, 4], [5, 3, 6, 7]], np.int32)
"""The offsets of rows of three tokens and of two, in a batch of four places for each row."""
ENDS, COUNTS = np.array([0, 3, 5], np.int32), np.array([3, 2], np.int32)
STEEP = np.zeros((1, 1, 4, 4), np.float32)
STEEP[..., 3] = 2e4  # padding of both rows
TOKENS, WEIGHTS, BIAS = "float32[5, 8]", "float32[8, 24]", "float32[24]"

OPS: tuple[Operator, ...] = (
    row("RemovePadding", 2, "", _remove_padding, case("float32[2, 4, 8]", COUNTS, outputs=4)),
    row("RestorePadding", 2, "", _restore_padding, case(TOKENS, OFFSETS)),
    row("PackedAttention", 6, "num_heads qkv_hidden_sizes scale", _packed_attention,
        case(TOKENS, WEIGHTS, BIAS, OFFSETS, ENDS, num_heads=2),
        case(TOKENS, "float32[8, 22]", "float32[22]", OFFSETS, ENDS, "float32[1, 2, 4, 4]",
             num_heads=2, qkv_hidden_sizes=(8, 8, 6), scale=0.3)),
    row("PackedMultiHeadAttention", 7, "mask_filter_value num_heads scale", _packed_attention,
        case(TOKENS, TOKENS, TOKENS, None, OFFSETS, ENDS, num_heads=2),
        case(TOKENS, TOKENS, TOKENS, None, OFFSETS, ENDS, STEEP, num_heads=2),
        case("float32[5, 2, 3, 4]", None, None, BIAS, OFFSETS, ENDS, "float32[2, 1, 4, 4]",
             num_heads=2)),
)  # fmt: skip
