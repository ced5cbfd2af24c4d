"""The members that a search has measured, and draws of members to measure next.

    population = Population(space, seed=0)
    population.tell(member, 0.8)                 # the time relative to the default
    population.drawn(8)                          # random members
    population.children(8)                       # members near the fastest

A child is a fast member with some leaves changed (`Space.near`), or it takes each leaf from one of
two fast members. Faster members have more children.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

from webmlc.schedule.rules.space import Space, leaves_of

FIRST_MEMBERS = 8
"""The members that are measured before a strategy learns from them: those of a trial."""
ELITE = 6
"""The fastest members that have children."""
CROSSED = 0.25
"""The share of children that have two parents. Shares of 0.5 and 0.25 come equally near to a
schedule by hand (see `MUTATIONS`)."""
MUTATIONS = (1, 1, 1, 2)
"""The numbers of leaves that a mutation changes, all equally likely. Of 300 searches of 64
measurements by `evolve`, 81 % came within 5 % of a schedule by hand, and 79 % with (1, 1, 2, 3):
the measured times of all members of the space of `benchmarks/program_search.py`, 2026-11-30."""
STRANGERS = 0.1
"""The share of random members in what a strategy asks for (chosen by hand): no local optimum, and
no mistake of a model, lasts."""
SPARE_DRAWS = 64
"""The draws beyond the number of members, at most: a space that is almost searched has few new
members (chosen by hand)."""


class Population:
    """Measured members of a space. No member is drawn twice: `asked` holds all members that a
    strategy has asked for.
    """

    def __init__(self, space: Space[Any], seed: int) -> None:
        self.space, self.generator = space, Random(seed)
        self.told: dict[Any, float] = {}
        self.asked: set[Any] = set()

    def tell(self, member: Any, ratio: float | None) -> None:
        """Note the time of a member relative to the default's; `None`: it is disqualified."""
        self.asked.add(member)
        self.told[member] = math.inf if ratio is None else ratio

    @property
    def times(self) -> dict[Any, float]:
        """The relative times of the members that run."""
        return {member: ratio for member, ratio in self.told.items() if math.isfinite(ratio)}

    def strangers(self, count: int) -> list[Any]:
        """The random members among the next `count` members."""
        return self.drawn(sum(self.generator.random() < STRANGERS for _ in range(count)))

    def drawn(self, count: int) -> list[Any]:
        """At most `count` random members, which were not asked for."""
        try:
            return self._unasked(count, lambda: self.space.random(self.generator))
        except ValueError:  # the constraints leave next to none
            return []

    def children(self, count: int) -> list[Any]:
        """At most `count` members near the fastest members, which were not asked for. Members of
        the same time are the same code, and one of them has children.
        """
        by_time = {ratio: member for member, ratio in self.times.items()}
        elite = [by_time[ratio] for ratio in sorted(by_time)[:ELITE]]
        weights = [1 / rank for rank in range(1, len(elite) + 1)]

        def child() -> Any:
            (parent,) = self.generator.choices(elite, weights)
            is_crossed = self.generator.random() < CROSSED
            try:
                if is_crossed:
                    (other,) = self.generator.choices(elite, weights)
                    parent = self._cross(parent, other)
                for _ in range(self.generator.choice(MUTATIONS) - is_crossed):
                    parent = self.space.near(parent, self.generator)
            except ValueError:  # a constraint is hard to meet here: draw again
                pass
            return parent

        return self._unasked(count, child) if elite else []

    def _cross(self, one: Any, other: Any) -> Any:
        """A member that takes each leaf from one of two members. Raises `ValueError` if constraints
        leave next to none.
        """
        leaves = [leaves_of(one), leaves_of(other)]
        paths = {**leaves[0], **leaves[1]}
        chosen = {
            path: self.generator.choice([each[path] for each in leaves if path in each])
            for path in paths
        }
        return self.space.mended(self.space.at(chosen), self.generator)

    def _unasked(self, count: int, draw: Callable[[], Any]) -> list[Any]:
        """At most `count` different members that were not asked for."""
        members: dict[Any, None] = {}
        for _ in range(count + SPARE_DRAWS):
            if len(members) == count:
                break
            if (member := draw()) not in self.asked:
                members[member] = None
        return list(members)
