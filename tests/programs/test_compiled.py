"""Compile programs for both targets, and run them in wasmtime and on the GPU."""

# mypy: disable-error-code="valid-type, name-defined, no-untyped-def"
# The annotations of kernels are calls, which types have no form for.

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webmlc
from webmlc import T, kernel, te, tir
from webmlc.core.errors import InputError, UserError
from webmlc.core.machine import Device
from webmlc.programs.compiled import compile_program

TARGETS: tuple[Device, ...] = ("wasm", "webgpu")


def random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@kernel
def mm_relu(
    A: T.Buffer((64, 48), "float32"),
    B: T.Buffer((48, 32), "float32"),
    C: T.Buffer((64, 32), "float32"),
):
    Y = T.alloc_buffer((64, 32), "float32")
    for i, j, k in T.grid(64, 32, 48):
        with T.block("Y"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(64, 32):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.max(Y[vi, vj], T.float32(0))


def cpu_schedule() -> tir.Schedule:
    schedule = tir.Schedule(mm_relu)
    i, j, k = schedule.get_loops("Y")
    j0, j1 = schedule.split(j, factors=[None, 8])
    schedule.reorder(i, j0, k, j1)
    schedule.reverse_compute_at("C", j0)
    schedule.decompose_reduction("Y", k)
    schedule.vectorize(j1)
    return schedule


def gpu_schedule() -> tir.Schedule:
    schedule = tir.Schedule(mm_relu)
    i, j, k = schedule.get_loops("Y")
    schedule.set_scope("Y", "local")
    j0, j1 = schedule.split(j, factors=[None, 8])
    schedule.reorder(i, j0, j1, k)
    schedule.reverse_compute_at("C", j1)
    schedule.bind(i, "blockIdx.y")
    schedule.bind(j0, "blockIdx.x")
    schedule.bind(j1, "threadIdx.x")
    return schedule


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_product_runs_with_and_without_a_schedule(target: Device, by_hand: bool) -> None:
    scheduled = {"wasm": cpu_schedule, "webgpu": gpu_schedule}[target]
    compiled = compile_program(scheduled() if by_hand else mm_relu, target)
    a, b, c = random(64, 48), random(48, 32), np.empty((64, 32), np.float32)
    compiled(a, b, c)
    np.testing.assert_allclose(c, np.maximum(a @ b, 0), rtol=1e-4, atol=1e-4)


def test_a_schedule_without_steps_compiles_the_loops_as_they_stand() -> None:
    compiled = compile_program(tir.Schedule(mm_relu))
    function = compiled.text.partition("(func $mm_relu ")[2].partition("(func ")[0]
    assert function.count("(loop ") == 5
    assert "f32x4" not in function
    a, b, c = random(64, 48), random(48, 32), np.empty((64, 32), np.float32)
    compiled(a, b, c)
    np.testing.assert_allclose(c, np.maximum(a @ b, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_a_symbolic_size_runs_at_every_size(target: Device) -> None:
    n = T.symbol("n")
    x, w = te.placeholder((n, 9), name="x"), te.placeholder((9, 5), name="w")
    k = te.reduce_axis((0, 9), name="k")
    y = te.compute((n, 5), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="y")
    compiled = compile_program(te.create_prim_func([x, w, y], "product"), target)
    for rows in (1, 4, 13):
        a, b, c = random(rows, 9), random(9, 5), np.empty((rows, 5), np.float32)
        compiled(a, b, c)
        np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_several_outputs_and_other_dtypes(target: Device) -> None:
    x = te.placeholder((6, 4), "int32", name="x")
    k = te.reduce_axis((0, 4), name="k")
    total = te.compute((6,), lambda i: te.sum(x[i, k], axis=k), name="total")
    double = te.compute((6, 4), lambda i, j: x[i, j] * 2, name="double")
    compiled = compile_program(te.create_prim_func([x, total, double]), target)
    array = np.arange(24, dtype=np.int32).reshape(6, 4)
    sums, doubles = np.empty(6, np.int32), np.empty((6, 4), np.int32)
    compiled(array, sums, doubles)
    assert (sums == array.sum(1)).all() and (doubles == 2 * array).all()


def test_text_time_and_package(tmp_path: Path) -> None:
    compiled = compile_program(cpu_schedule())
    a, b, c = random(64, 48), random(48, 32), np.empty((64, 32), np.float32)
    assert compiled.text.startswith("(module") and "f32x4" in compiled.text
    timing = compiled.time(a, b, c, runs=3)
    assert timing.flops >= 64 * 32 * 48 * 2 and timing.seconds > 0 and "GFLOPS" in str(timing)
    compiled.save(tmp_path / "package")
    model = webmlc.load(tmp_path / "package", device="wasm")
    np.testing.assert_allclose(
        model.run({"A": a, "B": b})["C"], np.maximum(a @ b, 0), rtol=1e-4, atol=1e-4
    )


def test_a_temporary_of_symbolic_size_is_a_mistake_of_the_schedule() -> None:
    n = T.symbol("n")
    x = te.placeholder((n, 8), name="x")
    double = te.compute((n, 8), lambda i, j: x[i, j] * 2.0, name="double")
    y = te.compute((n, 8), lambda i, j: double[i, 7 - j], name="y")
    program = te.create_prim_func([x, y])
    schedule = tir.Schedule(program)
    with pytest.raises(UserError, match=r"double has the symbolic size .* \(compute_at\)"):
        compile_program(schedule)
    schedule.compute_inline("double")
    value, result = random(3, 8), np.empty((3, 8), np.float32)
    compile_program(schedule)(value, result)
    np.testing.assert_array_equal(result, 2 * value[:, ::-1])


def test_errors_say_what_to_do() -> None:
    with pytest.raises(UserError, match="binds no loop to a GPU"):
        compile_program(cpu_schedule(), "webgpu")
    with pytest.raises(UserError, match="unknown target 'cuda'"):
        compile_program(mm_relu, "cuda")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="takes 3 arrays"):
        compile_program(mm_relu)(random(64, 48))
