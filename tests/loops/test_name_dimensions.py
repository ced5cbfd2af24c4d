"""Sizes get names, and their values back."""

from __future__ import annotations

from webmlc.loops.name_dimensions import name_dimensions
from webmlc.loops.text import parse_function, print_function
from webmlc.target.bind_dimensions import bind_dimensions

POOL = """@T.kernel
def pool(
    x: T.Buffer((n, (h + 1) // 2, h + w), "float32"),
    y: T.Output((n, (h + 1) // 2, h + w), "float32"),
    n: T.symbol,
    h: T.symbol,
    w: T.symbol,
):
    for i, j, k in T.grid(n, (h + 1) // 2, h + w):
        with T.block("y"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            y[vi, vj, vk] = x[vi, (vj * (h + w) + vk) // (h + w), vk]
"""

NAMED = """@T.kernel
def pool(
    x: T.Buffer((n, size_0, size_1), "float32"),
    y: T.Output((n, size_0, size_1), "float32"),
    n: T.symbol,
    h: T.symbol,
    w: T.symbol,
    size_0: T.symbol,
    size_1: T.symbol,
):
    for i, j, k in T.grid(n, size_0, size_1):
        with T.block("y"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            y[vi, vj, vk] = x[vi, (vj * (h + w) + vk) // size_1, vk]
"""


def test_sums_and_quotients_of_symbols_are_named() -> None:
    named = name_dimensions(parse_function(POOL))
    assert print_function(named.function) == NAMED.rstrip()
    values = sorted(str(value) for _, value in named.values)
    assert values == ["(h + 1) // 2", "h + w"]


def test_numbers_and_products_of_symbols_stay() -> None:
    plain = parse_function(POOL.replace("(h + 1) // 2", "h * 3").replace("h + w", "w"))
    named = name_dimensions(plain)
    assert named.function is plain
    assert named.values == ()


def test_values_come_back_around_everything() -> None:
    named = name_dimensions(parse_function(POOL))
    bound = bind_dimensions(named.function, named.values)
    assert [s.name for s in bound.symbols] == ["n", "h", "w"]
    assert [str(d) for d in bound.params[0].shape] == ["n", "(h + 1) // 2", "h + w"]
    text = print_function(bound)
    assert "size_0 = (h + 1) // 2" in text or "size_1 = (h + 1) // 2" in text
