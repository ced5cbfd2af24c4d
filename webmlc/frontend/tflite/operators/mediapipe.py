"""Rows of the custom operators in MediaPipe's models.

The meaning of each operator is that of MediaPipe's kernels for the CPU
(`mediapipe/util/tflite/operations` in its repository).
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.frontend.tflite.operation import Operation, Row
from webmlc.frontend.tflite.operators.windows import (
    channels_first,
    channels_last,
    padding_total,
    transposed_convolution,
)
from webmlc.graph.builder import Value

MOST_ELEMENTS = 4096
"""The most elements of custom options. Chosen by hand: a face mesh has 468 landmarks."""
PADDING_SAME = 1
"""The padding of a custom operator that keeps the size, divided by the stride
(`kTfLitePaddingSame`).
"""


def options_map(op: Operation) -> dict[str, Any]:
    """The custom options as a dictionary of flexbuffers."""
    from flatbuffers import flexbuffers

    options = flexbuffers.GetRoot(op.operator.custom_options)
    if not options.IsMap:
        raise ValueError("the custom options are no map")
    _count(options)
    return dict(options.Value)


def _count(value: Any, levels: int = 3) -> int:
    """The number of elements in a value of flexbuffers. Many places may name one vector, so that a
    few bytes stand for many elements: raises `ValueError` for more than options have.
    """
    if not value.IsVector:
        count = 1
        for is_vector, vector in (
            (value.IsTypedVector, "AsTypedVector"),
            (value.IsFixedTypedVector, "AsFixedTypedVector"),
        ):
            count += len(getattr(value, vector)) if is_vector else 0
    elif levels == 0 or len(value.AsVector) > MOST_ELEMENTS:
        count = MOST_ELEMENTS + 1
    else:
        count = 0
        for element in value.AsVector:
            count += _count(element, levels - 1)
            if count > MOST_ELEMENTS:
                break
    if count > MOST_ELEMENTS:
        raise ValueError("the custom options have too many elements")
    return count


def _integers(op: Operation, count: int) -> tuple[int, ...]:
    """The custom options as the first integers of a record of C."""
    return struct.unpack_from(f"<{count}i", op.operator.custom_options)


def _transposed_convolution_with_bias(op: Operation) -> Value:
    """A transposed convolution, with filters [O, H, W, I] and a bias. The options are a
    `TfLiteTransposeConvParams`: the padding, then the strides of width and height.
    """
    number, stride_width, stride_height = _integers(op, 3)
    sizes, pads = [], []
    for axis, stride in ((1, stride_height), (2, stride_width)):
        size = op.size(0, axis, "the size of the input")
        window = op.size(1, axis, "the size of the filters")
        cut = max(0, window - (size - 1) % stride - 1) if number == PADDING_SAME else 0
        sizes.append((size, stride * (size - 1) + window - cut, window, stride))
        pads.append(cut // 2)
    filters = op.read(1, (3, 0, 1, 2))
    return transposed_convolution(op, op.input(0), filters, op.optional(2), sizes=sizes, pads=pads)


def _pool_options(op: Operation) -> tuple[int, tuple[int, int], tuple[int, int]]:
    """The padding, the strides and the window of a `TfLitePoolParams`."""
    number, stride_width, stride_height, width, height = _integers(op, 5)
    return number, (stride_height, stride_width), (height, width)


def _max_pool_with_places(op: Operation) -> tuple[Value, Value]:
    """The largest element of each window, and its place in the window as a float: row · width +
    column + 0.1.
    """
    number, strides, window = _pool_options(op)
    auto_pad = "SAME_UPPER" if number == PADDING_SAME else "VALID"
    height, width = (op.size(0, axis, "the size of the input") for axis in (1, 2))
    x = channels_first(op.input(0))
    largest, places = op.build.many(
        "MaxPool", x, outputs=2, kernel_shape=window, strides=strides, auto_pad=auto_pad
    )
    op.build.destination.dtypes[places] = DType.int64  # type: ignore[attr-defined]
    plane = places.op("Mod", height * width)
    parts = [
        -(-n // s) if number == PADDING_SAME else (n - k) // s + 1
        for n, s, k in zip((height, width), strides, window, strict=True)
    ]
    origins = [
        np.arange(p, dtype=np.int64) * s - padding_total(n, p, s, k) // 2
        for n, p, s, k in zip((height, width), parts, strides, window, strict=True)
    ]
    row = plane / width - origins[0].reshape(1, 1, -1, 1)
    column = plane.op("Mod", width) - origins[1].reshape(1, 1, 1, -1)
    place = (row * window[1] + column).cast(DType.float32) + np.float32(0.1)
    return channels_last(largest), channels_last(place)


def _max_unpool(op: Operation) -> Value:
    """Write each element at its place in a window of zeros. Where windows overlap, the last element
    stays.
    """
    _, strides, window = _pool_options(op)
    batch, height, width, channels = (op.size(0, a, "the size of the input") for a in range(4))
    sizes = (height * window[0], width * window[1])
    places = op.input(1).cast(DType.int64)
    before = [
        padding_total(n, p, s, k) // 2
        for n, p, s, k in zip(sizes, (height, width), strides, window, strict=True)
    ]
    rows = np.arange(height).reshape(1, -1, 1, 1) * strides[0] - before[0]
    columns = np.arange(width).reshape(1, 1, -1, 1) * strides[1] - before[1]
    row, column = places / window[1] + rows, places.op("Mod", window[1]) + columns
    image = np.arange(batch).reshape(-1, 1, 1, 1) * (sizes[0] * sizes[1])
    flat = (row * sizes[1] + column + image) * channels + np.arange(channels)
    total = batch * sizes[0] * sizes[1] * channels
    zeros = op.build.constant(np.zeros(total, np.float32))
    y = zeros.op("ScatterElements", flat.reshape(-1), op.input(0).reshape(-1), axis=0)
    return y.reshape(batch, *sizes, channels)


def _transformation(op: Operation, index: int) -> Value:
    """The first two rows of a matrix [1, 4, 4] as a value [2, 4]."""
    return op.input(index).reshape(4, 4).slice(0, 2, 0)


def _transform_landmarks(op: Operation) -> Value:
    """Transform the x and y of points by a matrix. A third number stays as it is."""
    is_first = op.operator.version == 1
    options = options_map(op) if is_first else {"dimensions": op.shape(0)[-1], "scale": 1.0}
    count = int(options["dimensions"])
    if count not in (2, 3):
        op.refuse(f"points have 2 or 3 numbers, not {count}")
    matrix = _transformation(op, 1)
    shape = op.shape(0)
    points = op.input(0).reshape(-1, count)
    shift = matrix.slice(3, 4, 1)
    if is_first:
        shift = shift * np.float32(options["scale"])
    moved = points.slice(0, 2, 1) @ matrix.slice(0, 2, 1).transpose(1, 0)
    moved = moved + shift.reshape(1, 2)
    if count == 3:
        moved = op.build("Concat", moved, points.slice(2, 3, 1), axis=1)
    return moved.reshape(*shape)


def _transform_bilinear(op: Operation) -> Value:
    """Sample a feature map at transformed positions, linearly. Positions outside give 0."""
    options = options_map(op)
    new = options.get("output_size") or (options["output_height"], options["output_width"])
    height, width = (op.size(0, axis, "the size of the input") for axis in (1, 2))
    matrix = _transformation(op, 1)
    rows, columns = (v.astype(np.float32) for v in np.meshgrid(*map(np.arange, new), indexing="ij"))
    pixels = np.stack([columns, rows, np.ones_like(rows)], axis=-1).reshape(-1, 3)
    linear, shift = matrix.slice(0, 2, 1), matrix.slice(3, 4, 1)
    if op.operator.version > 1:  # positions are of the pixels' centres
        half = op.build.constant(np.full((2, 1), 0.5, np.float32))
        shift = shift + linear @ half - np.float32(0.5)
    affine = op.build("Concat", linear, shift, axis=1)
    place = op.build.constant(pixels) @ affine.transpose(1, 0)
    limits = np.array([width - 1, height - 1], np.float32)
    is_inside = place.op("GreaterOrEqual", np.float32(0)) & place.op("LessOrEqual", limits)
    inside = is_inside.cast(DType.float32).op("ReduceMin", (1,), keepdims=1)
    corner = place.op("Floor").op("Max", np.float32(0)).op("Min", limits)
    fraction = place - corner
    x, y = (fraction.slice(d, d + 1, 1) for d in (0, 1))
    first, second = _corners(corner, limits)
    cells = op.input(0).reshape(height * width, -1)
    upper, lower = (
        (1.0 - x) * cells.op("Gather", _cell(first, row, width), axis=0)
        + x * cells.op("Gather", _cell(second, row, width), axis=0)
        for row in (first, second)
    )
    sampled = (y * lower + (1.0 - y) * upper) * inside
    return sampled.reshape(1, *new, -1)


def _corners(corner: Value, limits: Any) -> tuple[Value, Value]:
    """The columns and rows of the corners before and after positions, as int64 [positions, 2]."""
    after = (corner + 1.0).op("Min", limits)
    return corner.cast(DType.int64), after.cast(DType.int64)


def _cell(columns: Value, rows: Value, width: int) -> Value:
    """The number of cells in a plane of this width."""
    return rows.element(1, 1) * width + columns.element(0, 1)


def _landmarks_to_matrix(op: Operation) -> Value:
    """The matrix [1, 4, 4] that maps a crop around some landmarks to the feature map.

    The crop is turned so that two landmarks are level, and it holds the landmarks of a subset.
    """
    options = options_map(op)
    is_first = op.operator.version == 1
    points = op.input(0).reshape(-1, 3).slice(0, 2, 1)
    left, right = (
        points.element(int(options[f"{side}_rotation_idx"]), 0) for side in ("left", "right")
    )
    vector = (right - left).reshape(2)
    target = 0 if is_first else options["target_rotation_radians"]
    turn = _turn_to(_rightward(vector) if is_first else vector, target)
    subset = np.array(options["subset" if is_first else "subset_idxs"], np.int64).reshape(-1)
    turned = points.op("Gather", subset, axis=0) @ turn
    largest = turned.op("ReduceMax", (0,), keepdims=0)
    smallest = turned.op("ReduceMin", (0,), keepdims=0)
    size, centre = largest - smallest, turn @ ((largest + smallest) * 0.5).unsqueeze(1)
    write = _by_range if is_first else _by_scale
    linear, shift = write(options, turn, size, centre)
    zeros, below = np.zeros((2, 1), np.float32), np.eye(2, 4, 2, dtype=np.float32)
    rows = op.build("Concat", linear, zeros, shift, axis=1)
    return op.build("Concat", rows, below, axis=0).unsqueeze(0)


def _rightward(vector: Value) -> Value:
    """The vector or its opposite: the angle of the result is atan(y / x) (version 1)."""
    is_left = vector.element(0, 0).op("Less", np.float32(0))
    return is_left.where(-vector, vector)


def _turn_to(vector: Value, target: float) -> Value:
    """The matrix [[cos, sin], [-sin, cos]] of the angle from a vector to the `target`, in radians.

    The cosine and the sine of the vector's angle are its elements, divided by its length.
    """
    length = vector.op("ReduceL2", (0,))
    is_zero = length.op("Equal", np.float32(0))
    unit = is_zero.where(np.array([1, 0], np.float32), vector / length)
    cos, sin = np.cos(target), np.sin(target)
    turns = [[[cos, sin], [sin, -cos]], [[-sin, cos], [cos, sin]]]
    # row, column, element of the unit vector
    return vector.build.constant(np.array(turns, np.float32)) @ unit


def _by_scale(
    options: dict[str, Any], turn: Value, size: Value, centre: Value
) -> tuple[Value, Value]:
    """The linear part and the shift of the matrix (version 2): positions are of pixels."""
    output = np.array([options["output_width"], options["output_height"]], np.float32)
    scales = np.array([options["scale_x"], options["scale_y"]], np.float32)
    linear = turn * (size * scales / output)
    return linear, centre - linear @ turn.build.constant((output / 2).reshape(2, 1))


def _by_range(
    options: dict[str, Any], turn: Value, size: Value, centre: Value
) -> tuple[Value, Value]:
    """The linear part and the shift of the matrix (version 1): positions are from -1 to 1."""
    extent = np.float32(options["landmarks_range"])
    input_size, output = (
        np.array(options[key][::-1], np.float32) - 1 for key in ("input_hw", "output_hw")
    )
    half = (input_size / 2).reshape(2, 1)
    scaled = turn * (size * (np.float32(options["bbox_size_multiplier"]) / extent))
    corner = scaled @ turn.build.constant(np.ones((2, 1), np.float32))
    middle = centre * (np.float32(2) / extent) - np.float32(1)
    return scaled * (half * 2 / output), (middle - corner + np.float32(1)) * half


ROWS = (
    Row("Convolution2DTransposeBias", _transposed_convolution_with_bias),
    Row("MaxPoolingWithArgmax2D", _max_pool_with_places),
    Row("MaxUnpooling2D", _max_unpool),
    Row("TransformTensorBilinear", _transform_bilinear),
    Row("TransformLandmarks", _transform_landmarks),
    Row("Landmarks2TransformMatrix", _landmarks_to_matrix),
)
"""The rows."""
