"""Every bug that the fuzzer found, as a small graph, on both devices.

A row is a name and a graph as ONNX text. Dimension `n` is 5 and `m` is 7 when it runs.
"""

from __future__ import annotations

import pytest

from tests.fuzz.check_graph import check_graph
from tests.fuzz.graph import FuzzGraph
from tests.fuzz.worker import Device, build_and_run

OPSET = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'
SYMBOLS = {5: "n", 7: "m"}

GRAPHS = {
    "a reduction in two stages over a symbolic size": """
        g (float[2,2,n,n] x) => (float[a,b,c,d] y) { y = ReduceLogSumExp (x) }""",
    "a window and a root of symbolic size": """
        g (float[2,2,n,n,2] x) => (float[a,b,c,d,e] y) {
            y = LpPool <kernel_shape: ints = [1,1,2], auto_pad: string = "SAME_UPPER"> (x) }""",
    "an intermediate whose stride is a sum of symbols": """
        g (float[1,4,n,6] x) => (float[a,b,c,d] y) {
            y = LpPool <kernel_shape: ints = [4,1]> (x) }""",
    "rows of a window in parts, the last of a symbolic width": """
        g (float[2,7,n] x) => (float[a,b,c] y) { y = LpPool <kernel_shape: ints = [1]> (x) }""",
    "results without elements": """
        g (float[n,3] x, float[0,3] z) => (int64[a] s, float[b,c] t, float[d] r, float[e,f] q) {
            s = Shape <start: int = 0, end: int = 0> (x)
            t = Concat <axis: int = 0> (x, z)
            r = ReduceSum <keepdims: int = 0> (z)
            q = Relu (z) }""",
    "a constant without elements beside others, on the GPU": """
        g (float[2,3,4] x) => (float[a,b] y, float[c,d,e] z)
        <float[2,2] c = {0.5, -1, 2, 3}, int64[3] r = {1,1,0}> {
            y = Softmax (c) z = Tile (x, r) }""",
    "bytes, one by one": """
        g (uint8[2,2] x) => (uint8[2,2] y) { y = Abs (x) }""",
    "products without elements, and of none": """
        g (float[n,2] a, float[2,0] b, float[n,0] c, float[0,3] d) =>
          (float[n,i] x, float[n,j] y, float[k,l] z) {
            g = Gelu (a) x = MatMul (g, b) y = MatMul (c, d) z = Softmax (c) }""",
    "a power in an arm of a choice builds in no time": """
        g (float[n,3] x, float[3] e, bool[n,3] c) => (float[n,3] p, float[n,3] w) {
            a = Abs (x) p = Pow (a, e) b = Add (a, e) q = Pow (b, e) r = Where (c, q, x)
            w = Neg (r) }""",
    "the negative of a negative": """
        g (float[2,4] x) => (float[2,4] y) { a = Relu (x) b = Neg (a) y = Sigmoid (b) }""",
    "the first of a symbolic number, on the GPU": """
        g (float[n,2] x) => (float[a,b] y, int64[c,d] i)
        <int64[1] k = {1}> { y, i = TopK <axis: int = 0, largest: int = 0> (x, k) }""",
    "every fourth element, of what vectors hold, on the GPU": """
        g (float[4,4,16] x) => (float[a,b,c] y) { y = LpNormalization <axis: int = -2> (x) }""",
    "the smallest of one symbolic size": """
        g (float[2,n] x) => (int64 y, int64 z) { s = Size (x) y = ReduceMin (s) z = ReduceMax (s)
            }""",
    "angles exact enough for what follows, on the GPU": """
        g (float[64] x) => (float[64] y, float[64] z) <float c = {0.78539816}> {
            a = Atan (x) y = Sub (a, c) z = Abs (a) }""",
    "parts of a symbolic size that they do not divide": """
        g (float[n] x, float[m,2] w) =>
          (float[a] p, float[b] q, float[c] r, float[d,e] s, float[f,g] t) {
            p, q, r = Split <axis: int = 0, num_outputs: int = 3> (x)
            s, t = Split <axis: int = 0, num_outputs: int = 2> (w) }""",
    "a quantised product of constants whose scales are inputs": """
        g (float s, uint8 z, float t, float u, uint8 v) => (uint8[a,b] y)
        <uint8[2,2] p = {3,2,2,1}, uint8[2,2] q = {8,6,5,2}, uint8 c = {5}> {
            y = QLinearMatMul (p, s, z, q, t, c, u, v) }""",
    "long functions of a choice build in no time": """
        g (float[2] a, float[2] b, float[m] c) => (float[d] y) {
            j = Concat <axis: int = 0> (a, b, c) t = Tanh (j) u = Tan (t) y = Tan (u) }""",
    "a loop from a constant, whose iterations are an input": """
        g (int64 k) => (float[2,2] y) <float[2,2] c = {0.5, -1, -2, 3}> {
            y = Loop <body = b (int64 i, bool more, float[2,2] s) =>
                             (bool go, float[2,2] t) { t = Relu (s) go = Identity (more) }>
                (k, "", c) }""",
    "places of what was chosen are not read before, on the GPU": """
        g (float[2,3,8] x, float[4] w, float[2,3,8] g) =>
          (float[a,b,c] y, int64[d,e,f] i) <int64[1] k = {1}> {
            v = com.microsoft.GatedRMSNorm (x, w, g)
            y, i = TopK <axis: int = 0, largest: int = 0> (v, k) }""",
    "updates of what is read twice after, on the GPU": """
        g (int32[2,33] x, int64[1,2] i, int32[1] u) => (bool[a,b] y)
        <int64 p = {0}, int64 q = {1}> {
            j = Clip (i, p, q) v = ScatterND (x, j, u) y = GreaterOrEqual (v, v) }""",
    "a negative number as an unsigned one, at build": """
        g (uint64[1] x, float[n] z) => (uint64 y, uint64[1] s) <int64 c = {-1}> {
            y = CastLike (c, x) d = Shape (z) s = CastLike (d, x) }""",
    "a transposed convolution cut along one axis, the other symbolic": """
        g (float[2,2,n,2] x) => (float[a,b,c,d] y) <float[2,1,1,1] w = {0.5, -2}> {
            y = ConvTranspose <kernel_shape: ints = [1,1], strides: ints = [1,2]> (x, w) }""",
    "many scalars bound one in the other": """
        g (float[13,13,6,m] x) => (float[a,b,c,d] y, int64[e,f,g,h] i) <int64[1] k = {12}> {
            v, i = TopK <axis: int = 0, largest: int = 0> (x, k) y = Cos (v) }""",
    "products of no terms by constants": """
        g (uint8[n,0] x, float[n,0] z) => (int32[a,b] y, float[c,d] w)
        <uint8[0,2] m = {}, float[0,2] f = {}> { y = MatMulInteger (x, m) w = MatMul (z, f) }""",
    "one matrix for a batch of them, of symbolic rows": """
        g (uint8[2,n,2] x, uint8[1,2,2] y, float[2,n,4] v, float[1,4,3] w) =>
          (int32[a,b,c] z, float[d,e,f] u) <uint8 p = {1}, uint8 q = {1}> {
            z = MatMulInteger (x, y, p, q) u = MatMul (v, w) }""",
    "products and sums of nothing, beside a symbolic size": """
        g (uint32[n,2,0,3] x, float[m,0] z) => (uint32 p, float[a,b,c,d] m, float[e] s)
        <int64[1] axis = {1}> {
            p = ReduceProd <keepdims: int = 0> (x) f = Cast <to: int = 1> (x)
            m = ReduceMax (f) s = ReduceSum <keepdims: int = 0> (z, axis) }""",
    "products without columns": """
        g (uint8[n,8,4] x, float[n,4] z) => (int32[a,b,c] y, float[d,e] w, float[f,g] v)
        <uint8[4,0] m = {}, uint8 p = {2}, float[4,0] f = {}> {
            y = MatMulInteger (x, m, p) w = MatMul (z, f) v = Gemm (z, f) }""",
    "float64 functions to float64's precision": """
        g (double[3,n] x) => (double[3,n] s, double[3,n] c, double[3,n] a, double[3,n] h) {
            t = Tanh (x) s = Asin (t) c = Acos (t) a = Atan (x) h = Asinh (x) }""",
    "bfloat16 sums along an axis that an input names": """
        g (bfloat16[2,3] x, int64 k) => (bfloat16[a,b] y) <int64 p = {0}, int64 q = {1}> {
            j = Clip (k, p, q) y = CumSum (x, j) }""",
    "running sums of few steps from the end": """
        g (float[2,3,4] x) => (float[2,3,4] y) <int64 p = {0}> {
            y = CumSum <exclusive: int = 1, reverse: int = 1> (x, p) }""",
}


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("name", GRAPHS)
def test_found_by_fuzzing(name: str, device: Device) -> None:
    graph = FuzzGraph.from_text(f"{OPSET}{GRAPHS[name]}", SYMBOLS)
    verdict = check_graph(graph, device, lambda g: build_and_run(g.to_model(), g.feeds(), device))
    assert verdict.kind == "passed", verdict.message
