"""The classic programs: text, parsed, scheduled by primitives, run on wasmtime and wgpu-py.

Each schedule must also agree in the interpreter, before and after lowering, and its trace replays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pytest

from tests.kernel_runner import (
    Array,
    random_inputs,
    run_on_interp,
    run_on_wasm,
    run_on_webgpu,
)
from webmlc.core.expr import Var
from webmlc.core.machine import RELAXED, WEBGPU, Machine
from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function, print_function
from webmlc.loops.verify import verify
from webmlc.schedule.schedule import Schedule, replay
from webmlc.target.targets import lower

VECTOR_ADD = """\
@T.kernel
def vector_add(A: T.Buffer((n,), "float32"), B: T.Buffer((n,), "float32"),
               C: T.Buffer((n,), "float32"), n: T.symbol):
    for i in range(n):
        with T.block("C"):
            vi = T.axis.remap("S", [i])
            C[vi] = A[vi] + B[vi]
"""

MM_RELU = """\
@T.kernel
def mm_relu(A: T.Buffer((128, 128), "float32"), B: T.Buffer((128, 128), "float32"),
            C: T.Buffer((128, 128), "float32")):
    Y = T.alloc_buffer((128, 128), "float32")
    for i, j, k in T.grid(128, 128, 128):
        with T.block("Y"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(128, 128):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.max(Y[vi, vj], T.float32(0))
"""

LINEAR_RELU = """\
@T.kernel
def linear_relu(X: T.Buffer((1, 3072), "float32"), W: T.Buffer((200, 3072), "float32"),
                bias: T.Buffer((200,), "float32"), Z: T.Buffer((1, 200), "float32")):
    Y = T.alloc_buffer((1, 200), "float32")
    H = T.alloc_buffer((1, 200), "float32")
    for i, j, k in T.grid(1, 200, 3072):
        with T.block("Y"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + X[vi, vk] * W[vj, vk]
    for i, j in T.grid(1, 200):
        with T.block("H"):
            vi, vj = T.axis.remap("SS", [i, j])
            H[vi, vj] = Y[vi, vj] + bias[vj]
    for i, j in T.grid(1, 200):
        with T.block("Z"):
            vi, vj = T.axis.remap("SS", [i, j])
            Z[vi, vj] = T.max(H[vi, vj], T.float32(0))
"""

MATMUL = """\
@T.kernel
def matmul(A: T.Buffer((64, 48), "float32"), B: T.Buffer((48, 32), "float32"),
           C: T.Buffer((64, 32), "float32")):
    for i, j, k in T.grid(64, 32, 48):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""


def check_engines(
    program: LoopFunction,
    wasm: Schedule,
    webgpu: Schedule,
    want: Mapping[str, Array],
    symbols: Mapping[str, int] | None = None,
) -> None:
    """wasmtime (one thread and two, with and without FMA) and wgpu-py give `want`."""
    inputs = random_inputs(program, symbols)
    assert_close(run_on_wasm(wasm.function, inputs, symbols), want, "wasm")
    assert_close(run_on_wasm(wasm.function, inputs, symbols, threads=2), want, "two threads")
    simd128 = run_on_wasm(wasm.function, inputs, symbols, features="simd128")
    assert_close(simd128, want, "simd128")
    assert_close(run_on_webgpu(webgpu.function, inputs, symbols), want, "webgpu")


def check_schedule(
    program: LoopFunction,
    schedule: Schedule,
    machine: Machine,
    symbols: Mapping[str, int] | None = None,
) -> None:
    """The interpreter agrees before and after scheduling and lowering; text and trace replay."""
    inputs = random_inputs(program, symbols)
    want = run_on_interp(program, inputs, symbols)
    verify(schedule.function)
    lowered = lower(schedule.function, machine)
    assert_close(run_on_interp(schedule.function, inputs, symbols), want, "scheduled")
    assert_close(run_on_interp(lowered, inputs, symbols), want, "lowered")
    assert replay(program, json.loads(json.dumps(schedule.trace))) == schedule.function
    assert parse_function(print_function(schedule.function)) == schedule.function


def assert_close(got: Mapping[str, Array], want: Mapping[str, Array], where: str) -> None:
    for name, array in want.items():
        scale = 1e-5 * np.abs(array).max()
        np.testing.assert_allclose(
            got[name].reshape(array.shape), array, rtol=1e-5, atol=scale, err_msg=where
        )


@pytest.mark.parametrize("size", [1, 1024, 1000, 37])
def test_vector_add(size: int) -> None:
    """Split, reorder, parallel, vectorize; a tail that is no multiple of the vector."""
    program = parse_function(VECTOR_ADD)

    wasm = Schedule(program)
    main, tail = (part.loop for part in wasm.partition("i", Var("n") // 16 * 16))
    outer, unrolled, lanes = wasm.split(main, [None, 4, 4])
    wasm.reorder(unrolled, outer)
    wasm.reorder(outer, unrolled)
    wasm.parallel(outer)
    wasm.unroll(unrolled)
    wasm.vectorize(lanes)
    assert wasm.loops("C_tail") == [tail]

    webgpu = Schedule(program)
    group, thread, lanes = webgpu.split("i", [None, 64, 4])
    webgpu.reorder(group, lanes, thread)
    webgpu.reorder(group, thread, lanes)
    webgpu.bind(group, "blockIdx.x")
    webgpu.bind(thread, "threadIdx.x")
    symbols = {"n": size}
    inputs = random_inputs(program, symbols)
    check_engines(program, wasm, webgpu, {"C": inputs["A"] + inputs["B"]}, symbols)
    check_schedule(program, wasm, RELAXED, symbols)
    check_schedule(program, webgpu, WEBGPU, symbols)


def mm_relu_on_wasm(program: LoopFunction) -> Schedule:
    """4×8 tiles in registers; relu as the tile is stored."""
    schedule = Schedule(program)
    i, j, k = schedule.loops("Y")
    i0, i1 = schedule.split(i, [None, 4])
    j0, j1 = schedule.split(j, [None, 8])
    schedule.cache_write("Y", "local")
    schedule.compute_inline("Y_write")
    schedule.reorder(i0, j0, k, i1, j1)
    schedule.reverse_compute_at("C", j0)
    schedule.decompose_reduction("Y", k)
    schedule.parallel(i0)
    for block in ("Y_init", "Y", "C"):
        rows, columns = schedule.loops(block)[-2:]
        schedule.unroll(rows)
        schedule.vectorize(columns)
    return schedule


def mm_relu_on_webgpu(program: LoopFunction) -> Schedule:
    """Workgroups of 8×8 threads, 4×4 elements each, tiles of A and B in workgroup memory."""
    schedule = Schedule(program)
    i, j, k = schedule.loops("Y")
    i0, i1, i2 = schedule.split(i, [None, 8, 4])
    j0, j1, j2 = schedule.split(j, [None, 8, 4])
    k0, k1 = schedule.split(k, [None, 8])
    schedule.cache_write("Y", "local")
    schedule.compute_inline("Y_write")
    schedule.reorder(i0, j0, i1, j1, k0, k1, i2, j2)
    schedule.bind(i0, "blockIdx.y")
    schedule.bind(j0, "blockIdx.x")
    schedule.bind(i1, "threadIdx.y")
    schedule.bind(j1, "threadIdx.x")
    schedule.reverse_compute_at("C", j1)
    # The 64 threads share out each tile: 32×8 of A by rows, 8×32 of B four columns at a time.
    fetch_a = schedule.cache_read("Y", "A", "shared")
    schedule.compute_at(fetch_a, k0)
    rows, columns = schedule.loops(fetch_a)[-2:]
    outer, inner = schedule.split(rows, [8, 4])
    schedule.reorder(outer, columns, inner)
    schedule.bind(outer, "threadIdx.y")
    schedule.bind(columns, "threadIdx.x")
    schedule.unroll(inner)
    fetch_b = schedule.cache_read("Y", "B", "shared")
    schedule.compute_at(fetch_b, k0)
    rows, columns = schedule.loops(fetch_b)[-2:]
    outer, inner = schedule.split(columns, [8, 4])
    schedule.bind(rows, "threadIdx.y")
    schedule.bind(outer, "threadIdx.x")
    schedule.vectorize(inner)
    schedule.decompose_reduction("Y", k0)
    schedule.unroll(k1)
    for block in ("Y_init", "Y", "C"):
        rows, columns = schedule.loops(block)[-2:]
        schedule.unroll(rows)
        schedule.vectorize(columns)
    return schedule


def test_mm_relu() -> None:
    program = parse_function(MM_RELU)
    wasm, webgpu = mm_relu_on_wasm(program), mm_relu_on_webgpu(program)
    inputs = random_inputs(program)
    check_engines(program, wasm, webgpu, {"C": np.maximum(inputs["A"] @ inputs["B"], 0)})
    lowered = lower(webgpu.function, WEBGPU)
    sizes = [str(b.shape[0]) for b in lowered.allocations if b.scope == "shared"]
    assert sizes == ["256", "320"]  # rows of 32 elements would all start in one bank
    assert print_function(lowered).count("T.barrier()") == 2


def test_a_small_mm_relu_in_the_interpreter() -> None:
    """The same schedules over 32³: the interpreter takes seconds for 128³."""
    program = parse_function(MM_RELU.replace("128", "32"))
    check_schedule(program, mm_relu_on_wasm(program), RELAXED)
    check_schedule(program, mm_relu_on_webgpu(program), WEBGPU)


def linear_relu_on_wasm(program: LoopFunction) -> Schedule:
    """Fused into one nest; 16 sums a row, side by side."""
    schedule = Schedule(program)
    schedule.compute_inline("H")
    _, j, k = schedule.loops("Y")
    k0, k1 = schedule.split(k, [None, 16])
    sums = schedule.rfactor(k1, -1)
    schedule.set_scope(sums, "local")
    schedule.reverse_compute_at("Z", j)
    schedule.set_scope("Y", "local")
    schedule.decompose_reduction(sums, k0)
    schedule.vectorize(k1)
    schedule.vectorize(schedule.loops(f"{sums}_init")[-1])
    schedule.unroll(schedule.loops("Y")[-1])
    schedule.parallel(j)
    return schedule


def linear_relu_on_webgpu(program: LoopFunction) -> Schedule:
    """A workgroup a row: each thread sums every 64th element, then all sum the threads' sums."""
    schedule = Schedule(program)
    schedule.compute_inline("H")
    _, j, k = schedule.loops("Y")
    k0, k1 = schedule.split(k, [None, 64])
    sums = schedule.rfactor(k1, -1)
    schedule.set_scope(sums, "shared")
    schedule.set_scope("Y", "local")
    schedule.reverse_compute_at("Z", j)
    schedule.reorder(k1, k0)
    schedule.decompose_reduction(sums, k0)
    schedule.bind(j, "blockIdx.x")
    schedule.bind(k1, "threadIdx.x")
    return schedule


def test_linear_relu() -> None:
    program = parse_function(LINEAR_RELU)
    wasm, webgpu = linear_relu_on_wasm(program), linear_relu_on_webgpu(program)
    inputs = random_inputs(program)
    want = np.maximum(inputs["X"] @ inputs["W"].T + inputs["bias"], 0)
    check_engines(program, wasm, webgpu, {"Z": want})
    check_schedule(program, wasm, RELAXED)
    check_schedule(program, webgpu, WEBGPU)
    assert print_function(lower(webgpu.function, WEBGPU)).count("T.barrier()") == 1


def tensorized(program: LoopFunction) -> tuple[Schedule, str, str]:
    """4×4×4 bodies over an accumulator in registers; also the loops over rows and columns."""
    schedule = Schedule(program)
    schedule.cache_write("C", "local")
    i, j, k = schedule.loops("C")
    (i0, i1), (j0, j1), (k0, k1) = (schedule.split(loop, [None, 4]) for loop in (i, j, k))
    schedule.reorder(i0, j0, k0, i1, j1, k1)
    body = schedule.tensorize(i1, "matmul_4x4_f32")
    schedule.reverse_compute_at("C_write", j0)
    schedule.decompose_reduction(body, k0)
    for block in ("C_init", "C_write"):
        rows, columns = schedule.loops(block)[-2:]
        schedule.unroll(rows)
        schedule.vectorize(columns)
    return schedule, i0, j0


def test_tensorized_matmul() -> None:
    program = parse_function(MATMUL)
    wasm, rows, _ = tensorized(program)
    wasm.parallel(rows)
    webgpu, rows, columns = tensorized(program)
    webgpu.bind(rows, "blockIdx.x")
    webgpu.bind(columns, "threadIdx.x")
    inputs = random_inputs(program)
    check_engines(program, wasm, webgpu, {"C": inputs["A"] @ inputs["B"]})
    check_schedule(program, wasm, RELAXED)
    check_schedule(program, webgpu, WEBGPU)
    text = print_function(lower(wasm.function, RELAXED))
    assert text.count("T.fma(") == 16  # four rows of four lanes, four steps of k
