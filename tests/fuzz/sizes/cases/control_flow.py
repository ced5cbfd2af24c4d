"""Branches, loops, scans and recurrences."""

from __future__ import annotations

import numpy as np

from tests.fuzz.sizes.cases.case import NO, YES, Cases, floats, integers, number, ones

CASES: Cases = {
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
}
