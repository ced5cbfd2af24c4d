"""Operators on numbers that are not finite, and on no numbers."""

from __future__ import annotations

import numpy as np

from tests.fuzz.sizes.cases.case import INF, NAN, Cases, floats, integers

CASES: Cases = {
    "a reflection of more elements than there are, back and forth": (
        'g (float[n] x, int64[2] p) => (float[m] y) { y = Pad<mode="reflect">(x, p) }',
        [
            (kind, {"x": np.arange(size, dtype=np.float32), "p": integers(*pads)})
            for kind, size, pads in (
                ("equal", 5, (2, 4)),
                ("looser by rule", 3, (7, 4)),
                ("looser by rule", 1, (2, 3)),
            )
        ],
    ),
    "a sum of squares beyond the largest number, under a convolution of groups": (
        """g (float[1,4,2,2] x, float[4,1,2,2] w) => (float[1,2,h,k] y) {
            v = LRN<size=3>(x) y = ConvTranspose<group=2>(v, w) }""",
        [
            (
                kind,
                {
                    "x": floats(first, *np.arange(15)).reshape(1, 4, 2, 2),
                    "w": np.arange(16, dtype=np.float32).reshape(4, 1, 2, 2) - 7,
                },
            )
            for kind, first in (("equal", 0), ("by reference", 1e30))
        ],
    ),
    "an infinity in a frame, whose transform has an exact 0": (
        "g (float[1,n,1] x) => (float[1,m,5,2] y) <int64 s = {4}, int64 l = {8}> "
        '{ y = STFT(x, s, "", l) }',
        [
            ("equal", {"x": floats(1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3).reshape(1, 12, 1)}),
            ("by reference", {"x": floats(0, 1, 2, -INF, 3, 4, 5, 6).reshape(1, 8, 1)}),
        ],
    ),
    "powers of infinity, and infinite powers": (
        "g (float[n] x, float[n] e) => (float[n] y) { y = Pow(x, e) }",
        [
            (
                "equal",
                {
                    "x": np.full(9, base, np.float32),
                    "e": floats(-INF, -128.5, -3, -0.5, 0, 0.5, 3, 128.5, INF),
                },
            )
            for base in (-INF, -1, 1, INF, NAN)
        ],
    ),
    "axes of which only a run knows how many there are": (
        """g (float[6,4] x, int64[n] a) => (float[i,j] y, float[k,l] z)
            <int64[1] s = {-2}, int64[1] e = {3}, int64[1] o = {1}, int64[2] p = {1,2}> {
            y = Slice(x, s, e, a, o) z = Pad(x, p, "", a) }""",
        [
            (kind, {"x": np.arange(24, dtype=np.float32).reshape(6, 4), "a": integers(*axes)})
            for kind, axes in (
                ("equal", (0,)),
                ("equal", (1,)),
                ("equal", (-1,)),
                ("refused", (2,)),
                ("refused", (-(2**63),)),
                ("refused", (0, 1)),
            )
        ],
    ),
    "negative powers of integers": (
        "g (int32[n] x, int32 e) => (int32[n] y) { y = Pow(x, e) }",
        [
            ("equal", {"x": np.array([-3, -2, -1, 1, 2, 3], np.int32), "e": np.array(e, np.int32)})
            for e in (-7, -2, -1, 0, 3)
        ],
    ),
    "a clamped index of a size": (
        "g (double[n] x, int64 i) => (double y) { v = Exp(x) y = Gather<axis=-1>(v, i) }",
        [
            ("equal", {"x": np.arange(3.0), "i": np.array(1)}),
            ("refused", {"x": np.arange(3.0), "i": np.array(3)}),
        ],
    ),
    "reductions of nothing, of types without vectors": (
        """g (int64[n,4] x, double[n,4] z) => (int64[1,4] y, double[1,4] w, double[1,4] v)
            <int64[1] a = {0}> { y = ReduceMax(x, a) w = ReduceMin(z, a) v = ReduceProd(z, a) }""",
        [("equal", {"x": np.full((n, 4), 7), "z": np.full((n, 4), 2.0)}) for n in (0, 3, 0, 1)],
    ),
    "an update at a constant index of a symbolic axis": (
        """g (float[n] x, float[1] u) => (float[n] y, float[n] z) <int64[1] i = {4}> {
            y = ScatterElements<axis = 0, reduction = "max">(x, i, u)
            z = ScatterElements<axis = 0, reduction = "add">(x, i, u) }""",
        [
            ("equal", {"x": np.arange(5, dtype=np.float32), "u": floats(9)}),
            ("equal", {"x": np.arange(9, dtype=np.float32), "u": floats(-9)}),
            ("refused", {"x": np.arange(4, dtype=np.float32), "u": floats(9)}),
        ],
    ),
    "a view of a constant that only a run shapes": (
        """g (int64[1] a) => (float[i,j,k,l] y, float[i,j,k,l] z)
            <float[2,1,3] c = {0.5, 1, 1.5, 2, 2.5, 3}> {
            v = Unsqueeze(c, a) y = Asinh(v) z = Exp(v) }""",
        [("equal", {"a": integers(axis)}) for axis in (0, -1, 2)],
    ),
    "elements that a GPU may take for 0": (
        "g (float[n] x) => (int64[1,m] y) { y = NonZero(x) }",
        [
            ("equal", {"x": floats(1, 1e-40, 0, 2)}),
            ("equal", {"x": floats(0, 1e-40)}),
            ("equal", {"x": np.resize(floats(1, 1e-40, 0), 200)}),
        ],
    ),
    "cubic samples whose taps are outside": (
        """g (float[1,1,h,w] x, float[1,k,2,2] p) => (float[1,1,k,2] y, float[1,1,k,2] z) {
            y = GridSample<mode = "cubic", padding_mode = "border">(x, p)
            z = com.microsoft.GridSample<mode = "bicubic", padding_mode = "border">(x, p) }""",
        [
            (
                kind,
                {
                    "x": np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4),
                    "p": floats(1.3, far, 0.2, 0.3).reshape(1, 1, 2, 2),
                },
            )
            for kind, far in (("equal", 0.5), ("by reference", -INF), ("by reference", 1e30))
        ],
    ),
    "a transform of huge numbers": (
        "g (float[2,10,1] x) => (float[2,10,2] y) { y = DFT(x) }",
        [
            (kind, {"x": np.array([*range(9), last] * 2, np.float32).reshape(2, 10, 1)})
            for kind, last in (("equal", 9), ("by reference", 1e30))
        ],
    ),
    "powers of integers that float64 does not hold": (
        "g (int64[n] x, int64 e) => (int64[n] y) { y = Pow(x, e) }",
        [
            ("equal", {"x": integers(2, -3), "e": np.array(3)}),
            ("by reference", {"x": integers(2**63 - 1, 3), "e": np.array(1)}),
        ],
    ),
    "a range with the least step": (
        "g (int64 e, int64 s) => (int64[n] y) <int64 b = {-2}> { y = Range(b, e, s) }",
        [("equal", {"e": np.array(-5), "s": np.array(step)}) for step in (-1, -(2**40), -(2**63))],
    ),
    "an infinity minus itself": (
        "g (float[n] x) => (float[n] y) { y = Sub(x, x) }",
        [("equal", {"x": floats(1, INF, -INF, NAN, 0)})],
    ),
    "a region of an image that is no number": (
        """g (float[n,1,4,4] x, float[r,5] p) => (float[r,1,2,2] y) {
            y = MaxRoiPool<pooled_shape = [2, 2]>(x, p) }""",
        [
            (
                kind,
                {
                    "x": np.arange(32, dtype=np.float32).reshape(2, 1, 4, 4),
                    "p": floats(image, 0, 1, 2, 3).reshape(1, 5),
                },
            )
            for kind, image in (("equal", 1), ("refused", 2), ("refused", NAN), ("refused", -1))
        ],
    ),
}
