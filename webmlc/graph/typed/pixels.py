"""Add nodes in front of a model that compute its input from pixels.

In: a function, and an input of type [batch, channels, height, width] or [batch, height, width,
channels]. Out: the nodes that compute it from uint8 [height, width, 4], which is RGBA, of any size.
Resizing rounds to bytes after each axis, columns first, as Pillow does:

    %image: float32[1, 3, 224, 224]   ->   %image: uint8[image_height, image_width, 4]
                                           ... = Transpose(Div(Sub(Mul(Resample(...)))))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.errors import InputError
from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.image import Fit
from webmlc.graph.typed.options import Pixels

CHANNELS = 4
"""The channels of the pixels that a page has: red, green, blue and alpha, which is ignored."""
LUMA = (19595, 38470, 7471)
"""The weights of red, green and blue in gray, in units of 1 / 65536. From Pillow."""


@dataclass(frozen=True, slots=True)
class Frame:
    """How the model holds an image: the axis of the channels, and the size of the image, 0 where a
    run decides it.
    """

    channels: int
    axis: int
    rank: int
    height: int
    width: int


def frame_of(name: str, type_: TensorType | None, options: Pixels) -> Frame:
    """Find the axes of an image in the type of an input. Raises `InputError`."""
    channels = 1 if options.pixels == "gray" else 3
    if type_ is None or type_.rank not in (2, 3, 4):
        raise InputError(f"input {name!r} is {type_}: it holds no image")
    sizes = [as_int(d) for d in type_.shape]
    if type_.rank == 4 and sizes[0] not in (None, 1):
        raise InputError(
            f"input {name!r} is {type_}: pixels are one image, but it holds {sizes[0]}"
        )
    if type_.rank == 2 or (type_.rank == 3 and channels == 1 and sizes[0] != 1 != sizes[2]):
        return Frame(channels, -1, type_.rank, sizes[-2] or 0, sizes[-1] or 0)
    first, last = type_.rank - 3, type_.rank - 1
    is_first = sizes[first] == channels or (sizes[first] is None and sizes[last] != channels)
    if options.layout:
        is_first = options.layout == "nchw"
    axis = first if is_first else last
    if sizes[axis] not in (None, channels):
        raise InputError(
            f"input {name!r} is {type_}: it has no {channels} channels, as pixels={options.pixels} "
            "has. Choose other pixels, or say layout=nchw or layout=nhwc."
        )
    height, width = (sizes[d] or 0 for d in range(type_.rank - 3, type_.rank) if d != axis)
    return Frame(channels, axis, type_.rank, height, width)


def geometry(name: str, options: Pixels, frame: Frame) -> dict[str, Any]:
    """The attributes of `ImageTaps` but the axis. Raises `InputError`."""
    size = (frame.height, frame.width)
    fit: Fit = "stretch"
    output: tuple[int, ...] = size
    if options.crop is not None and options.pad is not None:
        raise InputError(f"input {name!r}: crop and pad exclude each other")
    if options.crop is not None:
        fit = "cover"
        output = size if options.crop == "center" else _pair(options.crop)
    elif options.pad is not None:
        fit = "contain"
    elif len(options.resize) == 1 and size == (0, 0):
        fit, output = "cover", (0, 0)
    elif options.resize:
        output = _pair(options.resize)
    if fit != "cover" and 0 in output:
        raise InputError(f"input {name!r}: the model takes images of any size; say resize=224")
    if any(s and s != o for s, o in zip(size, output, strict=True)):
        raise InputError(
            f"input {name!r}: the model takes {size[0]} × {size[1]} pixels, not {output[0]} × "
            f"{output[1]}. Say crop=center, or pad=0."
        )
    resize = options.resize or output
    if fit == "cover" and len(resize) == 2 and resize[0] != resize[1]:
        raise InputError(f"input {name!r}: resize is one number, the shorter side, before a crop")
    if fit == "cover" and 0 in output and options.crop is not None:
        raise InputError(f"input {name!r}: say what to cut out, for instance crop=224")
    if fit == "cover" and any(o > resize[0] for o in output):
        raise InputError(f"input {name!r}: cut out at most the shorter side, {resize[0]} pixels")
    return {
        "fit": fit,
        "resize": _pair(resize),
        "output": output,
        "filter": options.filter,
        "antialias": int(options.antialias),
        "centred": int(options.place == "center"),
    }


def _pair(sizes: str | tuple[int, ...]) -> tuple[int, ...]:
    assert not isinstance(sizes, str)
    return sizes if len(sizes) == 2 else (sizes[0], sizes[0])


def read_pixels(
    build: Builder, pixels: Value, type_: TensorType | None, options: Pixels
) -> tuple[Value, dict[str, Any]]:
    """Write the nodes that compute an input from `pixels`, which has the name of the input. Returns
    their result and the attributes of `ImageTaps`.

    Raises `InputError` if the options do not fit the input.
    """
    frame = frame_of(pixels, type_, options)
    assert type_ is not None
    attributes = geometry(pixels, options, frame)
    x = _gray(pixels) if options.pixels == "gray" else pixels
    covers: list[Value] = []
    for axis in (1, 0):
        indices, weights = build.many(
            "ImageTaps", pixels, outputs=2, domain="webmlc", axis=axis, **attributes
        )
        total = build("ReduceSum", weights, [1], keepdims=1)
        if attributes["fit"] == "contain":
            covers.append(build("Greater", total, 0))
            total = build("Max", total, 1e-09)
        weights = weights / total
        x = _bytes(build("ImageSum", x, indices, weights, domain="webmlc", axis=axis))
    if options.pixels != "gray":
        x = _colours(x, is_reversed=options.pixels == "bgr")
    if covers:
        columns, rows = (
            cover.reshape(*shape)
            for cover, shape in zip(covers, ((1, -1, 1), (-1, 1, 1)), strict=True)
        )
        is_image = rows & columns
        x = is_image.where(x, options.pad or 0)
    x = _normalised(pixels, x, type_.dtype, options, frame)
    return _arranged(x, frame), attributes


def _colours(x: Value, *, is_reversed: bool) -> Value:
    """Red, green and blue, without alpha. Before this node all four channels are resized, because
    they are one vector of a CPU.
    """
    # A slice that ends before the first element, if it goes backwards.
    start, end, step = (2, -CHANNELS - 1, -1) if is_reversed else (0, 3, 1)
    return x.op("Slice", [start], [end], [2], [step])


def _gray(pixels: Value) -> Value:
    """The channel of gray, as bytes [height, width, 1]."""
    products = pixels.slice(0, len(LUMA), 2).cast(DType.int32) * np.array(LUMA, np.int32)
    total = products.op("ReduceSum", [2], keepdims=1)
    return ((total + (1 << 15)) / (1 << 16)).cast(DType.uint8)


def _bytes(x: Value) -> Value:
    """Round to the values of a byte. The filter `bicubic` exceeds these values."""
    return (x + 0.5).op("Floor").op("Clip", 0, 255)


def _normalised(name: str, x: Value, dtype: DType, options: Pixels, frame: Frame) -> Value:
    scale = options.scale if options.scale is not None else (1 / 255 if dtype.is_float else 1.0)
    for key, values in (("mean", options.mean), ("std", options.std)):
        if len(values) not in (0, 1, frame.channels):
            raise InputError(
                f"input {name!r}: {key} has {len(values)} numbers, not {frame.channels}"
            )
    if 0.0 in options.std:
        raise InputError(f"input {name!r}: std is a divisor, so it is not 0")
    if scale != 1.0:
        x = x * scale
    if options.mean:
        x = x - np.array(options.mean, np.float32)
    if options.std:
        x = x / np.array(options.std, np.float32)
    return x if dtype is DType.float32 else x.cast(dtype)


def _arranged(x: Value, frame: Frame) -> Value:
    """The shape of the input from [height, width, channels]."""
    if frame.axis < 0:
        x = x.op("Squeeze", [2])
        return x if frame.rank == 2 else x.unsqueeze(0)
    if frame.axis == frame.rank - 3:
        x = x.transpose(2, 0, 1)
    return x if frame.rank == 3 else x.unsqueeze(0)
