"""Random legal steps on random nests: interpreter agrees, function verifies, trace replays.
replays.

A step that a primitive refuses is skipped: what is tested is that nothing it accepts is wrong.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.schedule.programs import (
    add_one,
    convolution,
    matmul_relu,
    padded_convolution,
    softmax,
)
from webmlc.core.expr import as_int
from webmlc.loops.ir import LoopFunction
from webmlc.loops.verify import verify
from webmlc.schedule.check_step import random_run
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.schedule import Schedule, replay

PROGRAMS = (
    lambda: matmul_relu(13, 8, 5),
    lambda: matmul_relu("m", 8, 5),
    lambda: matmul_relu(12, 6, 4),
    lambda: convolution(1),
    lambda: convolution(2),
    padded_convolution,
    softmax,
    lambda: softmax("n", 7),
    add_one,
    lambda: add_one("n"),
)
PRIMITIVES = (
    "split",
    "split",
    "partition",
    "reorder",
    "fuse",
    "compute_at",
    "reverse_compute_at",
    "reverse_compute_at",
    "cache_write",
    "decompose_reduction",
    "fission",
    "kind",
)


def loops(schedule: Schedule) -> list[str]:
    return list(
        dict.fromkeys(loop for block in schedule.blocks() for loop in schedule.loops(block))
    )


def random_step(schedule: Schedule, data: st.DataObject) -> tuple[str, list[Any]]:
    """A primitive with arguments that exist, legal or not."""
    primitive = data.draw(st.sampled_from(PRIMITIVES))
    loop = data.draw(st.sampled_from(loops(schedule)))
    block = data.draw(st.sampled_from(schedule.blocks()))
    around = schedule.loops(block) or [loop]
    match primitive:
        case "split":
            factors = data.draw(st.sampled_from([[None, 2], [None, 3], [2, None], [None, 2, 2]]))
            return primitive, [loop, factors]
        case "partition":
            extent = schedule.extent(loop)
            size = as_int(extent)
            at = extent // 3 * 3 if size is None else data.draw(st.integers(0, size))
            return primitive, [loop, at]
        case "reorder":
            some = data.draw(st.permutations(around))
            return primitive, some[: data.draw(st.integers(1, len(some)))]
        case "fuse":
            start = data.draw(st.integers(0, len(around) - 1))
            return primitive, around[start : start + 2]
        case "compute_at" | "reverse_compute_at":
            return primitive, [block, loop]
        case "decompose_reduction":
            return primitive, [block, data.draw(st.sampled_from(around))]
        case "cache_write":
            return primitive, [block, data.draw(st.sampled_from(["global", "local"]))]
        case "fission":
            return primitive, [loop]
    return data.draw(st.sampled_from(["parallel", "vectorize", "unroll"])), [loop]


def results(function: LoopFunction, size: int) -> dict[str, np.ndarray[Any, Any]]:
    return random_run(function, {symbol.name: size for symbol in function.symbols})


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(PROGRAMS), st.integers(1, 8), st.data())
def test_random_legal_steps_change_nothing(program: Any, steps: int, data: st.DataObject) -> None:
    function = program()
    schedule = Schedule(function)
    for _ in range(steps):
        primitive, arguments = random_step(schedule, data)
        try:
            schedule.apply(primitive, *arguments)
        except ScheduleError:
            continue
        verify(schedule.function)
    for size in (4, 7) if function.symbols else (1,):
        expected, got = results(function, size), results(schedule.function, size)
        for name, array in expected.items():
            np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5)
    trace = json.loads(json.dumps(schedule.trace))
    assert replay(function, trace) == schedule.function
