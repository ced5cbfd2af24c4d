"""Operators that onnx.reference does not have or computes wrong, for the second opinion."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_conv_transpose, op_grid_sample

from tests.fuzz.graph import Array


class Pow(OpRun):  # type: ignore[misc]
    """Powers of integers: 0 to a negative power, which is undefined, is 0. onnxruntime computes
    them as float64; here they are exact, and wrap as numpy's do.
    """

    def _run(self, x: Array, y: Array) -> tuple[Array]:
        if x.dtype.kind == "f":
            return (np.power(x, y).astype(x.dtype),)
        if y.dtype.kind in "iu" and bool((y >= 0).all()):
            return (np.asarray(np.power(x, y.astype(np.int64)), x.dtype),)
        power = np.power(x.astype(np.float64), y.astype(np.float64))
        return (np.where(np.isfinite(power), np.trunc(power), 0).astype(x.dtype),)


class LRN(OpRun):  # type: ignore[misc]
    """The definition, with each window summed by itself. onnx.reference reads past the channels.
    The sum of onnxruntime slides: a NaN or a large number stays in the sums of later channels.
    """

    def _run(self, x: Array, alpha: float, beta: float, bias: float, size: int) -> tuple[Array]:
        squares = np.square(x.astype(np.float64))
        channels = x.shape[1]
        sums = np.zeros_like(squares)
        for c in range(channels):
            window = slice(max(c - (size - 1) // 2, 0), min(c + size // 2, channels - 1) + 1)
            sums[:, c] = squares[:, window].sum(axis=1)
        return ((x / (bias + alpha / size * sums) ** beta).astype(x.dtype),)


FAR = 1e4
"""The largest position of a grid, from -1 to 1 inside, that the reference computes."""


class GridSample(op_grid_sample.GridSample):  # type: ignore[misc]
    """Samples whose taps are clamped at the border one by one, as PyTorch and onnxruntime do:
    onnx.reference clamps the position, which moves cubic taps.

    onnxruntime casts positions to integers: those beyond 2**24 lose their fraction or change sides.
    Here they are far outside. A NaN is nowhere, and so is what is reflected from far outside.
    """

    op_domain = ""

    def _prepare_border(self, dims: Any, align_corners: bool) -> Array:
        border: Array = super()._prepare_border(dims, align_corners)
        if self.has_no_border:
            border[:] = np.inf
            border[: len(dims)] = -np.inf
        return border

    def _run(
        self,
        x: Array,
        grid: Array,
        align_corners: int = 0,
        mode: str = "linear",
        padding_mode: str = "zeros",
    ) -> tuple[Array]:
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
        self.has_no_border = padding_mode == "border"
        places = np.clip(np.nan_to_num(grid, posinf=FAR, neginf=-FAR), -FAR, FAR)
        (result,) = super()._run(x, places, mode, padding_mode, align_corners)
        is_nowhere = np.isnan(grid).any(axis=-1)
        if padding_mode == "reflection":
            is_nowhere |= (np.abs(grid) > FAR).any(axis=-1)
        nothing = np.float32(0 if (mode, padding_mode) == ("nearest", "zeros") else np.nan)
        return (np.where(is_nowhere[:, None], nothing, result),)


MicrosoftGridSample = type("GridSample", (GridSample,), {"op_domain": "com.microsoft"})


class DFT(OpRun):  # type: ignore[misc]
    """The sums of the definition, with exact angles. onnxruntime rounds 2 π k n to float32 before
    it takes the sine: a huge element then hides the others. onnx.reference spreads a NaN or an
    infinity of one signal with its FFT.
    """

    def _run(
        self,
        x: Array,
        length: Array | None = None,
        place: Array | None = None,
        axis: int = -2,
        inverse: int = 0,
        onesided: int = 0,
    ) -> tuple[Array]:
        along = int(axis if place is None else place)
        along += x.ndim if along < 0 else 0
        if inverse and onesided:
            return (_from_one_side(x, length, along),)
        size = x.shape[along] if length is None else int(length)
        signal = np.moveaxis(x[..., 0], along, -1).astype(np.float64)[..., :size]
        count = signal.shape[-1]
        turns = np.outer(np.arange(count), np.arange(size)) % size
        cosine, sine = (_exact_wave(f, size)[turns] for f in (np.cos, np.sin))
        sine = sine if inverse else -sine
        real, imaginary = signal @ cosine, signal @ sine
        if x.shape[-1] == 2:
            other = np.moveaxis(x[..., 1], along, -1).astype(np.float64)[..., :size]
            real, imaginary = real - other @ sine, imaginary + other @ cosine
        parts = np.stack([real, imaginary]) / (size if inverse else 1)
        parts = parts[..., : size // 2 + 1] if onesided else parts
        return (np.moveaxis(np.moveaxis(parts, -1, along + 1), 0, -1).astype(x.dtype),)


class STFT(OpRun):  # type: ignore[misc]
    """The transform of each frame by itself, exact as `DFT`. onnx.reference and onnxruntime
    multiply an infinity by the other part of the complex window, which is 0: a NaN.
    """

    def _run(
        self,
        x: Array,
        step: Array,
        window: Array | None = None,
        length: Array | None = None,
        onesided: int = 1,
    ) -> tuple[Array]:
        size = window.shape[0] if window is not None else int(length)  # type: ignore[arg-type]
        signal = x if x.ndim == 3 else x[..., None]
        starts = range(0, signal.shape[1] - size + 1, int(step))
        frames = np.stack([signal[:, start : start + size] for start in starts], axis=1)
        frames = frames.astype(np.float64)
        if window is not None:
            frames = frames * window[:, None]
        transform = DFT.eval(frames, axis=2, inverse=0, onesided=onesided)
        return (np.asarray(transform, x.dtype),)


def _from_one_side(x: Array, length: Array | None, axis: int) -> Array:
    """The real signal whose transform has these first bins; the other bins are their conjugates."""
    size = 2 * (x.shape[axis] - 1) if length is None else int(length)
    bins = np.moveaxis(x, (axis, -1), (-1, 0)).astype(np.float64)[..., : size // 2 + 1]
    numbers = np.arange(bins.shape[-1])
    counts = np.where(numbers * 2 % max(size, 1) == 0, 1, 2)[:, None]
    turns = np.outer(numbers, np.arange(size)) % max(size, 1)
    cosine, sine = (_exact_wave(f, size)[turns] * counts for f in (np.cos, np.sin))
    signal = (bins[0] @ cosine - bins[1] @ sine) / max(size, 1)
    return np.moveaxis(signal, -1, axis)[..., None].astype(x.dtype)


def _exact_wave(wave: Any, size: int) -> Array:
    """One period of a sine or cosine. Its zeros and extremes are exact."""
    values = wave(2 * np.pi * np.arange(size) / max(size, 1))
    return np.where(np.arange(size) * 4 % max(size, 1) == 0, np.round(values), values)


class DynamicQuantizeMatMul(OpRun):  # type: ignore[misc]
    """Exact products: onnxruntime's saturate on x86 without VNNI, whatever the option says."""

    op_domain = "com.microsoft"

    def _run(
        self, a: Array, b: Array, scale: Array, zero: Array | None = None, bias: Array | None = None
    ) -> tuple[Array]:
        low, high = min(a.min(), 0), max(a.max(), 0)
        step = np.float32((high - low) / np.float32(255)) if high > low else np.float32(1)
        offset = np.clip(np.rint(-low / step), 0, 255)
        quantised = np.clip(np.rint(a / step) + offset, 0, 255).astype(np.int64) - int(offset)
        weights = b.astype(np.int64) - (0 if zero is None else zero.astype(np.int64))
        product = (quantised @ weights).astype(np.float32) * (step * scale)
        return (product if bias is None else product + bias,)


class ConvTranspose(op_conv_transpose.ConvTranspose):  # type: ignore[misc]
    """Each group with its weights and biases: onnx.reference gives it those of other groups."""

    op_domain = ""

    def _run(
        self, x: Array, w: Array, b: Array | None = None, group: int = 1, **attributes: Any
    ) -> tuple[Array]:
        parts = []
        biases = [None] * group if b is None else np.split(b, group)
        inputs = zip(np.split(x, group, axis=1), np.split(w, group), biases, strict=True)
        for signal, weights, bias in inputs:
            parts.append(super()._run(signal, weights, bias, group=1, **attributes)[0])
        return (np.concatenate(parts, axis=1),)


EXACT = (
    Pow,
    LRN,
    GridSample,
    MicrosoftGridSample,
    DFT,
    STFT,
    DynamicQuantizeMatMul,
    ConvTranspose,
)
"""All of them."""
