"""How to draw reductions, normalisations and what sorts or accumulates."""

from __future__ import annotations

import numpy as np
import onnx

from tests.fuzz.operators.elementwise import types
from tests.fuzz.sketch import FLOATS, Retry, Sketch

REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip
ALONG_AN_AXIS = ("Softmax", "LogSoftmax", "Hardmax")
ARGUMENTS = ("ArgMax", "ArgMin")
SCANS = ("CumSum", "CumProd")


def some_axes(sketch: Sketch, rank: int) -> list[int]:
    """Some axes of a tensor, negative ones among them."""
    axes = [a for a in range(rank) if sketch.chance(50)]
    return [a - rank if sketch.chance(30) else a for a in axes]


def an_axis(sketch: Sketch, rank: int) -> int:
    """One axis."""
    return sketch.integer(-rank, rank - 1)


def with_axes(
    sketch: Sketch, op: str, x: str, axes: list[int] | None, **attributes: object
) -> None:
    """The node, with axes as an input or, in older opsets, as an attribute."""
    if len(onnx.defs.get_schema(op, sketch.opset).inputs) > 1:
        inputs = () if axes is None else (sketch.parameter(axes),)
        sketch.node(op, x, *inputs, **attributes)
    else:
        sketch.node(op, x, axes=axes, **attributes)


def reduce(sketch: Sketch, op: str) -> None:
    """Some axes, all, or none."""
    positive = op == "ReduceLogSum"
    within = (0.2, 3.0) if positive else (-2.0, 2.0)
    limits = (0.1, 1e3) if positive else None
    x = sketch.value(types(op, sketch.opset), within=within, limits=limits)
    array = sketch.array(x)
    if array.dtype == bool:
        raise Retry  # onnx.reference does not order booleans
    axes = some_axes(sketch, array.ndim) if sketch.chance(80) else None
    if array.size == 0 and op not in ("ReduceSum", "ReduceProd", "ReduceSumSquare"):
        raise Retry
    if array.dtype.kind in "iu" and op in ("ReduceL2", "ReduceMean", "ReduceLogSum"):
        raise Retry  # a fraction, rounded by who knows whom
    if array.dtype.kind in "iu" and op == "ReduceLogSumExp":
        raise Retry
    attributes: dict[str, object] = {}
    if not axes and axes is not None:
        axes = None if op == "ReduceMax" else axes
    if sketch.chance(50):
        attributes["keepdims"] = sketch.integer(0, 1)
    if axes == [] and "noop_with_empty_axes" not in _attributes(op, sketch.opset):
        axes = None
    if axes == [] and sketch.chance(50):
        attributes["noop_with_empty_axes"] = 1
    with_axes(sketch, op, x, axes, **attributes)


def _attributes(op: str, opset: int) -> set[str]:
    return set(onnx.defs.get_schema(op, opset).attributes)


def argument(sketch: Sketch, op: str) -> None:
    """The index of an extreme: first or last of equals."""
    x = sketch.value(types(op, sketch.opset), low=1)
    array = sketch.array(x)
    axis = an_axis(sketch, array.ndim)
    if array.shape[axis] == 0:
        raise Retry
    last, keep = int(sketch.chance(40)), sketch.integer(0, 1)
    sketch.node(op, x, axis=axis, keepdims=keep, select_last_index=last)


def along_an_axis(sketch: Sketch, op: str) -> None:
    """Softmax and its kin."""
    x = sketch.value(FLOATS, low=1)
    array = sketch.array(x)
    if array.size == 0:
        raise Retry
    axis = an_axis(sketch, array.ndim) if sketch.chance(70) else None
    sketch.node(op, x, axis=axis)


def scan(sketch: Sketch, op: str) -> None:
    """Running sums and products: forwards, backwards, with or without the element itself."""
    x = sketch.value([d for d in types(op, sketch.opset) if d != "float16"], low=1)
    axis = sketch.parameter(an_axis(sketch, sketch.array(x).ndim))
    exclusive, reverse = int(sketch.chance(40)), int(sketch.chance(40))
    sketch.node(op, x, axis, exclusive=exclusive, reverse=reverse)


def top_k(sketch: Sketch) -> None:
    """The k largest or smallest. Equal elements: the lower index goes first."""
    x = sketch.value(("float32", "float64", "int32", "int64"), low=1)
    array = sketch.array(x)
    axis = an_axis(sketch, array.ndim)
    k = sketch.parameter([sketch.integer(min(1, array.shape[axis]), array.shape[axis])])
    sketch.node("TopK", x, k, outputs=2, axis=axis, largest=sketch.integer(0, 1), sorted=1)


def lp_normalization(sketch: Sketch) -> None:
    """No vector of zeros."""
    x = sketch.value(("float32",), low=1, within=(0.5, 3), limits=(0.1, 100))
    if sketch.array(x).size == 0:
        raise Retry
    axis = an_axis(sketch, sketch.array(x).ndim)
    sketch.node("LpNormalization", x, axis=axis, p=sketch.integer(1, 2))


def layer_norm(sketch: Sketch, op: str) -> None:
    """Normalisation over the last axes."""
    x = sketch.value(("float32", "float16"), low=1)
    array = sketch.array(x)
    axis = an_axis(sketch, array.ndim)
    shape = array.shape[axis:]
    if np.prod(shape) < 2:
        raise Retry
    dtype = array.dtype.name
    inputs = [sketch.new(dtype, shape)]
    if op == "LayerNormalization" and sketch.chance(60):
        inputs.append(sketch.new(dtype, shape))
    sketch.node(op, x, *inputs, axis=axis, epsilon=sketch.choose((None, 1e-2)))


def channels_first(sketch: Sketch, low: int = 3, high: int = 4) -> tuple[str, int]:
    """[N, C, ...] of float32, not empty, and C."""
    x = sketch.value(("float32",), low=low, high=high)
    if sketch.array(x).size == 0:
        raise Retry
    return x, sketch.array(x).shape[1]


def batch_norm(sketch: Sketch) -> None:
    """With given statistics."""
    x, channels = channels_first(sketch, low=2)
    scale, bias, mean = (sketch.new("float32", (channels,)) for _ in range(3))
    variance = sketch.new("float32", (channels,), (0.2, 2))
    sketch.node("BatchNormalization", x, scale, bias, mean, variance)


def instance_norm(sketch: Sketch) -> None:
    """Statistics of each channel."""
    x, channels = channels_first(sketch)
    parameters = (sketch.new("float32", (channels,)) for _ in range(2))
    sketch.node("InstanceNormalization", x, *parameters, epsilon=1e-2)


def group_norm(sketch: Sketch) -> None:
    """Statistics of each group of channels."""
    x, channels = channels_first(sketch)
    if sketch.opset < 21:
        raise Retry
    groups = sketch.choose([g for g in range(1, channels + 1) if channels % g == 0])
    parameters = (sketch.new("float32", (channels,)) for _ in range(2))
    sketch.node("GroupNormalization", x, *parameters, num_groups=groups, epsilon=1e-2)


def lrn(sketch: Sketch) -> None:
    """Over neighbouring channels, of like size: onnxruntime adds and takes away running squares."""
    x, _ = channels_first(sketch, low=4)
    if np.abs(sketch.array(x)).max(initial=0) > 9:
        raise Retry
    sketch.node("LRN", x, size=sketch.choose((3, 1, 5)), alpha=0.1, beta=0.75, bias=1.0)


def mean_variance(sketch: Sketch) -> None:
    """Over some axes, two elements at least."""
    x, _ = channels_first(sketch, low=4)
    axes = [0, 2, 3] if sketch.chance(60) else [2, 3]
    if np.prod([sketch.array(x).shape[a] for a in axes]) < 2:
        raise Retry
    sketch.node("MeanVarianceNormalization", x, axes=axes)


def global_pool(sketch: Sketch, op: str) -> None:
    """Over all of space."""
    x, _ = channels_first(sketch)
    sketch.node(op, x)
