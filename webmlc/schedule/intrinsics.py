"""Intrinsics: The only table of the intrinsics that `tensorize` puts in the place of a loop nest.

An intrinsic is semantics plus implementation, both loop functions over the same parameters:
`tensorize` matches the semantics against a schedule, and writes the implementation there. The
implementation is ordinary loop IR, so the interpreter runs it and every target lowers it; `feature`
names the feature that the target must offer.

    schedule.tensorize("i1", "matmul_4x4_f32")
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """A row: the loop text of its meaning and of its implementation, and the feature that it needs
    (`None`: no feature).
    """

    name: str
    semantics: str
    implementation: str
    feature: str | None = None


_ROWS = (
    Intrinsic(
        name="matmul_4x4_f32",
        semantics="""
@T.kernel
def semantics(
    A: T.Buffer((4, 4), "float32"), B: T.Buffer((4, 4), "float32"),
    C: T.Output((4, 4), "float32"),
):
    for i, j, k in T.grid(4, 4, 4):
        C[i, j] = C[i, j] + A[i, k] * B[k, j]
""",
        # Rows of C stay in registers; each row of B is loaded once for all rows of A.
        implementation="""
@T.kernel
def implementation(
    A: T.Buffer((4, 4), "float32"), B: T.Buffer((4, 4), "float32"),
    C: T.Output((4, 4), "float32"),
):
    tile = T.alloc_buffer((4, 4), "float32", scope="local")
    for i0 in T.unrolled(4):
        for j0 in T.vectorized(4):
            tile[i0, j0] = C[i0, j0]
    for k1 in T.unrolled(4):
        for i1 in T.unrolled(4):
            for j1 in T.vectorized(4):
                tile[i1, j1] = T.fma(A[i1, k1], B[k1, j1], tile[i1, j1])
    for i2 in T.unrolled(4):
        for j2 in T.vectorized(4):
            C[i2, j2] = tile[i2, j2]
""",
    ),
    Intrinsic(
        name="madd_f32x4",
        semantics="""
@T.kernel
def semantics(
    A: T.Buffer((), "float32"), B: T.Buffer((4,), "float32"),
    C: T.Output((4,), "float32"),
):
    for j in range(4):
        C[j] = C[j] + A[()] * B[j]
""",
        implementation="""
@T.kernel
def implementation(
    A: T.Buffer((), "float32"), B: T.Buffer((4,), "float32"),
    C: T.Output((4,), "float32"),
):
    for j in T.vectorized(4):
        C[j] = T.fma(A[()], B[j], C[j])
""",
    ),
    Intrinsic(
        name="dot_f32x4",
        semantics="""
@T.kernel
def semantics(
    A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32"),
    C: T.Output((), "float32"),
):
    for k in range(4):
        C[()] = C[()] + A[k] * B[k]
""",
        # Two sums of two: half the latency of a chain of four.
        implementation="""
@T.kernel
def implementation(
    A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32"),
    C: T.Output((), "float32"),
):
    C[()] = C[()] + (T.fma(A[1], B[1], A[0] * B[0]) + T.fma(A[3], B[3], A[2] * B[2]))
""",
    ),
)

INTRINSICS: dict[str, Intrinsic] = {row.name: row for row in _ROWS}
"""Every intrinsic by name."""


@lru_cache(maxsize=64)
def parsed(name: str) -> tuple[LoopFunction, LoopFunction]:
    """The semantics and the implementation of an intrinsic as loop functions."""
    row = INTRINSICS[name]
    return parse_function(row.semantics), parse_function(row.implementation)
