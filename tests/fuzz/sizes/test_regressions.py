"""Every bug that the fuzzer over run-time sizes found: a model, inputs, and the right verdicts.

Each case runs in both runtimes, those of `ON_GPU` on the GPU, too: shaders take two thirds of the
time of a build, and what hosts check before a run is the same on each device. `equal` is equal to
onnxruntime, `refused` refused like it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from tests.fuzz.sizes import devices
from tests.fuzz.sizes.check import Bench

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> '
INF, NAN = np.inf, np.nan
YES, NO = np.array(True), np.array(False)


def floats(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def integers(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


CASES: dict[str, tuple[str, list[tuple[str, dict[str, Any]]]]] = {
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
    "a negative number of iterations": (
        """g (int64 k, float[2] x) => (float[2] y, float[n,2] z) {
            y, z = Loop <body = b (int64 i, bool more, float[2] s) =>
                                (bool go, float[2] t, float[2] u) {
                t = Add(s, s) u = Neg(s) go = Identity(more) }>(k, "", x) }""",
        [
            ("equal", {"k": integers(3).reshape(()), "x": floats(1, 2)}),
            ("equal", {"k": integers(-5).reshape(()), "x": floats(1, 2)}),
            ("equal", {"k": integers(0).reshape(()), "x": floats(1, 2)}),
        ],
    ),
    "sizes that do not fit inside a branch": (
        """g (bool c, float[n] x, float[m] z) => (float y) {
            y = If(c) <
                then_branch = t () => (float a) { r = Add(x, z) a = ReduceSum<keepdims=0>(r) },
                else_branch = e () => (float b) { b = ReduceSum<keepdims=0>(x) }> }""",
        [
            ("equal", {"c": np.array(True), "x": ones(3), "z": ones(3)}),
            ("refused", {"c": np.array(True), "x": ones(3), "z": ones(2)}),
            ("equal", {"c": np.array(False), "x": ones(3), "z": ones(2)}),
        ],
    ),
    "rows of a size that is not known inside a branch": (
        """g (bool c, float[n] x, float[m] z) => (float y) <int64[1] k = {-1}> {
            y = If(c) <
                then_branch = t () => (float a) {
                    m = Shape(z) s = Concat<axis=0>(k, m) r = Reshape(x, s)
                    q = Softmax<axis=0>(r) a = ReduceMax<keepdims=0>(q) },
                else_branch = e () => (float b) { b = ReduceSum<keepdims=0>(x) }> }""",
        [
            ("equal", {"c": YES, "x": ones(6), "z": ones(3)}),
            ("refused", {"c": YES, "x": ones(6), "z": ones(4)}),
            ("refused", {"c": YES, "x": ones(6), "z": ones(0)}),
            ("equal", {"c": NO, "x": ones(6), "z": ones(4)}),
            ("equal", {"c": NO, "x": ones(6), "z": ones(0)}),
        ],
    ),
    "sizes that do not fit inside a loop": (
        """g (int64 k, float[2] x, float[n] p, float[m] q) => (float[2] y) {
            y = Loop <body = b (int64 i, bool more, float[2] s) => (bool go, float[2] t) {
                r = Mul(p, q) u = ReduceSum<keepdims=0>(r) t = Add(s, u) go = Identity(more)
                }>(k, "", x) }""",
        [
            ("equal", {"k": np.array(2), "x": ones(2), "p": ones(3), "q": ones(3)}),
            ("refused", {"k": np.array(2), "x": ones(2), "p": ones(3), "q": ones(2)}),
            ("equal", {"k": np.array(0), "x": ones(2), "p": ones(3), "q": ones(2)}),
        ],
    ),
    "sizes that do not fit in some iteration": (
        """g (float[n] x, float[m] p, float[k] q) => (float y, float[n] z) <float zero = {0}> {
            y, z = Scan <num_scan_inputs=1, body = b (float s, float v) => (float t, float u) {
                big = Less(zero, v)
                w = If(big) <then_branch = h () => (float a) {
                                 r = Add(p, q) a = ReduceSum<keepdims=0>(r) },
                             else_branch = e () => (float d) { d = Identity(v) }>
                t = Add(s, w) u = Neg(w) }>(zero, x) }""",
        [
            ("equal", {"x": floats(-1, 2, -1), "p": ones(3), "q": ones(3)}),
            ("equal", {"x": floats(-1, -2, -1), "p": ones(3), "q": ones(2)}),
            ("refused", {"x": floats(-1, 2, -1), "p": ones(3), "q": ones(2)}),
        ],
    ),
    "states of another shape than a scan declares": (
        """g (float[n] a, float[m,2] x) => (float[2] y, float[m,2] z) {
            y, z = Scan<num_scan_inputs=1, body = b (float[2] s, float[2] v) =>
                                                  (float[2] t, float[2] u) {
                t = Neg(s) u = Identity(v) }>(a, x) }""",
        [
            ("equal", {"a": ones(2), "x": ones(3, 2)}),
            ("refused", {"a": ones(3), "x": ones(3, 2)}),
        ],
    ),
    "indices out of range in some iteration": (
        """g (int64[t] i, float[v,2] e) => (float[2] y) <float[2] zero = {0,0}> {
            y = Scan<num_scan_inputs=1, body = b (float[2] s, int64 k) => (float[2] r) {
                g = Gather(e, k) r = Add(s, g) }>(zero, i) }""",
        [
            ("equal", {"i": integers(1, -2, 0), "e": floats(1, 2, 3, 4).reshape(2, 2)}),
            ("refused", {"i": integers(1, 2, 0), "e": ones(2, 2)}),
            ("refused", {"i": integers(1, -3, 0), "e": ones(2, 2)}),
        ],
    ),
    "suppression of no boxes": (
        """g (float[1,n,4] b, float[1,2,n] s, int64 k) => (int64[m,3] y) {
            y = NonMaxSuppression(b, s, k) }""",
        [
            ("equal", {"b": ones(1, n, 4), "s": ones(1, 2, n), "k": np.array(k)})
            for n, k in ((3, 2), (0, 2), (1, 0), (0, 0))
        ],
    ),
    "sizes that do not fit while a condition holds": (
        """g (bool c, float x, float[n] p, float[m] q) => (float y) <float four = {4}> {
            y = Loop <body = b (int64 i, bool more, float s) => (bool go, float t) {
                r = Mul(p, q) u = ReduceSum<keepdims=0>(r) t = Add(s, u) go = Less(t, four)
                }>("", c, x) }""",
        [
            (
                "equal",
                {"c": YES, "x": number(1), "p": ones(2), "q": ones(2)},
            ),
            (
                "refused",
                {"c": YES, "x": number(1), "p": ones(3), "q": ones(2)},
            ),
            (
                "equal",
                {"c": NO, "x": number(1), "p": ones(3), "q": ones(2)},
            ),
        ],
    ),
    "a size of 1 that would change a rank": (
        "g (float[n,1] x) => (float[n] y) { y = Squeeze(x) }",
        [
            ("equal", {"x": ones(3, 1)}),
            ("equal", {"x": ones(0, 1)}),
            ("stricter by rule", {"x": ones(1, 1)}),
        ],
    ),
    "lengths beyond the steps of a recurrence": (
        """g (float[t,2,3] x, int32[2] l) => (float[t,1,2,4] y) <float[1,4,3] w = {
            1,2,3,4,5,6,7,8,9,1,2,3}, float[1,4,4] r = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}> {
            y = RNN<hidden_size=4>(x, w, r, "", l) }""",
        [
            ("equal", {"x": ones(3, 2, 3), "l": np.array([3, 1], np.int32)}),
            ("refused", {"x": ones(3, 2, 3), "l": np.array([3, 4], np.int32)}),
            ("refused", {"x": ones(3, 2, 3), "l": np.array([3, -1], np.int32)}),
        ],
    ),
    "a sum that is not as large as the map": (
        """g (float[1,1,3,n] x, float[1,1,2,2] w, float[1,1,2,k] z) => (float[1,1,2,m] y) {
            y = com.microsoft.FusedConv<activation="Relu">(x, w, "", z) }""",
        [
            ("equal", {"x": ones(1, 1, 3, 4), "w": ones(1, 1, 2, 2), "z": ones(1, 1, 2, 3)}),
            ("refused", {"x": ones(1, 1, 3, 4), "w": ones(1, 1, 2, 2), "z": ones(1, 1, 2, 1)}),
        ],
    ),
    "a gate of other rows": (
        "g (float[n,3] x, float[m,3] z, float[m,1] g) => (float[n,3] y) "
        "{ y = com.microsoft.GatedAdd(x, z, g) }",
        [
            ("equal", {"x": ones(2, 3), "z": ones(2, 3), "g": ones(2, 1)}),
            ("refused", {"x": ones(2, 3), "z": ones(1, 3), "g": ones(1, 1)}),
        ],
    ),
    "a skip of other rows": (
        """g (float[n,m,2] x, float[k,l,2] s, float[2] w) => (float[n,m,2] y) {
            y = com.microsoft.SkipLayerNormalization(x, s, w) }""",
        [
            ("equal", {"x": ones(2, 3, 2), "s": ones(2, 3, 2), "w": floats(1, 2)}),
            ("equal", {"x": ones(2, 3, 2), "s": ones(1, 3, 2), "w": floats(1, 2)}),
            ("refused", {"x": ones(1, 1, 2), "s": ones(1, 3, 2), "w": floats(1, 2)}),
        ],
    ),
    "keys of other batches": (
        """g (float[n,1,2] q, float[m,1,2] k) => (float[n,1,2] y) {
            y = com.microsoft.MultiHeadAttention<num_heads=1>(q, k, k) }""",
        [
            ("equal", {"q": ones(2, 1, 2), "k": ones(2, 1, 2)}),
            ("refused", {"q": ones(2, 1, 2), "k": ones(1, 1, 2)}),
        ],
    ),
    "a mask of other batches": (
        """g (float[n,1,1] x, int32[l] s) => (float[n,1,1] y) <float[1,3] w = {1,2,3}> {
            y = com.microsoft.Attention<num_heads=1>(x, w, "", s) }""",
        [
            ("equal", {"x": ones(2, 1, 1), "s": np.ones(2, np.int32)}),
            ("refused", {"x": ones(2, 1, 1), "s": np.ones(3, np.int32)}),
        ],
    ),
    "starts and ends that are not equally many": (
        """g (float[6] x, int64[1] s, int64[n] e) => (float[m] y) <int64[1] a = {0}> {
            y = Slice(x, s, e, a) }""",
        [
            ("equal", {"x": ones(6), "s": integers(1), "e": integers(4)}),
            ("refused", {"x": ones(6), "s": integers(1), "e": integers(4, 5)}),
        ],
    ),
    "filters beyond the spectrum": (
        """g (int64 r, float l, float h) => (float[9,8] y) <int64 b = {8}, int64 n = {16}> {
            y = MelWeightMatrix(b, n, r, l, h) }""",
        [
            (kind, {"r": np.array(rate), "l": number(low), "h": number(high)})
            for kind, rate, low, high in (
                ("equal", 8192, 0, 4096),
                ("equal", 8192, 100, 4000),
                ("refused", 8192, 0, 5000),
                ("refused", 8192, -1, 4096),
                ("refused", -7, 0, 4096),
                ("refused", 0, 0, 4096),
                ("refused", 8192, NAN, 4096),
                ("refused", 8192, 0, INF),
            )
        ],
    ),
    "positions beyond a table of angles": (
        """g (float[1,1,n,2] x, int64[1,n] p, float[m,1] c) => (float[1,1,n,2] y) {
            y = com.microsoft.RotaryEmbedding(x, p, c, c) }""",
        [
            (kind, {"x": ones(1, 1, 2, 2), "p": integers(0, i).reshape(1, 2), "c": ones(3, 1)})
            for kind, i in (("equal", 2), ("refused", 3), ("refused", -1), ("refused", 2**40))
        ],
    ),
    "a bias of more columns than there are": (
        "g (float[n,m] x, float[k] b) => (float[n,l] y) { y = com.microsoft.BiasGelu(x, b) }",
        [
            ("equal", {"x": ones(2, 3), "b": floats(1, 2, 3)}),
            ("refused", {"x": ones(2, 1), "b": floats(1, 2, 3)}),
            ("refused", {"x": ones(2, 3), "b": floats(1)}),
        ],
    ),
    "biases and scales that are not one for each column": (
        """g (float[2,3] x, uint8[3,n] w, float[k] s, float[m] b) => (float[2,l] y) {
            y = com.microsoft.DynamicQuantizeMatMul(x, w, s, "", b) }""",
        [
            (kind, {"x": ones(2, 3), "w": np.ones((3, n), np.uint8), "s": ones(k), "b": ones(m)})
            for kind, n, k, m in (
                ("equal", 4, 4, 4),
                ("equal", 4, 1, 4),
                ("refused", 4, 4, 1),
                ("refused", 1, 4, 4),
            )
        ],
    ),
    "zero points that are not one for each column": (
        """g (uint8[2,3] x, uint8[3,n] w, uint8[k] z) => (int32[2,l] y) <uint8 o = {1}> {
            y = MatMulInteger(x, w, o, z) }""",
        [
            (
                kind,
                {
                    "x": np.ones((2, 3), np.uint8),
                    "w": np.ones((3, n), np.uint8),
                    "z": np.arange(k, dtype=np.uint8),
                },
            )
            for kind, n, k in (
                ("equal", 4, 4),
                ("equal", 4, 1),
                ("refused", 4, 5),
                ("refused", 4, 3),
            )
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
}


ON_GPU = {
    "diagonals far outside",
    "indices that look like others in 32 bits",
    "negative powers of integers",
    "powers of infinity, and infinite powers",
    "samples at infinity",
    "sizes that do not fit in some iteration",
}
"""Cases that kernels decide rather than hosts."""


@pytest.mark.parametrize("name", CASES)
def test_a_bug_of_sizes_stays_mended(bench: Bench, name: str, tmp_path: Path) -> None:
    text, cases = CASES[name]
    model = onnx.parser.parse_model(HEAD + text)
    ways = devices.WAYS if name in ON_GPU else ("wasm", "node")
    failure = bench.host.ask("build", model.SerializeToString(), str(tmp_path), ways)
    assert failure is None, failure
    checked = bench.check_runs(model, str(tmp_path), [f for _, f in cases], 1, ways)
    assert not checked.skipped
    assert tuple(checked.verdicts) == ways
    for way, verdicts in checked.verdicts.items():
        kinds = [verdict.kind for verdict in verdicts]
        assert kinds == [kind for kind, _ in cases], (way, verdicts)
