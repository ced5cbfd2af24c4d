"""Check that a primitive keeps the results, and that its trace replays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from textwrap import dedent

import numpy as np

from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import print_function
from webmlc.loops.verify import verify
from webmlc.schedule.check_step import random_run
from webmlc.schedule.schedule import Schedule, replay


def assert_same(
    before: LoopFunction, schedule: Schedule, symbols: Mapping[str, int] | None = None
) -> None:
    """The scheduled function is sound, computes what `before` does, and its trace replays."""
    verify(schedule.function)
    expected = random_run(before, symbols)
    got = random_run(schedule.function, symbols)
    for name, array in expected.items():
        assert not np.isnan(array).any()
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5)
    trace = json.loads(json.dumps(schedule.trace))
    assert replay(before, trace) == schedule.function


def body_text(function: LoopFunction) -> str:
    """The text of a function's body, without its head and allocations."""
    lines = print_function(function).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(("    for", "    with")))
    return dedent("\n".join(lines[start:]))
