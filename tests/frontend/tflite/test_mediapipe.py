"""MediaPipe's custom operators compute what the loops of its kernels for the CPU compute."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from flatbuffers import flexbuffers

from tests.frontend.tflite.operator_cases import floats
from tests.frontend.tflite.tflite_file import (
    FileGraph,
    FileOperator,
    FileTensor,
    constant,
    tflite_file,
)
from webmlc.core.errors import UnsupportedError
from webmlc.frontend.doors.door import Example
from webmlc.frontend.tflite.export_tflite import export_tflite

SAME, VALID = 1, 2


def run(
    folder: Path,
    name: str,
    custom: bytes,
    inputs: list[np.ndarray],
    outputs: list[tuple[int, ...]],
    version: int = 1,
    constants: tuple[np.ndarray, ...] = (),
) -> list[np.ndarray]:
    """The results of one custom operator."""
    tensors = [FileTensor(f"x{i}", x.shape) for i, x in enumerate(inputs)]
    tensors += [constant(f"c{i}", array) for i, array in enumerate(constants)]
    count = len(tensors)
    tensors += [FileTensor(f"y{i}", shape) for i, shape in enumerate(outputs)]
    results = range(count, len(tensors))
    operator = FileOperator(name, range(count), results, custom=custom, version=version)
    path = folder / "model.tflite"
    path.write_bytes(tflite_file([FileGraph(tensors, [operator], range(len(inputs)), results)]))
    model = export_tflite(path, Example())
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return list(session.run(None, {f"x{i}": x for i, x in enumerate(inputs)}))


@pytest.mark.parametrize(
    ("number", "size", "before"), [(SAME, (5, 8), (1, 0)), (VALID, (7, 9), (0, 0))]
)
def test_a_transposed_convolution_with_a_bias(
    number: int, size: tuple[int, int], before: tuple[int, int], tmp_path: Path
) -> None:
    x, filters, bias = floats(1, 3, 4, 2), floats(5, 3, 3, 2), floats(5)
    expected = np.broadcast_to(bias, (1, *size, 5)).copy()
    for row in range(3):
        for column in range(4):
            for i in range(3):
                for j in range(3):
                    at = (2 * row + i - before[0], 2 * column + j - before[1])
                    if 0 <= at[0] < size[0] and at[1] < size[1]:
                        expected[0, at[0], at[1]] += filters[:, i, j] @ x[0, row, column]
    name, custom = "Convolution2DTransposeBias", struct.pack("<4i", number, 2, 2, 0)
    (y,) = run(tmp_path, name, custom, [x], [expected.shape], constants=(filters, bias))
    np.testing.assert_allclose(y, expected, 1e-5, 1e-5)


def pool_options(number: int, stride: int, window: int) -> bytes:
    return struct.pack("<10i", number, stride, stride, window, window, *[0] * 5)


@pytest.mark.parametrize("number", [SAME, VALID])
def test_a_pool_with_places(number: int, tmp_path: Path) -> None:
    x = floats(2, 5, 5, 3)
    parts, before = (3, 1) if number == SAME else (2, 0)
    largest, places = np.zeros((2, 2, parts, parts, 3), np.float32)
    for b, row, column, c in np.ndindex(2, parts, parts, 3):
        window = {
            i * 3 + j: x[b, 2 * row + i - before, 2 * column + j - before, c]
            for i in range(3)
            for j in range(3)
            if 0 <= 2 * row + i - before < 5 and 0 <= 2 * column + j - before < 5
        }
        place = max(window, key=lambda key: window[key])
        largest[b, row, column, c], places[b, row, column, c] = window[place], place + 0.1
    custom, shapes = pool_options(number, 2, 3), [largest.shape] * 2
    results = run(tmp_path, "MaxPoolingWithArgmax2D", custom, [x], shapes)
    np.testing.assert_allclose(results[0], largest)
    np.testing.assert_allclose(results[1], places)


def test_an_unpool_writes_elements_at_their_places(tmp_path: Path) -> None:
    x = floats(2, 2, 3, 4)
    places = np.random.default_rng(0).integers(0, 4, x.shape)
    expected = np.zeros((2, 4, 6, 4), np.float32)
    for b, row, column, c in np.ndindex(*x.shape):
        i, j = divmod(int(places[b, row, column, c]), 2)
        expected[b, 2 * row + i, 2 * column + j, c] = x[b, row, column, c]
    inputs = [x, (places + 0.1).astype(np.float32)]
    (y,) = run(tmp_path, "MaxUnpooling2D", pool_options(SAME, 2, 2), inputs, [expected.shape])
    np.testing.assert_array_equal(y, expected)


MATRIX = np.array(
    [[0.9, 0.2, 0, 0.5], [-0.3, 1.1, 0, 0.65], [0, 0, 1, 0], [0, 0, 0, 1]], np.float32
).reshape(1, 4, 4)


@pytest.mark.parametrize("version", [1, 2])
def test_a_transformed_feature_map_is_sampled_linearly(version: int, tmp_path: Path) -> None:
    x, matrix = floats(1, 6, 7, 3), MATRIX[0].copy()
    if version == 2:
        matrix[:2, 3] += matrix[:2, 0] * 0.5 + matrix[:2, 1] * 0.5 - 0.5
    expected = np.zeros((1, 5, 8, 3), np.float32)
    for row, column in np.ndindex(5, 8):
        across, down = matrix[:2, :2] @ (column, row) + matrix[:2, 3]
        if 0 <= across <= 6 and 0 <= down <= 5:
            i, j = int(down), int(across)
            right, lower = across - j, down - i
            for di, weight_down in ((0, 1 - lower), (1, lower)):
                for dj, weight_across in ((0, 1 - right), (1, right)):
                    if i + di < 6 and j + dj < 7:
                        cell = x[0, i + di, j + dj]
                        expected[0, row, column] += weight_down * weight_across * cell
    sizes = {"output_size": [5, 8], "mode": "bilinear"}
    custom = flexbuffers.Dumps(sizes if version == 1 else {"output_height": 5, "output_width": 8})
    name = "TransformTensorBilinear"
    (y,) = run(tmp_path, name, bytes(custom), [x, MATRIX], [expected.shape], version)
    assert expected.any()
    np.testing.assert_allclose(y, expected, 1e-4, 1e-5)


@pytest.mark.parametrize(("version", "count"), [(1, 2), (1, 3), (2, 2), (2, 3)])
def test_landmarks_are_transformed(version: int, count: int, tmp_path: Path) -> None:
    points, scale = floats(4, count), 0.5 if version == 1 else 1.0
    expected = points.copy()
    expected[:, :2] = points[:, :2] @ MATRIX[0, :2, :2].T + MATRIX[0, :2, 3] * scale
    shape = (1, 1, 1, 4 * count) if version == 1 else (1, 4, count)
    options = {"dimensions": count, "scale": scale} if version == 1 else {}
    custom, x = bytes(flexbuffers.Dumps(options)), points.reshape(shape)
    (y,) = run(tmp_path, "TransformLandmarks", custom, [x, MATRIX], [shape], version)
    np.testing.assert_allclose(y.reshape(4, count), expected, 1e-5, 1e-5)


def test_vectors_that_share_elements_are_refused(tmp_path: Path) -> None:
    """Each vector names the vector before it twice: 2 ** 40 numbers in 320 bytes."""
    content, place = bytearray([2, 1, 1, 4, 4]), 1
    for _ in range(40):
        content += bytes([2])
        here = len(content)
        content += bytes([here - place, here + 1 - place, 10 << 2, 10 << 2])
        place = here
    key = len(content)
    content += bytes([ord("a"), 0, 1])
    keys = len(content)
    content += bytes([keys - key, 1, 1, 1])
    values = len(content)
    content += bytes([values - place, 10 << 2, 2, 9 << 2, 1])
    inputs = [floats(1, 2, 3), MATRIX]
    with pytest.raises(UnsupportedError, match="too many elements"):
        run(tmp_path, "TransformLandmarks", bytes(content), inputs, [(1, 2, 3)])


SUBSET = [0, 1, 2, 3, 4]


def turn(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def box(points: np.ndarray, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """The size and the centre of the turned points; the centre is turned back."""
    turned = points[SUBSET, :2] @ turn(angle).T
    high, low = turned.max(0), turned.min(0)
    return high - low, turn(-angle) @ ((high + low) / 2)


@pytest.mark.parametrize("is_left", [False, True])
def test_a_crop_around_landmarks_by_scale(is_left: bool, tmp_path: Path) -> None:
    points = floats(6, 3)
    points[5, 0] = points[0, 0] + (-1 if is_left else 1)
    target = 0.4
    angle = target - np.arctan2(*(points[5, :2] - points[0, :2])[::-1])
    size, centre = box(points, angle)
    expected = np.eye(4)
    expected[:2, :2] = turn(-angle) * (size * [1.5, 1.2] / [16, 12])
    expected[:2, 3] = centre - expected[:2, :2] @ [8, 6]
    options: dict[str, Any] = {
        "left_rotation_idx": 0, "right_rotation_idx": 5, "target_rotation_radians": target,
        "output_width": 16, "output_height": 12, "scale_x": 1.5, "scale_y": 1.2,
        "subset_idxs": SUBSET,
    }  # fmt: skip
    custom, x = bytes(flexbuffers.Dumps(options)), points.reshape(1, 6, 3)
    (y,) = run(tmp_path, "Landmarks2TransformMatrix", custom, [x], [(1, 4, 4)], 2)
    np.testing.assert_allclose(y[0], expected, 1e-4, 1e-5)


@pytest.mark.parametrize("is_left", [False, True])
def test_a_crop_around_landmarks_by_range(is_left: bool, tmp_path: Path) -> None:
    points = floats(6, 3, low=10, high=90)
    points[5, 0] = points[0, 0] + (-9 if is_left else 9)
    way = points[5] - points[0]
    angle = -np.arctan(way[1] / way[0])
    size, centre = box(points, angle)
    scale, rotation, relative, absolute = (np.eye(3) for _ in range(4))
    scale[[0, 1], [0, 1]] = size * 1.5 / 96
    rotation[:2, :2], rotation[:2, 2] = turn(-angle), centre / 96 * 2 - 1
    relative[[0, 1], [0, 1]], relative[:2, 2] = 2 / np.array([15, 11]), -1
    absolute[[0, 1], [0, 1]] = absolute[:2, 2] = np.array([39, 29]) / 2
    product = absolute @ rotation @ scale @ relative
    expected = np.eye(4)
    expected[:2, :2], expected[:2, 3] = product[:2, :2], product[:2, 2]
    options: dict[str, Any] = {
        "left_rotation_idx": 0, "right_rotation_idx": 5, "dimensions": 3, "landmarks_range": 96,
        "bbox_size_multiplier": 1.5, "input_hw": [30, 40], "output_hw": [12, 16], "subset": SUBSET,
    }  # fmt: skip
    custom, x = bytes(flexbuffers.Dumps(options)), points.reshape(1, 1, 1, 18)
    (y,) = run(tmp_path, "Landmarks2TransformMatrix", custom, [x], [(1, 4, 4)])
    np.testing.assert_allclose(y.reshape(4, 4), expected, 1e-4, 1e-4)
