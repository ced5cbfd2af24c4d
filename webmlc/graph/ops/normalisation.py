"""Normalisations: reducing stages compute statistics over axes, then one pointwise stage applies
them.

Statistics of half-precision inputs are computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, call, const, select
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.element_types import ELEMENT_TYPES
from webmlc.graph.ir import Node, TensorType
from webmlc.graph.ops.operator import Context, Layout, NotSupportedError, Operator, case, same_type
from webmlc.graph.ops.pooling import power
from webmlc.graph.ops.reduction import fold, mean_scale, reduced_shape
from webmlc.graph.ops.shapes import (
    ZERO,
    accumulator,
    aligned,
    axes_within,
    canonical,
    check_shapes,
    check_stretches,
    with_axis,
    without_folded,
)

Index = tuple[Expr, ...]


def _batch_type(context: Context) -> TensorType:
    if not context.attribute("spatial", 1):
        raise NotSupportedError("statistics of every element (spatial=0, before opset 9)")
    _check_batch(context)
    return context.type(0)


def _check_batch(context: Context) -> None:
    """Check the shapes. The elements of a vector belong to one channel."""
    if context.rank(0) == 1:
        check_shapes(context, "batch", *["channels"] * 4, channels=1)
    else:
        check_shapes(context, "batch channels ...", *["channels"] * 4)


def _batch_training(context: Context, build: Builder) -> tuple[Value, ...] | None:
    """Expand the training mode: normalise by the statistics of the batch, and update the running
    statistics with them.
    """
    outputs = len(context.node.outputs)
    if not context.attribute("training_mode", 0) and outputs == 1:
        return None
    if outputs > 3:
        raise NotSupportedError("saved statistics of a batch (before opset 14) are not supported")
    _check_batch(context)
    x, scale, bias, *running = build.inputs
    wide_x = x.cast(DType.float32) if accumulator(context.dtype(0)) != context.dtype(0) else x
    mean = build("ReduceMean", wide_x, [0, *range(2, context.rank(0))])
    centred = wide_x - mean
    variance = build("ReduceMean", centred * centred, [0, *range(2, context.rank(0))])
    flat_statistics = [v.reshape(-1) for v in (mean, variance)]
    batch_statistics = [
        build("CastLike", v, r) for v, r in zip(flat_statistics, running, strict=True)
    ]
    epsilon = context.attribute("epsilon", 1e-5)
    small = build.constant(epsilon, accumulator(context.dtype(0)))
    y = centred / build("Sqrt", variance + small)
    for op, value in (("Mul", scale), ("Add", bias)):
        y = build(op, y, build("CastLike", value.reshape(-1, *[1] * (context.rank(0) - 2)), y))
    momentum = context.attribute("momentum", 0.9)
    new_running = [
        old * momentum + new * (1 - momentum)
        for old, new in zip(running, batch_statistics, strict=True)
    ]
    return (build("CastLike", y, x), *new_running)[:outputs]


def _batch_normalisation(
    context: Context,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
) -> Tensor:
    """Normalise. Two small stages compute a factor and a shift from the statistics. Both fold to
    constants.
    """
    epsilon = Const(context.attribute("epsilon", 1e-5), variance.dtype)

    def factor(c: Expr) -> Expr:
        return scale[c].astype(variance.dtype) / call("sqrt", variance[c] + epsilon)

    factors = compute("factor", variance.shape, factor)
    shifts = compute(
        "shift", mean.shape, lambda c: bias[c].astype(mean.dtype) - mean[c] * factors[c]
    )

    def element(*i: Expr) -> Expr:
        channel = i[1] if len(i) > 1 else ZERO
        value = x[i].astype(factors.dtype) * factors[channel] + shifts[channel]
        return value.astype(x.dtype)

    return compute("batch_norm", x.shape, element)


def _local_response_type(context: Context) -> TensorType:
    check_shapes(context, "batch channels ...")
    context.count("size")  # raises an error if it is missing
    return context.type(0)


def _local_response(context: Context, x: Tensor) -> Tensor:
    """Compute x / (bias + alpha / size · sum of squares over neighbouring channels) ^ beta.

    Channels are the second dimension, or lie along `axis` if `choose_layouts` moved them.
    """
    size = context.count("size")
    alpha, beta = context.attribute("alpha", 1e-4), context.attribute("beta", 0.75)
    bias, before = context.attribute("bias", 1.0), (size - 1) // 2
    axis = context.axis(1)

    def square(*place: Expr) -> Expr:
        *i, r = place
        channel = i[axis] + r - before
        inside = (channel >= 0) & (channel < x.shape[axis])
        value = x[with_axis(i, axis, channel)]
        return select(inside, value * value, Const(0, x.dtype))

    total = reduce("squares", x.shape, [const(size)], "add", square)
    power = "unsigned_pow" if alpha >= 0 and bias >= 0 else "pow"

    def element(*i: Expr) -> Expr:
        base = total[i] * (alpha / size) + bias
        return x[i] / call(power, base, beta)

    return compute("lrn", x.shape, element)


class _Statistics:
    """The mean and 1/sqrt(variance + epsilon) of `x` over `axes`. The axes keep size 1."""

    def __init__(self, x: Tensor, axes: Sequence[int], epsilon: float, dtype: DType) -> None:
        extents = [x.shape[a] for a in axes]
        scale = mean_scale(extents, dtype)
        self.x, self.axes, self.dtype = x, axes, dtype
        total = fold("sum", x, axes, "add", lambda *i: x[i].astype(dtype))
        self.mean = compute("mean", total.shape, lambda *i: scale(total[i]))

        def squared(*i: Expr) -> Expr:
            difference = self.centred(i)
            return difference * difference

        squares = fold("squares", x, axes, "add", squared)
        self.inverse = compute(
            "inverse_deviation",
            total.shape,
            lambda *i: 1.0 / call("sqrt", scale(squares[i]) + epsilon),
        )

    def at(self, index: Sequence[Expr]) -> Index:
        return without_folded(index, self.axes)

    def centred(self, index: Sequence[Expr]) -> Expr:
        return self.x[tuple(index)].astype(self.dtype) - self.mean[self.at(index)]

    def normalised(self, index: Sequence[Expr]) -> Expr:
        return self.centred(index) * self.inverse[self.at(index)]


def _scaled_type(context: Context) -> TensorType:
    """The type of input 0. The scale and the bias are broadcast to it."""
    check_stretches(context, 1)
    check_stretches(context, 2)
    return context.type(0)


def _layer_type(context: Context) -> tuple[TensorType, ...]:
    x = _scaled_type(context)
    axis = context.axis(-1)
    statistics = TensorType(_stash(context), reduced_shape(x.shape, range(axis, x.rank), keep=True))
    return (x, statistics, statistics)


def _stash(context: Context) -> DType:
    """The dtype in which the statistics are computed."""
    stash_dtype = ELEMENT_TYPES.get(int(context.attribute("stash_type", 1)), DType.float32)
    sum_dtype = accumulator(context.dtype(0))
    return sum_dtype if sum_dtype.bytes > stash_dtype.bytes else stash_dtype


def _layer_normalisation(
    context: Context, x: Tensor, scale: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, ...]:
    axes = range(context.axis(-1), x.rank)
    dtype = _stash(context)
    statistics = _Statistics(x, axes, context.attribute("epsilon", 1e-5), dtype)

    def element(*i: Expr) -> Expr:
        value = statistics.normalised(i) * scale[aligned(i, scale.shape, x.shape)].astype(dtype)
        if bias is not None:
            value = value + bias[aligned(i, bias.shape, x.shape)].astype(dtype)
        return value.astype(x.dtype)

    y = compute("layer_norm", x.shape, element)
    return (y, statistics.mean, statistics.inverse)


def _rms_normalisation(context: Context, x: Tensor, scale: Tensor) -> Tensor:
    axes = range(context.axis(-1), x.rank)
    dtype = _stash(context)
    epsilon = context.attribute("epsilon", 1e-5)

    def square(*i: Expr) -> Expr:
        value = x[i].astype(dtype)
        return value * value

    squares = fold("squares", x, axes, "add", square)
    mean = mean_scale([x.shape[a] for a in axes], dtype)
    inverse = compute(
        "inverse_root", squares.shape, lambda *i: 1.0 / call("sqrt", mean(squares[i]) + epsilon)
    )

    def element(*i: Expr) -> Expr:
        value = (x[i].astype(dtype) * inverse[without_folded(i, axes)]).astype(x.dtype)
        return value * scale[aligned(i, scale.shape, x.shape)].astype(x.dtype)

    return compute("rms_norm", x.shape, element)


def _instance_type(context: Context) -> TensorType:
    check_shapes(context, "batch channels ...", "channels", "channels")
    return context.type(0)


def _instance_normalisation(context: Context, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    dtype = accumulator(x.dtype)
    statistics = _Statistics(x, range(2, x.rank), context.attribute("epsilon", 1e-5), dtype)

    def element(*i: Expr) -> Expr:
        value = statistics.normalised(i) * scale[i[1]].astype(dtype) + bias[i[1]].astype(dtype)
        return value.astype(x.dtype)

    return compute("instance_norm", x.shape, element)


def _group_type(context: Context) -> TensorType:
    groups = context.count("num_groups")
    check_shapes(context, "batch groups*size ...", groups=groups)
    parameters = "groups" if context.attribute("per_group", 0) else "channels"
    check_shapes(context, "batch channels ...", parameters, parameters, groups=groups)
    return context.type(0)


def _group_normalisation(context: Context, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Normalise groups of channels. Before opset 21, scale and bias have one number for each group
    instead of each channel.
    """
    groups = context.count("num_groups")
    dtype = accumulator(x.dtype)
    per_group = canonical(x.shape[1] // groups)
    split = (x.shape[0], const(groups), per_group, *x.shape[2:])
    grouped = compute("groups", split, lambda n, g, c, *i: x[(n, g * per_group + c, *i)])
    statistics = _Statistics(
        grouped, range(2, grouped.rank), context.attribute("epsilon", 1e-5), dtype
    )
    by_group = bool(context.attribute("per_group", 0))

    def element(n: Expr, c: Expr, *i: Expr) -> Expr:
        group = c // per_group
        place = group if by_group else c
        value = statistics.normalised((n, group, c % per_group, *i))
        value = value * scale[place].astype(dtype) + bias[place].astype(dtype)
        return value.astype(x.dtype)

    return compute("group_norm", x.shape, element)


def _mark_per_group(node: Node, opset: int) -> Node:
    return node if opset >= 21 else replace(node, attributes={**node.attributes, "per_group": 1})


def _mean_variance_normalisation(context: Context, x: Tensor) -> Tensor:
    """Compute (x - mean) / (deviation + 1e-9). There is no epsilon under the root. As in ONNX's
    definition, an empty list of axes means all axes.
    """
    axes = axes_within(context.attribute("axes", (0, 2, 3)) or range(x.rank), x.rank)
    statistics = _Statistics(x, axes, 0.0, accumulator(x.dtype))
    inverse = statistics.inverse

    def element(*i: Expr) -> Expr:
        deviation = 1.0 / inverse[statistics.at(i)] + 1e-9
        return (statistics.centred(i) / deviation).astype(x.dtype)

    return compute("mean_variance_norm", x.shape, element)


def _lp_normalisation(context: Context, x: Tensor) -> Tensor:
    """Divide x by its norm along an axis. If the norm is zero, the result is zero."""
    axis = context.axis(-1)
    before, after = power(context.count("p", 2))
    total = fold("norm", x, (axis,), "add", lambda *i: before(x[i]))

    def element(*i: Expr) -> Expr:
        norm = after(total[with_axis(i, axis, ZERO)])
        zero = Const(0, x.dtype)
        return select(call("eq", norm, zero), zero, x[i] / norm)

    return compute("lp_norm", x.shape, element)


X, C = "float32[2, 4, 3, 5]", "float32[4]"
VARIANCE = "float32[4] in 0.5..2"

OPS: tuple[Operator, ...] = (
    Operator("BatchNormalization", _batch_type, _batch_normalisation, _batch_training,
             kind="broadcast", cases=(
        case(X, C, C, C, VARIANCE, outputs=3, training_mode=1),
        case(X, C, C, C, VARIANCE), case(X, C, C, C, VARIANCE, epsilon=0.01),
        case("float32[3, 4]", C, C, C, VARIANCE))),
    Operator("LayerNormalization", _layer_type, _layer_normalisation, kind="reduction",
             trait="row norm", cases=(
        case(X, "float32[5]", "float32[5]"), case(X, "float32[3, 5]", axis=2, epsilon=0.1),
        case(X, "float32[5]", "float32[5]", outputs=3))),
    Operator("LRN", _local_response_type, _local_response, kind="reduction",
             layout=Layout(("map",), axis=1), cases=(
        case(X, size=3), case(X, size=5, alpha=0.5, beta=0.5, bias=2.0))),
    Operator("RMSNormalization", _scaled_type, _rms_normalisation, kind="reduction",
             trait="row norm", cases=(
        case(X, "float32[5]"), case(X, "float32[3, 5]", axis=2))),
    Operator("InstanceNormalization", _instance_type, _instance_normalisation, kind="reduction",
             cases=(case(X, C, C),)),
    Operator("GroupNormalization", _group_type, _group_normalisation, kind="reduction",
             normalise=_mark_per_group, cases=(
        case(X, C, C, num_groups=2),)),
    Operator("MeanVarianceNormalization", same_type, _mean_variance_normalisation,
             kind="reduction", cases=(case(X, axes=(0, 2, 3)), case(X, axes=(1, 2)))),
    Operator("LpNormalization", same_type, _lp_normalisation, kind="reduction",
             cases=(case(X), case(X, axis=1, p=1))),
)  # fmt: skip
