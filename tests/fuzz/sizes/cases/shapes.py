"""Indices, sizes and ranks that fit and that do not."""

from __future__ import annotations

import numpy as np

from tests.fuzz.sizes.cases.case import INF, Cases, floats, integers, ones

CASES: Cases = {
    "places of maxima in large symbolic windows": (
        """g (float[n,1,h,w] x) => (float[n,1,k,l] y, int64[n,1,k,l] i) {
            y, i = MaxPool<kernel_shape=[5,5], pads=[2,2,2,2], storage_order=1>(x) }""",
        [
            ("equal", {"x": floats(*range(63), 70, *range(63)).reshape(1, 1, 1, 127)}),
            ("equal", {"x": floats(*(i * 37 % 19 for i in range(99))).reshape(1, 1, 9, 11)}),
            ("equal", {"x": np.full((1, 1, 6, 6), -np.inf, np.float32)}),
        ],
    ),
    "scales that are not one for each axis": (
        "g (float[2,3] x, float[n] s) => (float[a,b] y) { y = Resize(x, , s) }",
        [
            ("equal", {"x": ones(2, 3), "s": floats(2, 2)}),
            ("refused", {"x": ones(2, 3), "s": floats(2, 2, 2)}),
            ("refused", {"x": ones(2, 3), "s": floats(2)}),
        ],
    ),
    "constant indices into an axis of symbolic size": (
        """g (float[n,m] x) => (float[2,m] y, float[2] z)
            <int64[2] i = {3,-2}, int64[2,2] p = {3,-3,-4,2}> {
            y = Gather(x, i) z = GatherND(x, p) }""",
        [
            ("equal", {"x": np.arange(12, dtype=np.float32).reshape(4, 3)}),
            ("refused", {"x": ones(3, 3)}),
            ("refused", {"x": ones(4, 2)}),
            ("refused", {"x": ones(0, 3)}),
        ],
    ),
    "indices that are made of sizes": (
        """g (float[n] x, float[m] z) => (float y) <int64 one = {1}> {
            s = Shape(z) k = Squeeze(s) i = Sub(k, one) y = Gather(x, i) }""",
        [
            ("equal", {"x": floats(1, 2, 3), "z": ones(2)}),
            ("equal", {"x": floats(1, 2, 3), "z": ones(0)}),
            ("refused", {"x": floats(1, 2, 3), "z": ones(4)}),
            ("refused", {"x": ones(0), "z": ones(0)}),
        ],
    ),
    "nothing broadcast with one": (
        "g (float[n,2] x, float[m,2] z) => (float[k,2] y) { y = Mul(x, z) }",
        [
            ("equal", {"x": ones(0, 2), "z": ones(1, 2)}),
            ("equal", {"x": ones(1, 2), "z": ones(0, 2)}),
            ("equal", {"x": ones(1, 2), "z": ones(3, 2)}),
            ("equal", {"x": ones(3, 2), "z": ones(3, 2)}),
            ("refused", {"x": ones(0, 2), "z": ones(3, 2)}),
        ],
    ),
    "lengths beyond the time axis": (
        """g (float[4,3] x, int64[3] s) => (float[4,3] y) {
            y = ReverseSequence<time_axis=0, batch_axis=1>(x, s) }""",
        [
            ("equal", {"x": np.arange(12, dtype=np.float32).reshape(4, 3), "s": integers(4, 1, 0)}),
            ("refused", {"x": ones(4, 3), "s": integers(4, 1, 5)}),
            ("refused", {"x": ones(4, 3), "s": integers(4, 2**31 - 1, 1)}),
            ("refused", {"x": ones(4, 3), "s": integers(4, 2**40, 1)}),
            ("refused", {"x": ones(4, 3), "s": integers(4, -1, 1)}),
        ],
    ),
    "regions of images that are not there": (
        """g (float[b,2,5,5] x, float[r,4] a, int64[r] i) => (float[r,2,2,2] y) {
            y = RoiAlign<output_height=2, output_width=2, sampling_ratio=2>(x, a, i) }""",
        [
            ("equal", {"x": ones(2, 2, 5, 5), "a": ones(2, 4), "i": integers(1, 0)}),
            ("refused", {"x": ones(2, 2, 5, 5), "a": ones(2, 4), "i": integers(1, 2)}),
            ("refused", {"x": ones(2, 2, 5, 5), "a": ones(2, 4), "i": integers(-1, 0)}),
            ("refused", {"x": ones(2, 2, 5, 5), "a": ones(1, 4), "i": integers(-(2**31))}),
            ("refused", {"x": ones(0, 2, 5, 5), "a": ones(1, 4), "i": integers(0)}),
        ],
    ),
    "positions that a pool cannot have had, or twice": (
        """g (float[1,1,2,2] x, int64[1,1,2,2] i) => (float[1,1,4,4] y) {
            y = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(x, i) }""",
        [
            (
                "equal",
                {
                    "x": np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2),
                    "i": integers(5, 7, 13, 15).reshape(1, 1, 2, 2),
                },
            ),
            (
                "equal",
                {
                    "x": np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2),
                    "i": integers(5, 5, 15, 5).reshape(1, 1, 2, 2),
                },
            ),
            ("refused", {"x": ones(1, 1, 2, 2), "i": integers(5, 7, 13, 16).reshape(1, 1, 2, 2)}),
            ("refused", {"x": ones(1, 1, 2, 2), "i": integers(5, 7, -2, 1).reshape(1, 1, 2, 2)}),
            ("refused", {"x": ones(1, 1, 2, 2), "i": integers(5, 7, 2**40, 1).reshape(1, 1, 2, 2)}),
        ],
    ),
    "positions in the map of another channel": (
        """g (float[n,c,2,2] x, int64[n,c,2,2] i) => (float[n,c,4,4] y) {
            y = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(x, i) }""",
        [
            (
                "equal",
                {
                    "x": ones(1, 2, 2, 2),
                    "i": integers(5, 7, 13, 15, 21, 21, 29, 31).reshape(1, 2, 2, 2),
                },
            ),
            (
                "stricter by rule",
                {
                    "x": ones(1, 2, 2, 2),
                    "i": integers(5, 7, 13, 15, 21, 23, 13, 31).reshape(1, 2, 2, 2),
                },
            ),
        ],
    ),
    "diagonals far outside": (
        "g (float[n,m] x, int64 k) => (float[n,m] y, float[n,m] z) "
        "{ y = Trilu(x, k) z = Trilu<upper=0>(x, k) }",
        [
            ("equal", {"x": ones(4, 5), "k": np.asarray(np.int64(k))})
            for k in (1, -2, 2**31 - 1, -(2**31), 2**40, -(2**40))
        ],
    ),
    "indices that look like others in 32 bits": (
        "g (int64[n] i, float[2] v) => (float[n,4] y) <int64 d = {4}> { y = OneHot(i, d, v) }",
        [
            ("equal", {"i": integers(1, -1, 4, -5), "v": floats(0, 1)}),
            ("equal", {"i": integers(2**32 + 1, 2**40, -(2**40), -(2**63)), "v": floats(0, 1)}),
        ],
    ),
    "sizes of what has no elements": (
        """g (float[n,2,3] x) => (float[4,2,k] y) <int64[3] s = {4,2,5}> {
            y = Resize(x, , , s) }""",
        [
            ("equal", {"x": ones(2, 2, 3)}),
            ("refused", {"x": ones(0, 2, 3)}),
        ],
    ),
    "the best of fewer": (
        """g (float[n,3] x) => (float[2,3] y, int64[2,3] i) <int64[1] k = {2}> {
            y, i = TopK<axis=0>(x, k) }""",
        [
            ("equal", {"x": np.arange(9, dtype=np.float32).reshape(3, 3)}),
            ("refused", {"x": ones(1, 3)}),
            ("refused", {"x": ones(0, 3)}),
        ],
    ),
    "samples of nothing": (
        "g (float[1,2,m,n] x, float[1,1,2,2] p) => (float[1,2,1,2] y) { y = GridSample(x, p) }",
        [
            ("equal", {"x": ones(1, 2, 3, 2), "p": np.zeros((1, 1, 2, 2), np.float32)}),
            ("refused", {"x": ones(1, 2, 0, 2), "p": np.zeros((1, 1, 2, 2), np.float32)}),
        ],
    ),
    "scales and zero points that are not one for each row": (
        """g (float[n,m] x, float[k] s, int8[l] z) => (int8[n,m] y, float[n,m] w) {
            y = QuantizeLinear<axis=0>(x, s, z) w = DequantizeLinear<axis=0>(y, s, z) }""",
        [
            ("equal", {"x": ones(2, 3), "s": ones(2), "z": np.zeros(2, np.int8)}),
            ("equal", {"x": ones(2, 3), "s": ones(1), "z": np.zeros(1, np.int8)}),
            ("refused", {"x": ones(2, 3), "s": ones(3), "z": np.zeros(3, np.int8)}),
            ("refused", {"x": ones(2, 3), "s": ones(2), "z": np.zeros(3, np.int8)}),
        ],
    ),
    "samples at infinity": (
        """g (float[1,1,3,4] x, float[1,1,n,2] p) => (float[1,1,1,n] y, float[1,1,1,n] z) {
            y = GridSample<padding_mode="border">(x, p)
            z = GridSample<padding_mode="border", mode="cubic", align_corners=1>(x, p) }""",
        [
            (
                "by reference",
                {
                    "x": np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4),
                    "p": floats(-INF, 0.5, INF, -INF, 0.2, 0.1).reshape(1, 1, 3, 2),
                },
            ),
        ],
    ),
    "distances between rows of different lengths": (
        "g (float[n,k] a, float[m,l] b) => (float[n,m] y) { y = com.microsoft.CDist(a, b) }",
        [
            ("equal", {"a": ones(2, 3), "b": ones(4, 3)}),
            ("refused", {"a": ones(2, 3), "b": ones(4, 1)}),
        ],
    ),
    "a bias that is not as long as the rows": (
        """g (float[n,k] a, float[k,m] b, float[l] c) => (float[n,m] y) {
            y = com.microsoft.FusedGemm<activation="Relu">(a, b, c) }""",
        [
            ("equal", {"a": ones(2, 3), "b": ones(3, 4), "c": ones(4)}),
            ("equal", {"a": ones(2, 3), "b": ones(3, 4), "c": ones(1)}),
            ("refused", {"a": ones(2, 3), "b": ones(3, 4), "c": ones(5)}),
            ("refused", {"a": ones(2, 3), "b": ones(3, 0), "c": ones(5)}),
        ],
    ),
    "a global pool of nothing": (
        "g (float[1,2,n] x) => (float[1,2,1] y) { y = GlobalMaxPool(x) }",
        [("equal", {"x": ones(1, 2, 3)}), ("refused", {"x": ones(1, 2, 0)})],
    ),
    "edges of which nothing is left": (
        'g (float[n] x, int64[2] p) => (float[m] y) { y = Pad<mode = "edge">(x, p) }',
        [
            (kind, {"x": floats(1, 2, 3), "p": integers(*pads)})
            for kind, pads in (
                ("equal", (2, 3)),
                ("equal", (-2, 3)),
                ("refused", (-3, 3)),
                ("refused", (-2, -2)),
            )
        ],
    ),
    "frames that are longer than the signal": (
        """g (float[b,n,1] x) => (float[b,m,5,2] y) <int64 s = {4}, int64 f = {8}> {
            y = STFT(x, s, "", f) }""",
        [
            (kind, {"x": ones(2, n, 1)})
            for kind, n in (("equal", 9), ("equal", 8), ("refused", 7), ("refused", 0))
        ],
    ),
    "parts of which the last is not the only smaller one": (
        """g (float[n] x) => (float[k] y, float[l] z, float[m] w) {
            y, z, w = Split<axis = 0, num_outputs = 3>(x) }""",
        [
            (kind, {"x": ones(n)})
            for kind, n in (("equal", 5), ("equal", 4), ("equal", 2), ("equal", 0), ("refused", 1))
        ],
    ),
    "pools of no elements": (
        """g (float[n,c,h,w] x) => (float[n,c,i,j] y, float[n,c,k,l] z) {
            y = AveragePool<kernel_shape = [2, 2], pads = [1, 0, 1, 0]>(x)
            z = MaxPool<kernel_shape = [2, 2], pads = [1, 0, 1, 0]>(x) }""",
        [
            (kind, {"x": ones(*shape)})
            for kind, shape in (
                ("equal", (1, 2, 3, 4)),
                ("equal", (0, 2, 3, 4)),
                ("refused", (1, 2, 0, 4)),
                ("refused", (1, 2, 3, 0)),
            )
        ],
    ),
    "a constant that no shape of a run changes": (
        "g (int64[2] s) => (float[k,l] y) <float[2,2] c = {1, 2, 3, 4}> { y = Expand(c, s) }",
        [
            (kind, {"s": integers(*shape)})
            for kind, shape in (
                ("equal", (2, 2)),
                ("equal", (1, 2)),
                ("refused", (3, 2)),
                ("refused", (0, 2)),
                ("refused", (2, -2)),
            )
        ],
    ),
}
