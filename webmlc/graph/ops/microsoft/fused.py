"""Operators into which onnxruntime fuses other operators: activations with a bias, FusedConv,
FusedGemm, FusedMatMul, normalisations of a sum, embeddings with layer norm. Also operators that
ai.onnx has, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Attribute
from webmlc.graph.ops.convolution import conv_type
from webmlc.graph.ops.linear_algebra import inverse
from webmlc.graph.ops.microsoft.rows import DOMAIN, WINDOWS, row, twin
from webmlc.graph.ops.operator import Context, Missing, NotSupportedError, Operator, Result, case
from webmlc.graph.ops.shapes import ONE, check_shape, check_shapes, check_stretches, require

ACTIVATION_PARAMETERS: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("alpha", "beta"),
}
"""The activations that a fused operator may name, and the names of their parameters, in the order
of `activation_params`. The parameters of Clip are the least and the greatest number.
"""


def activate(build: Builder, context: Context, x: Value, parameters: Mapping[str, float]) -> Value:
    """Apply the activation that a node names. It needs all its parameters, as in onnxruntime."""
    name = str(context.attribute("activation", ""))
    if not name:
        return x
    if name not in ACTIVATION_PARAMETERS:
        raise NotSupportedError(f"the activation {name!r}")
    names = ACTIVATION_PARAMETERS[name]
    if missing := [p for p in names if p not in parameters]:
        raise NotSupportedError(f"the activation {name} without its {' and '.join(missing)}")
    if name == "Clip":
        low, high = (build.constant(parameters[p], context.dtype(0)) for p in names)
        return build("Clip", x, low, high)
    attributes: dict[str, Attribute] = {p: parameters[p] for p in names}
    return build(name, x, **attributes)


ACTIVATION_ATTRIBUTES = ("activation_alpha", "activation_beta", "activation_gamma")


def _named_parameters(context: Context) -> dict[str, float]:
    """The parameters of an activation that has an attribute for each."""
    return {
        name.removeprefix("activation_"): float(context.attribute(name))
        for name in ACTIVATION_ATTRIBUTES
        if context.attribute(name) is not None
    }


def _without(context: Context, *names: str) -> dict[str, Attribute]:
    return {k: v for k, v in context.node.attributes.items() if k not in names}


def _fused_conv(context: Context, build: Builder) -> Value:
    """Expand FusedConv: a Conv, plus input Z if it is present, then the activation."""
    inputs = context.node.inputs[:3]
    y = build("Conv", *inputs, **_without(context, "activation", "activation_params"))
    if (z := build.optional(3)) is not None:
        check_shape(context, 3, conv_type(context).shape)
        y = y + z
    parameters = zip(("alpha", "beta"), context.attribute("activation_params", ()), strict=False)
    return activate(build, context, y, dict(parameters))


def _fused_gemm(context: Context, build: Builder) -> Value:
    attributes = _without(context, "activation", *ACTIVATION_ATTRIBUTES)
    y = build("Gemm", *context.node.inputs, **attributes)
    return activate(build, context, y, _named_parameters(context))


def _fused_matmul(context: Context, build: Builder) -> Value:
    """Compute alpha · A' B'. A and B may be transposed (`trans`), and their first axis may move
    behind the batch (`transBatch`).
    """
    operands = []
    for index, side in enumerate("AB"):
        x, rank = build.inputs[index], context.rank(index)
        order = list(range(rank))
        if context.attribute(f"transBatch{side}", 0) and rank > 2:
            order = [*range(1, rank - 1), 0, rank - 1]
        if context.attribute(f"trans{side}", 0) and rank > 1:
            order[-2:] = order[:-3:-1]
        is_permuted = order != sorted(order)
        operands.append(x.transpose(*order) if is_permuted else x)
    y = build("MatMul", *operands)
    alpha = context.factor("alpha", context.dtype(0))
    return y if alpha == 1.0 else y * alpha


def _matmul_activation(context: Context, build: Builder) -> Value:
    """Expand FusedMatMulActivation: a FusedMatMul, then an activation."""
    names = ("activation", "activation_axis", *ACTIVATION_ATTRIBUTES)
    y = build("FusedMatMul", *build.inputs, domain=DOMAIN, **_without(context, *names))
    return activate(build, context, y, _named_parameters(context))


def _gemm_fast_gelu(context: Context, build: Builder) -> Value:
    x, weights, *bias = build.inputs
    return build("FastGelu", x @ weights, *bias, domain=DOMAIN)


def _bias_softmax(context: Context, build: Builder) -> Value:
    """Apply Softmax to the scores with a bias, over all axes from `axis` on."""
    check_stretches(context, 1)
    axis, last = context.axis(1), context.rank(0) - 1
    scores = build.inputs[0] + build.inputs[1]
    if axis == last:
        return scores.op("Softmax", axis=last)
    rows = scores.op("Flatten", axis=axis).op("Softmax", axis=1)
    return rows.op("Reshape", scores.op("Shape"))


def _bias_dropout(context: Context, build: Builder) -> tuple[Value, ...]:
    """Expand BiasDropout: Dropout of the biased input, plus a residual."""
    check_stretches(context, 1)
    data, bias, residual, *others = (build.optional(i) for i in range(5))
    assert data is not None and bias is not None
    y, mask = build.many("Dropout", data + bias, *others, outputs=2, **context.node.attributes)
    return y if residual is None else y + residual, mask


def _unique(context: Context, build: Builder) -> tuple[Value, ...]:
    """Expand the older Unique, which neither sorts nor tells the first places."""
    y, _, places, counts = build.many("Unique", build.inputs[0], outputs=4, sorted=0)
    return y, places, counts


def _biased(context: Context, build: Builder) -> Value:
    check_shapes(context, "... columns", "columns")
    bias = build.optional(1)
    x = build.inputs[0]
    return x if bias is None else x + bias


def _bias_gelu(context: Context, build: Builder) -> Value:
    return build("Gelu", _biased(context, build))


def _fast_gelu(context: Context, build: Builder) -> Value:
    return build("Gelu", _biased(context, build), approximate="tanh")


def _quick_gelu(context: Context, build: Builder) -> Value:
    """Compute x · sigmoid(alpha · x)."""
    return build.inputs[0].op("Swish", alpha=context.attribute("alpha", 1.702))


def _scaled_silu(context: Context, build: Builder) -> Value:
    x, dtype = build.inputs[0], context.dtype(0)
    scale = build.optional(1) or build.constant(context.attribute("alpha", 1.0), dtype)
    return (x * scale).op("Swish")


def _gated_add(context: Context, build: Builder) -> Value:
    if context.has(3):
        raise NotSupportedError("a gate that weights project")
    check_shape(context, 1, context.shape(0))
    check_shape(context, 2, (*context.shape(0)[:-1], ONE))
    x, y, gate = build.inputs[:3]
    return x + y * gate


def _expand_dims(context: Context, build: Builder) -> Value:
    axis = int(context.known_value(1, "axis").reshape(-1)[0])
    return build.inputs[0].unsqueeze(axis)


def _grid_sample(context: Context, build: Builder) -> Value:
    modes = {"bilinear": "linear", "bicubic": "cubic"}
    mode = str(context.attribute("mode", "bilinear"))
    attributes = {**_without(context), "mode": modes.get(mode, mode)}
    return build("GridSample", *context.node.inputs, **attributes)


def _distances(context: Context, build: Builder) -> Value:
    """Compute the distances between all rows of A and all rows of B."""
    check_shapes(context, "rows columns", "others columns")
    a, b = build.inputs
    left = a.unsqueeze(1)
    difference = left - b.unsqueeze(0)
    squares = build("ReduceSumSquare", difference, axes=(2,), keepdims=0)
    metric = context.attribute("metric", "sqeuclidean")
    return build("Sqrt", squares) if metric == "euclidean" else squares


X = "float32[2, 3, 4]"
IMAGE, WEIGHTS = "float32[1, 4, 6, 5]", "float32[3, 4, 3, 3]"


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
    is_sigmoid = context.attribute("activation", "silu") == "sigmoid"
    activated = gate.op("Sigmoid" if is_sigmoid else "Swish")
    return build("Reshape", y, build("Shape", x)) * activated


ROWS, ROW = "float32[2, 3, 8]", "float32[8]"
IDS = np.array([[1, 2, 0], [3, 3, 4]], np.int32)
TABLE = "float32[6, 8]"
MATRIX = np.array([[0.0, 2, 1], [3, 1, -1], [1, -4, 2]])

OPS: tuple[Operator, ...] = (
    row("FusedConv", 4, f"{WINDOWS} activation activation_params dilations group", _fused_conv,
        case(IMAGE, WEIGHTS, "float32[3]", activation="Relu"),
        case(IMAGE, WEIGHTS, activation="LeakyRelu", activation_params=(0.1,), pads=(1,) * 4),
        case(IMAGE, WEIGHTS, activation="Clip", activation_params=(-1.0, 1.5), strides=(2, 2)),
        case(IMAGE, WEIGHTS, "float32[3]", activation="HardSigmoid", activation_params=(0.2, 0.4)),
        case(IMAGE, WEIGHTS, None, "float32[1, 3, 4, 3]", activation="Relu")),
    row("FusedGemm", 3, "activation activation_alpha activation_beta activation_gamma alpha beta"
        " transA transB", _fused_gemm,
        case("float32[3, 4]", "float32[4, 5]", "float32[5]", activation="Relu"),
        case("float32[4, 3]", "float32[4, 5]", None, transA=1, alpha=0.5, activation="LeakyRelu",
             activation_alpha=0.3),
        case("float32[3, 4]", "float32[4, 5]", None, activation="HardSigmoid",
             activation_alpha=0.3, activation_beta=0.4)),
    row("FusedMatMul", 2, "alpha transA transB transBatchA transBatchB", _fused_matmul,
        case("float32[2, 3, 4]", "float32[2, 5, 4]", transB=1, alpha=0.25),
        case("float32[2, 4, 3]", "float32[2, 4, 5]", transA=1),
        case("float32[3, 2, 4]", "float32[2, 4, 5]", transBatchA=1),
        case("float32[3, 2, 4]", "float32[4, 2, 5]", transBatchA=1, transBatchB=1)),
    row("TransposeMatMul", 2, "alpha transA transB", _fused_matmul,
        case("float32[2, 3, 4]", "float32[2, 5, 4]", transB=1, alpha=0.25)),
    row("FusedMatMulActivation", 2, "activation activation_alpha activation_axis activation_beta"
        " activation_gamma alpha transA transB transBatchA transBatchB", _matmul_activation,
        case("float32[2, 3, 4]", "float32[2, 5, 4]", transB=1, alpha=0.25, activation="Relu"),
        case("float32[3, 4]", "float32[4, 5]", activation="LeakyRelu", activation_alpha=0.2)),
    row("GemmFastGelu", 3, "", _gemm_fast_gelu, case(X, "float32[4, 5]", "float32[5]"),
        case(X, "float32[4, 5]")),
    row("BiasSoftmax", 2, "axis is_inner_broadcast", _bias_softmax,
        case("float32[2, 3, 4, 5]", "float32[2, 1, 1, 5]", axis=3, is_inner_broadcast=1),
        case("float32[2, 3, 4, 5]", "float32[4, 5]", axis=2, is_inner_broadcast=0)),
    row("BiasDropout", 5, "seed", _bias_dropout, case(X, "float32[4]", X, outputs=2),
        case(X, X, None, np.float32(0.3), np.bool_(False))),
    row("Unique", 1, "", _unique, case(np.array([2, 1, 1, 3, 4, 3], np.float32), outputs=3),
        case("float32[9] in 1..9", outputs=3)),
    row("TorchEmbedding", 4, "", lambda _, build: build("Gather", *build.inputs[:2]),
        case("float32[6, 4]", "int64[2, 3] in 0..5", np.int64(0), np.bool_(False))),
    row("SampleOp", 1, "", lambda _, build: build("Identity", *build.inputs), case(X)),
    twin("Gelu", 1, "", case(X)),
    row("BiasGelu", 2, "", _bias_gelu, case(X, "float32[4]")),
    row("FastGelu", 2, "", _fast_gelu, case(X), case(X, "float32[4]")),
    row("QuickGelu", 1, "alpha", _quick_gelu, case(X), case(X, alpha=1.0)),
    row("ScaledSiLU", 2, "alpha", _scaled_silu, case(X, alpha=0.5),
        case(X, np.float32(0.7), alpha=0.5)),
    row("GatedAdd", 3, "", _gated_add, case(X, X, "float32[2, 3, 1]")),
    row("CDist", 2, "metric", _distances, case("float32[5, 4]", "float32[3, 4]"),
        case("float32[5, 4]", "float32[3, 4]", metric="euclidean"),
        metric=("sqeuclidean", "euclidean")),
    row("ExpandDims", 2, "", _expand_dims, case(X, np.int32(1)), case(X, np.int32(-1))),
    row("GridSample", 2, "align_corners mode padding_mode", _grid_sample,
        case("float32[1, 2, 5, 4]", "float32[1, 3, 6, 2] in -1.2..1.2"),
        case("float32[1, 2, 5, 4]", "float32[1, 3, 6, 2] in -1.2..1.2", mode="bicubic",
             padding_mode="border")),
    row("Inverse", 1, "", inverse,
        case("float32[3, 3]"), case("float32[2, 4, 4]"), case([[0.0, 2], [3, 1]]), case(MATRIX),
        case(np.stack([MATRIX, MATRIX.T + np.eye(3)])), case("float32[2, 1, 1] in 1..2")),
    twin("Trilu", 2, "upper",
        case("float32[4, 5]", np.int64(1)), case("float32[2, 4, 5]", upper=0)),
    twin("Pad", 3, "mode", case("float32[2, 3]", np.array([1, 0, 2, 1]), np.float32(0.5))),
    twin("Range", 3, "", case(np.float32(1), np.float32(5), np.float32(1.5))),
    twin("GatherND", 2, "", case("float32[3, 4]", np.array([[0, 1], [2, 3]]))),
    row("SkipLayerNormalization", 5, "epsilon", _skip_layer,
        case(ROWS, ROWS, ROW, ROW), case(ROWS, ROWS, ROW, ROW, ROW, epsilon=0.01),
        case(ROWS, "float32[1, 3, 8]", ROW)),
    row("SkipSimplifiedLayerNormalization", 4, "epsilon", _skip_simplified,
        case(ROWS, ROWS, ROW), case(ROWS, ROWS, ROW, ROW, epsilon=0.01)),
    row("SimplifiedLayerNormalization", 2, "axis epsilon stash_type", _simplified,
        case(ROWS, ROW), domain=""),
    row("EmbedLayerNormalization", 9, "epsilon mask_index_type", _embed_layer,
        case(IDS, None, TABLE, TABLE, None, ROW, ROW, outputs=2),
        case(IDS, IDS[::-1].copy(), TABLE, TABLE, TABLE, ROW, ROW, (IDS > 1).astype(np.int32),
             outputs=3),
        case(IDS, None, TABLE, TABLE, None, ROW, ROW, None, IDS[::-1].copy(), outputs=2)),
    row("GatedRMSNorm", 3, "activation epsilon", _gated_rms, case(ROWS, "float32[4]", ROWS),
        case(ROWS, ROW, ROWS, activation="sigmoid"),
        activation=("silu", "swish", "sigmoid")),
)  # fmt: skip
