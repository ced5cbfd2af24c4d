"""Fourier transforms: the matrix of a transform, and transforms in stages of small matrices.

In: signals [..., elements, parts] of real elements (one part) or complex elements (two parts). Out:
the first bins of their spectra, [..., bins, 2]. Each stage transforms along one digit of the
elements' numbers. It is one contraction by one small matrix: the parts come first, so that parts
and digits are one axis of the contraction. For example, a real signal of 512 elements, to 257 bins:

    x [..., 1, 32 * 16, 1]  ->  [..., 2, 16, 32]    the 16 spectra of every 16th element
                            ->  [..., 2, 16, 32]    times the factors of their places ("twiddles")
                            ->  [..., 2, 32, 9]     the spectra of 16 bins that belong together
                            ->  [..., 9 * 32, 2]    all bins in order

One matrix would take 512 * 257 complex products, and the stages take 512 * (32 + 9).

Source: J. Cooley and J. Tukey, "An algorithm for the machine calculation of complex Fourier series"
(1965).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Array

LANES = 4
"""Columns of a product that are computed at once: the elements of a vector on the CPU."""
LOOP_ENTRY = 8
"""Fixed cost of one entry of a product's inner loop, in iterations of that loop (chosen by hand: 8
plans two stages for 1,024 real elements, and 6 would plan three). Convolutions have a number of
their own, `AlgorithmCosts.loop_entry_iterations`, for each machine."""
TWIDDLE = 16
"""Multiply-adds that take as long as multiplying one number by a factor, in a pass of its own (an
estimate)."""
REORDER = 16
"""Multiply-adds that take as long as moving one number of a spectrum to its place (an estimate)."""
ROWS = 8
"""Signals that are transformed at once, to estimate the cost of reading the matrices (an estimate:
a short sound has a hundred frames, and other models transform one signal)."""
LEAST_GAIN = 1.5
"""How many times faster stages have to be by the cost model, to pay for their kernels (chosen by
hand)."""


def transform_matrix(
    length: int, input_bins: int, parts: int, *, inverse: bool, onesided: bool
) -> Array:
    """The matrix [input bins · parts][bins · output parts] of a (possibly inverse) Fourier
    transform.

    The signal has `input_bins` elements. Missing elements are zero. If the spectrum of a real
    signal is one-sided, the missing elements follow from the others.
    """
    sign = 1 if inverse else -1
    n, k = np.arange(input_bins), np.arange(length)
    if onesided and not inverse:
        k = k[: length // 2 + 1]
    cosine, sine = _waves(np.outer(n, k), length, sign)
    scale = 1.0 / length if inverse else 1.0
    if onesided and inverse:  # a conjugate bin has the same real part: count it twice
        weight = np.where((n == 0) | (2 * n == length), 1.0, 2.0)[:, None] * scale
        weight[length // 2 + 1 :] = 0
        return np.stack([cosine * weight, -sine * weight], 1).reshape(-1, length)
    return _real_matrix(cosine * scale, sine * scale, parts).reshape(input_bins * parts, -1)


def _waves(turns: Array, length: int, sign: int) -> tuple[Array, Array]:
    """The cosines, and the sines with a sign, of these parts of `length` turns."""
    turns = turns % length
    return _exact_wave(np.cos, turns, length), sign * _exact_wave(np.sin, turns, length)


def _exact_wave(wave: Callable[[Array], Array], turns: Array, length: int) -> Array:
    """A sine or cosine of these parts of `length` turns. Its zeros and extremes are exact: 1e-16 of
    a huge element would hide the others, and 1e-16 of an infinity is infinite.
    """
    values = wave(2 * np.pi * turns / length)
    return np.where(turns * 4 % length == 0, np.round(values), values)


def _real_matrix(real: Array, imaginary: Array, parts: int) -> Array:
    """Complex matrices [..., rows, columns] as real matrices [..., rows, parts, columns, 2], which
    multiply rows of real elements (one part) or of complex elements (two parts).
    """
    rows = [np.stack([real, imaginary], -1)]
    if parts == 2:
        rows.append(np.stack([-imaginary, real], -1))
    matrix: Array = np.stack(rows, -3)
    return matrix


@dataclass(frozen=True, slots=True)
class Stage:
    """The constants of a stage. `matrix`: [parts, radix, 2, later bins]. `factors`: [parts, 2,
    radix, bins], the matrices that turn its inputs beforehand; `None` in the first stage.
    """

    matrix: Array
    factors: Array | None


@dataclass(frozen=True, slots=True)
class Transform:
    """A Fourier transform of `length` elements of `parts` parts to the first `bins` bins."""

    length: int
    parts: int
    bins: int
    inverse: bool = False

    @property
    def radices(self) -> tuple[int, ...]:
        """The radix of each stage, at the least cost. One radix, the length, if stages would not
        pay.
        """
        whole = self._cost(1, self.length)

        @cache
        def best(done: int) -> tuple[float, tuple[int, ...]]:
            """The cost and the radices of the stages after `done` bins."""
            left = self.length // done
            last = self._cost(done, left)
            choices: list[tuple[float, tuple[int, ...]]] = [(last, (left,))]
            for radix in _divisors(left)[1:-1]:
                later, radices = best(done * radix)
                choices.append((self._cost(done, radix) + later, (radix, *radices)))
            return min(choices)

        least, radices = best(1)
        return radices if least * LEAST_GAIN < whole else (self.length,)

    def columns(self, done: int, radix: int) -> int:
        """The bins that a stage makes of each of `done` bins: all, or whole vectors up to the last
        bin.
        """
        share = -(-self.bins // done)
        return radix if done * radix < self.length else min(radix, -(-share // LANES) * LANES)

    def _cost(self, done: int, radix: int) -> float:
        """Multiply-adds of a stage after `done` bins, for one signal. The last of several stages
        is followed by a reordering.
        """
        depth = radix * (self.parts if done == 1 else 2)
        vectors, single = divmod(self.columns(done, radix), LANES)
        width = 2 * LANES * (vectors + single)
        products = self.length // radix * width * (depth + LOOP_ENTRY)
        factors = TWIDDLE * 2 * self.length if done > 1 else 0
        is_followed = 1 < done == self.length // radix
        moves = REORDER * 2 * self.bins if is_followed else 0
        return products + depth * width / ROWS + factors + moves

    def write(self, build: Builder, signals: Value, outer: int, dtype: DType) -> Value:
        """Write the stages: from signals [..., length, parts] with `outer` dimensions in front to
        spectra [..., bins, 2].
        """
        kept, left, digits = (0,) * outer, self.length, list[int]()
        data = signals if self.parts == 1 else signals.transpose(*range(outer), outer + 1, outer)
        for stage in self.stages():
            parts, radix, _, columns = stage.matrix.shape
            left //= radix
            data = data.reshape(*kept, parts, radix, left, math.prod(digits))
            if stage.factors is not None:
                factors = build.constant(stage.factors, dtype)
                data = build("Einsum", data, factors, equation="...pdfb,pqdb->...qdfb")
            matrix = build.constant(stage.matrix, dtype)
            data = build("Einsum", data, matrix, equation="...pdfb,pdqk->...qfbk")
            digits.append(columns)
        data = data.reshape(*kept, 2, *digits)
        places = range(outer + len(digits), outer, -1)
        count = math.prod(digits)
        spectra = data.transpose(*range(outer), *places, outer).reshape(*kept, count, 2)
        if count == self.bins:
            return spectra
        sizes = [self.bins, count - self.bins]
        return build.many("Split", spectra, sizes, outputs=2, axis=outer)[0]

    def stages(self) -> Iterator[Stage]:
        """The constants of each stage. The digits of the bins' numbers are in reverse order."""
        bins, parts, sign = np.zeros(1, np.int64), self.parts, 1 if self.inverse else -1
        for radix in self.radices:
            done = len(bins)
            elements, later = np.arange(radix), np.arange(self.columns(done, radix))
            cosine, sine = _waves(np.outer(elements, later), radix, sign)
            scale = 1 / self.length if self.inverse and done * radix == self.length else 1.0
            matrix = _real_matrix(cosine * scale, sine * scale, parts).transpose(1, 0, 3, 2)
            if done == 1:
                yield Stage(matrix, None)
            else:
                cosine, sine = _waves(np.outer(elements, bins), done * radix, sign)
                yield Stage(matrix, np.array([[cosine, sine], [-sine, cosine]]))
            bins, parts = (bins[:, None] + done * later).reshape(-1), 2


def _divisors(count: int) -> list[int]:
    """The divisors of a count, smallest first."""
    small = [n for n in range(1, math.isqrt(count) + 1) if count % n == 0]
    return sorted({*small, *(count // n for n in small)})
