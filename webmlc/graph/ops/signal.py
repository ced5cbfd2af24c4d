"""Signals: DFT and STFT as products with matrices (`fourier.py`), and mel filter banks.

The last axis of a complex signal has size 2: the real and the imaginary parts. So the transform of
a short signal of length N is one matrix product: [N · parts] · [N · parts][bins · 2]. A long signal
is transformed in stages.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Const, Expr, as_int, call, const, select
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.element_types import ELEMENT_TYPES
from webmlc.graph.ir import Node
from webmlc.graph.ops.fourier import Transform, transform_matrix
from webmlc.graph.ops.index import require_within
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, UnknownValueError, case
from webmlc.graph.ops.shapes import (
    ZERO,
    axes_within,
    canonical,
    check_shape,
    check_shapes,
    check_single,
    dimensions,
    require,
)

MATRIX_LIMIT = 1 << 24
"""The complex elements of the largest matrix of a transform that is a constant: 128 MB of float32.
A run computes a larger one. Chosen by hand.
"""
FACTORS = 4
"""Complex elements of the constants of a transform in stages for each element of the signal, at
most: 2 in the last stage, and at most half as many in each stage before."""


def _number(context: Context, index: int, description: str) -> int:
    """The number in an input that must be known at build time. Raises `UnknownValueError` if it is
    not.
    """
    element = context.known_value(index, description).reshape(-1)[0]
    if isinstance(element, Expr):
        raise UnknownValueError(context.node.inputs[index], description)
    return int(element)


def _dft(context: Context, build: Builder) -> Value:
    """Expand a DFT: move the axis to the last place but one, cut it, multiply by the matrix, and
    move the axis back.
    """
    x, shape = build.inputs[0], context.shape(0)
    rank = len(shape)
    check_single(context, 1, 2)
    (axis,) = axes_within((context.integers("axis", 2) or (-2,))[:1], rank)
    inverse, onesided = _options(context)
    size, parts = as_int(shape[axis]), as_int(shape[-1])
    if axis == rank - 1 or parts is None or parts > (1 if onesided and not inverse else 2):
        raise NotSupportedError(f"a Fourier transform of axis {axis} of {context.type(0)}")
    length = _length(context) if context.has(1) else size
    stages = None
    if size is not None and size == length and not (inverse and onesided):
        stages = _stages(context, length, parts, onesided=onesided, inverse=inverse)
    if size is None or length is None or (stages is None and size * length > MATRIX_LIMIT):
        return _symbolic_dft(context, build, axis, inverse=inverse, onesided=onesided)
    order = (*(d for d in range(rank - 1) if d != axis), axis, rank - 1)
    signals = x.transpose(*order) if axis != rank - 2 else x
    if stages is None:
        y = _dense_dft(context, build, signals, order, length)
    else:
        y = stages.write(build, signals, rank - 2, context.dtype(0))
    if axis != rank - 2:
        inverse_order = tuple(int(d) for d in np.argsort(order))
        y = y.transpose(*inverse_order)
    return y


def _options(context: Context) -> tuple[bool, bool]:
    """Whether a DFT is inverse, and whether its spectrum is one-sided."""
    return bool(context.attribute("inverse", 0)), bool(context.attribute("onesided", 0))


def _stages(
    context: Context, length: int, parts: int, *, onesided: bool, inverse: bool = False
) -> Transform | None:
    """The transform in stages of all elements of a signal. `None` if one matrix is as fast, or if
    constants should not hold the factors of all elements. Halves have one matrix, because each
    stage would round.
    """
    if not 1 <= length <= MATRIX_LIMIT // FACTORS or context.dtype(0).bits < 32:
        return None
    bins = length // 2 + 1 if onesided else length
    transform = Transform(length, parts, bins, inverse)
    return transform if len(transform.radices) > 1 else None


def _dense_dft(
    context: Context, build: Builder, signals: Value, order: tuple[int, ...], length: int
) -> Value:
    """Expand a DFT of the last axis but one: cut it to the elements that count, and multiply it by
    the matrix.
    """
    inverse, onesided = _options(context)
    shape, rank = context.shape(0), context.rank(0)
    size, parts = as_int(shape[order[-2]]), as_int(shape[-1])
    assert size is not None and parts is not None
    if inverse and onesided and not context.has(1):
        length = 2 * (size - 1)
    bin_count = min(size, length // 2 + 1 if inverse and onesided else length)
    if bin_count != size:
        limits = (build.constant(np.array([n])) for n in (0, bin_count, rank - 2))
        signals = build("Slice", signals, *limits)
    matrix = transform_matrix(length, bin_count, parts, inverse=inverse, onesided=onesided)
    if inverse and onesided and parts == 1:
        matrix = matrix[::2]
    flat = build("Reshape", signals, _shape_with(context, build, order, (len(matrix),)))
    y = flat @ build.constant(np.ascontiguousarray(matrix), context.dtype(0))
    output_parts = 1 if inverse and onesided else 2
    last = (matrix.shape[1] // output_parts, output_parts)
    return build("Reshape", y, _shape_with(context, build, order, last))


def _length(context: Context) -> int | None:
    """The length of a transform, if it is a number."""
    return as_int(context.known_value(1, "the length").reshape(-1)[0])


def _symbolic_dft(
    context: Context, build: Builder, axis: int, *, inverse: bool, onesided: bool
) -> Value:
    """Expand a DFT of a symbolic length: compute the matrices of cosines and sines [bins, places],
    and multiply them by the signal [..., places, parts].
    """
    if inverse and onesided:
        raise NotSupportedError("an inverse Fourier transform of a half spectrum, of any length")
    x, dtype, rank = build.inputs[0], context.dtype(0), context.rank(0)
    order = [*(d for d in range(rank) if d not in (axis, rank - 1)), axis, rank - 1]
    signal = x.transpose(*order) if axis != rank - 2 else x
    count = length = build("Shape", x).element(axis, 0)
    if context.has(1):
        length = build.inputs[1].cast(DType.int64)
        length = length.reshape()
        count = build("Min", count, length)
        end = count.reshape(-1)
        signal = build("Slice", signal, [0], end, [rank - 2])
    bins = length / 2 + 1 if onesided else length
    places, frequencies = (build("Range", 0, end, 1) for end in (count, bins))
    products = frequencies.unsqueeze(1) * places.unsqueeze(0)
    real_length = length.cast(dtype)
    turns = build("Mod", products, length).cast(dtype)
    angles = turns / real_length * (2 * np.pi)
    cosines, sines = (build(wave, angles) @ signal for wave in ("Cos", "Sin"))
    if as_int(context.shape(0)[-1]) == 2:
        real, imaginary = build.many("Split", cosines, [1, 1], outputs=2, axis=-1)
        real_sines, imaginary_sines = build.many("Split", sines, [1, 1], outputs=2, axis=-1)
        ahead, behind = ("Sub", "Add") if inverse else ("Add", "Sub")
        real = build(ahead, real, imaginary_sines)
        imaginary = build(behind, imaginary, real_sines)
    else:
        real, imaginary = (cosines, sines if inverse else -sines)
    y = build("Concat", real, imaginary, axis=-1)
    if inverse:
        y = y / real_length
    if axis == rank - 2:
        return y
    return y.transpose(*tuple(int(d) for d in np.argsort(order)))


def _shape_with(
    context: Context, build: Builder, order: tuple[int, ...], last: tuple[int, ...]
) -> Value:
    """The sizes of all axes of `order` but the last two, then `last`."""
    outer_axes = build.constant(np.array(order[:-2], np.int64))
    sizes = build("Gather", build("Shape", build.inputs[0]), outer_axes, axis=0)
    return build("Concat", sizes, np.array(last), axis=0)


def _old_axis(node: Node, opset: int) -> Node:
    """Set the axis of a DFT before opset 20: it is an attribute, 1 by default."""
    return node if opset >= 20 else replace(node, attributes={"axis": 1, **node.attributes})


def _stft(context: Context, build: Builder) -> Value:
    """Expand an STFT. Long frames are multiplied by the window, and transformed in stages. Short
    frames are multiplied by the matrix, into which the window is folded.
    """
    check_single(context, 1, 3)
    check_shapes(context, "batch length" + " parts" * (context.rank(0) > 2), "", "frame")
    signal, hop = build.inputs[0], _number(context, 1, "the step")
    parts = as_int(context.shape(0)[-1]) if context.rank(0) == 3 else 1
    length = as_int(context.shape(0)[1])
    if context.has(3):
        length = _number(context, 3, "the frames' length")
    elif context.has(2):
        length = as_int(context.shape(2)[0])
    if length is None or parts is None:
        raise NotSupportedError("frames of symbolic length")
    if not require(context, "at most", const(length), context.shape(0)[1]):
        raise NotSupportedError(f"frames of {length} elements of {context.type(0)}")
    onesided = bool(context.attribute("onesided", 1))
    stages = _stages(context, length, parts, onesided=onesided)
    if stages is None and length * length > MATRIX_LIMIT:
        raise NotSupportedError(
            f"frames of {length} elements; the most are {MATRIX_LIMIT**0.5:.0f}"
        )
    check_shape(context, 2, (const(length),))
    if context.rank(0) == 2:
        signal = signal.unsqueeze(-1)
    if stages is not None:
        frames = build("Frames", signal, domain="webmlc", length=length, step=hop)
        if context.has(2):
            window = build("Expand", build.inputs[2].unsqueeze(1), [length, parts])
            frames = frames * window.reshape(length * parts)
        if parts == 2:
            frames = frames.reshape(0, 0, length, parts)
        return stages.write(build, frames, 2, context.dtype(0))
    matrix = transform_matrix(length, length, parts, inverse=False, onesided=onesided)
    frames = build("Frames", signal, domain="webmlc", length=length, step=hop)
    weights = build.constant(np.ascontiguousarray(matrix), context.dtype(0))
    if context.has(2):
        window = build.inputs[2].unsqueeze(1)
        cube = weights.reshape(length, -1)
        weights = cube * window
        weights = build("Reshape", weights, np.array(matrix.shape))
    y = frames @ weights
    bins = matrix.shape[1] // 2
    return y.reshape(0, 0, bins, 2)


def _frames(context: Context, x: Tensor) -> Tensor:
    """The frames [batch][frame][element · part] of a signal [batch][element][part]."""
    step = int(context.attribute("step"))
    parts = x.shape[2]

    def element(b: Expr, frame: Expr, i: Expr) -> Expr:
        return x[b, frame * step + i // parts, i % parts]

    length = int(context.attribute("length"))
    count = canonical((x.shape[1] - length) // step + 1)
    return compute("frames", (x.shape[0], count, canonical(parts * length)), element)


def _mel(context: Context, build: Builder) -> Value:
    """Expand a MelWeightMatrix into the bins at which its triangles begin, and the triangles. A run
    checks that all of them are bins of the spectrum.
    """
    filters = dimensions(context, 0, "the number of mel bins")[0]
    length = dimensions(context, 1, "the transform's length")[0]
    bins = canonical(length // 2 + 1)
    numbers = build.inputs[2:5]
    edges = build("MelEdges", *numbers, domain="webmlc", filters=filters, length=length, bins=bins)
    output_type = context.attribute("output_datatype", 1)
    return build(
        "MelFilters",
        require_within(build, edges, bins),
        domain="webmlc",
        bins=bins,
        output_datatype=output_type,
    )


def _mel_edges(context: Context, *inputs: Tensor) -> Tensor:
    """The bins of a spectrum at which triangles begin that are evenly spaced on the mel scale; then
    the bins of the least and the greatest frequency. A bin that the spectrum does not have is -1.
    """
    filters, length, bins = (context.attribute(n) for n in ("filters", "length", "bins"))
    rate, low, high = (x[(ZERO,) * x.rank].astype(DType.float64) for x in inputs)

    def mel(hertz: Expr) -> Expr:
        return call("log", hertz / 700.0 + 1.0) * (2595 / math.log(10))

    def element(number: Expr) -> Expr:
        step = (mel(high) - mel(low)) / (filters + 2).astype(DType.float64)
        place = number.astype(DType.float64) * step + mel(low)
        hertz = (call("exp", place * (math.log(10) / 2595)) - 1.0) * 700.0
        hertz = select(number.equals(filters + 2), low, hertz)
        hertz = select(number.equals(filters + 3), high, hertz)
        bin_ = call("floor", hertz * (length + 1).astype(DType.float64) / rate)
        exists = (bin_ >= 0.0) & (bin_ < bins.astype(DType.float64))
        return select(exists, bin_, Const(-1, DType.float64)).astype(INDEX)

    return compute("edges", (canonical(filters + 4),), element)


def _mel_filters(context: Context, edges: Tensor) -> Tensor:
    """The weights of triangles between edges."""
    dtype = ELEMENT_TYPES[int(context.attribute("output_datatype"))]

    def element(bin_: Expr, number: Expr) -> Expr:
        position = bin_.astype(DType.float64)
        left, middle, right = (edges[number + k].astype(DType.float64) for k in range(3))
        rising = (position - left) / call("max", middle - left, Const(1, DType.float64))
        rising = select(call("eq", left, middle), Const(1, DType.float64), rising)
        falling = (right - position) / call("max", right - middle, Const(1, DType.float64))
        climbs = (position >= left) & (position <= middle)
        falls = (position >= middle) & (position < right)
        value = select(falls, falling, select(climbs, rising, Const(0, DType.float64)))
        return value.astype(dtype)

    return compute("mel", (context.attribute("bins"), canonical(edges.shape[0] - 4)), element)


RATE, LOW, HIGH = np.int64(8192), np.float32(0), np.float32(4096)
SIGNAL = "float32[2, 10, 1]"

OPS: tuple[Operator, ...] = (
    Operator("DFT", expand=_dft, normalise=_old_axis, cases=(
        case(SIGNAL), case(SIGNAL, None, np.int64(0), onesided=1),
        case("float32[2, 5, 2]", inverse=1),
        case("float32[2, 6, 2]", None, np.int64(1), inverse=1, onesided=1),
        case("float32[2, 5, 2]", np.int64(8)), case("float32[2, 5, 2]", np.int64(3)))),
    Operator("STFT", expand=_stft, cases=(
        case("float32[2, 32, 1]", np.int64(4), None, np.int64(8)),
        case("float32[1, 32, 1]", np.int64(8), "float32[16]"),
        case("float32[1, 32, 2]", np.int64(8), "float32[16]", onesided=0))),
    Operator("Frames", compute=_frames, kind="injective", domain="webmlc"),
    Operator("MelWeightMatrix", expand=_mel, cases=(
        case(np.int64(8), np.int64(16), RATE, LOW, HIGH),)),
    Operator("MelEdges", compute=_mel_edges, kind="injective", domain="webmlc"),
    Operator("MelFilters", compute=_mel_filters, kind="injective", domain="webmlc"),
)  # fmt: skip
