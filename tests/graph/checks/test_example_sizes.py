"""Sizes for dimensions for which a user names none."""

from __future__ import annotations

import pytest

from webmlc.core.errors import InputError
from webmlc.core.expr import Const, Var, const
from webmlc.core.sizes import Rule
from webmlc.graph.checks.example_sizes import example_sizes
from webmlc.graph.ir import Requirement

BATCH, HEIGHT, WIDTH = map(Var, ("batch", "height", "width"))
NAMES = ("batch", "height", "width")


def test_sizes_are_1_unless_something_forbids_it() -> None:
    assert example_sizes([], [(BATCH, HEIGHT)], NAMES, {}) == dict.fromkeys(NAMES, 1)


@pytest.mark.parametrize(
    ("rule", "left", "right", "height"),
    [
        ("at most", const(3), HEIGHT, 4),
        ("equal", HEIGHT // 4 * 4, HEIGHT, 4),
        ("unequal", HEIGHT, const(1), 2),
        ("broadcast", HEIGHT, const(16), 1),
        ("stretch", const(16), HEIGHT, 16),
    ],
)
def test_only_what_a_requirement_names_grows(
    rule: Rule, left: Const | Var, right: Const | Var, height: int
) -> None:
    sizes = example_sizes([Requirement(rule, left, right, "n")], [], NAMES, {"batch": 3})
    assert sizes == {"batch": 3, "height": height, "width": 1}


def test_no_result_is_empty() -> None:
    shape = (BATCH, HEIGHT // 8, const(0))  # what is always empty asks for nothing
    assert example_sizes([], [shape], NAMES, {})["height"] == 8


def test_sizes_that_depend_on_each_other_fulfil_the_requirement_together() -> None:
    requirements = [
        Requirement("equal", HEIGHT, WIDTH, "a"),
        Requirement("at most", const(5), HEIGHT, "b"),
    ]
    assert example_sizes(requirements, [], NAMES, {}) == {"batch": 1, "height": 8, "width": 8}


def test_without_a_solution_a_run_says_what_is_wrong() -> None:
    impossible = Requirement("equal", HEIGHT + 1, HEIGHT, "n")
    assert example_sizes([impossible], [], NAMES, {}) == dict.fromkeys(NAMES, 1)


def test_a_size_of_no_dimension_is_an_error() -> None:
    with pytest.raises(InputError, match="no dimension is named 'depth'"):
        example_sizes([], [], NAMES, {"depth": 3})
