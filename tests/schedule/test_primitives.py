"""Every primitive: what the function computes stays, and the trace replays to an equal function."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.schedule.programs import (
    add_one,
    convolution,
    matmul_relu,
    padded_convolution,
    softmax,
)
from webmlc.core.expr import Var
from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function
from webmlc.loops.verify import verify
from webmlc.schedule.check_step import random_run
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.schedule import Schedule, replay


def check(function: LoopFunction, schedule: Schedule, *sizes: int) -> None:
    """Equal results (for every size of the one symbol, if there is one), and an equal replay."""
    verify(schedule.function)
    for size in sizes or (5,):
        symbols = {symbol.name: size for symbol in function.symbols}
        expected = random_run(function, symbols)
        got = random_run(schedule.function, symbols)
        for name, array in expected.items():
            np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5)
    assert replay(function, json.loads(json.dumps(schedule.trace))) == schedule.function


def tile(schedule: Schedule, block: str, m: int, n: int) -> list[str]:
    """m0, n0, k, m1, n1 of a matmul."""
    i, j, k = schedule.loops(block)
    i0, i1 = schedule.split(i, [None, m])
    j0, j1 = schedule.split(j, [None, n])
    schedule.reorder(i0, j0, k, i1, j1)
    return [i0, j0, k, i1, j1]


@pytest.mark.parametrize("m", [12, 13, "m"])
def test_tiled_matmul_with_its_epilogue_in_registers(m: int | str) -> None:
    function = matmul_relu(m)
    schedule = Schedule(function)
    i0, j0, k, i1, j1 = tile(schedule, "Y", 6, 8)
    schedule.set_scope("Y", "local")
    schedule.reverse_compute_at("C", j0)
    init = schedule.decompose_reduction("Y", k)
    schedule.unroll(i1)
    schedule.vectorize(j1)
    schedule.vectorize(schedule.loops("C")[-1])
    schedule.vectorize(schedule.loops(init)[-1])
    schedule.parallel(i0)
    assert schedule.blocks() == ["Y_init", "Y", "C"]
    assert schedule.function.allocations[0].scope == "local"
    check(function, schedule, 0, 1, 6, 13)


@pytest.mark.parametrize("m", [13, "m"])
def test_partitioned_matmul_has_no_predicate(m: int | str) -> None:
    function = matmul_relu(m)
    schedule = Schedule(function)
    i, j, _ = schedule.loops("Y")
    schedule.reverse_compute_at("C", j)
    parts = schedule.partition(i, Var("m") // 6 * 6 if m == "m" else 12)
    main, tail = (part.loop for part in parts)
    schedule.split(main, [None, 6])
    assert all(schedule.block(name).predicate is None for name in schedule.blocks())
    assert schedule.loops("Y_tail")[0] == tail
    assert [b.name for b in schedule.function.allocations] == ["Y", "Y_tail"]
    check(function, schedule, 0, 5, 6, 13)


def test_producer_and_consumer_partitioned_apart_and_joined_again() -> None:
    function = matmul_relu(13)
    schedule = Schedule(function)
    schedule.partition(schedule.loops("Y")[0], 12)
    schedule.partition(schedule.loops("C")[0], 12)
    schedule.reverse_compute_at("C", schedule.loops("Y")[0])
    schedule.reverse_compute_at("C_tail", schedule.loops("Y_tail")[0])
    check(function, schedule)
    assert schedule.blocks() == ["Y", "C", "Y_tail", "C_tail"]


@pytest.mark.parametrize("m", [13, "m"])
def test_cache_write(m: int | str) -> None:
    function = matmul_relu(m)
    schedule = Schedule(function)
    _, j0, _, _, _ = tile(schedule, "Y", 6, 8)
    write = schedule.cache_write("Y", "local")
    check(function, schedule, 0, 7, 12)
    schedule.reverse_compute_at(write, j0)
    check(function, schedule, 0, 7, 12)


@pytest.mark.parametrize("stride", [1, 2])
def test_convolution_over_fused_pixels(stride: int) -> None:
    function = convolution(stride)
    schedule = Schedule(function)
    n, h, w, o, a, b, c = schedule.loops("conv")
    pixels = schedule.fuse(n, h, w)
    outer, inner = schedule.split(pixels, [None, 5])
    schedule.reorder(outer, a, b, c, inner, o)
    schedule.cache_write("conv", "local")
    schedule.reverse_compute_at("conv_write", outer)
    schedule.reverse_compute_at("relu", outer)
    schedule.decompose_reduction("conv", a)
    check(function, schedule)
    assert schedule.blocks() == ["conv_init", "conv", "conv_write", "relu"]


def test_pad_stage_at_a_row_of_the_convolution() -> None:
    function = padded_convolution()
    schedule = Schedule(function)
    schedule.compute_at("pad", schedule.loops("conv")[0])
    rows = schedule.loops("pad")[1]
    assert str(schedule.extent(rows)) == "3"
    assert schedule.block("pad").predicate is None
    check(function, schedule)


@pytest.mark.parametrize("rows", [6, "n"])
def test_softmax_in_one_loop_over_rows(rows: int | str) -> None:
    function = softmax(rows)
    schedule = Schedule(function)
    row = schedule.loops("softmax")[0]
    schedule.compute_at("total", row)
    schedule.compute_at("largest", row)
    schedule.parallel(row)
    assert schedule.blocks() == ["largest", "total", "softmax"]
    assert all(schedule.loops(block)[0] == row for block in schedule.blocks())
    check(function, schedule, 1, 4)


@pytest.mark.parametrize("n", [10, 16, "n"])
@pytest.mark.parametrize("factors", [[None, 4], [2, None], [None, 3, 2]])
def test_split_then_bind(n: int | str, factors: list[int | None]) -> None:
    function = add_one(n)
    schedule = Schedule(function)
    i, j = schedule.loops("B")
    loops = schedule.split(i, factors)
    schedule.bind(loops[0], "blockIdx.x")
    schedule.bind(loops[1], "threadIdx.x")
    schedule.vectorize(j)
    check(function, schedule, 0, 7, 12)


def test_cache_write_of_a_part_of_fused_loops_copies_only_that_part() -> None:
    function = add_one(10)
    schedule = Schedule(function)
    whole = schedule.fuse(*schedule.loops("B"))
    schedule.partition(whole, 43)
    schedule.cache_write("B", "local")
    check(function, schedule)


def test_a_loop_of_both_axes_is_not_decomposed() -> None:
    schedule = Schedule(matmul_relu())
    fused = schedule.fuse("j", "k")
    with pytest.raises(ScheduleError, match="runs along a spatial and a reduce axis"):
        schedule.decompose_reduction("Y", fused)


def test_a_tile_of_fused_loops_that_is_no_box_keeps_its_consumer_away() -> None:
    schedule = Schedule(convolution(1))
    n, h, w = schedule.loops("conv")[:3]
    outer, inner = schedule.split(schedule.fuse(n, h, w), [None, 6])
    with pytest.raises(ScheduleError, match="does not write a full box of 'Y'"):
        schedule.reverse_compute_at("relu", outer)
    schedule.reverse_compute_at("relu", inner)
    check(convolution(1), schedule)


def test_an_update_runs_once() -> None:
    schedule = Schedule(matmul_relu())
    init = schedule.decompose_reduction("Y", "i")
    with pytest.raises(ScheduleError, match="adds to what it wrote before"):
        schedule.reverse_compute_at("Y", schedule.loops(init)[0])


def test_loops_around_a_tile_of_fused_symbolic_rows_change_places() -> None:
    """Producer and consumer share every element index, though its lowest is not known."""
    text = """
@T.kernel
def tiles(A: T.Buffer((s, s, 8), "float32"), B: T.Output((s, s, 8), "float32"), s: T.symbol):
    Y = T.alloc_buffer((s, s, 8), "float32")
    for i, c, r in T.grid(s * s // 4, 8, 4):
        with T.block("Y"):
            vi = T.axis.spatial(s, (i * 4 + r) // s)
            vj = T.axis.spatial(s, (i * 4 + r) % s)
            vc = T.axis.spatial(8, c)
            Y[vi, vj, vc] = A[vi, vj, vc] * T.float32(2)
        with T.block("B"):
            vi = T.axis.spatial(s, (i * 4 + r) // s)
            vj = T.axis.spatial(s, (i * 4 + r) % s)
            vc = T.axis.spatial(8, c)
            B[vi, vj, vc] = Y[vi, vj, vc] + T.float32(1)
"""
    function = parse_function(text)
    schedule = Schedule(function)
    schedule.reorder("c", "i")
    check(function, schedule, 2, 4)


def test_a_loop_that_repeats_a_reduction_stays_outside_it() -> None:
    schedule = Schedule(softmax())
    schedule.compute_at("total", "j")
    (*_, j, k) = schedule.loops("total")
    with pytest.raises(ScheduleError, match=f"loop '{j}' runs the reduction"):
        schedule.decompose_reduction("total", j)
    schedule.decompose_reduction("total", k)
    check(softmax(), schedule)


def test_a_loop_of_overlapping_windows_stays_outside_the_reduction() -> None:
    function = parse_function("""
@T.kernel
def smooth(A: T.Buffer((8, 4), "float32"), B: T.Output((6,), "float32")):
    S = T.alloc_buffer((8,), "float32")
    for i, k in T.grid(8, 4):
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + A[vi, vk]
    for j in T.serial(6):
        with T.block("B"):
            vj = T.axis.spatial(6, j)
            B[vj] = S[vj] + S[vj + 1] + S[vj + 2]
""")
    schedule = Schedule(function)
    schedule.compute_at("S", "j")
    j, i = schedule.loops("S")[:2]
    assert str(schedule.extent(i)) == "3"
    with pytest.raises(ScheduleError, match="runs the reduction of block 'S' again"):
        schedule.decompose_reduction("S", j)
    schedule.decompose_reduction("S", i)
    check(function, schedule)
