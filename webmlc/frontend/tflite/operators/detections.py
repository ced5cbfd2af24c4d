"""Rows of operators that select boxes by their scores.

The number of selected boxes is known only in a run. The results have a fixed size: zeros follow the
selected boxes.

    NON_MAX_SUPPRESSION_V4(boxes, scores, 5)   ->   Slice(Concat(NonMaxSuppression(·), zeros), 0:5)

TFLite_Detection_PostProcess is the custom operator of TensorFlow's detection models
(`tensorflow/lite/kernels/detection_postprocess.cc`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.frontend.tflite.operation import Operation, Row
from webmlc.frontend.tflite.operators.mediapipe import options_map
from webmlc.graph.builder import Operand, Value

BELOW_ONE = np.float32(1 - 2**-24)
"""A positive float times this number is the next smaller float."""
NO_SCORE = np.float32(-1)
"""The score of a place without a box: below all scores."""


def _selected(
    boxes: Value, scores: Value, count: Operand, overlap: Operand, least: Operand
) -> Value:
    """The class and the box of each selected box, [selected, 2], from `boxes` [boxes, 4] and
    `scores` [classes, boxes].
    """
    rows = boxes.unsqueeze(0).op("NonMaxSuppression", scores.unsqueeze(0), count, overlap, least)
    return rows.slice(1, 3, 1)


def _filled(values: Value, size: int, zero: Any) -> Value:
    """The first `size` values of a vector, with `zero` in place of missing values."""
    dtype = values.type.dtype
    tail = np.full(size, zero, dtype.numpy)
    return values.build("Concat", values, tail, axis=0).slice(0, size, 0)


def _non_max_suppression(op: Operation) -> Sequence[Value]:
    """Select boxes that overlap by less than a limit. ONNX selects boxes that overlap by it, too.
    Version 5 can lower the scores of overlapping boxes.
    """
    is_soft = op.operator.name == "NON_MAX_SUPPRESSION_V5"
    sigma = op.constant(5) if is_soft else None
    if is_soft and (sigma is None or sigma.any()):
        op.refuse("it lowers scores by a sigma; convert with a sigma of 0, or with version 4")
    (size,) = op.integers(2, "the largest number of boxes")
    overlap, least = (op.input(index).reshape(1) for index in (3, 4))
    overlap = overlap.op("Greater", np.float32(0)).where(overlap * BELOW_ONE, np.float32(-1))
    count = np.array([size], np.int64)
    scores = op.input(1)
    rows = _selected(op.input(0), scores.unsqueeze(0), count, overlap, least)
    chosen = rows.element(1, 1)
    number = chosen.size(0).cast(DType.int32)
    results = [_filled(chosen, size, 0).cast(DType.int32)]
    if is_soft:
        results.append(_filled(scores.op("Gather", chosen, axis=0), size, 0))
    return [*results, number]


def _decoded(op: Operation, options: dict[str, Any]) -> Value:
    """The corners (top, left, bottom, right) of boxes, from their differences to anchors."""
    scales = [float(options[f"{name}_scale"]) for name in "yxhw"]
    codes, anchors = op.input(0).reshape(-1, op.shape(0)[-1]), op.input(2)
    codes = codes.slice(0, 4, 1) / np.array(scales, np.float32)
    size = anchors.slice(2, 4, 1)
    centre = codes.slice(0, 2, 1) * size + anchors.slice(0, 2, 1)
    half = codes.slice(2, 4, 1).op("Exp") * size * 0.5
    return op.build("Concat", centre - half, centre + half, axis=1)


def _detections(op: Operation) -> Sequence[Value]:
    """The boxes [1, n, 4], classes [1, n], scores [1, n] and the number [1] of detections."""
    options = options_map(op)
    boxes = _decoded(op, options)
    classes = int(options["num_classes"])
    columns = op.size(1, 2, "the number of classes")
    scores = op.input(1).reshape(-1, columns).slice(columns - classes, columns, 1)
    least = np.nextafter(np.float32(options["nms_score_threshold"]), np.float32(-np.inf))
    limits = (np.array([options["nms_iou_threshold"]], np.float32), np.array([least], np.float32))
    if options.get("use_regular_nms"):
        return _by_class(op, options, boxes, scores, limits)
    return _by_box(op, options, boxes, scores, limits)


Limits = tuple[Any, Any]
"""The largest overlap of two boxes, and the score that a box must exceed."""


def _by_box(
    op: Operation, options: dict[str, Any], boxes: Value, scores: Value, limits: Limits
) -> Sequence[Value]:
    """Select boxes by their best score. Each has the best classes."""
    size, most = int(options["max_detections"]), int(options["max_classes_per_detection"])
    most = min(most, int(options["num_classes"]))
    best = scores.op("ReduceMax", (1,), keepdims=0).unsqueeze(0)
    chosen = _selected(boxes, best, np.array([size], np.int64), *limits).element(1, 1)
    top, classes = op.build.many(
        "TopK", scores.op("Gather", chosen, axis=0), (most,), outputs=2, axis=1
    )
    number = chosen.size(0).cast(DType.float32).reshape(1)
    places = chosen.unsqueeze(1).op("Tile", (1, most)).reshape(-1)
    return _laid_out(op, boxes, places, classes.reshape(-1), top.reshape(-1), size * most, number)


def _by_class(
    op: Operation, options: dict[str, Any], boxes: Value, scores: Value, limits: Limits
) -> Sequence[Value]:
    """Select boxes of each class by themselves, then the best of all classes."""
    size = int(options["max_detections"])
    count = np.array([options.get("detections_per_class", 100)], np.int64)
    by_class = scores.transpose(1, 0)
    rows = _selected(boxes, by_class, count, *limits)
    padded = _filled_end(by_class.op("GatherND", rows), size, NO_SCORE)
    top, order = op.build.many("TopK", padded, (size,), outputs=2, axis=0)
    number = top.op("Greater", NO_SCORE).cast(DType.float32).op("ReduceSum", (0,), keepdims=1)
    padding = np.zeros((size, 2), np.int64)
    chosen = op.build("Concat", rows, padding, axis=0).op("Gather", order, axis=0)
    is_box = top.op("Greater", NO_SCORE)
    top = is_box.where(top, np.float32(0))
    box = boxes.op("Gather", chosen.element(1, 1), axis=0) * is_box.cast(DType.float32).unsqueeze(1)
    tail = size * (int(options["max_classes_per_detection"]) - 1)
    results = box, chosen.element(0, 1).cast(DType.float32), top
    shapes = (tail, 4), (tail,), (tail,)
    padded_results = [
        op.build("Concat", result, np.zeros(shape, np.float32), axis=0).unsqueeze(0)
        for result, shape in zip(results, shapes, strict=True)
    ]
    return [*padded_results, number]


def _filled_end(values: Value, size: int, value: Any) -> Value:
    """The values of a vector, and `size` further ones."""
    return values.build("Concat", values, np.full(size, value, np.float32), axis=0)


def _laid_out(
    op: Operation,
    boxes: Value,
    places: Value,
    classes: Value,
    scores: Value,
    size: int,
    number: Value,
) -> Sequence[Value]:
    """The results, with zeros behind the detections."""
    corners = boxes.op("Gather", places, axis=0)
    tail = np.zeros((size, 4), np.float32)
    corners = op.build("Concat", corners, tail, axis=0).slice(0, size, 0)
    return [
        corners.unsqueeze(0),
        _filled(classes.cast(DType.float32), size, 0).unsqueeze(0),
        _filled(scores, size, 0).unsqueeze(0),
        number,
    ]


ROWS = (
    Row("NON_MAX_SUPPRESSION_V4", _non_max_suppression),
    Row("NON_MAX_SUPPRESSION_V5", _non_max_suppression),
    Row("TFLite_Detection_PostProcess", _detections),
)
"""The rows."""
