"""Test softmax over rows, as the rules and the lowering build it.

The tests compare the loops over a row with a golden file, count the instructions between them, and
check rows with NaN and infinity.

WEBMLC_UPDATE_GOLDEN=1 pytest tests/target/test_row_loops.py      # after an intended change
"""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.schedule.rules import kernels
from webmlc.core.machine import RELAXED
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.rules import choose_rule
from webmlc.target.targets import lower
from webmlc.target.wasm.emit_module import print_function

GOLDEN = Path(__file__).parent / "golden"
ROWS, COLUMNS = 3, 128


@pytest.fixture(scope="module")
def softmax() -> LoopFunction:
    """The lowered kernel."""
    return lower(choose_rule(kernels.softmax(ROWS, COLUMNS), RELAXED)[1].function, RELAXED)


def body(text: str) -> str:
    """The text of the loop over rows, up to its branch back."""
    return textwrap.dedent(text[text.index("\n", text.index("(loop ")) + 1 : text.rindex("(br_if")])


def test_the_rows_are_golden(softmax: LoopFunction) -> None:
    text = body(print_function(softmax, "relaxed").text)
    path = GOLDEN / "softmax_rows.wat"
    if os.environ.get("WEBMLC_UPDATE_GOLDEN"):
        path.write_text(text.strip() + "\n")
    assert path.read_text() == text.strip() + "\n"


def test_a_maximum_is_one_instruction(softmax: LoopFunction) -> None:
    """A NaN shows in the result anyway, and a maximum that propagates NaN takes nine
    instructions on x86.
    """
    text = print_function(softmax, "relaxed").text
    assert "f32x4.max" not in text
    # Four vectors in the loop, their lanes' maximum, and the lower limits of two exponentials.
    assert text.count("f32x4.pmax") == 4 + 4 + 2


def test_vectors_are_added_before_their_lanes(softmax: LoopFunction) -> None:
    """The four vectors of sums of a row become one in registers. Only its lanes are added
    one by one.
    """
    text = print_function(softmax, "relaxed").text
    assert len(re.findall(r"\(f32\.add ", text)) == 4
    assert len(re.findall(r"\(f32\.load ", text)) == 4 + 4  # lanes of the maximum and of the sum


def test_nan_and_infinity(run_wasm: Any, softmax: LoopFunction) -> None:
    """A NaN makes its whole row NaN, wherever it is. An element of -inf becomes 0."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    x[0, 77] = x[1, 0] = np.nan
    x[2, 5:90] = -np.inf
    y = np.empty_like(x)
    run_wasm(softmax, {"x": x, "out0": y})
    assert np.isnan(y[:2]).all()
    e = np.exp(x[2] - x[2].max())
    np.testing.assert_allclose(y[2], e / e.sum(), rtol=1e-6)
    assert (y[2, 5:90] == 0).all()
