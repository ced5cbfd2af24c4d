"""Operators into which onnxruntime fuses other operators: activations with a bias, FusedConv,
FusedGemm, FusedMatMul. Also operators that ai.onnx has, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Attribute
from webmlc.graph.ops.convolution import conv_type
from webmlc.graph.ops.microsoft.rows import row, twin
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import ONE, check_shape, check_shapes

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
}
"""The activations that a fused operator may name, and the names of their parameters."""


def activate(build: Builder, context: Context, x: Value, parameters: Sequence[float]) -> Value:
    """Apply the activation that a node names."""
    name = str(context.attribute("activation", ""))
    if not name:
        return x
    if name == "Clip":
        low, high = (build.constant(p, context.dtype(0)) for p in parameters)
        return build("Clip", x, low, high)
    if name not in ACTIVATION_PARAMETERS:
        raise NotSupportedError(f"the activation {name!r}")
    pairs = zip(ACTIVATION_PARAMETERS[name], parameters, strict=False)
    attributes: dict[str, Attribute] = dict(pairs)
    return build(name, x, **attributes)


def _without(context: Context, *names: str) -> dict[str, Attribute]:
    return {k: v for k, v in context.node.attributes.items() if k not in names}


def _fused_conv(context: Context, build: Builder) -> Value:
    """Expand FusedConv: a Conv, plus input Z if it is present, then the activation."""
    inputs = context.node.inputs[:3]
    y = build("Conv", *inputs, **_without(context, "activation", "activation_params"))
    if (z := build.optional(3)) is not None:
        check_shape(context, 3, conv_type(context).shape)
        y = y + z
    return activate(build, context, y, context.attribute("activation_params", ()))


def _fused_gemm(context: Context, build: Builder) -> Value:
    parameters = ("activation_alpha", "activation_beta", "activation_gamma")
    y = build("Gemm", *context.node.inputs, **_without(context, "activation", *parameters))
    values = [context.attribute(p) for p in parameters if context.attribute(p) is not None]
    return activate(build, context, y, values)


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
    alpha = context.attribute("alpha", 1.0)
    return y if alpha == 1.0 else y * alpha


def _biased(context: Context, build: Builder) -> Value:
    check_shapes(context, "... columns", "columns")
    bias = build.optional(1)
    x = build.inputs[0]
    return x if bias is None else x + bias


def _bias_gelu(context: Context, build: Builder) -> Value:
    return build("Gelu", _biased(context, build))


def _fast_gelu(context: Context, build: Builder) -> Value:
    return build("Gelu", _biased(context, build), approximate="tanh")


def _swish(build: Builder, x: Value, scaled: Value) -> Value:
    return x * build("Sigmoid", scaled)


def _quick_gelu(context: Context, build: Builder) -> Value:
    """Compute x · sigmoid(alpha · x)."""
    x, alpha = build.inputs[0], context.attribute("alpha", 1.702)
    return _swish(build, x, x * alpha)


def _scaled_silu(context: Context, build: Builder) -> Value:
    x, dtype = build.inputs[0], context.dtype(0)
    scale = build.optional(1) or build.constant(context.attribute("alpha", 1.0), dtype)
    scaled = x * scale
    return _swish(build, scaled, scaled)


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

OPS: tuple[Operator, ...] = (
    row("FusedConv", _fused_conv,
        case(IMAGE, WEIGHTS, "float32[3]", activation="Relu"),
        case(IMAGE, WEIGHTS, activation="LeakyRelu", activation_params=(0.1,), pads=(1,) * 4),
        case(IMAGE, WEIGHTS, activation="Clip", activation_params=(-1.0, 1.5), strides=(2, 2)),
        case(IMAGE, WEIGHTS, "float32[3]", activation="HardSigmoid", activation_params=(0.2, 0.4)),
        case(IMAGE, WEIGHTS, None, "float32[1, 3, 4, 3]", activation="Relu")),
    row("FusedGemm", _fused_gemm,
        case("float32[3, 4]", "float32[4, 5]", "float32[5]", activation="Relu"),
        case("float32[4, 3]", "float32[4, 5]", None, transA=1, alpha=0.5, activation="LeakyRelu",
             activation_alpha=0.3)),
    row("FusedMatMul", _fused_matmul,
        case("float32[2, 3, 4]", "float32[2, 5, 4]", transB=1, alpha=0.25),
        case("float32[2, 4, 3]", "float32[2, 4, 5]", transA=1),
        case("float32[3, 2, 4]", "float32[2, 4, 5]", transBatchA=1),
        case("float32[3, 2, 4]", "float32[4, 2, 5]", transBatchA=1, transBatchB=1)),
    row("TransposeMatMul", _fused_matmul,
        case("float32[2, 3, 4]", "float32[2, 5, 4]", transB=1, alpha=0.25)),
    twin("Gelu", case(X)),
    row("BiasGelu", _bias_gelu, case(X, "float32[4]")),
    row("FastGelu", _fast_gelu, case(X), case(X, "float32[4]")),
    row("QuickGelu", _quick_gelu, case(X), case(X, alpha=1.0)),
    row("ScaledSiLU", _scaled_silu, case(X, alpha=0.5), case(X, np.float32(0.7), alpha=0.5)),
    row("GatedAdd", _gated_add, case(X, X, "float32[2, 3, 1]")),
    row("CDist", _distances, case("float32[5, 4]", "float32[3, 4]"),
        case("float32[5, 4]", "float32[3, 4]", metric="euclidean"),
        choices={"metric": ("sqeuclidean", "euclidean")}),
    row("ExpandDims", _expand_dims, case(X, np.int32(1)), case(X, np.int32(-1))),
    row("GridSample", _grid_sample,
        case("float32[1, 2, 5, 4]", "float32[1, 3, 6, 2] in -1.2..1.2"),
        case("float32[1, 2, 5, 4]", "float32[1, 3, 6, 2] in -1.2..1.2", mode="bicubic",
             padding_mode="border")),
    twin("Trilu", case("float32[4, 5]", np.int64(1)), case("float32[2, 4, 5]", upper=0)),
    twin("Pad", case("float32[2, 3]", np.array([1, 0, 2, 1]), np.float32(0.5))),
    twin("Range", case(np.float32(1), np.float32(5), np.float32(1.5))),
    twin("GatherND", case("float32[3, 4]", np.array([[0, 1], [2, 3]]))),
)  # fmt: skip
