"""The rule of the guide's exercise: it builds, its space is searched, and the page shows it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.schedule import example_rule
from tests.schedule.example_rule import TILES, Parameters
from tests.schedule.rules import kernels as k
from webmlc.core.expr import as_int
from webmlc.core.machine import RELAXED
from webmlc.loops.ir import For, walk_statements
from webmlc.schedule.rules.rule import Match, match_rules
from webmlc.schedule.schedule import Schedule

ROOT = Path(__file__).parents[2]
KERNEL = k.add_bias(6, 48)


def search(match: Match, cost: Callable[[Schedule], float]) -> Any:
    """The parameters of the cheapest schedule of a kernel's space."""
    best = match.default()
    least = cost(match.build(best))
    for member in match.space().members():
        current = cost(match.build(member))
        if current < least:
            best, least = member, current
    return best


def iterations(schedule: Schedule) -> int:
    """How often the innermost loop that counts runs: what unrolling saves."""
    loops = [s for s in walk_statements(schedule.function.body) if isinstance(s, For)]
    return math.prod(as_int(loop.extent) or 0 for loop in loops if loop.kind == "serial")


def test_the_search_finds_the_largest_tile_that_fits() -> None:
    match = match_rules((TILES,), KERNEL, RELAXED)
    assert match is not None
    schedule = match.build(match.default())
    assert match.default() == Parameters(rows=1, vectors=2)
    best = search(match, iterations)
    assert best == Parameters(rows=2, vectors=6)
    assert iterations(match.build(best)) == 6 and iterations(schedule) == 36
    for got, want in zip(
        k.outputs_of(match.build(best).function, {}), k.outputs_of(KERNEL, {}), strict=True
    ):
        np.testing.assert_array_equal(got, want)


def test_other_kernels_are_not_matched() -> None:
    for kernel in (k.softmax(5, 40), k.add_bias(6, 47), k.add_bias(k.S, 48)):
        assert match_rules((TILES,), kernel, RELAXED) is None


def test_the_guide_shows_the_search_and_counts_the_lines() -> None:
    page = (ROOT / "docs" / "contributing" / "schedule_rule.md").read_text("utf-8")
    assert f"```python\n{inspect.getsource(search)}```" in page
    assert len(inspect.getsource(example_rule).splitlines()) < 80
    assert "tests/schedule/example_rule.py" in page
