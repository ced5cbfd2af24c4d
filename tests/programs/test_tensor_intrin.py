"""Intrinsics: the rows of the compiler on wasmtime and on the GPU, and intrinsics of users."""

# mypy: disable-error-code="valid-type, name-defined, no-untyped-def"
# The annotations of kernels are calls, which types have no form for.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import webmlc
from webmlc import T, kernel, tir
from webmlc.core.errors import UserError
from webmlc.core.expr import Const, Expr, Var
from webmlc.core.instruction import INSTRUCTIONS
from webmlc.core.machine import Device
from webmlc.loops.interp import run
from webmlc.loops.ir import (
    Axis,
    Block,
    Buffer,
    Load,
    LoopFunction,
    Store,
    grid,
    map_accesses,
    substitute_statement,
)
from webmlc.programs.arrays import bind_arrays
from webmlc.schedule.describe_instruction import nest
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.intrinsics import INTRINSICS, Intrinsic
from webmlc.schedule.schedule import forget_steps

TARGETS: tuple[Device, ...] = ("wasm", "webgpu")
Array = np.ndarray[Any, Any]
TILES = 16
"""The tiles that a test of an instruction computes."""


@pytest.fixture(autouse=True)
def _own_rows() -> Iterator[None]:
    """Remove the rows that a test adds."""
    tables: tuple[dict[str, Any], ...] = (INTRINSICS, INSTRUCTIONS)
    before = [dict(table) for table in tables]
    yield
    for table, rows in zip(tables, before, strict=True):
        table.clear()
        table.update(rows)
    forget_steps()


def random_array(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int = 0) -> Array:
    """Random numbers. A third of the integers are the largest, and a third the smallest."""
    generator = np.random.default_rng(seed)
    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    limits = np.iinfo(dtype)
    numbers = generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    extremes = generator.choice(np.array([limits.min, limits.max], dtype), shape)
    return np.array(np.where(generator.random(shape) < 1 / 3, numbers, extremes))


# -- the rows of the compiler ---------------------------------------------------------------------


def tiles(row: Intrinsic) -> LoopFunction:
    """A kernel of a block that computes what a row describes for `TILES` tiles, from 0 on."""
    loops, body = nest(row.semantics.body)
    number, axis = Var("t"), Var("vt")
    buffers = {b.name: replace(b, shape=(Const(TILES), *b.shape)) for b in row.semantics.params}
    values: dict[Var, Expr] = {loop.var: Var(f"v{loop.var.name}") for loop in loops}

    def move(buffer: Buffer, indices: tuple[Expr, ...]) -> Load:
        return Load(buffers[buffer.name], (axis, *indices))

    store = map_accesses(substitute_statement(body, values), move)
    assert isinstance(store, Store)
    axes = [Axis(axis, Const(TILES), "spatial")]
    for loop in loops:
        var = Var(f"v{loop.var.name}")
        axes.append(Axis(var, loop.extent, "spatial" if var in store.indices else "reduce"))
    init = replace(store, value=Const(0, store.buffer.dtype))
    bindings = (number, *(loop.var for loop in loops))
    block = Block("C", tuple(axes), bindings, store, init)
    nest_ = grid([(number, Const(TILES)), *((loop.var, loop.extent) for loop in loops)], block)
    return replace(row.semantics, name="tiles", params=tuple(buffers.values()), body=nest_)


def schedule_of(row: Intrinsic, target: Device) -> tir.Schedule:
    """The schedule that computes the tiles with the instruction of a row."""
    schedule = tir.Schedule(tiles(row))
    number, *inner = schedule.get_loops("C")
    if target == "webgpu":
        schedule.bind(number, "blockIdx.x")
    if inner:
        schedule.tensorize(inner[0], row.name)
    else:
        schedule.tensorize("C", row.name)
    return schedule


ROWS = [
    (name, text.device)
    for name, row in INTRINSICS.items()
    if row.instruction is not None and not row.instruction.folds
    for text in row.instruction.texts
]


def operands(function: LoopFunction, seed: int, has_small_bytes: bool) -> list[Array]:
    """Random arrays for the parameters. No byte of `A` exceeds 127 if it `has_small_bytes`."""
    shapes = [tuple(int(str(size)) for size in b.shape) for b in function.params]
    arrays = [
        random_array(shape, np.dtype(b.dtype.numpy), seed + n)
        for n, (b, shape) in enumerate(zip(function.params, shapes, strict=True))
    ]
    if has_small_bytes:
        arrays[0] &= 0x7F7F7F7F
    return arrays


@pytest.mark.parametrize(("name", "target"), ROWS)
@pytest.mark.parametrize("seed", range(3))
def test_the_text_of_a_row_computes_what_the_row_describes(
    name: str, target: Device, seed: int
) -> None:
    row = INTRINSICS[name]
    schedule = schedule_of(row, target)
    program = tiles(row)
    arrays = operands(program, seed, "i7x16" in name and name.endswith(".words"))
    expected = [array.copy() for array in arrays]
    run(program, dict(bind_arrays(program, expected).arrays), {})
    compiled = webmlc.compile(schedule, target=target)
    assert row.instruction is not None
    (text,) = row.instruction.texts
    head = text.text.strip("(").split(" ")[0].split("(")[0]
    assert any(head in code for code in compiled.texts.values())
    compiled(*arrays)
    if arrays[-1].dtype.kind == "f":
        np.testing.assert_allclose(arrays[-1], expected[-1], rtol=1e-6)
    else:
        np.testing.assert_array_equal(arrays[-1], expected[-1])
    scheduled = [array.copy() for array in arrays[:-1]] + [np.zeros_like(arrays[-1])]
    schedule.program(*scheduled)
    np.testing.assert_allclose(scheduled[-1], expected[-1], rtol=1e-6)


@kernel
def byte_product(
    A: T.Buffer((16, 32), "int8"), B: T.Buffer((32, 32), "int8"), C: T.Buffer((16, 32), "int32")
):
    for i, j, k in T.grid(16, 32, 32):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] = C[vi, vj] + T.cast(A[vi, vk], "int32") * T.cast(B[vj, vk], "int32")


@pytest.mark.parametrize(
    ("target", "name", "text"),
    [("wasm", "i8x16.dot_s", "i32x4.dot_i16x8_s"), ("webgpu", "dot4I8Packed", "dot4I8Packed(")],
)
def test_a_product_of_bytes_calls_an_instruction(target: Device, name: str, text: str) -> None:
    schedule = tir.Schedule(byte_product)
    i, j, k = schedule.get_loops("C")
    k0, k1 = schedule.split(k, [None, 4])
    if target == "wasm":
        j0, j1 = schedule.split(j, [None, 4])
        schedule.reorder(i, j0, k0, j1, k1)
        block = schedule.tensorize(j1, name)
    else:
        schedule.bind(i, "blockIdx.x")
        schedule.bind(j, "threadIdx.x")
        block = schedule.tensorize(k1, name)
    schedule.decompose_reduction(block, k0)
    compiled = webmlc.compile(schedule, target=target)
    assert all(text in code for code in compiled.texts.values())
    a, b = (
        random_array(shape, np.dtype(np.int8), seed)
        for seed, shape in enumerate(((16, 32), (32, 32)))
    )
    c = np.zeros((16, 32), np.int32)
    compiled(a, b, c)
    np.testing.assert_array_equal(c, a.astype(np.int32) @ b.T.astype(np.int32))


def test_adjacent_bytes_are_loaded_as_words() -> None:
    schedule = tir.Schedule(byte_product)
    i, j, k = schedule.get_loops("C")
    j0, j1 = schedule.split(j, [None, 4])
    k0, k1 = schedule.split(k, [None, 4])
    schedule.reorder(i, j0, k0, j1, k1)
    schedule.tensorize(j1, "i8x16.dot_s")
    text = webmlc.compile(schedule).text
    assert "i32.load8" not in text and "v128.load32_lane" in text  # rows of B lie apart


# -- products of the field ------------------------------------------------------------------------


def gemv_description(A: T.Buffer((16,)), B: T.Buffer((4, 16)), C: T.Buffer((4,))):
    for i, k in T.grid(4, 16):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            C[vi] = C[vi] + A[vk] * B[vi, vk]


def gemv(A: T.Buffer((16,)), B: T.Buffer((4, 16)), C: T.Buffer((4,))):
    for i in T.unrolled(4):
        for k in range(16):
            C[i] = C[i] + A[k] * B[i, k]


def gemm_description(A: T.Buffer((4, 4)), B: T.Buffer((4, 4)), C: T.Buffer((4, 4))):
    for i, j, k in T.grid(4, 4, 4):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


def gemm(A: T.Buffer((4, 4)), B: T.Buffer((4, 4)), C: T.Buffer((4, 4))):
    for i in T.unrolled(4):
        for k in T.unrolled(4):
            for j in T.vectorized(4):
                C[i, j] = C[i, j] + A[i, k] * B[k, j]


@kernel
def matmul_nt(A: T.Buffer((32, 64)), B: T.Buffer((48, 64)), C: T.Buffer((32, 48))):
    for i, j, k in T.grid(32, 48, 64):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vj, vk]


@kernel
def matmul(A: T.Buffer((32, 64)), B: T.Buffer((64, 48)), C: T.Buffer((32, 48))):
    for i, j, k in T.grid(32, 48, 64):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


def check_product(schedule: tir.Schedule, target: Device, transposed: bool = False) -> None:
    """The compiled schedule, and its interpreter, multiply matrices."""
    a = random_array((32, 64), np.dtype(np.float32))
    b = random_array((48, 64) if transposed else (64, 48), np.dtype(np.float32), 1)
    expected = a @ (b.T if transposed else b)
    for compute in (webmlc.compile(schedule, target=target), schedule.program):
        c = np.zeros((32, 48), np.float32)
        compute(a, b, c)
        np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)
    assert tir.replay(schedule.origin, schedule.trace) == schedule.program


@pytest.mark.parametrize("target", TARGETS)
def test_gemv_of_tvms_tutorial(target: Device) -> None:
    tir.TensorIntrin.register("gemv_4x16", gemv_description, gemv)
    schedule = tir.Schedule(matmul_nt)
    i, j, k = schedule.get_loops("C")
    j0, j1 = schedule.split(j, factors=[None, 4])
    k0, k1 = schedule.split(k, factors=[None, 16])
    schedule.reorder(i, j0, k0, j1, k1)
    block = schedule.tensorize(j1, "gemv_4x16")
    schedule.decompose_reduction(block, k0)
    if target == "webgpu":
        schedule.bind(i, "blockIdx.x")
        schedule.bind(j0, "threadIdx.x")
    check_product(schedule, target, transposed=True)


@pytest.mark.parametrize("target", TARGETS)
def test_gemm_4x4x4(target: Device) -> None:
    tir.TensorIntrin.register("gemm_4x4x4", gemm_description, gemm)
    schedule = tir.Schedule(matmul)
    i, j, k = schedule.get_loops("C")
    (i0, i1), (j0, j1), (k0, k1) = (schedule.split(x, factors=[None, 4]) for x in (i, j, k))
    schedule.reorder(i0, j0, k0, i1, j1, k1)
    block = schedule.tensorize(i1, "gemm_4x4x4")
    schedule.decompose_reduction(block, k0)
    if target == "webgpu":
        schedule.bind(i0, "blockIdx.x")
        schedule.bind(j0, "threadIdx.x")
    check_product(schedule, target)


# -- intrinsics of users ---------------------------------------------------------------------------


@kernel
def madd(A: T.Buffer((4,)), B: T.Buffer((4,)), C: T.Buffer((4,))):
    for j in range(4):
        with T.block("C"):
            vj = T.axis.spatial(4, j)
            with T.init():
                C[vj] = T.float32(0)
            C[vj] = C[vj] + A[vj] * B[vj]


WAT = "(f32x4.relaxed_madd {A} {B} {C})"


def tiled_rows(machine: str | None = None) -> tuple[tir.Schedule, str, list[str]]:
    """The product with rows of four columns inside: the loop of the columns, and the loops around
    it.
    """
    schedule = tir.Schedule(matmul, machine)
    i, j, k = schedule.get_loops("C")
    j0, j1 = schedule.split(j, factors=[None, 4])
    schedule.reorder(i, j0, k, j1)
    return schedule, j1, [i, j0, k]


@pytest.mark.parametrize("target", TARGETS)
def test_an_instruction_of_ones_own(target: Device) -> None:
    tir.TensorIntrin.register(
        "my.madd", madd, wasm=WAT, webgpu="fma({A}, {B}, {C})", feature="relaxed"
    )
    schedule, j1, (i, j0, k) = tiled_rows()
    block = schedule.tensorize(j1, "my.madd")
    schedule.decompose_reduction(block, k)
    if target == "webgpu":
        schedule.bind(i, "blockIdx.x")
        schedule.bind(j0, "threadIdx.x")
    check_product(schedule, target)
    texts = webmlc.compile(schedule, target=target).texts
    if target == "webgpu":
        assert all("fma(" in text for text in texts.values())
    else:  # a machine without the feature runs the description
        assert "relaxed_madd" in texts["model.relaxed.wat"]
        assert "relaxed" not in texts["model.simd128.wat"]


def test_a_tensorized_script_parses_again() -> None:
    tir.TensorIntrin.register("my.madd", madd, wasm=WAT, feature="relaxed")
    schedule, j1, _ = tiled_rows()
    schedule.tensorize(j1, "my.madd")
    assert 'T.call_intrin("my.madd", ' in str(schedule)
    assert webmlc.from_source(str(schedule)).function == schedule.function
    assert tir.replay(matmul, schedule.trace) == schedule.program


@kernel
def popcount(A: T.Buffer((), "int32"), C: T.Buffer((), "int32")):
    for k in range(32):
        with T.block("C"):
            vk = T.axis.reduce(32, k)
            with T.init():
                C[()] = 0
            C[()] = C[()] + (T.shift_right(A[()], vk) & 1)


@kernel
def popcounts(A: T.Buffer((64,), "int32"), C: T.Buffer((64,), "int32")):
    for i, k in T.grid(64, 32):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + (T.shift_right(A[vi], vk) & 1)


@pytest.mark.parametrize("target", TARGETS)
def test_an_instruction_of_scalars(target: Device) -> None:
    tir.TensorIntrin.register(
        "popcount", popcount, wasm="(i32.popcnt {A})", webgpu="countOneBits({A})"
    )
    schedule = tir.Schedule(popcounts)
    i, k = schedule.get_loops("C")
    schedule.tensorize(k, "popcount")
    if target == "webgpu":
        schedule.bind(i, "blockIdx.x")
    compiled = webmlc.compile(schedule, target=target)
    assert all(w in compiled.text for w in [{"wasm": "popcnt", "webgpu": "countOneBits"}[target]])
    a = random_array((64,), np.dtype(np.int32))
    c = np.zeros(64, np.int32)
    compiled(a, c)
    np.testing.assert_array_equal(c, np.bitwise_count(a.view(np.uint32)))


@kernel
def row_sums(A: T.Buffer((8, 256)), C: T.Buffer((8,))):
    for i, k in T.grid(8, 256):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi, vk]


def shared_sums(machine: str | None = None) -> tuple[tir.Schedule, str]:
    """The sums of rows by 64 threads each, which put their parts into workgroup memory: the block
    that adds the parts in a register.
    """
    schedule = tir.Schedule(row_sums, machine)
    copy = schedule.cache_write("C", "local")
    row, k = schedule.get_loops("C")
    _, part = schedule.split(k, factors=[None, 64])
    parts = schedule.rfactor(part, -1)
    row = schedule.get_loops(copy)[0]
    schedule.compute_at("C", row)
    schedule.compute_at(parts, row)
    schedule.set_scope(parts, "shared")
    thread, step = schedule.get_loops(parts)[-2:]
    schedule.decompose_reduction(parts, step)
    schedule.bind(thread, "threadIdx.x")
    schedule.bind(row, "blockIdx.x")
    schedule.decompose_reduction("C", schedule.get_loops("C")[-1])
    return schedule, "C"


def test_the_threads_of_a_subgroup_share_a_sum() -> None:
    schedule, block = shared_sums()
    schedule.tensorize(block, "subgroupAdd")
    compiled = webmlc.compile(schedule, target="webgpu")
    assert "subgroupAdd(part)" in compiled.texts["kernels.subgroups.wgsl"]
    assert "subgroupAdd" not in compiled.texts["kernels.gpu.wgsl"]
    a, c = random_array((8, 256), np.dtype(np.float32)), np.zeros(8, np.float32)
    for compute in (compiled, schedule.program):
        compute(a, c)
        np.testing.assert_allclose(c, a.sum(1), rtol=1e-4, atol=1e-5)


def test_what_threads_may_not_share_is_refused() -> None:
    schedule, block = shared_sums("gpu")
    assert refusal(schedule, block, "subgroupAdd") == (
        "'subgroupAdd' needs the feature 'subgroups', which the machine 'gpu' lacks"
    )
    schedule, block = shared_sums("subgroups")
    assert refusal(schedule, block, "subgroupMax") == "block 'C' is no fold by 'max'"
    assert refusal(schedule, block, "subgroupAdd.int32").endswith("folds int32, not float32")
    plain = tir.Schedule(row_sums)
    assert "does not fold shared values into a local one" in refusal(plain, "C", "subgroupAdd")


# -- refusals ------------------------------------------------------------------------------------


def refusal(schedule: tir.Schedule, nest: str, name: str) -> str:
    with pytest.raises(ScheduleError) as error:
        schedule.tensorize(nest, name)
    return error.value.reason


def test_refusals_say_what_differs() -> None:
    schedule, j1, _ = tiled_rows()
    assert refusal(schedule, j1, "dot4I8Packed") == (
        f"loop {j1!r} is not what 'dot4I8Packed' means: it writes int32, not float32"
    )
    assert refusal(schedule, j1, "matmul_4x4_f32").endswith("it has 4 × 4 × 4 iterations, not 4")
    assert refusal(schedule, "C", "matmul_4x4_f32").endswith("has no lanes: tensorize a loop")
    wide = tir.Schedule(matmul)
    i, j, k = wide.get_loops("C")
    wide.reorder(i, k, j)
    assert refusal(wide, j, "f32x4.relaxed_madd").endswith("it has 4 iterations, not 48")
    assert "in no vectorized loop of a multiple of 4" in refusal(wide, "C", "f32x4.relaxed_madd")
    wide.vectorize(j)
    assert wide.tensorize("C", "f32x4.relaxed_madd") == "C"
    assert "no intrinsic 'nothing'; there are matmul_4x4_f32" in refusal(wide, "C", "nothing")
    bytes_ = tir.Schedule(byte_product)
    _, k1 = bytes_.split(bytes_.get_loops("C")[-1], [None, 4])
    assert refusal(bytes_, k1, "dot4U8Packed").endswith("it writes uint32, not int32")


@kernel
def other_order(A: T.Buffer((8, 4)), B: T.Buffer((8, 4)), C: T.Buffer((4,))):
    for k, j in T.grid(8, 4):
        with T.block("C"):
            vk, vj = T.axis.remap("RS", [k, j])
            with T.init():
                C[vj] = T.float32(0)
            C[vj] = A[vk, vj] * B[vk, vj] - C[vj]


@kernel
def no_sum(A: T.Buffer((4,)), B: T.Buffer((4,)), C: T.Buffer((4,))):
    for j in range(4):
        with T.block("C"):
            vj = T.axis.spatial(4, j)
            C[vj] = A[vj] * B[vj]


def test_another_accumulation_is_refused() -> None:
    for program in (other_order, no_sum):
        schedule = tir.Schedule(program)
        reason = refusal(schedule, schedule.get_loops("C")[-1], "f32x4.relaxed_madd")
        assert reason.endswith("it adds to C, and the block does not add to its element")
        assert not schedule.trace


def test_a_machine_without_the_feature_refuses() -> None:
    tir.TensorIntrin.register("my.madd", madd, wasm=WAT, feature="relaxed")
    schedule, j1, _ = tiled_rows("simd128")
    assert refusal(schedule, j1, "my.madd") == (
        "'my.madd' needs the feature 'relaxed', which the machine 'simd128' lacks"
    )
    schedule, j1, _ = tiled_rows("gpu")
    assert refusal(schedule, j1, "my.madd") == "'my.madd' has no text for webgpu"
    schedule, j1, (i, _, _) = tiled_rows("relaxed")
    schedule.copy().tensorize(j1, "my.madd")
    schedule.tensorize(j1, "my.madd")
    schedule.bind(i, "blockIdx.x")
    with pytest.raises(UserError, match=r"has no text for webgpu\. Register it with webgpu=\.\.\."):
        webmlc.compile(schedule, target="webgpu")
    with pytest.raises(UserError, match="no machine 'abacus': choose one of dot, pairs, relaxed"):
        tir.Schedule(matmul, "abacus")


def wrong_gemm(A: T.Buffer((4, 4)), B: T.Buffer((4, 4)), C: T.Buffer((4, 4))):
    for i in T.unrolled(4):
        for k in T.unrolled(4):
            for j in T.vectorized(4):
                C[i, j] = C[i, j] + A[i, k] * B[j, k]


def vector_dot(A: T.Buffer((4,)), B: T.Buffer((4,)), C: T.Buffer(())):
    for k in range(4):
        C[()] = C[()] + A[k] * B[k]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "matmul_4x4_f32", "wasm": WAT}, "pass override=True to replace it"),
        ({}, "needs texts or an implementation"),
        ({"wasm": WAT, "feature": "abacus"}, "no machine has the feature 'abacus': choose one of"),
        ({"wasm": "f32x4.add {A} {C}"}, "is not one folded instruction of WebAssembly"),
        ({"wasm": "(f32x4.add {A} {C}"}, "is not one folded instruction of WebAssembly"),
        ({"wasm": WAT.replace("{A}", "{X}")}, r"has no operand \{X\}: it has A, B, C"),
        (
            {"desc": gemm_description, "impl": wrong_gemm},
            "implementation of 'mine' computes another C",
        ),
        ({"desc": gemm_description, "impl": gemv}, "has other parameters than gemm_description"),
        ({"desc": gemm_description, "wasm": WAT}, r"C has the shape \(4, 4\), not \(\) or \(4,\)"),
        ({"desc": vector_dot, "wasm": WAT}, "B is no operand: an operand has one element"),
        ({"desc": byte_product, "wasm": WAT}, r"C has the shape \(16, 32\)"),
    ],
)
def test_registrations_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tir.TensorIntrin.register(**{"name": "mine", "desc": madd, **arguments})
    assert "mine" not in INTRINSICS
    with pytest.raises(UserError, match="no intrinsic 'mine'; there are"):
        tir.TensorIntrin.get("mine")


def test_an_intrinsic_can_be_replaced() -> None:
    tir.TensorIntrin.register("mine", madd, wasm=WAT, feature="relaxed")
    schedule, j1, _ = tiled_rows()
    schedule.copy().tensorize(j1, "mine")
    tir.TensorIntrin.register("mine", vector_dot, vector_dot, override=True)
    assert refusal(schedule, j1, "mine").startswith(f"loop {j1!r} is not what 'mine' means")
    assert tir.TensorIntrin.get("mine").instruction is None
