"""Strategies on made-up spaces with known times: what holds for every space, whatever they find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct, defstruct
from numpy.typing import NDArray

from tests.tune.made_up_space import CONTROL_MS, PLATFORM, MadeUp, made_up_task
from webmlc.schedule.rules.space import Product, Space, changes
from webmlc.tune.measure.rounds import measure
from webmlc.tune.measure.trial import Protocol, Trial
from webmlc.tune.measure.workers import work
from webmlc.tune.search import population
from webmlc.tune.search.cost_model import OnlineCostModel
from webmlc.tune.search.model_search import ModelSearch
from webmlc.tune.search.search import Search
from webmlc.tune.search.strategies import STRATEGIES
from webmlc.tune.search.task_search import BATCH, WORTHWHILE, Options, TaskSearch

QUICK = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
"""A search of forty members trains models: it takes a tenth of a second."""
DEFAULT = "the default"
"""The code of the default member."""


@st.composite
def spaces(draw: st.DrawFn) -> Product[Any]:
    """Spaces of 2 to some hundred members, some of which a constraint rules out, or another record
    replaces.
    """
    space = numbers(*draw(st.lists(st.integers(2, 5), min_size=1, max_size=4)))
    if len(space.parts) > 1 and draw(st.booleans()):
        space = space.where("both are small", lambda p0, p1: p0 + p1 <= 4)
    if draw(st.booleans()):
        tiles = Space.of(Tile, rows=range(draw(st.integers(1, 3))))
        space = Space.of(Either, numbers=space, tile=Space.either(None, tiles))
    return space


class Tile(Struct, frozen=True, tag="tile"):
    """A part that a member may have."""

    rows: int


class Either(Struct, frozen=True):
    """Parameters with such a part."""

    numbers: Any
    tile: Tile | None


def numbers(*lengths: int) -> Product[Any]:
    """A space of numbers below some lengths."""
    names = [f"p{number}" for number in range(len(lengths))]
    record = defstruct("Numbers", [(name, int) for name in names], frozen=True)
    return Space.of(record, **dict(zip(names, map(range, lengths), strict=True)))


@dataclass(frozen=True, slots=True)
class Problem:
    """A space whose members have random times. Some are the same code, some do not build, and some
    do not run.
    """

    space: Product[Any]
    seed: int
    classes: int
    measurements: int

    @property
    def default(self) -> Any:
        """The member that nobody searched for."""
        return Random(self.seed).choice(list(self.space.members()))

    def number(self, member: Any) -> int:
        """The class of members that are the same code."""
        return Random(f"{self.seed} {member}").randrange(self.classes)

    def text(self, member: Any) -> str | None:
        """The code of a member."""
        if member == self.default:
            return DEFAULT
        return None if self.number(member) == 1 else f"code {self.number(member)}"

    def milliseconds(self, member: Any) -> float | None:
        """The time of a member."""
        if member == self.default:
            return CONTROL_MS
        number = self.number(member)
        return None if number == 2 else Random(f"{self.seed} {number}").uniform(0.5, 2.0)

    def search(self, strategy: str) -> tuple[TaskSearch, MadeUp]:
        """A search that is over, and what measured for it."""
        options = Options(strategy, 3600, measurements=self.measurements, seed=self.seed)
        made_up = MadeUp(self.milliseconds, self.text)
        search = Search([made_up_task(self.space, self.default)], options, builder=made_up)
        work(search, made_up)
        assert search.is_done
        (searched,) = search.all_searches()
        return searched, made_up


PROBLEMS = st.builds(
    Problem, spaces(), st.integers(0, 1000), st.integers(1, 60), st.integers(1, 40)
)


@pytest.mark.parametrize("strategy", ["race", "evolve", "tpe", "model", "random"])
def test_what_holds_for_every_space(strategy: str) -> None:
    @QUICK
    @given(PROBLEMS)
    def check(problem: Problem) -> None:
        searched, made_up = problem.search(strategy)
        assert searched.confirmed is not None
        member, ratio = searched.confirmed
        assert all(count == 1 for count in made_up.measured.values()), "code is measured once"
        assert DEFAULT not in made_up.measured
        assert made_up.measured.total() == searched.measured <= problem.measurements
        assert searched.curve == sorted(searched.curve, reverse=True)
        own = made_up.ms_of(member)
        assert own is not None and own / CONTROL_MS == ratio <= 1.0
        assert ratio == 1.0 or ratio < WORTHWHILE
        finite = [r for r in searched.ratios.values() if r is not None]
        assert ratio == min(finite) or min(finite) >= WORTHWHILE

    check()


@QUICK
@given(PROBLEMS)
def test_a_race_measures_all_code_within_its_budget(problem: Problem) -> None:
    searched, _ = problem.search("race")
    codes = {problem.text(member) for member in problem.space.members()} - {None, DEFAULT}
    assert searched.measured == min(len(codes), problem.measurements)


class FixedRunner:
    """Candidates whose samples take fixed times (`engines.rounds.Runner`)."""

    def __init__(self, milliseconds: list[float], overhead_ms: float = 0.0) -> None:
        self.milliseconds, self.overhead_ms = milliseconds, overhead_ms

    def outputs(self, candidate: int) -> list[bytes]:
        return []

    def sample(self, candidate: int, repeats: int) -> float:
        return self.overhead_ms + repeats * self.milliseconds[candidate]

    def overhead(self) -> float:
        return self.overhead_ms


@given(
    st.lists(st.floats(0.01, 100.0), min_size=2, max_size=12),
    st.integers(1, 12),
    st.floats(1.0, 3.0),
)
def test_two_candidates_survive_every_elimination(
    milliseconds: list[float], rounds: int, hopeless: float
) -> None:
    protocol = Protocol(rounds=rounds, limit_ms=1e9, warmup_ms=0.0, hopeless=hopeless)
    trial = Trial("wasm", (), ((),), 0, 1, len(milliseconds), protocol=protocol)
    counts = [len(row) for row in measure(trial, FixedRunner(milliseconds)).milliseconds]
    assert counts[0] == rounds, "the control takes part in every round"
    assert counts[milliseconds.index(min(milliseconds))] == rounds, "and so does the fastest"
    assert sum(count == rounds for count in counts) >= 2
    assert all(count >= 1 for count in counts)


@given(st.floats(0.01, 100.0), st.floats(0.0, 10.0))
def test_what_a_sample_costs_hides_little_of_a_kernels_time(
    milliseconds: float, overhead_ms: float
) -> None:
    trial = Trial("webgpu", (), ((),), 0, 1, 2)
    runner = FixedRunner([milliseconds, 0.5 * milliseconds], overhead_ms)
    (control, *_), (faster, *_) = measure(trial, runner).milliseconds
    assert milliseconds <= control < 1.2 * milliseconds
    assert faster < 0.6 * control


@given(st.floats(0.1, 1000.0), st.integers(1, 12), st.floats(0.0, 3000.0))
def test_no_round_begins_after_the_limit_but_the_fewest(
    milliseconds: float, fewest: int, limit_ms: float
) -> None:
    protocol = Protocol(fewest=fewest, limit_ms=limit_ms, sample_ms=0.0, warmup_ms=0.0)
    trial = Trial("wasm", (), ((),), 0, 1, 2, protocol=protocol)
    measurement = measure(trial, FixedRunner([milliseconds] * 2))
    expected, spent = 0, 0.0
    while expected < min(fewest, protocol.rounds) or (
        spent < limit_ms and expected < protocol.rounds
    ):
        expected, spent = expected + 1, spent + milliseconds + milliseconds
    assert [len(row) for row in measurement.milliseconds] == [expected] * 2


def test_measurements_of_one_kernel_rank_the_candidates_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(population, "STRANGERS", 0.0)
    model = OnlineCostModel()
    for number in range(40):
        model.learn(np.array([number], np.float32), 2.0**number)
    space = numbers(40)
    built: list[int] = []

    def features(members: Sequence[Any]) -> list[NDArray[np.float32] | None]:
        built.extend(member.p0 for member in members)
        return [np.array([member.p0], np.float32) for member in members]

    strategy = ModelSearch(space, 0, features, model)
    strategy.tell(space.at({"p0": 39}), 1.0)
    asked = [member.p0 for member in strategy.ask(BATCH)]
    assert len(asked) == BATCH
    assert len(built) == 2 * BATCH
    assert sorted(built)[:4] == sorted(asked)[:4]


@pytest.mark.parametrize("strategy", ["evolve", "model"])
@pytest.mark.parametrize("strangers", [0.0, 1.0])
def test_the_first_candidates_are_near_the_default_or_random(
    monkeypatch: pytest.MonkeyPatch, strategy: str, strangers: float
) -> None:
    monkeypatch.setattr(population, "STRANGERS", strangers)
    space = numbers(*[8] * 10)
    default = next(space.members())
    options = Options(strategy, 3600)
    search = Search([made_up_task(space, default)], options, builder=MadeUp(lambda m: 1.0, repr))
    (searched,) = search.join(PLATFORM)
    distances = [len(changes(default, c.member)) for c in searched.propose()]
    assert len(distances) == BATCH
    assert all((distance > 2) == bool(strangers) for distance in distances)


def test_searches_of_few_measurements_learn_often() -> None:
    space = numbers(*[8] * 5)
    default = next(space.members())
    made_up = MadeUp(lambda member: 1.0 + sum(changes(default, member).values()), repr)  # type: ignore[arg-type]
    for measurements, batches in ((8, [8]), (64, [8, *[4] * 14]), (200, [8, *[8] * 24])):
        options = Options("evolve", 3600, measurements=measurements)
        search = Search([made_up_task(space, default)], options, builder=made_up)
        (searched,) = search.join(PLATFORM)
        sizes = []
        while searched.is_open:
            candidates = searched.propose()
            sizes.append(len(candidates))
            for built in candidates:
                searched.learn(built, 2.0)
        assert sizes == batches


@pytest.mark.parametrize("strategy", ["evolve", "model"])
def test_strategies_that_learn_come_nearer_to_the_best_than_random_search(strategy: str) -> None:
    """The time depends on three of five leaves, and the third matters near the best values of the
    first two alone.
    """
    space = numbers(8, 8, 8, 3, 2)

    def ratio(member: Any) -> float:
        distance = abs(member.p0 - 5.1) + abs(member.p1 - 2.2)
        return 1.0 + 0.3 * distance + 0.1 * (abs(member.p2 - 6.3) if distance < 4 else 7)

    reached: dict[str, list[float]] = {}
    for name in (strategy, "random"):
        reached[name] = []
        for seed in range(4):
            options = Options(name, 3600, measurements=48, seed=seed, is_guided=False)
            worst = space.at({"p0": 0, "p1": 7, "p2": 0, "p3": 0, "p4": 0})
            made_up = MadeUp(ratio, repr)
            search = Search([made_up_task(space, worst)], options, builder=made_up)
            work(search, made_up)
            (searched,) = search.all_searches()
            reached[name].append(searched.best * ratio(worst))
    assert np.mean(reached[strategy]) < 1.25 < np.mean(reached["random"]) - 0.1


@pytest.mark.parametrize("is_guided", [True, False])
def test_candidates_begin_near_a_default_only_if_it_is_a_choice(is_guided: bool) -> None:
    space = numbers(*[8] * 10)
    default = next(space.members())
    options = Options("model", 3600, is_guided=is_guided)
    made_up = MadeUp(lambda member: 1.0, repr)
    search = Search([made_up_task(space, default)], options, builder=made_up)
    (searched,) = search.join(made_up.platform)
    distances = [len(changes(default, c.member)) for c in searched.propose()]
    assert len(distances) == BATCH
    assert (sum(distance <= 3 for distance in distances) > 4) == is_guided


def test_no_time_is_not_the_end_of_a_search() -> None:
    space = numbers(5, 5)
    default, other, *_ = space.members()
    made_up = MadeUp(lambda member: 1.0, repr)
    search = Search([made_up_task(space, default)], Options("random", 3600), builder=made_up)
    (searched,) = search.join(made_up.platform)
    assert searched.propose(seconds=0.0)
    searched.propose([other], seconds=0.0)
    assert not searched.is_exhausted


@pytest.mark.parametrize("strategy", ["evolve", "tpe"])
def test_members_without_a_time_yet_are_not_the_end_of_a_search(strategy: str) -> None:
    sampler = STRATEGIES[strategy](numbers(4, 4), 0)
    asked = [member for _ in range(8) for member in sampler.ask(1)]
    assert len(asked) == len(set(asked)) == 8
