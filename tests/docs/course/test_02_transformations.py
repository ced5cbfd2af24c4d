# mypy: disable-error-code="valid-type, name-defined, no-untyped-def"
# The annotations of kernels are calls, which types have no form for.
"""Solutions of the exercises of lesson 2, compared with numpy."""

import numpy as np
from numpy.typing import NDArray

import webmlc
from webmlc import T, te, tir

rng = np.random.default_rng(2)


def random(*shape: int) -> NDArray[np.float32]:
    return rng.standard_normal(shape).astype(np.float32)


def test_exercise_1() -> None:
    a, b = (te.placeholder((1000,), "float32", name=name) for name in "ab")
    c = te.compute((1000,), lambda i: a[i] + b[i], name="c")
    schedule = tir.Schedule(te.create_prim_func([a, b, c], "vector_add"))
    (i,) = schedule.get_loops("c")
    _, lane = schedule.split(i, factors=[None, 4])
    schedule.vectorize(lane)
    kernel = webmlc.compile(schedule)

    x, y, z = random(1000), random(1000), np.empty(1000, np.float32)
    kernel(x, y, z)
    np.testing.assert_array_equal(z, x + y)
    assert "f32x4.add" in kernel.text


@webmlc.kernel
def mm_relu(
    A: T.Buffer((96, 96), "float32"),
    B: T.Buffer((96, 96), "float32"),
    C: T.Buffer((96, 96), "float32"),
):
    Y = T.alloc_buffer((96, 96), "float32")
    for i, j, k in T.grid(96, 96, 96):
        with T.block("Y"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(96, 96):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.max(Y[vi, vj], T.float32(0))


def test_exercise_2() -> None:
    """The inner loop loads two vectors of B and four numbers of A. The other tile loads four
    vectors and two numbers.
    """
    schedule = tir.Schedule(mm_relu)
    schedule.set_scope("Y", "local")
    i, j, k = schedule.get_loops("Y")
    i_tile, row = schedule.split(i, factors=[None, 4])
    j_tile, vector, lane = schedule.split(j, factors=[None, 2, 4])
    schedule.reorder(j_tile, i_tile, k, row, vector, lane)
    schedule.reverse_compute_at("C", i_tile)
    schedule.split(schedule.get_loops("C")[-1], factors=[None, 4])
    schedule.decompose_reduction("Y", k)
    for block in ("Y_init", "Y", "C"):
        *_, row, vector, lane = schedule.get_loops(block)
        schedule.vectorize(lane)
        schedule.unroll(vector)
        schedule.unroll(row)
    kernel = webmlc.compile(schedule)
    a, b, c = random(96, 96), random(96, 96), np.empty((96, 96), np.float32)
    kernel(a, b, c)
    np.testing.assert_allclose(c, np.maximum(a @ b, 0), rtol=1e-4, atol=1e-4)
    assert kernel.texts["model.relaxed.wat"].count("f32x4.relaxed_madd") == 8


def test_exercise_3() -> None:
    def loop_order() -> tir.Schedule:
        schedule = tir.Schedule(mm_relu)
        i, j, k = schedule.get_loops("Y")
        schedule.decompose_reduction("Y", i)
        schedule.reorder(i, k, j)
        return schedule

    plain, vectors = loop_order(), loop_order()
    _, lane = vectors.split(vectors.get_loops("Y")[-1], factors=[None, 4])
    vectors.vectorize(lane)
    assert [s["primitive"] for s in vectors.trace[len(plain.trace) :]] == ["split", "vectorize"]

    replayed = tir.replay(mm_relu, vectors.trace)
    assert "T.vectorized(4)" in str(replayed)
    assert "T.vectorized" not in str(plain)
    a, b = random(96, 96), random(96, 96)
    results = [np.empty((96, 96), np.float32) for _ in range(2)]
    for program, c in zip((plain.program, replayed), results, strict=True):
        program(a, b, c)  # by the interpreter
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6, atol=1e-6)
