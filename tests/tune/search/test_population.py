"""Draws of members near the fastest."""

from __future__ import annotations

import pytest
from msgspec import Struct

from webmlc.schedule.rules.space import Space, changes, leaves_of
from webmlc.tune.search import population as module
from webmlc.tune.search.population import ELITE, Population


class Numbers(Struct, frozen=True):
    """Parameters."""

    a: int
    b: int
    c: int
    d: int


SPACE = Space.of(Numbers, a=range(10), b=range(10), c=range(10), d=range(10))


def test_no_member_is_drawn_twice() -> None:
    small = Space.of(Numbers, a=range(3), b=range(2), c=(0,), d=(0,))
    population = Population(small, 0)
    population.tell(Numbers(0, 0, 0, 0), 1.0)
    members = [*population.drawn(3)]
    population.asked.update(members)
    members += population.children(20)
    population.asked.update(members)
    members += population.drawn(20)
    assert len(members) == len(set(members)) == 5
    assert Numbers(0, 0, 0, 0) not in members


def test_children_are_near_the_fastest_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CROSSED", 0.0)
    population = Population(SPACE, 0)
    parents = [Numbers(n, n, n, n) for n in range(ELITE + 4)]
    for number, parent in enumerate(parents):
        population.tell(parent, 1.0 + number)
    population.tell(Numbers(9, 9, 9, 0), None)
    children = population.children(200)
    distances = [[len(changes(parent, child)) for parent in parents] for child in children]
    assert all(min(row[:ELITE]) <= 3 for row in distances)
    nearest = [row.index(min(row)) for row in distances]
    assert nearest.count(0) > 2 * nearest.count(ELITE - 1), "the fastest has the most children"


def test_a_child_of_two_has_the_leaves_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CROSSED", 1.0)
    population = Population(SPACE, 0)
    for number in range(2):
        population.tell(Numbers(*[9 * number] * 4), 1.0 + number)
    children = population.children(100)
    inherited = [[v for v in leaves_of(child).values() if v in (0, 9)] for child in children]
    assert all(len(values) >= 2 for values in inherited)
    assert sum({0, 9} <= set(values) for values in inherited) > len(children) / 2


def test_one_member_of_the_same_code_has_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CROSSED", 0.0)
    population = Population(SPACE, 0)
    for number in range(ELITE):
        population.tell(Numbers(9, 9, 9, number), 1.0)
    population.tell(Numbers(0, 0, 0, 0), 2.0)
    children = population.children(60)
    assert sum(changes(Numbers(0, 0, 0, 0), c).keys() < {"a", "b", "c", "d"} for c in children) > 10


def test_nothing_is_near_nothing() -> None:
    population = Population(SPACE, 0)
    assert population.children(8) == []
    population.tell(Numbers(0, 0, 0, 0), None)
    assert population.children(8) == []
    never = SPACE.where("never", lambda a: a > 10)
    assert Population(never, 0).drawn(8) == []
