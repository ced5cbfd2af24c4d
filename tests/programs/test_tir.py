"""Schedule programs by hand, with the names and the steps of TVM's courses."""

# mypy: disable-error-code="valid-type, name-defined, no-untyped-def"
# The annotations of kernels are calls, which types have no form for.

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.programs.random_programs import random_program, random_step
from webmlc import T, kernel, te, tir
from webmlc.core.errors import UserError
from webmlc.loops.interp import run
from webmlc.schedule.check_step import random_run

PROGRAMS = 500


@kernel
def mm_relu(
    A: T.Buffer((16, 16), "float32"),
    B: T.Buffer((16, 16), "float32"),
    C: T.Buffer((16, 16), "float32"),
):
    Y = T.alloc_buffer((16, 16), "float32")
    for i, j, k in T.grid(16, 16, 16):
        with T.block("Y"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(16, 16):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.max(Y[vi, vj], T.float32(0))


def check(schedule: tir.Schedule) -> None:
    """The schedule computes what `mm_relu` does, and its trace replays."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((16, 16)).astype(np.float32) for _ in "ab")
    c = np.empty((16, 16), np.float32)
    run(schedule.function, {"A": a, "B": b, "C": c})
    np.testing.assert_allclose(c, np.maximum(a @ b, 0), rtol=1e-5, atol=1e-5)
    assert tir.replay(mm_relu, schedule.trace) == schedule.program


def test_the_steps_of_the_course() -> None:
    schedule = tir.Schedule(mm_relu)
    block = schedule.get_block("Y", func_name="mm_relu")
    i, j, k = schedule.get_loops(block)
    j0, j1 = schedule.split(j, factors=[None, 4])
    schedule.reorder(j0, k, j1)
    schedule.reverse_compute_at("C", j0)
    schedule.decompose_reduction("Y", k)
    schedule.vectorize(j1)
    schedule.parallel(i)
    check(schedule)
    assert "T.vectorized(4)" in str(schedule)


def test_rfactor_and_unroll() -> None:
    schedule = tir.Schedule(mm_relu)
    *_, k = schedule.get_loops("Y")
    k0, _ = schedule.split(k, factors=[4, None])
    schedule.rfactor(k0, 0)
    schedule.unroll(schedule.get_loops("C")[-1])
    check(schedule)


def test_caches_by_name_and_by_number() -> None:
    schedule = tir.Schedule(mm_relu)
    schedule.cache_read("Y", 0, "local")
    schedule.cache_read("Y", "B", "local")
    schedule.cache_write("Y", 0, "local")
    check(schedule)
    assert [b for b in schedule.blocks() if "local" in b or "A" in b]


def test_questions() -> None:
    schedule = tir.Schedule(mm_relu)
    assert schedule.get_producers("C") == ["Y"] and schedule.get_consumers("Y") == ["C"]
    assert schedule.get_output_blocks() == ["C"]
    assert schedule.get(schedule.get_loops("Y")[0]) == 16
    assert list(schedule.mod) == ["mm_relu"]
    assert schedule.mod["mm_relu"].script() == schedule.script()


def test_errors_say_what_to_do() -> None:
    schedule = tir.Schedule(mm_relu)
    i, _, k = schedule.get_loops("Y")
    with pytest.raises(tir.ScheduleError, match="reduce axis"):
        schedule.vectorize(k)
    with pytest.raises(UserError, match="not an axis of a GPU"):
        schedule.bind(i, "warp")
    with pytest.raises(tir.ScheduleError, match="Z"):
        schedule.get_block("Z")
    with pytest.raises(UserError, match="has no number 7"):
        schedule.cache_read("Y", 7, "local")
    with pytest.raises(UserError, match="annotations"):
        schedule.annotate(i, "pragma_auto_unroll_max_step", 16)
    assert schedule.trace == []


def test_random_programs_keep_their_meaning() -> None:
    """Every primitive that a random program accepts keeps the result of the interpreter."""
    applied: set[str] = set()
    for seed in range(PROGRAMS):
        rng = random.Random(seed)
        program = random_program(rng)
        schedule = tir.Schedule(program)
        expected = random_run(schedule.function)
        for _ in range(rng.randint(1, 5)):
            applied |= random_step(schedule, rng)
        results: Any = random_run(schedule.function)
        for name, value in expected.items():
            np.testing.assert_allclose(
                results[name], value, rtol=2e-4, atol=2e-4, err_msg=f"seed {seed}: {schedule}"
            )
    assert applied >= {"split", "reorder", "fuse", "vectorize", "unroll", "parallel", "compute_at",
                       "reverse_compute_at", "compute_inline", "decompose_reduction", "rfactor",
                       "cache_read", "cache_write"}  # fmt: skip


def test_a_schedule_takes_kernels_only() -> None:
    with pytest.raises(UserError, match="a schedule takes a kernel, not a function"):
        tir.Schedule(lambda: None)  # type: ignore[arg-type]
    x = te.placeholder((4,), name="x")
    program = te.create_prim_func([x, te.compute((4,), lambda i: x[i] + 1.0, name="y")])
    assert tir.Schedule(program).get_loops("y") == ["i"]


def test_perfect_tiles_are_the_factors_that_split_takes() -> None:
    assert tir.perfect_tiles(6, 2) == [(None, 1), (None, 2), (None, 3), (None, 6)]
    assert tir.perfect_tiles(7, 1) == [(None,)]
    tiles = tir.perfect_tiles(16, 3, max_innermost_factor=4)
    assert len(tiles) == len(set(tiles)) == 12
    for tile in tiles:
        schedule = tir.Schedule(mm_relu)
        loops = schedule.split(schedule.get_loops("Y")[0], tile)
        assert len(loops) == 3
        check(schedule)
    with pytest.raises(UserError, match="must be positive"):
        tir.perfect_tiles(16, 0)


def test_a_schedule_keeps_the_program_that_it_starts_from() -> None:
    schedule = tir.Schedule(mm_relu)
    schedule.split("i", [None, 4])
    assert schedule.copy().origin is schedule.origin
    assert tir.replay(schedule.origin, schedule.trace) == schedule.program


def test_mistakes_of_a_first_schedule_say_what_to_write() -> None:
    schedule = tir.Schedule(mm_relu)
    with pytest.raises(tir.ScheduleError, match=r"a list, one for each new loop, .* \[None, 4\]"):
        schedule.split("j", 4)  # type: ignore[arg-type]
    schedule.vectorize(schedule.get_loops("C")[-1])
    with pytest.raises(tir.ScheduleError, match="loop 'j_1' is already vectorized"):
        schedule.vectorize(schedule.get_loops("C")[-1])
    with pytest.raises(UserError, match=r"not a Schedule: pass schedule\.program"):
        schedule.mod.with_kernel("mm_relu", schedule)  # type: ignore[arg-type]


def test_a_replayed_trace_is_a_program_that_runs() -> None:
    schedule = tir.Schedule(mm_relu)
    schedule.vectorize(schedule.get_loops("C")[-1])
    replayed = tir.replay(mm_relu, schedule.trace)
    assert replayed == schedule.program
    a, b = np.ones((2, 16, 16), np.float32)
    c = np.empty((16, 16), np.float32)
    replayed(a, b, c)
    np.testing.assert_array_equal(c, np.full((16, 16), 16, np.float32))
