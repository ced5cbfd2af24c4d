"""Operators over feature maps of diffusion and detection models: group normalisation, operators
whose channels come last, and CropAndResize.
"""

from __future__ import annotations

import numpy as np

from webmlc.core.expr import Const, Expr, as_expr, call, const, maximum, minimum, select
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.index import clamped
from webmlc.graph.ops.microsoft.rows import DOMAIN, WINDOWS, channels_last, channels_second, row
from webmlc.graph.ops.operator import (
    Context,
    IndexInput,
    NotSupportedError,
    Operator,
    Result,
    Signature,
    case,
)
from webmlc.graph.ops.sampling import interpolate
from webmlc.graph.ops.shapes import accumulator, all_of, check_shapes, check_stretches, dimensions


def _group_norm(context: Context, build: Builder) -> tuple[Result, ...]:
    """Expand GroupNorm, and SkipGroupNorm, which first adds a skip [N, H, W, C], [N, 1, 1, C] or
    [N, C], and a bias [C]. The sum is the second output.
    """
    is_last = bool(context.attribute("channels_last", 1))
    order = "batch height width channels" if is_last else "batch channels height width"
    check_shapes(context, order, "channels", "channels", "", "channels")
    x, gamma, beta, skip, bias = (build.optional(i) for i in range(5))
    assert x is not None and gamma is not None and beta is not None
    spatial = (1, 2) if is_last else (2, 3)
    if skip is not None:
        if context.rank(3) == 2:
            skip = skip.unsqueeze(*spatial)
        else:
            check_stretches(context, 3)
        x = x + skip
    if bias is not None:
        x = x + (bias if is_last else bias.reshape(-1, 1, 1))
    dtype = context.dtype(0)
    y = channels_second(x, 4) if is_last else x
    parameters = (p if context.dtype(1) is dtype else p.cast(dtype) for p in (gamma, beta))
    epsilon, groups = context.attribute("epsilon", 1e-5), context.count("groups")
    y = build("GroupNormalization", y, *parameters, num_groups=groups, epsilon=epsilon)
    activation = int(context.attribute("activation", 0))
    if activation not in (0, 1):
        raise NotSupportedError(f"the activation {activation}: it is 0 for none or 1 for SiLU")
    if activation:
        y = y.op("Swish")
    return channels_last(y, 4) if is_last else y, x


def _bias_add(context: Context, build: Builder) -> Value:
    check_shapes(context, "batch pixels channels", "channels", "batch pixels channels")
    x, bias, skip = build.inputs
    return x + bias + skip


def _bias_split_gelu(context: Context, build: Builder) -> Value:
    check_shapes(context, "batch pixels 2*half", "columns")
    check_shapes(context, "batch pixels columns", "columns")
    biased = build.inputs[0] + build.inputs[1]
    left, right = build.many("Split", biased, outputs=2, axis=2, num_outputs=2)
    return left * right.op("Gelu")


def _nhwc_conv(context: Context, build: Builder) -> Value:
    """Expand NhwcConv. Its weights are [M, height, width, C / group], as onnxruntime's optimiser
    writes them. The weights of NhwcFusedConv are in the layout of Conv.
    """
    rank, op = context.rank(0), context.node.op
    x, weights, bias, skip = (build.optional(i) for i in range(4))
    assert x is not None and weights is not None
    x = channels_second(x, rank)
    if op == "NhwcConv":
        y = build("Conv", x, channels_second(weights, rank), bias, **context.node.attributes)
    else:
        skip = None if skip is None else channels_second(skip, rank)
        inputs = (x, weights, bias, skip)
        y = build("FusedConv", *inputs, domain=DOMAIN, **context.node.attributes)
    return channels_last(y, rank)


def _dynamic_pads(context: Context, build: Builder) -> Value:
    """Expand ConvTransposeWithDynamicPads: the pads are an input, known at build time."""
    x, weights, _, bias = (build.optional(i) for i in range(4))
    pads = context.integers("pads", 2) or (0,) * (2 * (context.rank(0) - 2))
    return build("ConvTranspose", x, weights, bias, **{**context.node.attributes, "pads": pads})


def _unfold(context: Context, build: Builder) -> Value:
    """Expand UnfoldTensor: gather windows along an axis, and move the positions within a window to
    the end.
    """
    x, axis = build.inputs[0], context.axis(-1, name="dim")
    size, step = context.count("size"), context.count("step", 1)
    last = x.size(axis) - (size - 1)
    starts = build("Range", 0, last, step).unsqueeze(1)
    windows = build("Gather", x, starts + np.arange(size), axis=axis)
    axes = [a for a in range(context.rank(0) + 1) if a != axis + 1]
    return windows.transpose(*axes, axis + 1)


# -- CropAndResize ---------------------------------------------------------------------------------


def _crop_type(context: Context) -> TensorType:
    check_shapes(context, "batch channels height width", "boxes 4", "boxes", "2")
    x, boxes = context.type(0), context.shape(1)[0]
    return TensorType(x.dtype, (boxes, x.shape[1], *dimensions(context, 3, "the size of a crop")))


def _crop(context: Context, x: Tensor, boxes: Tensor, images: Tensor, *_: Tensor) -> Tensor:
    """Sample each box at the positions of its crop. The corners of a crop are those of its box; a
    crop of one pixel samples the middle. Positions outside the image give `extrapolation_value`.
    """
    shape, wide = context.outputs[0].shape, accumulator(x.dtype)
    outside = Const(context.attribute("extrapolation_value", 0.0), wide)
    is_nearest = context.attribute("mode", "bilinear") == "nearest"

    def place(r: Expr, i: Expr, d: int) -> Expr:
        low, high = (boxes[r, const(d + 2 * far)].astype(wide) for far in (0, 1))
        steps = maximum(shape[2 + d] - 1, 1).astype(wide)
        last = (x.shape[2 + d] - 1).astype(wide)
        stepped = low * last + i.astype(wide) * ((high - low) * last / steps)
        is_single = call("eq", as_expr(shape[2 + d]), 1)
        return select(is_single, (low + high) * last * 0.5, stepped)

    def element(r: Expr, c: Expr, *i: Expr) -> Expr:
        places = [place(r, i[d], d) for d in (0, 1)]
        lasts = [(x.shape[2 + d] - 1).astype(wide) for d in (0, 1)]
        inside = all_of((p >= 0.0) & (p <= last) for p, last in zip(places, lasts, strict=True))
        # A position that is not inside may be infinite or NaN, which no index may be.
        places = [minimum(maximum(select(inside, p, 0.0), 0.0), last)
                  for p, last in zip(places, lasts, strict=True)]  # fmt: skip
        if is_nearest:
            places = [call("floor", p + 0.5) for p in places]
        image = clamped(images[r], x.shape[0])
        value = interpolate(lambda at: x[(image, c, *at)], places, x.shape[2:])
        return select(inside, value, outside).astype(x.dtype)

    return compute("crop_and_resize", shape, element)


def _crop_images(context: Context) -> tuple[IndexInput, ...]:
    return (IndexInput(context.node.inputs[2], context.shape(0)[:1], from_end=False),)


X, C = "float32[2, 3, 5, 8]", "float32[8]"
GROUPED = {"groups": 4, "activation": 1}
TOKENS = "float32[2, 6, 8]"
WEIGHTS = "float32[6, 4, 3, 2]"
MAP, BOXES = "float32[2, 3, 5, 6]", "float32[4, 4] in -0.2..1.2"
IMAGES = np.array([0, 1, 1, 0], np.int32)

OPS: tuple[Operator, ...] = (
    row("GroupNorm", 3, "activation channels_last epsilon groups", _group_norm,
        case(X, C, C, **GROUPED), case(X, C, C, groups=2, activation=0, epsilon=0.1),
        case("float32[2, 8, 3, 5]", C, C, groups=2, activation=1, channels_last=0)),
    row("SkipGroupNorm", 5, "activation channels_last epsilon groups", _group_norm,
        case(X, C, C, X, C, outputs=2, **GROUPED), case(X, C, C, "float32[2, 8]", **GROUPED),
        case(X, C, C, "float32[2, 1, 1, 8]", groups=2, activation=0, outputs=2)),
    row("BiasAdd", 3, "", _bias_add, case(TOKENS, C, TOKENS)),
    row("BiasSplitGelu", 2, "", _bias_split_gelu, case(TOKENS, C)),
    row("NhwcConv", 3, f"{WINDOWS} dilations group", _nhwc_conv,
        case(X, "float32[6, 3, 2, 4]", "float32[6]", group=2, pads=(1, 0, 1, 1), strides=(2, 1)),
        case(X, "float32[6, 3, 3, 8]", auto_pad="SAME_UPPER")),
    row("NhwcFusedConv", 4, f"{WINDOWS} activation activation_params dilations group", _nhwc_conv,
        case(X, WEIGHTS, "float32[6]", "float32[2, 3, 4, 6]", group=2, pads=(1, 0, 1, 0),
             activation="Relu"),
        case(X, WEIGHTS, group=2, activation="LeakyRelu", activation_params=(0.1,))),
    row("ConvTransposeWithDynamicPads", 4,
        "auto_pad dilations group kernel_shape output_padding strides", _dynamic_pads,
        case("float32[1, 2, 4, 5]", "float32[2, 3, 3, 3]", np.array([1, 0, 0, 1]),
             strides=(2, 2)),
        case("float32[1, 2, 4, 5]", "float32[2, 3, 3, 3]", np.array([1, 1, 1, 1]), "float32[3]",
             strides=(2, 1), output_padding=(1, 0))),
    row("UnfoldTensor", 1, "dim size step", _unfold, case(X, size=3, step=2),
        case(X, size=2, dim=1), case(X, size=3, dim=-2, step=3)),
    Operator("CropAndResize", _crop_type, _crop, kind="injective", domain=DOMAIN,
             indices=_crop_images, choices={"mode": ("bilinear", "nearest")},
             signature=Signature(4, frozenset({"extrapolation_value", "mode"})), cases=(
        case(MAP, BOXES, IMAGES, np.array([4, 3], np.int32)),
        case(MAP, BOXES, IMAGES, np.array([3, 1], np.int32), extrapolation_value=0.5),
        case(MAP, BOXES, IMAGES, np.array([4, 5], np.int32), mode="nearest"))),
)  # fmt: skip
