"""Operators of com.microsoft."""

from __future__ import annotations

import numpy as np

from tests.fuzz.sizes.cases.case import INF, NAN, Cases, floats, integers, number, ones

CASES: Cases = {
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
    "a bias of scores that would broadcast along keys": (
        """g (float[1,2,2] q, float[n,1,m,k] b) => (float[1,2,2] y) {
            y = com.microsoft.MultiHeadAttention<num_heads=1>(q, q, q, "", "", b) }""",
        [
            ("equal", {"q": ones(1, 2, 2), "b": ones(1, 1, 2, 2)}),
            ("refused", {"q": ones(1, 2, 2), "b": ones(1, 1, 2, 1)}),
            ("refused", {"q": ones(1, 2, 2), "b": ones(1, 1, 1, 2)}),
            ("refused", {"q": ones(1, 2, 2), "b": ones(2, 1, 2, 2)}),
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
    "a mask of other batches or keys": (
        """g (float[b,t,4] x, float[4,12] w, float[12] bias, int32[c,k] m) => (float[b,t,4] y) {
            y = com.microsoft.Attention<num_heads = 2>(x, w, bias, m) }""",
        [
            (
                kind,
                {
                    "x": ones(2, 3, 4),
                    "w": ones(4, 12),
                    "bias": ones(12),
                    "m": np.ones(shape, np.int32),
                },
            )
            for kind, shape in (
                ("equal", (2, 3)),
                ("refused", (1, 3)),
                ("equal", (2, 1)),
                ("refused", (2, 2)),
            )
        ],
    ),
    "tables of angles that are not as long as half a head": (
        """g (float[b,2,t,s] x, int64[c,d] p, float[9,4] cos, float[9,4] sin)
            => (float[b,2,t,s] y) { y = com.microsoft.RotaryEmbedding(x, p, cos, sin) }""",
        [
            (
                kind,
                {
                    "x": ones(2, 2, 3, size),
                    "p": np.zeros((batch, 3), np.int64),
                    "cos": ones(9, 4),
                    "sin": ones(9, 4),
                },
            )
            for kind, batch, size in (("equal", 2, 8), ("refused", 1, 8), ("refused", 2, 16))
        ],
    ),
    "a bias that would stretch a quantised product": (
        """g (uint8[m,k] a, int8[k,n] b, int32[c] bias, float s) => (float[m,l] y)
            <uint8 az = {3}, int8 bz = {0}> {
            y = com.microsoft.QGemm(a, s, az, b, s, bz, bias) }""",
        [
            (
                kind,
                {
                    "a": np.ones((3, 5), np.uint8),
                    "b": np.ones((5, columns), np.int8),
                    "bias": np.arange(biases, dtype=np.int32),
                    "s": number(0.5),
                },
            )
            for kind, columns, biases in (("equal", 4, 4), ("equal", 4, 1), ("refused", 1, 6))
        ],
    ),
    "scores lower than any number": (
        """g (float[1,t,16] q, float[1,t,16] k, float[1,t,16] v, int32[1] last, int32 total)
            => (float[1,t,16] y, float[1,2,p,8] pk, float[1,2,p,8] pv) {
            y, pk, pv = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 2>(
                q, k, v, , , last, total) }""",
        [
            (
                kind,
                {
                    "q": np.full((1, 3, 16), score, np.float32),
                    "k": ones(1, 3, 16),
                    "v": np.arange(48, dtype=np.float32).reshape(1, 3, 16),
                    "last": np.array([2], np.int32),
                    "total": np.array(3, np.int32),
                },
            )
            for kind, score in (("equal", 1), ("differs by rule", -INF))
        ],
    ),
    "values that are not as many as the keys": (
        """g (float[1,2,8] q, float[b,n,t,s] k, float[c,m,u,r] v) => (float[1,2,8] y) {
            y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v) }""",
        [
            (kind, {"q": ones(1, 2, 8), "k": ones(*keys), "v": ones(*values)})
            for kind, keys, values in (
                ("equal", (1, 2, 5, 4), (1, 2, 5, 4)),
                ("refused", (1, 2, 5, 4), (1, 2, 5, 3)),
                ("refused", (1, 2, 5, 4), (1, 2, 4, 4)),
                ("refused", (1, 1, 5, 4), (1, 1, 5, 4)),
            )
        ],
    ),
    "a gate that is not one number for each row": (
        """g (float[b,n] x, float[c,m] z, float[d,k] gate) => (float[b,n] y) {
            y = com.microsoft.GatedAdd(x, z, gate) }""",
        [
            (kind, {"x": ones(2, 4), "z": ones(2, 4), "gate": ones(*shape)})
            for kind, shape in (("equal", (2, 1)), ("refused", (2, 4)))
        ],
    ),
    "a past of more keys than values": (
        """g (float[1,1,32] q, float[b,1,p,8] k, float[c,1,r,8] v, int32[1] last, int32 total)
            => (float[1,1,16] y, float[1,1,s,8] pk, float[1,1,s,8] pv) {
            y, pk, pv = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1>(
                q, , , k, v, last, total) }""",
        [
            (
                kind,
                {
                    "q": ones(1, 1, 32),
                    "k": ones(1, 1, keys, 8),
                    "v": ones(1, 1, values, 8),
                    "last": np.array([4], np.int32),
                    "total": np.array(5, np.int32),
                },
            )
            for kind, keys, values in (("equal", 4, 4), ("refused", 4, 2), ("refused", 2, 4))
        ],
    ),
    "a past without values": (
        """g (float[1,1,4] x, float[4,12] w, float[12] bias, float[a,b,c,p,s] past)
            => (float[1,1,4] y, float[2,1,2,t,2] present) {
            y, present = com.microsoft.Attention<num_heads = 2>(x, w, bias, , past) }""",
        [
            (kind, {"x": ones(1, 1, 4), "w": ones(4, 12), "bias": ones(12), "past": ones(*shape)})
            for kind, shape in (
                ("equal", (2, 1, 2, 3, 2)),
                ("refused", (1, 1, 2, 3, 2)),
                ("refused", (3, 1, 2, 3, 2)),
                ("refused", (2, 1, 1, 3, 2)),
            )
        ],
    ),
    "counts of keys that are negative": (
        """g (float[n,3,8] x, float[8,24] w, float[24] b, int32[m] count) => (float[n,3,8] y) {
            y = com.microsoft.Attention<num_heads = 2>(x, w, b, count) }""",
        [
            (
                kind,
                {
                    "x": np.arange(48, dtype=np.float32).reshape(2, 3, 8),
                    "w": np.full((8, 24), 0.01, np.float32),
                    "b": ones(24),
                    "count": np.array([count, 2], np.int32),
                },
            )
            for kind, count in (("equal", 1), ("equal", 2**31 - 1), ("refused", -1))
        ],
    ),
    "tokens outside a cache": (
        """g (float[1,n,32] q, float[1,n,16] k, float[1,2,p,8] past, int32[1] last, int32 total)
            => (float[1,n,32] y, float[1,2,t,8] pk, float[1,2,t,8] pv) {
            y, pk, pv = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2>(
                q, k, k, past, past, last, total) }""",
        [
            (
                kind,
                {
                    "q": np.arange(96, dtype=np.float32).reshape(1, 3, 32) / 96,
                    "k": np.arange(48, dtype=np.float32).reshape(1, 3, 16) / 48,
                    "past": ones(1, 2, past, 8),
                    "last": np.array([last], np.int32),
                    "total": np.array(total, np.int32),
                },
            )
            for kind, past, last, total in (
                ("equal", 2, 4, 5),
                ("refused", 2, 5, 5),
                ("refused", 2, 1, 5),
                ("refused", 2, -4, 5),
                ("equal", 8, 7, 5),
                ("refused", 8, 8, 5),
                ("refused", 2, 2, 0),
                ("refused", 2, 1, 2),
            )
        ],
    ),
}
