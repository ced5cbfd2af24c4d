"""Loop functions that the schedule tests share, as text."""

# ruff: noqa: E501 (programs in text)
from __future__ import annotations

from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function

MATMUL_RELU = """
@T.kernel
def matmul_relu(A: T.Buffer({A}, "float32"), B: T.Buffer({B}, "float32"), C: T.Output({C}, "float32"){symbols}):
    Y = T.alloc_buffer({C}, "float32")
    for i, j, k in T.grid({M}, {N}, {K}):
        with T.block("Y"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + A[vi, vk] * B[vk, vj]
    for i2, j2 in T.grid({M}, {N}):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i2, j2])
            C[vi, vj] = T.max(Y[vi, vj], T.float32(0))
"""


def matmul_relu(m: int | str = 13, n: int = 16, k: int = 5) -> LoopFunction:
    """`C = relu(A @ B)`; `m` may be a symbol."""
    shapes = {"A": f"({m}, {k})", "B": f"({k}, {n})", "C": f"({m}, {n})"}
    symbols = f", {m}: T.symbol" if isinstance(m, str) else ""
    return parse_function(MATMUL_RELU.format(M=m, N=n, K=k, symbols=symbols, **shapes))


def convolution(stride: int = 2) -> LoopFunction:
    """A 3×3 convolution over a padded NHWC input, then bias and relu."""
    rows = 2 + (5 - 1) * stride + 1
    return parse_function(f"""
@T.kernel
def convolution(X: T.Buffer((1, {rows}, {rows}, 3), "float32"), W: T.Buffer((3, 3, 3, 8), "float32"), D: T.Buffer((8,), "float32"), Z: T.Output((1, 5, 5, 8), "float32")):
    Y = T.alloc_buffer((1, 5, 5, 8), "float32")
    for n, h, w, o, a, b, c in T.grid(1, 5, 5, 8, 3, 3, 3):
        with T.block("conv"):
            vn, vh, vw, vo, va, vb, vc = T.axis.remap("SSSSRRR", [n, h, w, o, a, b, c])
            with T.init():
                Y[vn, vh, vw, vo] = T.float32(0)
            Y[vn, vh, vw, vo] = Y[vn, vh, vw, vo] + X[vn, vh * {stride} + va, vw * {stride} + vb, vc] * W[va, vb, vc, vo]
    for n2, h2, w2, o2 in T.grid(1, 5, 5, 8):
        with T.block("relu"):
            vn, vh, vw, vo = T.axis.remap("SSSS", [n2, h2, w2, o2])
            Z[vn, vh, vw, vo] = T.max(Y[vn, vh, vw, vo] + D[vo], T.float32(0))
""")


def padded_convolution() -> LoopFunction:
    """A 3×3 convolution of stride 1 with its pad stage."""
    return parse_function("""
@T.kernel
def padded(X: T.Buffer((6, 6, 4), "float32"), W: T.Buffer((3, 3, 4, 8), "float32"), Y: T.Output((6, 6, 8), "float32")):
    P = T.alloc_buffer((8, 8, 4), "float32")
    for h, w, c in T.grid(8, 8, 4):
        with T.block("pad"):
            vh, vw, vc = T.axis.remap("SSS", [h, w, c])
            P[vh, vw, vc] = T.select((vh >= 1) & (vh < 7) & (vw >= 1) & (vw < 7), X[vh - 1, vw - 1, vc], T.float32(0))
    for h2, w2, o, a, b, i in T.grid(6, 6, 8, 3, 3, 4):
        with T.block("conv"):
            vh, vw, vo, va, vb, vi = T.axis.remap("SSSRRR", [h2, w2, o, a, b, i])
            with T.init():
                Y[vh, vw, vo] = T.float32(0)
            Y[vh, vw, vo] = Y[vh, vw, vo] + P[vh + va, vw + vb, vi] * W[va, vb, vi, vo]
""")


def softmax(rows: int | str = 6, columns: int = 10) -> LoopFunction:
    """Softmax over rows, in three stages."""
    symbols = f", {rows}: T.symbol" if isinstance(rows, str) else ""
    return parse_function(f"""
@T.kernel
def softmax(X: T.Buffer(({rows}, {columns}), "float32"), Y: T.Output(({rows}, {columns}), "float32"){symbols}):
    M = T.alloc_buffer(({rows},), "float32")
    S = T.alloc_buffer(({rows},), "float32")
    for i, k in T.grid({rows}, {columns}):
        with T.block("largest"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                M[vi] = T.float32("-inf")
            M[vi] = T.max(M[vi], X[vi, vk])
    for i2, k2 in T.grid({rows}, {columns}):
        with T.block("total"):
            vi, vk = T.axis.remap("SR", [i2, k2])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + T.exp(X[vi, vk] - M[vi])
    for i3, j in T.grid({rows}, {columns}):
        with T.block("softmax"):
            vi, vj = T.axis.remap("SS", [i3, j])
            Y[vi, vj] = T.exp(X[vi, vj] - M[vi]) / S[vi]
""")


def add_one(n: int | str = 10) -> LoopFunction:
    """One elementwise block."""
    symbols = f", {n}: T.symbol" if isinstance(n, str) else ""
    return parse_function(f"""
@T.kernel
def add_one(A: T.Buffer(({n}, 8), "float32"), B: T.Output(({n}, 8), "float32"){symbols}):
    for i, j in T.grid({n}, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + T.float32(1)
""")
