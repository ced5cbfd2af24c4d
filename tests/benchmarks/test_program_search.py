"""The benchmark of searches beside a schedule by hand: its space, and the curve of a search."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.program_search import CHECKPOINTS, HAND, SIZE, SPACE, bests, tiled
from webmlc import compile, tir
from webmlc.tune.tune_program import MeasuredParameters, ProgramResult
from webmlc.tune.user_space import arguments_of, read_space


def test_the_schedule_by_hand_is_a_legal_member_that_computes_the_product() -> None:
    space = read_space(SPACE)
    member = space.read(dict(HAND))
    assert arguments_of(member) == HAND
    a, b = np.random.default_rng(0).standard_normal((2, SIZE, SIZE)).astype(np.float32)
    c = np.empty((SIZE, SIZE), np.float32)
    compile(tiled(**HAND))(a, b, c)
    np.testing.assert_allclose(c, np.maximum(a @ b, 0), rtol=1e-3, atol=1e-3)


def test_the_curve_has_the_best_after_each_checkpoint_and_then_the_answer() -> None:
    times = [None, *(float(200 - number) for number in range(1, CHECKPOINTS[-1]))]
    rows = tuple(MeasuredParameters({"n": n}, ms, 0.0) for n, ms in enumerate(times))
    schedule = tir.Schedule(tiled(**HAND).program)
    result = ProgramResult(
        {"n": -1},
        schedule,
        1.0,
        1.0,
        1.0,
        rows,
        (),
        "wasm",
        "a platform",
        Path("t.db"),
        Path("t.html"),
    )
    assert [p["n"] for p in bests(result)] == [7, 15, 31, -1]
