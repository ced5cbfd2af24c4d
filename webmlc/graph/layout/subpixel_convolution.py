"""Write a transposed convolution as a convolution (sub-pixel convolution).

In: the weights and windows of a transposed convolution with strides (sy, sx). Out: the weights of a
convolution of stride 1. Its channels are the sy·sx outputs ("phases") between two inputs. The
phases are then interleaved. Every output is a sum over the taps that reach it, so no tap needs a
test:

    ConvTranspose of 2x2, strides 2, 16 -> 1 channels  ->  Conv of 1x1, 16 -> 4, interleaved

Output `s·q + r` takes tap `k` from input `q + (r + begin - k·dilation) / s`, if this quotient is
whole. So the phase `r` decides the taps, and `q` slides. Source: W. Shi et al., "Is the
deconvolution layer the same as a convolutional layer?" (2016).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from webmlc.core.expr import Const, Expr, as_int
from webmlc.core.simplify import simplify
from webmlc.graph.ir import Array
from webmlc.graph.ops.windows import Windows


@dataclass(frozen=True, slots=True)
class Subpixels:
    """A convolution, in `windows` of stride 1, whose channels are phases: `weights` is
    `[groups · sy · sx · O, I, KH, KW]`.
    """

    weights: Array
    windows: Windows
    strides: tuple[int, ...]

    @property
    def phases(self) -> int:
        """The number of outputs at the place of one input."""
        return math.prod(self.strides)

    @staticmethod
    def of(weights: Array, windows: Windows, sizes: tuple[Expr, ...], groups: int) -> Subpixels:
        """The convolution that replaces a transposed convolution by `weights` with outputs of these
        `sizes`. The weights are `[groups · I, O, KH, KW]`.
        """
        rank, strides = windows.rank, windows.strides
        places = [_places(windows, d) for d in range(rank)]
        lows = [min(0, *inputs_of.values()) for inputs_of in places]
        kernel = [
            max(0, *inputs_of.values()) - low + 1
            for inputs_of, low in zip(places, lows, strict=True)
        ]
        inputs, outputs = weights.shape[0] // groups, weights.shape[1]
        source: Any = weights.reshape(groups, inputs, outputs, *weights.shape[2:]).swapaxes(1, 2)
        result: Any = np.zeros((groups, *strides, outputs, inputs, *kernel), weights.dtype)
        for reads in itertools.product(*(p.items() for p in places)):
            phases = [phase for (phase, _), _ in reads]
            taps = [tap for (_, tap), _ in reads]
            positions = [place - low for (_, place), low in zip(reads, lows, strict=True)]
            result[(slice(None), *phases, ..., *positions)] = source[(..., *taps)]
        steps = [simplify((size + (s - 1)) // s) for size, s in zip(sizes, strides, strict=True)]
        ends = [
            simplify(step + (k - 1 + low) - size)
            for step, k, low, size in zip(steps, kernel, lows, windows.inputs, strict=True)
        ]
        ones = (1,) * rank
        begins = tuple(Const(-low) for low in lows)
        moved = Windows(windows.inputs, tuple(kernel), ones, ones, begins, tuple(ends), False)
        return Subpixels(result.reshape(-1, inputs, *kernel), moved, strides)


def _places(windows: Windows, d: int) -> dict[tuple[int, int], int]:
    """The input that each (phase, tap) reads, relative to the place of the phase. Taps that do not
    reach a phase are missing.
    """
    begin, stride = as_int(windows.begins[d]), windows.strides[d]
    assert begin is not None
    moved = {
        (phase, tap): phase + begin - tap * windows.dilations[d]
        for phase in range(stride)
        for tap in range(windows.kernel[d])
    }
    return {key: at // stride for key, at in moved.items() if at % stride == 0}
