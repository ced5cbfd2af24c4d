"""Test that a nest whose indices stay within a limit runs without clamps, and that others keep
them.
"""

import numpy as np
import pytest

from webmlc.loops import interp
from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function, print_function
from webmlc.target.hoist_clamps import hoist_clamps
from webmlc.target.lower_blocks import lower_blocks

# The second index steps backwards, so that it is largest in the first iteration.
SECTIONS = """
@T.kernel
def sections(x: T.Buffer((n,), "float32"), y: T.Output((m, 1024), "float32"), n: T.symbol, m: T.symbol):
    for s in range(m):
        for i, j in T.grid({rows}, 32):
            with T.block("y"):
                v_s = T.axis.spatial(m, s)
                v_k = T.axis.spatial(1024, i * 32 + j)
                y[v_s, v_k] = x[T.min(v_s * 40 + v_k, {limit})] + x[T.min(v_s - v_k + 1023, {limit})]
"""  # noqa: E501


def sections(limit: str = "n - 1", rows: int = 32) -> LoopFunction:
    return lower_blocks(parse_function(SECTIONS.format(limit=limit, rows=rows)))


def test_only_sections_within_the_limit_have_no_clamps() -> None:
    function = hoist_clamps(sections())
    text = print_function(function)
    decision = "if (s * 40 + 1023 <= n - 1) & (s + 1023 <= n - 1):"
    before, _, copies = text.partition(decision)
    plain, _, clamped = copies.partition("else:")
    assert "T.min" not in before + plain
    assert clamped.count("T.min") == 2

    x = np.random.default_rng(3).standard_normal(1100).astype(np.float32)
    y = np.full((4, 1024), np.nan, np.float32)
    interp.run(function, {"x": x, "y": y}, {"n": 1100, "m": 4})
    places = np.arange(1024)
    for s, row in enumerate(y):  # from section 2 on, indices exceed the limit
        first, second = (np.minimum(i, 1099) for i in (s * 40 + places, s - places + 1023))
        np.testing.assert_array_equal(row, x[first] + x[second])


@pytest.mark.parametrize(("limit", "rows"), [("99", 32), ("n - 1", 1)], ids=["constant", "short"])
def test_other_nests_stay_as_they_are(limit: str, rows: int) -> None:
    function = sections(limit, rows)
    assert hoist_clamps(function) is function
