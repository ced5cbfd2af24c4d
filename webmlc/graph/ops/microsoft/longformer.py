"""Attention to a window and to chosen tokens: LongformerAttention.

A token attends to the tokens in its window, and to the global tokens. A global token attends to all
tokens, with weights of its own. All scores are computed, and a mask hides those outside the window.

Source: Beltagy, Peters, Cohan, "Longformer: the long-document transformer", 2020.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from webmlc.graph.builder import Builder, Value
from webmlc.graph.ops.microsoft.attention import HIDDEN, AttentionWriter
from webmlc.graph.ops.microsoft.rows import known_size, row
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import check_shapes


def _longformer(context: Context, build: Builder) -> Value:
    """Expand LongformerAttention to two attentions, of which each token takes one."""
    check_shapes(context, "batch length hidden", "", "", "batch length", "", "", "batch length")
    x, _, _, mask, *_, flags = build.inputs
    heads, window = context.count("num_heads"), context.count("window")
    size = known_size(context.shape(0)[2], "the hidden size")
    if size % heads:
        raise NotSupportedError(f"{size} features, not a multiple of {heads} heads")
    attention = AttentionWriter(context, build, context.dtype(0))
    projections = zip(_weights(context, build), _biases(context, build), strict=True)
    q, k, v, global_q, global_k, global_v = (
        attention.heads(x @ weight + bias, heads) for weight, bias in projections
    )
    is_global = flags.op("Greater", 0)
    places = build("Range", 0, x.size(1), 1)
    distance = build("Abs", places.unsqueeze(1) - places)
    is_near = ~distance.op("Greater", window) | is_global.unsqueeze(1, 2)
    penalty, scale = mask.unsqueeze(1, 2), attention.scale(size // heads)
    near_scores = is_near.where(attention.scores(q, k, scale) + penalty, HIDDEN)
    scores = attention.scores(global_q, global_k, scale) + penalty
    near, everywhere = attention.output(near_scores, v), attention.output(scores, global_v)
    return is_global.unsqueeze(2).where(everywhere, near)


def _weights(context: Context, build: Builder) -> Sequence[Value]:
    """The six weights, of Q, K and V near a token and then everywhere: columns of one matrix
    [features, 3 * features], or matrices [3, features, features].
    """
    if context.rank(1) == 3:
        return [build.inputs[index].element(k, 0) for index in (1, 4) for k in range(3)]
    return [
        part
        for index in (1, 4)
        for part in build.many("Split", build.inputs[index], outputs=3, axis=1, num_outputs=3)
    ]


def _biases(context: Context, build: Builder) -> Sequence[Value]:
    """The six biases. Beside matrices [3, features, features], the first input holds five of them,
    and the second one the bias of Q everywhere.
    """
    first, second = build.inputs[2], build.inputs[5]
    if context.rank(1) == 3:
        parts = build.many("Split", first, outputs=5, axis=0, num_outputs=5)
        return (*parts[:3], second, *parts[3:])
    return [
        part
        for bias in (first, second)
        for part in build.many("Split", bias, outputs=3, axis=0, num_outputs=3)
    ]


X, MASK = "float32[2, 8, 6]", [[0.0] * 8, [0.0] * 6 + [-1e4] * 2]
FIRST, INNER = np.eye(1, 8, dtype=np.int32).repeat(2, 0), np.eye(2, 8, 3, dtype=np.int32)

OPS: tuple[Operator, ...] = (
    row("LongformerAttention", 7, "num_heads window", _longformer,
        case(X, "float32[6, 18]", "float32[18]", MASK, "float32[6, 18]", "float32[18]",
             FIRST, num_heads=2, window=2),
        case(X, "float32[3, 6, 6]", "float32[30]", MASK, "float32[3, 6, 6]", "float32[6]",
             INNER, num_heads=3, window=1)),
)  # fmt: skip
