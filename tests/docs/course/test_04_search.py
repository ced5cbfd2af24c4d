"""Solutions of the exercises of lesson 4, compared with numpy."""

import random
from pathlib import Path

import numpy as np

import webmlc
from webmlc import te, tir
from webmlc.programs.compiled import CompiledKernel

rng = np.random.default_rng(4)
SIZE = 48


def product() -> tir.PrimFunc:
    A = te.placeholder((SIZE, SIZE), "float32", name="A")
    B = te.placeholder((SIZE, SIZE), "float32", name="B")
    k = te.reduce_axis((0, SIZE), name="k")
    C = te.compute((SIZE, SIZE), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    return te.create_prim_func([A, B, C], "product")


PRODUCT = product()


def tiled(rows: int, columns: int) -> tir.Schedule:
    schedule = tir.Schedule(PRODUCT)
    i, j, k = schedule.get_loops("C")
    i0, i1 = schedule.split(i, factors=[SIZE // rows, rows])  # refused if the tiles do not fit
    j0, j1 = schedule.split(j, factors=[None, columns])
    schedule.reorder(i0, j0, k, i1, j1)
    schedule.decompose_reduction("C", k)
    schedule.vectorize(j1)
    return schedule


def check_product(kernel: CompiledKernel) -> None:
    a, b = (rng.standard_normal((SIZE, SIZE)).astype(np.float32) for _ in range(2))
    c = np.empty((SIZE, SIZE), np.float32)
    kernel(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


def test_exercise_1(tmp_path: Path) -> None:
    result = webmlc.tune(
        tiled,
        {"rows": [2, 4, 7], "columns": [4, 8]},
        engine="wasmtime",
        strategy="random",
        measurements=6,
        database=tmp_path / "tuned.db",
    )
    assert {parameters["rows"] for parameters, _ in result.refusals} == {7}
    assert all("split" in reason for _, reason in result.refusals)
    check_product(result.kernel)


def test_exercise_2() -> None:
    space = {"rows": [2, 4, 8], "columns": [4, 8, 16]}
    generator = random.Random(0)
    a, b = (rng.standard_normal((SIZE, SIZE)).astype(np.float32) for _ in range(2))
    c = np.empty((SIZE, SIZE), np.float32)
    fastest, shortest = None, float("inf")
    for _ in range(10):
        member = {name: generator.choice(values) for name, values in space.items()}
        kernel = webmlc.compile(tiled(**member))
        seconds = kernel.time(a, b, c, runs=3).seconds
        if seconds < shortest:
            fastest, shortest = kernel, seconds
    check_product(fastest)


def row_sums() -> tir.PrimFunc:
    x = te.placeholder((512, 512), "float32", name="x")
    j = te.reduce_axis((0, 512), name="j")
    y = te.compute((512,), lambda i: te.sum(x[i, j], axis=j), name="y")
    return te.create_prim_func([x, y], "row_sums")


ROW_SUMS = row_sums()


def ordered(by_columns: bool) -> tir.Schedule:
    """Row by row, the values of `x` are read in the order of their addresses. Column by column,
    `y` is read and written again for every column.
    """
    schedule = tir.Schedule(ROW_SUMS)
    i, j = schedule.get_loops("y")
    if by_columns:
        schedule.reorder(j, i)
    return schedule


def test_exercise_3(tmp_path: Path) -> None:
    result = webmlc.tune(
        ordered,
        {"by_columns": [False, True]},
        engine="wasmtime",
        default={"by_columns": False},
        database=tmp_path / "tuned.db",
    )
    assert [row.parameters for row in result.measurements] == [{"by_columns": True}]
    x = rng.standard_normal((512, 512)).astype(np.float32)
    y = np.empty(512, np.float32)
    result.kernel(x, y)
    np.testing.assert_allclose(y, x.sum(axis=1), rtol=1e-3, atol=1e-3)
