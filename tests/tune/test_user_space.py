"""Spaces of schedule functions, described by plain data."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from webmlc import tir
from webmlc.core.errors import UserError
from webmlc.schedule.rules.space import plain
from webmlc.tune.user_space import arguments_of, read_space

UNION: dict[str, Any] = {
    "rows": [1, 2],
    "packing": [
        None,
        {"type": "panel", "columns": [8, 16]},
        {"type": "whole", "is_vector": [False, True], "columns": [4]},
    ],
}
"""A space with a union of two mappings and None."""


def members(space: Any) -> list[dict[str, Any]]:
    """The arguments of every member."""
    return [arguments_of(member) for member in read_space(space).members()]


def test_members_are_the_combinations_of_the_values() -> None:
    assert members({"rows": [1, 2], "is_packed": (False, True)}) == [
        {"rows": 1, "is_packed": False},
        {"rows": 1, "is_packed": True},
        {"rows": 2, "is_packed": False},
        {"rows": 2, "is_packed": True},
    ]
    assert members({"n": range(3)}) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert members({"n": [1, True, 1, "one", None]}) == [{"n": n} for n in (1, True, "one", None)]


def test_mappings_in_a_list_are_alternatives() -> None:
    assert [m["packing"] for m in members(UNION)] == 2 * [
        None,
        {"type": "panel", "columns": 8},
        {"type": "panel", "columns": 16},
        {"type": "whole", "is_vector": False, "columns": 4},
        {"type": "whole", "is_vector": True, "columns": 4},
    ]
    assert members({"packing": [None, {"columns": [8]}]}) == [
        {"packing": None},
        {"packing": {"type": "packing", "columns": 8}},
    ]


def test_a_mapping_alone_is_a_group_of_parameters() -> None:
    assert members({"tile": {"rows": [1], "columns": [4, 8]}}) == [
        {"tile": {"rows": 1, "columns": 4}},
        {"tile": {"rows": 1, "columns": 8}},
    ]


def test_tuples_are_members_only_as_a_whole() -> None:
    tiles = tir.perfect_tiles(24, 3, max_innermost_factor=4)
    space = {"tile": tiles}
    assert [m["tile"] for m in members(space)] == tiles
    drawn = {arguments_of(read_space(space).random(Random(seed)))["tile"] for seed in range(300)}
    assert drawn == set(tiles)


@pytest.mark.parametrize("values", [UNION, {"tile": tir.perfect_tiles(12, 3), "n": [1, 2]}])
def test_a_database_holds_every_member(values: dict[str, Any]) -> None:
    space = read_space(values)
    for member in space.members():
        assert space.read(plain(member)) == member
        assert space.read(arguments_of(member)) == member


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, "a space is a mapping"),
        ([1, 2], "a space is a mapping"),
        ({"rows": 4}, "the candidate values of 'rows' are 4, which is no list"),
        ({"rows": "48"}, "'rows' are '48', which is no list"),
        ({"rows": []}, "'rows' are \\[\\], which is no list"),
        ({"two words": [1]}, "'two words' is not the name of a parameter"),
        ({"type": [1]}, "'type' is not the name of a parameter"),
        ({"rate": [0.5]}, "0.5 is no candidate of 'rate'"),
        ({"tile": [(1, 2), (1, 2, 3)]}, "'tile' are not all tuples of equal length"),
        ({"tile": [(1, 2), 3]}, "'tile' are not all tuples of equal length"),
        ({"tile": [(1, 0.5)]}, "0.5 is no candidate of 'tile'"),
        ({"a": [1, {"n": [1]}]}, "the others can only be None"),
        ({"a": [{"n": [1]}, {"m": [1]}]}, "the mappings of 'a' need different names"),
        ({"a": [None, {"type": "b", "n": [[]]}]}, "no candidate of 'a.b.n'"),
    ],
)
def test_what_describes_no_space_is_refused(space: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_space(space)
