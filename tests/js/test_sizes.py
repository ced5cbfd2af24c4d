"""Python and the runtime evaluate sizes alike.

They have the same operators. They agree on random expressions, with numbers as large as a float
holds exactly, and with divisors of zero.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.node import answer_once
from webmlc.core.errors import InputError
from webmlc.core.expr import Call, Expr, Var, call, const
from webmlc.core.rewrite import walk
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.core.sizes import LARGEST_SIZE, SIZE_OPERATORS, evaluate_size
from webmlc.package.sizes import evaluate, from_size, to_size

SCRIPT = Path(__file__).parent / "sizes.mjs"
COUNT = 4000
SYMBOLS = ("n", "m", "k")
COMPARISONS = [op for op in SIZE_OPERATORS if SCALAR_OPERATORS[op].result == "bool"]
LOGIC = [op for op in SIZE_OPERATORS if op.startswith("bit_")]
ARITHMETIC = [op for op in SIZE_OPERATORS if op not in (*COMPARISONS, *LOGIC, "select")]


def random_number(draw: random.Random) -> int:
    """A small or large number of either sign, and often zero."""
    largest = draw.choice((0, 1, 9, 9, 1000, 2**31, 2**52, LARGEST_SIZE))
    return draw.randint(-largest, largest)


def random_size(draw: random.Random, depth: int) -> Expr:
    """A random size with at least one operator."""

    def leaf() -> Expr:
        return Var(draw.choice(SYMBOLS)) if draw.random() < 0.7 else const(random_number(draw))

    def size(depth: int) -> Expr:
        if depth == 0 or draw.random() < 0.2:
            return leaf()
        if draw.random() < 0.2:
            return call("select", condition(depth - 1), size(depth - 1), size(depth - 1))
        return apply(draw.choice(ARITHMETIC), size, depth)

    def condition(depth: int) -> Expr:
        if depth > 0 and draw.random() < 0.4:
            return apply(draw.choice(LOGIC), condition, depth)
        return call(draw.choice(COMPARISONS), leaf(), leaf())

    def apply(op: str, operand: Callable[[int], Expr], depth: int) -> Expr:
        operands = tuple(operand(depth - 1) for _ in range(SCALAR_OPERATORS[op].arity))
        return Call(op, operands, operands[0].dtype)  # not `call`, which would simplify it

    return size(depth)


def by_python(size: Expr, symbols: Mapping[str, int]) -> int | str:
    try:
        return evaluate_size(size, symbols)
    except InputError as error:
        return f"input: {error}"


def by_javascript(cases: list[dict[str, Any]]) -> Any:
    return answer_once(SCRIPT, cases)


def test_both_lists_are_equal_and_so_are_all_values() -> None:
    draw = random.Random(0)
    sizes = [random_size(draw, 1 + i % 4) for i in range(COUNT)]
    bindings = [{name: random_number(draw) for name in SYMBOLS} for _ in sizes]
    texts = [json.loads(json.dumps(to_size(size))) for size in sizes]
    cases = [{"size": t, "symbols": b} for t, b in zip(texts, bindings, strict=True)]
    results = by_javascript(cases)
    assert results["operators"] == list(SIZE_OPERATORS)
    expected = [by_python(s, b) for s, b in zip(sizes, bindings, strict=True)]
    for case, python, javascript in zip(cases, expected, results["values"], strict=True):
        assert python == javascript, case
    kinds = Counter(type(value).__name__ for value in expected)
    assert kinds["str"] > COUNT / 50 and kinds["int"] > COUNT / 2
    used = Counter(node.op for size in sizes for node in walk(size) if isinstance(node, Call))
    assert used.keys() == set(SIZE_OPERATORS) and min(used.values()) > COUNT / 100


def by_host(size: Expr, symbols: Mapping[str, int]) -> int | str:
    """The value of the size in the manifest, as the hosts in Python compute it."""
    try:
        return evaluate(to_size(size), symbols)
    except InputError as error:
        return f"input: {error}"


def test_a_manifest_preserves_sizes() -> None:
    draw = random.Random(1)
    for i in range(500):
        size = random_size(draw, 1 + i % 4)
        copy = from_size(to_size(size))
        symbols = {name: random_number(draw) for name in SYMBOLS}
        assert by_python(copy, symbols) == by_python(size, symbols) == by_host(size, symbols)


def test_division_by_zero_is_zero_and_large_values_are_errors() -> None:
    n = Var("n")
    for op in ("floordiv", "floormod", "truncdiv", "truncmod"):
        assert evaluate_size(call(op, n, n), {"n": 0}) == 0
        assert evaluate_size(call(op, n - 7, 8), {"n": 0}) == {
            "floordiv": -1, "floormod": 1, "truncdiv": 0, "truncmod": -7}[op]  # fmt: skip
    message = "input: with these inputs a size is beyond 9007199254740991"
    assert by_python(n * n, {"n": 2**27}) == message
    assert by_python(n * n // n, {"n": 2**27}) == message
    assert by_python(n * n - 1, {"n": 94906265}) == 94906265**2 - 1
