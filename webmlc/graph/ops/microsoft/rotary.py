"""RotaryEmbedding as onnxruntime fuses it: rotate pairs of elements by angles of their positions.

Sizes in the comments: batch B, new tokens S, past tokens P, all tokens T, heads N, head size H.
"""

from __future__ import annotations

import numpy as np

from webmlc.graph.builder import Builder, Value
from webmlc.graph.ops.index import require_within
from webmlc.graph.ops.microsoft.rows import known_size, row
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import check_shapes


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

OPS: tuple[Operator, ...] = (
    row("RotaryEmbedding", _rotary,
        case("float32[2, 2, 3, 8]", np.array([[0, 1, 2], [4, 5, 6]]), CACHE, CACHE),
        case("float32[2, 3, 16]", np.array([2]), CACHE, CACHE, interleaved=1)),
)  # fmt: skip
