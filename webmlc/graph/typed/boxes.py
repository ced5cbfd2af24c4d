"""Add nodes behind a detector that turn its output into a list of objects.

In: the value of an output, [1, boxes, 4 + classes], and how the picture became the model's input.
Out: the objects in pixels of the picture, the likeliest object of each class first:

    %output   ->   %output_boxes: float32[objects, 4] (left, top, right, bottom),
                   %output_scores: float32[objects], %output_classes: int32[objects]

Each box has its best class. Boxes of other classes do not suppress it: for the suppression, boxes
are moved apart by their class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.errors import InputError
from webmlc.graph.builder import Builder, Value
from webmlc.graph.typed.options import Boxes

_COORDINATES = 4
_END = np.iinfo(np.int64).max
_LARGEST_INPUT = 4096
"""The most pixels along a side of a model's input whose size only a run knows. Boxes are moved
apart by it.
"""


def find_boxes(
    build: Builder, value: Value, options: Boxes, pixels: Value, geometry: Mapping[str, Any]
) -> dict[str, Value]:
    """Write the nodes. Returns the boxes, the scores and the classes.

    Raises `InputError` if the options need a size of the model's input that only a run knows.
    """
    height, width = geometry["output"]
    rows = build("Flatten", _last(build, value, options), axis=-1)
    corners = _corners(build, rows, options, (height, width))
    likelihoods = _likelihoods(build, rows, options)
    best = build("ReduceMax", likelihoods, [1], keepdims=0)
    classes = build("ArgMax", likelihoods, axis=1, keepdims=0)
    chosen = _chosen(build, corners, best, classes, options, max(height, width) or _LARGEST_INPUT)
    ratio, start, size = build.many("ImagePlace", pixels, outputs=3, domain="webmlc", **geometry)
    boxes = build("Gather", corners, chosen, axis=0)
    placed = (boxes + start) * ratio
    within = build("Min", build("Max", placed, 0), size)
    return {
        "boxes": within,
        "scores": build("Gather", best, chosen, axis=0),
        "classes": build("Gather", classes, chosen, axis=0).cast(DType.int32),
    }


def _last(build: Builder, value: Value, options: Boxes) -> Value:
    x = value.cast(DType.float32)
    return x.transpose(0, 2, 1) if options.channels == "first" else x


def _corners(build: Builder, rows: Value, options: Boxes, size: tuple[int, int]) -> Value:
    """The left, top, right and bottom sides in pixels of the model's input, [boxes, 4]."""
    first, second = (rows.slice(0, 2, 1), rows.slice(2, _COORDINATES, 1))
    if options.strides:
        cells, strides = _cells(options, size)
        first = (first + build.constant(cells)) * build.constant(strides)
        second = build("Exp", second) * build.constant(strides)
    if options.boxes == "cxcywh":
        half = second * 0.5
        first, second = (first - half, first + half)
    elif options.boxes == "xywh":
        second = first + second
    corners = build("Concat", first, second, axis=1)
    if options.unit == "pixels":
        return corners
    if 0 in size:
        raise InputError("boxes in fractions need an input of pixels whose size is known")
    height, width = size
    return corners * np.array([width, height] * 2, np.float32)


def _cells(options: Boxes, size: tuple[int, int]) -> tuple[Any, Any]:
    """The column and row of the cell of each box, and its stride: [boxes, 2] and [boxes, 1]."""
    if 0 in size:
        raise InputError("boxes with strides need an input of pixels whose size is known")
    height, width = size
    cells, strides = [], []
    for stride in options.strides:
        y, x = np.mgrid[: height // stride, : width // stride]
        cells.append(np.stack([x.ravel(), y.ravel()], axis=1))
        strides.append(np.full((x.size, 1), stride))
    return np.concatenate(cells).astype(np.float32), np.concatenate(strides).astype(np.float32)


def _likelihoods(build: Builder, rows: Value, options: Boxes) -> Value:
    """The scores of all classes, [boxes, classes]."""
    if options.classes:
        scores = build("Flatten", _last(build, build.value(options.classes), options), axis=-1)
    else:
        scores = rows.slice(_COORDINATES + options.objectness, _END, 1)
    if options.activation == "softmax":
        scores = build("Softmax", scores, axis=-1).slice(0, -1, 1)
    if options.activation == "sigmoid":
        scores = build("Sigmoid", scores)
    if not options.objectness:
        return scores
    likelihood = rows.slice(_COORDINATES, _COORDINATES + 1, 1)
    if options.activation == "sigmoid":
        likelihood = build("Sigmoid", likelihood)
    return scores * likelihood


def _chosen(
    build: Builder, corners: Value, best: Value, classes: Value, options: Boxes, size: int
) -> Value:
    """The numbers of the boxes that remain, [objects]."""
    number = classes.cast(DType.float32)
    column = number.unsqueeze(1)
    shift = column * (2 * size)
    moved = corners + shift
    selected = build(
        "NonMaxSuppression",
        moved.unsqueeze(0),
        best.unsqueeze(0, 1),
        [options.max],
        np.array([options.overlap], np.float32),
        np.array([options.threshold], np.float32),
    )
    last = build.constant(np.array(2))
    return build("Gather", selected, last, axis=1)
