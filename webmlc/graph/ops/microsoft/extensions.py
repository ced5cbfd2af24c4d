"""Operators of onnxruntime-extensions that compute with numbers (domain `ai.onnx.contrib`). Some of
them exist only in builds with CUDA.

%n, %p = NegPos(%x)  ->  %n = Min(%x, 0), %p = Max(%x, 0)
"""

from __future__ import annotations

from functools import partial

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder, Value
from webmlc.graph.element_types import TYPE_NUMBERS
from webmlc.graph.ops.microsoft.fused import MATRIX
from webmlc.graph.ops.microsoft.rows import DOMAIN, Expansion, row
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import check_shapes

EXTENSIONS = "ai.onnx.contrib"


_row = partial(row, domain=EXTENSIONS)


def _signs(context: Context, build: Builder) -> tuple[Value, Value]:
    """Expand NegPos: the elements that are not positive, and the positive elements."""
    x = build.inputs[0]
    is_positive = x.op("Greater", 0)
    return is_positive.where(0, x), is_positive.where(x, 0)


def _inverse(context: Context, build: Builder) -> Value:
    check_shapes(context, "size size")
    return build("Inverse", *build.inputs, domain=DOMAIN)


def _segment_sum(context: Context, build: Builder) -> Value:
    """Expand SegmentSum: the sums of the rows that have one segment. The last row has the last
    segment.
    """
    check_shapes(context, "rows ...", "rows")
    data, segments = build.inputs
    count = build("Gather", segments, np.array([-1]), axis=0) + 1
    sizes = build("Concat", count, build("Shape", data, start=1), axis=0)
    zeros = build("ConstantOfShape", sizes, value=np.zeros(1, context.dtype(0).numpy))
    return build("ScatterND", zeros, segments.unsqueeze(1), data, reduction="add")


def _segments(context: Context, build: Builder) -> tuple[Value, Value]:
    """Expand SegmentExtraction: the starts and ends of runs of one number other than 0, and these
    numbers.
    """
    x = build.inputs[0].reshape(-1)
    is_used = ~x.op("Equal", 0)
    change = ~build("Equal", x.slice(1, 1 << 30, 0), x.slice(0, -1, 0))
    edge = np.ones(1, np.bool_)
    starts, ends = (
        build("NonZero", is_used & build("Concat", *parts, axis=0)).reshape(-1)
        for parts in ((edge, change), (change, edge))
    )
    places = build("Concat", starts.unsqueeze(1), (ends + 1).unsqueeze(1), axis=1)
    return places, build("Gather", x, starts, axis=0)


def _spectrum(context: Context, build: Builder) -> Value:
    """Expand StftNorm: the squared magnitudes of a spectrum, [1, bins, frames]. Half a window of
    zeros is before the signal, and another half after it.
    """
    check_shapes(context, "1 samples", "", "", "frame")
    signal, _, step, window, length = build.inputs
    half = (window.size(0) / 2).reshape(1)
    padded = build("Pad", signal, build("Concat", [0], half, [0], half, axis=0))
    step, length = (value.reshape(1).op("Squeeze") for value in (step, length))
    onesided = int(context.attribute("onesided", 1))
    bins = build("STFT", padded, step, window, length, onesided=onesided)
    return build("ReduceSumSquare", bins, [3], keepdims=0).transpose(0, 2, 1)


def _dense(context: Context, build: Builder) -> Value:
    """Expand RaggedTensorToDense: rows of different lengths, with a number after the short ones."""
    _, values, missing, limits = build.inputs
    starts, ends = limits.slice(0, -1, 0), limits.slice(1, 1 << 30, 0)
    lengths = ends - starts
    width = build("ReduceMax", lengths, keepdims=0)
    columns = build("Range", np.int64(0), width, np.int64(1))
    is_inside = columns.op("Less", lengths.unsqueeze(1))
    places = is_inside.where(starts.unsqueeze(1) + columns, 0)
    return is_inside.where(build("Gather", values, places, axis=0), missing.reshape(1))


def _sparse(context: Context, build: Builder) -> tuple[Value, Value]:
    """Expand RaggedTensorToSparse: the row and the column of each element, and the sizes of the
    dense tensor.
    """
    limits = build.inputs[0]
    starts, ends = limits.slice(0, -1, 0), limits.slice(1, 1 << 30, 0)
    count = build("Gather", limits, np.int64(-1), axis=0)
    places = build("Range", np.int64(0), count, np.int64(1))
    is_after = places.unsqueeze(1).op("GreaterOrEqual", ends)
    rows = build("ReduceSum", is_after.cast(DType.int64), [1], keepdims=0)
    columns = places - build("Gather", starts, rows, axis=0)
    width = build("ReduceMax", ends - starts, keepdims=1)
    sizes = build("Concat", build("Shape", starts), width, axis=0)
    return build("Concat", rows.unsqueeze(1), columns.unsqueeze(1), axis=1), sizes


def _shared(op: str) -> Expansion:
    """An operator of one tensor with two others."""

    def expand(context: Context, build: Builder) -> tuple[Value, Value]:
        x, y, z = build.inputs
        return build(op, x, y), build(op, x, z)

    return expand


def _scattered(context: Context, build: Builder) -> Value:
    """Expand ScatterNDOfShape and MaskedScatterNDOfShape: add rows to zeros. Rows whose index is
    `maskedValue` are left out.
    """
    shape, indices, updates = build.inputs
    masked = context.attribute("maskedValue")
    if context.rank(2) < context.rank(1):
        raise NotSupportedError("updates of a lower rank than the indices")
    if masked is not None:
        is_masked = indices.op("Equal", int(masked))
        indices, updates = is_masked.where(0, indices), is_masked.where(0, updates)
    zeros = build("ConstantOfShape", shape, value=np.zeros(1, context.dtype(2).numpy))
    return build("ScatterND", zeros, indices, updates, reduction="add")


def _transposed(dtype: DType) -> Expansion:
    def expand(context: Context, build: Builder) -> Value:
        check_shapes(context, "rows columns")
        return build("Cast", build.inputs[0].transpose(1, 0), to=TYPE_NUMBERS[dtype])

    return expand


def _silu(x: Value) -> Value:
    return x * x.op("Sigmoid")


X = "float32[2, 3]"
LIMITS = np.array([0, 2, 2, 5], np.int64)

OPS: tuple[Operator, ...] = (
    _row("NegPos", 1, "", _signs, case(X, outputs=2)),
    _row("Inverse", 1, "", _inverse, case("float32[3, 3]"), case(MATRIX.astype(np.float32))),
    _row("SegmentSum", 2, "", _segment_sum,
         case("float32[5, 2]", np.array([0, 0, 1, 2, 2])), case("float32[3]", np.array([0, 1, 1]))),
    _row("SegmentExtraction", 1, "", _segments,
         case(np.array([0, 0, 3, 3, 0, 5, 7, 7]), outputs=2), case([[4, 4, 0, 1]], outputs=2)),
    _row("StftNorm", 5, "onesided", _spectrum,
         case("float32[1, 40]", np.int64(16), np.int64(4), np.hanning(16).astype(np.float32),
              np.int64(16))),
    _row("RaggedTensorToDense", 4, "missing_value", _dense,
         case(np.int64(3), np.arange(5), np.int64(-7), LIMITS)),
    _row("RaggedTensorToSparse", 1, "", _sparse, case(LIMITS, outputs=2)),
    _row("AddSharedInput", 3, "", _shared("Add"), case(X, X, "float32[3]", outputs=2)),
    _row("MulSharedInput", 3, "", _shared("Mul"), case(X, X, "float32[3]", outputs=2)),
    _row("MulSigmoid", 1, "", lambda _, build: _silu(build.inputs[0]), case(X)),
    _row("MulMulSigmoid", 2, "", lambda _, build: build.inputs[0] * _silu(build.inputs[1]),
         case(X, X)),
    _row("NegXPlus1", 1, "", lambda _, build: 1 - build.inputs[0], case(X)),
    _row("ReplaceZero", 1, "by", lambda context, build: build.inputs[0].op("Equal", 0).where(
         context.attribute("by", 0.0), build.inputs[0]), case([0.0, 2, 0, -1], by=3.0)),
    _row("FastGelu", 2, "", lambda _, build: build("FastGelu", *build.inputs, domain=DOMAIN),
         case(X, "float32[3]")),
    _row("ScatterNDOfShape", 3, "reduction", _scattered,
         case(np.array([4, 3]), np.array([[[1], [3]], [[1], [0]]]), "float32[2, 2, 3]",
              reduction="add"), reduction=("add",)),
    _row("MaskedScatterNDOfShape", 3, "maskedValue reduction", _scattered,
         case(np.array([4, 3]), np.array([[1], [-1], [1]]), "float32[3, 3]", reduction="add",
              maskedValue=-1), reduction=("add",)),
    _row("Transpose2DCastFP16", 1, "", _transposed(DType.float16), case(X)),
    _row("Transpose2DCastFP32", 1, "", _transposed(DType.float32), case("float16[2, 3]")),
)  # fmt: skip
