"""Add nodes behind a segmentation model that compute the opacity of each pixel of the picture.

In: the value of an output of scores, [1, classes, height, width] or [1, height, width, classes],
and how the picture became the model's input. Out: bytes of the picture's size:

    %mask   ->   %mask_alpha: uint8[picture_height, picture_width]
                 %mask_pixels: uint8[picture_height, picture_width, 4], with `result=pixels`

The part of the mask that shows the picture is resized as Pillow resizes a picture of floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.errors import InputError
from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import TensorType
from webmlc.graph.typed.options import Mask


def mask_pixels(
    build: Builder,
    name: Value,
    type_: TensorType,
    options: Mask,
    pixels: Value,
    geometry: Mapping[str, Any],
) -> dict[str, Value]:
    """Write the nodes. Returns the opacity, or the picture with it.

    `geometry` are the attributes of `ImageTaps`. Raises `InputError` if the options do not fit the
    output, or if the model sees a part of the picture only.
    """
    if geometry["fit"] == "cover" and any(geometry["output"]):
        raise InputError(
            f"output {name!r}: the model sees what crop leaves of a picture. Resize or pad it."
        )
    x = _foreground(build, name, type_, options)
    geometry = {**geometry, "filter": options.filter, "antialias": int(options.antialias)}
    for axis in (1, 0):
        indices, weights = build.many(
            "MaskTaps", pixels, x, outputs=2, domain="webmlc", axis=axis, **geometry
        )
        total = build("ReduceSum", weights, [1], keepdims=1)
        weights = weights / total
        x = build("ImageSum", x, indices, weights, domain="webmlc", axis=axis)
    alpha = _bytes(x, options).cast(DType.uint8)
    if options.result == "alpha":
        return {"alpha": build("Squeeze", alpha, [2])}
    colours = pixels.slice(0, 3, 2)
    return {"pixels": build("Concat", colours, alpha, axis=2)}


def _foreground(build: Builder, name: Value, type_: TensorType, options: Mask) -> Value:
    """The scores of the foreground, float32 [height, width, 1]."""
    if type_.rank not in (2, 3, 4):
        raise InputError(f"output {name!r} is {type_}: a mask is [1, classes, height, width]")
    sizes = [as_int(size) for size in type_.shape]
    classes: int | None = 1
    x = name.cast(DType.float32)
    if type_.rank == 4:
        if sizes[0] not in (None, 1):
            raise InputError(f"output {name!r} is {type_}: it holds {sizes[0]} masks, not one")
        x = x.element(0, 0)
    if type_.rank == 2:
        x = x.unsqueeze(2)
    else:
        is_last = sizes[-1] == 1 != sizes[-3] if not options.layout else options.layout == "nhwc"
        classes = sizes[-1 if is_last else -3]
        x = x if is_last else x.transpose(1, 2, 0)
    if classes != 1 and not options.foreground:
        count = classes or "an unknown number of"
        raise InputError(f"output {name!r} has {count} classes; say which one is in front: "
                         "foreground=1")  # fmt: skip
    if classes and any(number >= classes for number in options.foreground):
        raise InputError(f"output {name!r}: foreground is less than {classes}, the classes")
    if options.activation == "softmax":
        x = build("Softmax", x, axis=-1)
    elif options.activation == "sigmoid":
        x = build("Sigmoid", x)
    if not options.foreground:
        return x
    x = build("Gather", x, list(options.foreground), axis=2)
    return build("ReduceSum", x, [2], keepdims=1)


def _bytes(scores: Value, options: Mask) -> Value:
    """The opacity of scores as float32, from 0 to 255."""
    if options.threshold is not None:
        is_front = scores.op("GreaterOrEqual", options.threshold)
        return is_front.where(np.float32(255), np.float32(0))
    return (scores * 255 + 0.5).op("Floor").op("Clip", 0, 255)
