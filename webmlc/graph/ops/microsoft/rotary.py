"""RotaryEmbedding as onnxruntime fuses it: rotate pairs of elements by angles of their positions.

Sizes in the comments: batch B, new tokens S, past tokens P, all tokens T, heads N, head size H.
"""

from __future__ import annotations

import numpy as np

from webmlc.graph.builder import Builder
from webmlc.graph.ops.index import require_within
from webmlc.graph.ops.microsoft.rows import (
    known_size,
    piece,
    reshape,
    row,
    size_of,
)
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import check_shapes


def rotate(
    build: Builder, x: str, tables: tuple[str, str], places: str, width: int, interleaved: bool
) -> str:
    """Rotate the first `width` elements of each head of `x` [B, N, S, H] by the angles of its
    token. The other elements stay.
    """
    cos, sin = (
        build("Unsqueeze", build("Gather", table, places, axis=0), axes=(1,)) for table in tables
    )
    turning = piece(build, x, 3, 0, width)
    tail = piece(build, x, 3, width, 2**31 - 1)
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
        columns = (build("Unsqueeze", part, axes=(4,)) for part in (first, second))
        turned = reshape(build, build("Concat", *columns, axis=4), (0, 0, 0, -1))
    else:
        turned = build("Concat", first, second, axis=3)
    return build("Concat", turned, tail, axis=3)


def _rotary(context: Context, build: Builder) -> tuple[str, ...]:
    """Expand RotaryEmbedding. `position_ids` holds a row for each element of the batch, or one
    first position for all.
    """
    x, places, cos, sin = context.node.inputs[:4]
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
        value = build("Transpose", reshape(build, x, (0, 0, heads, -1)), perm=(0, 2, 1, 3))
    else:
        value = x
    if context.rank(1) == 1:
        one, zero = build.constant(np.int64(1)), build.constant(np.int64(0))
        steps = build("Range", zero, size_of(build, value, 2), one)
        places = build("Unsqueeze", build("Add", steps, places), axes=(0,))
    places = require_within(build, places, context.shape(2)[0])
    interleaved = bool(context.attribute("interleaved", 0))
    y = rotate(build, value, (cos, sin), places, width, interleaved)
    if flat:
        y = reshape(build, build("Transpose", y, perm=(0, 2, 1, 3)), (0, 0, -1))
    return (y,)


CACHE = "float32[9, 4]"

OPS: tuple[Operator, ...] = (
    row("RotaryEmbedding", _rotary,
        case("float32[2, 2, 3, 8]", np.array([[0, 1, 2], [4, 5, 6]]), CACHE, CACHE),
        case("float32[2, 3, 16]", np.array([2]), CACHE, CACHE, interleaved=1)),
)  # fmt: skip
