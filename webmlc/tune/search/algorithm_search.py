"""Search the algorithms that the passes of a target can choose for a model's layers: Winograd's
forms, Strassen's algorithm or neither; a padding in the kernel before or apart; the parts of a
reduction.

    variants = plan(graph, seconds=60)                  # the kernels to measure
    search = Search(variants.tasks, ..., compare=variants.contests)
    variants.answers(search)                            # {layer: (algorithm, relative time)}

A layer's algorithm decides which kernels its model has. For each alternative of a layer, the model
is lowered with only this choice changed. The kernels in which the two models differ are compared,
with their default schedules. The most expensive layers come first. Times of kernels that were
measured apart are no proof. One trial therefore compares the kernels of a layer's fastest algorithm
with the kernels of its default (`comparison.LayerComparison`).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from webmlc.core.machine import DEVICES
from webmlc.tune.measure.make_trials import Scheduled
from webmlc.tune.search.comparison import LayerComparison
from webmlc.tune.search.priorities import expected_cost
from webmlc.tune.search.search import Search
from webmlc.tune.search.task_search import TaskSearch
from webmlc.tune.tasks import Graph, Identity, Task

WORTHWHILE = 0.95
"""The share of a layer's time below which another algorithm replaces the default. Kernels of two
algorithms are not measured in the same rounds, so noise counts more than between schedules."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A model in which one layer has another algorithm: how often each kernel is called."""

    layer: str
    algorithm: str
    calls: Mapping[Identity, int]


@dataclass(frozen=True, slots=True)
class Variants:
    """The variants of a model, and the kernels in which they differ from the default. `default` are
    the calls of the model with its default algorithms, which `algorithms` names by layer.
    """

    default: Mapping[Identity, int]
    algorithms: Mapping[str, str]
    variants: tuple[Variant, ...]
    tasks: tuple[Task, ...]

    def choose(self, searches: Iterable[TaskSearch]) -> dict[str, tuple[str, float]]:
        """The fastest algorithm of each layer whose default is not the fastest, with the time of
        its kernels relative to the default's kernels.
        """
        times = {search.task.identity: search.least_ms for search in searches}
        chosen: dict[str, tuple[str, float]] = {}
        for variant in self.variants:
            ratio = self._ratio(variant, times)
            if ratio < min(WORTHWHILE, chosen.get(variant.layer, ("", 1.0))[1]):
                chosen[variant.layer] = (variant.algorithm, ratio)
        return chosen

    def answers(self, search: Search) -> dict[str, tuple[str, float]]:
        """The best algorithm of each layer whose variants a search has compared, with its time
        relative to the default's time: 1 if the default is the best.
        """
        searches = search.all_searches()
        unmeasured = {s.task.identity for s in searches if s.passes < s.options.passes}
        unmeasured |= {t.identity for t in self.tasks} - {s.task.identity for s in searches}
        unknown = {v.layer for v in self.variants if unmeasured & self._differing(v)}
        compared = {
            contest.layer: contest
            for contests in search.comparisons.values()
            for contest in contests
            if isinstance(contest, LayerComparison) and not math.isnan(contest.ratio)
        }
        unknown |= self.choose(searches).keys() - compared.keys()
        answers = {k: (name, 1.0) for k, name in self.algorithms.items() if k not in unknown}
        for layer in answers.keys() & compared.keys():
            if compared[layer].ratio < 1:
                answers[layer] = (compared[layer].algorithm, compared[layer].ratio)
        return answers

    def contests(self, searches: Sequence[TaskSearch]) -> list[LayerComparison]:
        """The trials that compare the chosen algorithms with the defaults. On a GPU, whose trials
        hold one kernel only, the shortest times of the kernels decide.
        """
        by_identity = {search.task.identity: search for search in searches}
        contests = []
        for layer, (algorithm, ratio) in self.choose(searches).items():
            variant = next(v for v in self.variants if (v.layer, v.algorithm) == (layer, algorithm))
            differences = _differences(self.default, variant.calls)
            sets = [_scheduled(calls, by_identity) for calls in differences]
            ms = sum(task.calls * by_identity[task.identity].control_ms for task, _ in sets[0])
            contest = LayerComparison(layer, algorithm, sets, ms, WORTHWHILE)
            if not all(DEVICES[task.device].runs_steps for kernels in sets for task, _ in kernels):
                contest.is_over, contest.ratio = True, ratio
            contests.append(contest)
        return contests

    def _differing(self, variant: Variant) -> set[Identity]:
        """The kernels that the default has and a variant lacks, and the reverse."""
        before, after = _differences(self.default, variant.calls)
        return before.keys() | after.keys()

    def _ratio(self, variant: Variant, times: Mapping[Identity, float]) -> float:
        """The time of the kernels that a variant adds, relative to the time of the kernels that it
        removes; infinite if a removed or added kernel was not measured.
        """
        removed, added = (
            sum(count * times.get(kernel, math.inf) for kernel, count in calls.items())
            for calls in _differences(self.default, variant.calls)
        )
        return added / removed if 0 < removed < math.inf else math.inf


def _differences(
    default: Mapping[Identity, int], variant: Mapping[Identity, int]
) -> tuple[Counter[Identity], Counter[Identity]]:
    """The calls of the default that a variant removes, and the calls that the variant adds."""
    before, after = Counter(default), Counter(variant)
    return before - after, after - before


def _scheduled(
    calls: Mapping[Identity, int], searches: Mapping[Identity, TaskSearch]
) -> list[Scheduled]:
    """Kernels that are called so often, with their default schedules."""
    pairs = [(searches[identity], count) for identity, count in calls.items()]
    return [(replace(search.task, calls=count), search.control) for search, count in pairs]


def plan(graph: Graph, seconds: float) -> Variants:
    """The variants of a model that can be lowered in some seconds."""
    deadline = time.monotonic() + seconds
    tasks = {task.identity: task for task in graph.tasks()}
    default = _calls(tasks.values())
    variants: list[Variant] = []
    algorithms: dict[str, str] = {}
    for layer, (default_algorithm, *others) in graph.alternatives().items():
        lowered: dict[str, list[Task]] = {}
        for algorithm in others:
            if time.monotonic() > deadline:
                break
            lowered[algorithm] = graph.tasks({layer: algorithm})
        if len(lowered) < len(others):
            break  # a layer is searched with all of its variants, or not at all
        algorithms[layer] = default_algorithm
        for algorithm, kernels in lowered.items():
            variants.append(Variant(layer, algorithm, _calls(kernels)))
            tasks |= {task.identity: task for task in kernels}
    differences = [_differences(default, variant.calls) for variant in variants]
    costs = [sum(expected_cost(tasks[kernel]) for kernel in before) for before, _ in differences]
    by_cost = sorted(range(len(variants)), key=lambda number: -costs[number])
    ordered = [kernel for number in by_cost for calls in differences[number] for kernel in calls]
    measured = tuple(tasks[kernel] for kernel in dict.fromkeys(ordered))
    return Variants(default, algorithms, tuple(variants), measured)


def _calls(tasks: Iterable[Task]) -> Counter[Identity]:
    calls: Counter[Identity] = Counter()
    for task in tasks:
        calls[task.identity] += task.calls
    return calls
