"""Define scheduled functions by hand, as the input of the lowering tests."""

from __future__ import annotations

from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function

GEMM = """
@T.kernel
def gemm(
    A: T.Buffer(({m}, {k}), "float32"),
    B: T.Buffer(({panels}, {k}, 8), "float32"),
    bias: T.Buffer(({n},), "float32"),
    C: T.Output(({m}, {n}), "float32"),
):
    Y = T.alloc_buffer(({m}, {n}), "float32", scope="local")
    for no in T.parallel({panels}):
        for mo in range({tiles}):
            for mi in T.unrolled({rows}):
                for ni in T.vectorized(8):
                    with T.block("Y_init"):
                        i = T.axis.spatial({m}, mo * {rows} + mi)
                        j = T.axis.spatial({n}, no * 8 + ni)
                        Y[i, j] = T.float32(0.0)
            for k in range({k}):
                for mi_1 in T.unrolled({rows}):
                    for ni_1 in T.vectorized(8):
                        with T.block("Y"):
                            i_1 = T.axis.spatial({m}, mo * {rows} + mi_1)
                            j_1 = T.axis.spatial({n}, no * 8 + ni_1)
                            kk = T.axis.reduce({k}, k)
                            Y[i_1, j_1] = Y[i_1, j_1] + A[i_1, kk] * B[j_1 // 8, kk, j_1 % 8]
            for mi_2 in T.unrolled({rows}):
                for ni_2 in T.vectorized(8):
                    with T.block("C"):
                        i_2 = T.axis.spatial({m}, mo * {rows} + mi_2)
                        j_2 = T.axis.spatial({n}, no * 8 + ni_2)
                        C[i_2, j_2] = T.max(Y[i_2, j_2] + bias[j_2], T.float32(0.0))
"""


def gemm(m: int, n: int, k: int, rows: int = 6) -> LoopFunction:
    """relu(A @ B + bias) in register tiles of `rows` x 8, B packed in panels of 8 columns."""
    return parse_function(
        GEMM.format(m=m, n=n, k=k, panels=n // 8, tiles=m // rows, rows=rows).strip()
    )


PREDICATE = """
@T.kernel
def relu(A: T.Buffer((n, 7), "float32"), B: T.Output((n, 7), "float32"), n: T.symbol):
    for io in T.parallel((n + 3) // 4):
        for ii in range(4):
            for j in range(7):
                with T.block("B"):
                    T.where(io * 4 + ii < n)
                    i = T.axis.spatial(n, io * 4 + ii)
                    jj = T.axis.spatial(7, j)
                    B[i, jj] = T.max(A[i, jj], T.float32(0.0))
""".strip()

SOFTMAX = """
@T.kernel
def softmax(X: T.Buffer((n, 12), "float32"), Y: T.Output((n, 12), "float32"), n: T.symbol):
    top = T.alloc_buffer((n,), "float32")
    total = T.alloc_buffer((n,), "float32")
    for i in T.parallel(n):
        for j in range(12):
            with T.block("top"):
                vi = T.axis.spatial(n, i)
                vj = T.axis.reduce(12, j)
                with T.init():
                    top[vi] = T.float32("-inf")
                top[vi] = T.max(top[vi], X[vi, vj])
        for j_1 in range(12):
            with T.block("total"):
                vi_1 = T.axis.spatial(n, i)
                vj_1 = T.axis.reduce(12, j_1)
                with T.init():
                    total[vi_1] = T.float32(0.0)
                total[vi_1] = total[vi_1] + T.exp(X[vi_1, vj_1] - top[vi_1])
        for jo in range(3):
            for j_2 in T.vectorized(4):
                with T.block("Y"):
                    vi_2 = T.axis.spatial(n, i)
                    vj_2 = T.axis.spatial(12, jo * 4 + j_2)
                    Y[vi_2, vj_2] = T.exp(X[vi_2, vj_2] - top[vi_2]) / total[vi_2]
""".strip()

PADDED = """
@T.kernel
def blur(X: T.Buffer((9, 8), "float32"), Y: T.Output((9, 8), "float32")):
    pad = T.alloc_buffer((11, 8), "float32")
    for io in range(3):
        for p in range(5):
            for c in T.vectorized(8):
                with T.block("pad"):
                    vp = T.axis.spatial(11, io * 3 + p)
                    vc = T.axis.spatial(8, c)
                    pad[vp, vc] = T.select((vp >= 1) & (vp < 10), X[vp - 1, vc], T.float32(0.0))
        for ii in range(3):
            for c_1 in T.vectorized(8):
                with T.block("Y"):
                    vi = T.axis.spatial(9, io * 3 + ii)
                    vc_1 = T.axis.spatial(8, c_1)
                    Y[vi, vc_1] = pad[vi, vc_1] + pad[vi + 1, vc_1] + pad[vi + 2, vc_1]
""".strip()

CARRIED = """
@T.kernel
def rows(X: T.Buffer((4, 6), "float32"), Y: T.Output((6,), "float32")):
    acc = T.alloc_buffer((6,), "float32")
    for k in range(4):
        for i in range(6):
            with T.block("acc"):
                vi = T.axis.spatial(6, i)
                vk = T.axis.reduce(4, k)
                with T.init():
                    acc[vi] = T.float32(0.0)
                acc[vi] = acc[vi] + X[vk, vi]
    for j in range(6):
        with T.block("Y"):
            vj = T.axis.spatial(6, j)
            Y[vj] = acc[vj]
""".strip()

TWO_PHASES = """
@T.kernel
def centred(X: T.Buffer((40,), "float32"), Y: T.Output((40,), "float32")):
    part = T.alloc_buffer((8,), "float32")
    mean = T.alloc_buffer((1,), "float32")
    for b in T.parallel(8):
        for i in range(5):
            with T.block("part"):
                vb = T.axis.spatial(8, b)
                vi = T.axis.reduce(5, i)
                with T.init():
                    part[vb] = T.float32(0.0)
                part[vb] = part[vb] + X[vb * 5 + vi]
    for r in range(8):
        with T.block("mean"):
            vr = T.axis.reduce(8, r)
            with T.init():
                mean[0] = T.float32(0.0)
            mean[0] = mean[0] + part[vr] * T.float32(0.025)
    for j in T.parallel(40):
        with T.block("Y"):
            vj = T.axis.spatial(40, j)
            Y[vj] = X[vj] - mean[0]
""".strip()

STRIDED = """
@T.kernel
def transpose(X: T.Buffer((12, 20), "float32"), Y: T.Output((20, 12), "float32")):
    for i in T.parallel(20):
        for jo in range(3):
            for j in T.vectorized(4):
                with T.block("Y"):
                    vi = T.axis.spatial(20, i)
                    vj = T.axis.spatial(12, jo * 4 + j)
                    Y[vi, vj] = X[vj, vi]
""".strip()

SCATTERED = """
@T.kernel
def transpose(X: T.Buffer((12, 20), "float32"), Y: T.Output((20, 12), "float32")):
    for i in T.parallel(12):
        for jo in range(5):
            for j in T.vectorized(4):
                with T.block("Y"):
                    vi = T.axis.spatial(12, i)
                    vj = T.axis.spatial(20, jo * 4 + j)
                    Y[vj, vi] = X[vi, vj] * T.float32(2.0)
""".strip()

GATHERED = """
@T.kernel
def gather(
    X: T.Buffer((9, 8), "float32"),
    I: T.Buffer((n,), "int64"),
    Y: T.Output((n, 8), "float32"),
    n: T.symbol,
):
    for i in T.parallel(n):
        for j in T.vectorized(8):
            with T.block("Y"):
                vi = T.axis.spatial(n, i)
                vj = T.axis.spatial(8, j)
                Y[vi, vj] = X[T.cast(I[vi], "int32"), vj]
""".strip()

FUSED = """
@T.kernel
def relayout(X: T.Buffer((5, 7, 8), "float32"), Y: T.Output((7, 5, 8), "float32")):
    for f in T.parallel(35):
        for c in T.vectorized(8):
            with T.block("Y"):
                a = T.axis.spatial(7, f % 7)
                b = T.axis.spatial(5, f // 7)
                vc = T.axis.spatial(8, c)
                Y[a, b, vc] = X[b, 6 - a, vc]
""".strip()

UNEVEN = """
@T.kernel
def scale(
    X: T.Buffer((6, 6), "float32"),
    s: T.Buffer((1,), "float32"),
    Y: T.Output((6, 6), "float32"),
):
    for i in range(6):
        for j in T.vectorized(6):
            with T.block("Y"):
                vi = T.axis.spatial(6, i)
                vj = T.axis.spatial(6, j)
                Y[vi, vj] = X[vi, vj] * s[0] + T.select(
                    X[vi, vj] > T.float32(0.0), s[0], T.float32(1.0)
                )
""".strip()

MIXED = """
@T.kernel
def mixed(
    A: T.Buffer((20,), "uint8"),
    B: T.Buffer((20,), "int8"),
    M: T.Buffer((20,), "bool"),
    L: T.Buffer((20,), "int64"),
    Y: T.Buffer((20,), "uint8"),
    Z: T.Output((20,), "int64"),
):
    for i in T.parallel(20):
        with T.block("Y"):
            v = T.axis.spatial(20, i)
            Y[v] = A[v] * T.cast(B[v], "uint8") + T.uint8(7)
            Z[v] = T.select(M[v], L[v] // T.int64(3), L[v] % T.int64(5)) + T.cast(
                A[v] > T.uint8(9), "int64"
            )
""".strip()

GUARDED = """
@T.kernel
def guarded(X: T.Buffer((9,), "float32"), Y: T.Output((9,), "float32")):
    for i in T.vectorized(9):
        with T.block("Y"):
            v = T.axis.spatial(9, i)
            Y[v] = T.select(
                v >= 3,
                T.select(X[v - 3] > T.float32(0.0), X[v - 3] * T.float32(2.0), T.float32(0.5)),
                T.float32(1.0),
            )
""".strip()

PROGRAMS = {
    "gemm": gemm(12, 16, 5),
    **{
        name: parse_function(text)
        for name, text in {
            "predicate": PREDICATE,
            "softmax": SOFTMAX,
            "padded": PADDED,
            "carried": CARRIED,
            "two_phases": TWO_PHASES,
            "strided": STRIDED,
            "scattered": SCATTERED,
            "gathered": GATHERED,
            "fused": FUSED,
            "uneven": UNEVEN,
            "mixed": MIXED,
            "guarded": GUARDED,
        }.items()
    },
}
"""Every function, by name."""
