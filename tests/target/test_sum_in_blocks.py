"""Test that long sums of float32 are added in blocks, and that nothing else changes."""

from __future__ import annotations

from textwrap import dedent

import numpy as np
import pytest

from webmlc.loops.interp import run
from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function, print_function
from webmlc.target.sum_in_blocks import sum_in_blocks


def reduction(size: int | str, update: str, start: str = "0.0") -> LoopFunction:
    """A function of one loop over `x` and `w`, whose register `s` becomes the result."""
    symbols = "" if isinstance(size, int) else f", {size}: T.symbol"
    return parse_function(f"""
\
@T.kernel
def f(x: T.Buffer(({size},), "float32"), w: T.Buffer(({size},), "float32"),
      y: T.Output((1,), "float32"){symbols}):
    s = T.alloc_buffer((), "float32", scope="local")
    s[()] = T.float32({start})
    for k in range({size}):
        {update}
    y[0] = s[()]
""")


def result(function: LoopFunction, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The results of the function for two arrays of a size."""
    arrays = {"x": x, "w": w, "y": np.zeros(1, np.float32)}
    run(function, arrays, {s.name: x.size for s in function.symbols})
    return arrays["y"]


ADD = "s[()] = s[()] + x[k]"
PRODUCT = "s[()] = T.fma(x[k], w[k], s[()])"


def test_a_loop_of_symbolic_extent_has_blocks_if_it_is_long() -> None:
    text = print_function(sum_in_blocks(reduction("n", ADD)))
    assert (
        dedent(text[text.index("    if") :])
        == """\
if n > 1024:
    s_total[()] = s[()]
    s_error[()] = T.float32(0.0)
    s[()] = T.float32(0.0)
    for k_block in range((n + 255) // 256):
        for k_1 in range(T.min(256, n - k_block * 256)):
            s[()] = s[()] + x[k_1 + k_block * 256]
        s_sum[()] = s_total[()] + s[()]
        s_error[()] = s_error[()] + (s_total[()] - (s_sum[()] - (s_sum[()] - s_total[()])) + \
(s[()] - (s_sum[()] - s_total[()])))
        s_total[()] = s_sum[()]
        s[()] = T.float32(0.0)
    s[()] = T.select(T.isnan(s_error[()]), s_total[()], s_total[()] + s_error[()])
else:
    for k in range(n):
        s[()] = s[()] + x[k]
y[0] = s[()]"""
    )


SHORT = {
    "a short sum": reduction(1024, ADD),
    "a short sum of products": reduction(16384, PRODUCT),
    "a maximum": reduction(100_000, "s[()] = T.max(s[()], x[k])"),
    "a sum that starts again": reduction(
        100_000, "if k - 50000 == 0:\n            s[()] = T.float32(0.0)\n        " + ADD
    ),
    "a running sum": reduction(100_000, "s[()] = s[()] + s[()] * x[k]"),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_loop_without_long_sums_stays(name: str) -> None:
    assert sum_in_blocks(SHORT[name]) is SHORT[name]


LONG = {
    "a sum": (ADD, 10_000),
    "a sum whose length is a prime": (ADD, 9_973),
    "a sum of products": (PRODUCT, 20_000),
    "a sum of squares": ("s[()] = T.fma(x[k], x[k], s[()])", 9_000),
    "a sum of some": ("if x[k] > T.float32(0.5):\n            " + ADD, 9_000),
    "a sum that the first iteration starts": (
        "if k == 0:\n            s[()] = T.float32(0.5)\n        " + ADD,
        9_000,
    ),
    "two terms at once": (ADD + "\n        s[()] = w[k] + s[()]", 7_000),
}


@pytest.mark.parametrize("is_symbolic", [False, True])
@pytest.mark.parametrize("name", LONG)
def test_blocks_add_up_to_the_same_sum(name: str, is_symbolic: bool) -> None:
    update, length = LONG[name]
    function = reduction("n" if is_symbolic else length, update, "0.25")
    blocks = sum_in_blocks(function)
    assert blocks is not function
    rng = np.random.default_rng(0)
    for size in (length, 3, 1500) if is_symbolic else (length,):
        arrays = [rng.random(size, np.float32) for _ in "xw"]
        np.testing.assert_allclose(result(blocks, *arrays), result(function, *arrays), rtol=1e-4)


@pytest.mark.parametrize("special", [[np.inf], [np.nan], [np.inf, -np.inf], [3e38, 3e38]])
def test_sums_of_special_values(special: list[float]) -> None:
    x = np.ones(5000, np.float32)
    x[1000 : 1000 + len(special)] = special
    blocks = sum_in_blocks(reduction(5000, ADD))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(result(blocks, x, x), x.sum())


def test_an_element_of_memory_is_added_up_in_blocks_too() -> None:
    """It may be large before the loop; another element of the buffer would be a use."""
    text = """\
@T.kernel
def f(x: T.Buffer((5000,), "float32"), w: T.Buffer((5000,), "float32"),
      y: T.Output((1,), "float32")):
    y[0] = T.float32(3e7)
    for i, k in T.grid(7, 5000):
        y[0] = y[0] + x[k]
"""
    x = np.ones(5000, np.float32)
    np.testing.assert_array_equal(result(sum_in_blocks(parse_function(text)), x, x), 30_035_000)
    other = parse_function(text.replace("+ x[k]", "+ y[k]"))
    assert sum_in_blocks(other) is other


def test_equal_terms_keep_their_sum() -> None:
    x = np.full(1_000_000, 0.1, np.float32)
    total = result(sum_in_blocks(reduction(x.size, ADD)), x, x)
    np.testing.assert_allclose(total, x.sum(dtype=np.float64), rtol=4e-6)
