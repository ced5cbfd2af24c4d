"""`blockize`, `tensorize`: golden text, same results, replay, refusals; and the intrinsic rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.schedule.checks import assert_same, body_text
from webmlc.loops.interp import run
from webmlc.loops.ir import Buffer, LoopFunction
from webmlc.loops.text import parse_function, print_function
from webmlc.loops.verify import verify
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.intrinsics import INTRINSICS
from webmlc.schedule.schedule import Schedule

MATMUL = parse_function("""\
@T.kernel
def matmul(A: T.Buffer((8, 12), "float32"), B: T.Buffer((12, 16), "float32"), C: T.Output((8, 16), "float32")):
    for i, j, k in T.grid(8, 16, 12):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
""")  # noqa: E501


def tiled(program: LoopFunction) -> tuple[Schedule, list[str]]:
    schedule = Schedule(program)
    i, j, k = schedule.loops("C")
    (i0, i1), (j0, j1), (k0, k1) = (schedule.split(loop, [None, 4]) for loop in (i, j, k))
    schedule.reorder(i0, j0, k0, i1, j1, k1)
    return schedule, [i0, j0, k0, i1, j1, k1]


def random_array(buffer: Buffer, generator: np.random.Generator) -> np.ndarray[Any, Any]:
    """Random numbers for a buffer. Half of its integers are the largest and the smallest."""
    shape = tuple(int(str(size)) for size in buffer.shape)
    if buffer.dtype.is_float:
        return generator.standard_normal(shape, np.float32)
    limits = np.iinfo(buffer.dtype.numpy)
    numbers = generator.integers(limits.min, limits.max, shape, buffer.dtype.numpy, endpoint=True)
    extremes = generator.choice(np.array([limits.min, limits.max], buffer.dtype.numpy), shape)
    return np.array(np.where(generator.random(shape) < 0.5, numbers, extremes))


@pytest.mark.parametrize("name", INTRINSICS)
def test_an_implementation_does_what_the_row_means(name: str) -> None:
    row = INTRINSICS[name]
    semantics, implementation = row.semantics, row.implementation
    verify(semantics)
    verify(implementation)
    generator = np.random.default_rng(0)
    arrays = {b.name: random_array(b, generator) for b in semantics.params}
    if row.instruction is not None and row.instruction.folds:
        arrays["C"] = np.array(1, arrays["C"].dtype)  # no extreme that a fold keeps
    expected, got = ({k: np.array(v) for k, v in arrays.items()} for _ in "ab")
    run(semantics, expected)
    run(implementation, got)
    for name_of, array in expected.items():
        np.testing.assert_allclose(got[name_of], array, rtol=1e-5)
    assert not np.array_equal(expected["C"], arrays["C"])


def test_blockize() -> None:
    schedule, loops = tiled(MATMUL)
    assert schedule.blockize(loops[3]) == "C_o"
    assert (
        body_text(schedule.function)
        == """\
for i_0, j_0, k_0 in T.grid(2, 4, 3):
    with T.block("C_o"):
        vio, vjo, vko = T.axis.remap("SSR", [i_0, j_0, k_0])
        with T.init():
            for i_1_init, j_1_init in T.grid(4, 4):
                with T.block("C_init"):
                    vi_init = T.axis.spatial(8, i_1_init + vio * 4)
                    vj_init = T.axis.spatial(16, j_1_init + vjo * 4)
                    C[vi_init, vj_init] = T.float32(0.0)
        for i_1, j_1, k_1 in T.grid(4, 4, 4):
            with T.block("C"):
                vi = T.axis.spatial(8, i_1 + vio * 4)
                vj = T.axis.spatial(16, j_1 + vjo * 4)
                vk = T.axis.reduce(12, k_1 + vko * 4)
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]"""
    )
    assert_same(MATMUL, schedule)
    schedule.decompose_reduction("C_o", loops[2])
    assert_same(MATMUL, schedule)
    outer, _ = schedule.split(loops[1], [2, 2])
    schedule.reorder(outer, loops[0])
    schedule.parallel(outer)
    assert_same(MATMUL, schedule)


def test_tensorize_a_4x4_body() -> None:
    schedule, loops = tiled(MATMUL)
    block = schedule.tensorize(loops[3], "matmul_4x4_f32")
    schedule.decompose_reduction(block, loops[2])
    text = body_text(schedule.function)
    assert (
        text[text.index("    for k_0") :]
        == """\
    for k_0 in range(3):
        with T.block("C_o"):
            vio, vjo, vko = T.axis.remap("SSR", [i_0, j_0, k_0])
            T.intrinsic("matmul_4x4_f32")
            for i0 in T.unrolled(4):
                for j0 in T.vectorized(4):
                    tile[i0, j0] = C[i0 + vio * 4, j0 + vjo * 4]
            for k1 in T.unrolled(4):
                for i1 in T.unrolled(4):
                    for j1 in T.vectorized(4):
                        tile[i1, j1] = T.fma(A[i1 + vio * 4, k1 + vko * 4], \
B[k1 + vko * 4, j1 + vjo * 4], tile[i1, j1])
            for i2 in T.unrolled(4):
                for j2 in T.vectorized(4):
                    C[i2 + vio * 4, j2 + vjo * 4] = tile[i2, j2]"""
    )
    assert_same(MATMUL, schedule)


def test_loops_and_operands_match_in_any_order() -> None:
    program = parse_function("""\
@T.kernel
def f(A: T.Buffer((8, 4), "float32"), B: T.Buffer((2, 4, 8), "float32"), C: T.Output((8, 16), "float32")):
    for k, j, i in T.grid(4, 16, 8):
        with T.block("C"):
            vk, vj, vi = T.axis.remap("RSS", [k, j, i])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = B[vj // 8, vk, vj % 8] * A[vi, vk] + C[vi, vj]
""")  # noqa: E501
    schedule = Schedule(program)
    k, j, i = schedule.loops("C")
    i0, i1 = schedule.split(i, [None, 4])
    j0, j1 = schedule.split(j, [None, 4])
    schedule.reorder(i0, j0, k, j1, i1)
    schedule.tensorize(k, "matmul_4x4_f32")
    assert "B[vjo // 2, k1, j1 + vjo % 2 * 4]" in body_text(schedule.function)
    assert_same(program, schedule)


@pytest.mark.parametrize(("name", "inner"), [("madd_f32x4", "j"), ("dot_f32x4", "k")])
def test_vector_intrinsics(name: str, inner: str) -> None:
    schedule = Schedule(MATMUL)
    _, lane = schedule.split(inner, [None, 4])
    if inner == "j":
        schedule.reorder("k", lane)
    schedule.tensorize(lane, name)
    assert_same(MATMUL, schedule)


def test_refusals() -> None:
    schedule, loops = tiled(MATMUL)
    with pytest.raises(ScheduleError, match="no intrinsic 'matmul_5x5'; there are matmul_4x4_f32"):
        schedule.tensorize(loops[3], "matmul_5x5")
    with pytest.raises(ScheduleError) as error:
        schedule.tensorize(loops[3], "dot_f32x4")
    assert error.value.reason == (
        "loop 'i_1' is not what 'dot_f32x4' means: it has 4 iterations, not 4 × 4 × 4"
    )
    text = print_function(MATMUL).replace("A[vi, vk] * B[vk, vj]", "A[vi, vk] - B[vk, vj]")
    other = parse_function(text)
    schedule, loops = tiled(other)
    with pytest.raises(ScheduleError, match="is not what 'matmul_4x4_f32' means"):
        schedule.tensorize(loops[3], "matmul_4x4_f32")
    schedule = Schedule(MATMUL)
    _, inner = schedule.split("k", [2, 8])
    with pytest.raises(ScheduleError) as error:
        schedule.blockize(inner)
    assert "has the predicate k_0 * 8 + k_1 < 12 on the inner loops" in error.value.reason
