"""Rows of operators that reduce elements: products, sums, norms, searches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.frontend.tflite.operation import Operation, Row
from webmlc.frontend.tflite.operators.dynamic import rounded
from webmlc.graph.builder import Value


def _fully_connected(op: Operation) -> Value:
    """Multiply rows by the rows of a matrix [N, K], and add a bias."""
    options = op.options
    if options.WeightsFormat:
        op.refuse("its weights are shuffled; convert without shuffled weights")
    width = op.size(1, 1, "the number of columns of the weights")
    is_matrix = op.rank(0) == 2 and op.shape(0)[-1] == width
    x = op.read(0, shape=None if options.KeepNumDims or is_matrix else (-1, width))
    y = rounded(op, x, (-1,)) @ op.read(1, (1, 0))
    bias = op.bias(2, 0, 1)
    return y if bias is None else y + bias


def _batch_matmul(op: Operation) -> Value:
    """Multiply matrices, each of which may be transposed."""
    x, y = (
        op.read(i, _swapped(op.rank(i))) if flag else op.input(i)
        for i, flag in enumerate((op.options.AdjX, op.options.AdjY))
    )
    return x @ y


def _swapped(rank: int) -> tuple[int, ...]:
    """The order of dimensions that swaps the last two."""
    return (*range(rank - 2), rank - 1, rank - 2)


def _reduced(op: Operation, x: Value, onnx_name: str) -> Value:
    """Reduce a value along axes, which are input 1."""
    axes = tuple(op.axis(axis) for axis in op.integers(1, "the axes"))
    keeps = int(bool(op.options.KeepDims))
    return op.build(onnx_name, x, axes, keepdims=keeps, noop_with_empty_axes=1)


def _reduction(name: str, onnx_name: str) -> Row:
    """The row of a reduction of numbers."""
    return Row(name, lambda op: _reduced(op, op.input(0), onnx_name))


def _logical(name: str, onnx_name: str) -> Row:
    """The row of a reduction of truth values, which are computed as numbers."""

    def write(op: Operation) -> Value:
        return _reduced(op, op.input(0).cast(DType.int32), onnx_name).cast(DType.bool)

    return Row(name, write)


def _softmax(op: Operation) -> Value:
    beta = np.float32(op.options.Beta)
    x = op.input(0)
    return (x if beta == 1 else x * beta).op("Softmax", axis=-1)


def _l2_norm(op: Operation) -> Value:
    """Divide rows by the root of their sum of squares, at least 1e-6 in total."""
    x = op.input(0)
    total = op.build("ReduceSumSquare", x, (op.rank(0) - 1,))
    return x / total.op("Sqrt").op("Max", np.float32(1e-6))


def _index_of(name: str, onnx_name: str) -> Row:
    """The row of the index of the largest or smallest element along an axis."""

    def write(op: Operation) -> Value:
        (axis,) = op.integers(1, "the axis")
        return op.input(0).op(onnx_name, axis=op.axis(axis), keepdims=0)

    return Row(name, write)


def _top_k(op: Operation) -> Sequence[Value]:
    count = op.input(1).cast(DType.int64).reshape(1)
    return op.build.many("TopK", op.input(0), count, outputs=2, axis=-1)


def _cumulative_sum(op: Operation) -> Value:
    options = op.options
    axis = op.input(1).reshape()
    return op.build(
        "CumSum", op.input(0), axis, exclusive=int(options.Exclusive), reverse=int(options.Reverse)
    )


def _nonzero_indices(op: Operation) -> Value:
    """The indices of elements that are true, or not zero, [count, rank]."""
    return op.input(0).op("NonZero").transpose(1, 0)


def _quantise(op: Operation) -> Value:
    """Quantise. The writer of the subgraph does it with the parameters of the result."""
    return op.input(0)


def _dequantise(op: Operation) -> Any:
    """Dequantise. A float16 constant stays float16, and `Operation.read` widens it."""
    array = op.constant(0)
    is_float16 = array is not None and op.tensor(0).element == "FLOAT16"
    return array if is_float16 else op.input(0)


def _segment_rows(op: Operation, numbers: Value, count: Value, reduction: str) -> Value:
    """Reduce the rows of a tensor by the number of their segment."""
    tail = [op.size(0, axis, "the size of a row") for axis in range(op.rank(1), op.rank(0))]
    sizes = op.build.constant(np.array(tail, np.int64))
    shape = op.build("Concat", count.reshape(1), sizes, axis=0)
    full = op.build("Expand", op.build.constant(_neutral(op, reduction)), shape)
    indices = numbers.unsqueeze(op.rank(1))
    return op.build("ScatterND", full, indices, op.input(0), reduction=reduction)


def _segment_sum(op: Operation) -> Value:
    """Sum the rows of each segment. The numbers of segments rise, so the last counts them."""
    numbers = op.input(1).cast(DType.int64)
    count = numbers.slice(-1, np.iinfo(np.int64).max, 0).reshape() + 1
    return _segment_rows(op, numbers, count, "add")


def _neutral(op: Operation, reduction: str) -> Any:
    """The neutral element of a reduction, of the element type of input 0."""
    dtype = op.input(0).type.dtype
    numpy_type: Any = dtype.numpy
    limits: Any = np.finfo(numpy_type) if dtype.is_float else np.iinfo(numpy_type)
    neutral = {"add": 0, "mul": 1, "max": limits.min, "min": limits.max}
    return np.array(neutral[reduction], numpy_type)


def _unsorted_segments(name: str, reduction: str) -> Row:
    """The row of a reduction of rows by the number of their segment, in any order. Rows of a
    negative number are dropped: they go into one segment more, which is cut off.
    """

    def write(op: Operation) -> Value:
        numbers, count = (op.input(index).cast(DType.int64) for index in (1, 2))
        segments = numbers.op("Less", 0).where(count, numbers)
        rows = _segment_rows(op, segments, count + 1, reduction)
        return op.build("Slice", rows, (0,), count.reshape(1), (0,))

    return Row(name, write)


def _unique(op: Operation) -> Sequence[Value]:
    """The different elements of a vector in their order, and the place of each element in them."""
    y, _, places = op.build.many("Unique", op.input(0), outputs=3, sorted=0)
    return [y, places]


def _bucketize(op: Operation) -> Value:
    """The number of boundaries that are not above each element."""
    boundaries = np.array(op.options.Boundaries, np.float32)
    x = op.input(0).cast(DType.float32).unsqueeze(op.rank(0))
    counts = x.op("Less", boundaries).op("Not").cast(DType.int32)
    return counts.op("ReduceSum", (op.rank(0),), keepdims=0)


WINDOW_REDUCTIONS = {1: "Add", 2: "Mul", 3: "Min", 4: "Max", 5: "And", 6: "Or"}
"""ONNX's operators of two values, by the number in the schema's `ReduceWindowFunction`."""
MOST_POSITIONS = 256
"""The most positions of a window along all axes, each of which is a slice. Chosen by hand."""


def _reduce_window(op: Operation) -> Value:
    """Reduce windows one axis after the other, as the reduction of slices with strides."""
    windows, strides, dilations = (op.integers(index, "the window") for index in (2, 3, 4))
    number = op.options.ReduceFunction
    if number not in WINDOW_REDUCTIONS or sum(windows) > MOST_POSITIONS:
        op.refuse(f"windows of {windows} with the reduction {number} are not supported")
    name, x = WINDOW_REDUCTIONS[number], op.input(0)
    for axis, (window, stride, dilation) in enumerate(
        zip(windows, strides, dilations, strict=True)
    ):
        size = op.size(0, axis, "the size of the input")
        span = size - (window - 1) * dilation
        parts = [
            x.op("Slice", (k * dilation,), (k * dilation + span,), (axis,), (stride,))
            for k in range(window)
        ]
        x = reduce(lambda total, part: total.op(name, part), parts)
    return op.input(1).op(name, x)


ROWS = (
    Row("FULLY_CONNECTED", _fully_connected),
    Row("BATCH_MATMUL", _batch_matmul),
    _reduction("MEAN", "ReduceMean"),
    _reduction("SUM", "ReduceSum"),
    _reduction("REDUCE_MAX", "ReduceMax"),
    _reduction("REDUCE_MIN", "ReduceMin"),
    _reduction("REDUCE_PROD", "ReduceProd"),
    _logical("REDUCE_ANY", "ReduceMax"),
    _logical("REDUCE_ALL", "ReduceMin"),
    Row("SOFTMAX", _softmax),
    Row("LOG_SOFTMAX", lambda op: op.input(0).op("LogSoftmax", axis=-1)),
    Row("L2_NORMALIZATION", _l2_norm),
    _index_of("ARG_MAX", "ArgMax"),
    _index_of("ARG_MIN", "ArgMin"),
    Row("TOPK_V2", _top_k),
    Row("CUMSUM", _cumulative_sum),
    Row("WHERE", _nonzero_indices),
    Row("UNIQUE", _unique),
    Row("BUCKETIZE", _bucketize),
    Row("REDUCE_WINDOW", _reduce_window),
    Row("QUANTIZE", _quantise),
    Row("DEQUANTIZE", _dequantise),
    Row("SEGMENT_SUM", _segment_sum),
    _unsorted_segments("UNSORTED_SEGMENT_SUM", "add"),
    _unsorted_segments("UNSORTED_SEGMENT_PROD", "mul"),
    _unsorted_segments("UNSORTED_SEGMENT_MAX", "max"),
    _unsorted_segments("UNSORTED_SEGMENT_MIN", "min"),
)
"""The rows."""
