"""Normalisations of a sum: SkipLayerNormalization and similar operators, embeddings with layer
norm.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ops.microsoft.rows import row
from webmlc.graph.ops.operator import Context, Missing, NotSupportedError, Operator, Result, case
from webmlc.graph.ops.shapes import check_shape, check_shapes, require


def _total(context: Context, build: Builder, bias: int) -> Value:
    """Compute input + skip + bias. The skip may lack the batch. The inputs after it have the size
    of a row.
    """
    check_shapes(context, "... hidden", "", *["hidden"] * (bias - 1))
    shape, other = context.shape(0), context.shape(1)
    equal = all(map(partial(require, context, "equal"), other[-2:], shape[-2:]))
    if not equal or (len(other) == 3 and not require(context, "stretch", other[0], shape[0])):
        raise NotSupportedError("a skip of other rows than the input")
    x, skip = build.inputs[:2]
    total = x + skip
    value = build.optional(bias)
    return total if value is None else total + value


def _skip_layer(context: Context, build: Builder) -> tuple[Result, ...]:
    """Apply LayerNormalization to input + skip + bias. The sum is the fourth output."""
    total = _total(context, build, 4)
    gamma, beta = build.inputs[2], build.optional(3)
    epsilon = context.attribute("epsilon", 1e-12)
    parts = (total, gamma) if beta is None else (total, gamma, beta)
    y, mean, inverse = build.many("LayerNormalization", *parts, outputs=3, axis=-1, epsilon=epsilon)
    return y, mean, inverse, total


def _skip_simplified(context: Context, build: Builder) -> tuple[Result, ...]:
    """Apply RMSNormalization to input + skip + bias. The sum is the fourth output."""
    total, gamma = _total(context, build, 3), build.inputs[2]
    epsilon = context.attribute("epsilon", 1e-12)
    y = build("RMSNormalization", total, gamma, axis=-1, epsilon=epsilon)
    return y, Missing.RESULT, Missing.RESULT, total


def _simplified(context: Context, build: Builder) -> tuple[Result, ...]:
    """Write RMSNormalization, which had this name before ONNX adopted it. The axis is -1 by
    default.
    """
    attributes = {"epsilon": 1e-5, **context.node.attributes}
    return build("RMSNormalization", *context.node.inputs, **attributes), Missing.RESULT


def _embed_layer(context: Context, build: Builder) -> tuple[Result, ...]:
    """Normalise the sum of the rows of word, position and segment.

    Positions are 0, 1, 2, ... by default. The second output counts the ones in each row of the
    mask.
    """
    ids, segments, words, positions, segment_rows, gamma, beta = (
        build.optional(i) for i in range(7)
    )
    assert ids and words and positions and gamma and beta
    tables = ("words hidden", "positions hidden", "segments hidden", "hidden", "hidden")
    check_shapes(context, "batch length", "batch length", *tables, "batch length", "rows length")
    place = build.optional(8)
    total = build("Gather", words, ids, axis=0)
    if place is None:
        rows = build("Slice", positions, [0], build("Shape", ids, start=1, end=2), [0])
    else:
        rows = build("Gather", positions, place, axis=0)
    total = total + rows
    if segments is not None and segment_rows is not None:
        total = total + build("Gather", segment_rows, segments, axis=0)
    epsilon = context.attribute("epsilon", 1e-12)
    y = build("LayerNormalization", total, gamma, beta, axis=-1, epsilon=epsilon)
    return y, _mask_count(context, build, ids), total


def _mask_count(context: Context, build: Builder, ids: Value) -> Value:
    """Count the ones in each row of the mask. Without a mask, the counts are zero."""
    mask = build.optional(7)
    zero = build.constant(0, DType.int32)
    if mask is None:
        batch = build("Shape", ids, start=0, end=1)
        return build("Expand", zero, batch)
    is_one = build("Equal", mask, 1)
    return build("ReduceSum", is_one.cast(DType.int32), axes=(1,), keepdims=0)


def _gated_rms(context: Context, build: Builder) -> Value:
    """Apply RMSNormalization to groups of the length of `scale`, and multiply by an activation of
    the gate.
    """
    x, scale, gate = build.inputs
    check_shape(context, 2, context.shape(0))
    groups = build("Concat", build("Shape", x, end=-1), build.constant(np.array([-1])),
                   build("Shape", scale), axis=0)  # fmt: skip
    grouped = build("Reshape", x, groups)
    epsilon = context.attribute("epsilon", 1e-5)
    y = build("RMSNormalization", grouped, scale, axis=-1, epsilon=epsilon)
    activated = build("Sigmoid", gate)
    if context.attribute("activation", "silu") != "sigmoid":
        activated = gate * activated
    return build("Reshape", y, build("Shape", x)) * activated


X, ROW = "float32[2, 3, 8]", "float32[8]"
IDS = np.array([[1, 2, 0], [3, 3, 4]], np.int32)
TABLE = "float32[6, 8]"

OPS: tuple[Operator, ...] = (
    row("SkipLayerNormalization", _skip_layer,
        case(X, X, ROW, ROW), case(X, X, ROW, ROW, ROW, epsilon=0.01),
        case(X, "float32[1, 3, 8]", ROW)),
    row("SkipSimplifiedLayerNormalization", _skip_simplified,
        case(X, X, ROW), case(X, X, ROW, ROW, epsilon=0.01)),
    row("SimplifiedLayerNormalization", _simplified, case(X, ROW), domain=""),
    row("EmbedLayerNormalization", _embed_layer,
        case(IDS, None, TABLE, TABLE, None, ROW, ROW, outputs=2),
        case(IDS, IDS[::-1].copy(), TABLE, TABLE, TABLE, ROW, ROW, (IDS > 1).astype(np.int32),
             outputs=3),
        case(IDS, None, TABLE, TABLE, None, ROW, ROW, None, IDS[::-1].copy(), outputs=2)),
    row("GatedRMSNorm", _gated_rms, case(X, "float32[4]", X),
        case(X, ROW, X, activation="sigmoid"),
        choices={"activation": ("silu", "swish", "sigmoid")}),
)  # fmt: skip
