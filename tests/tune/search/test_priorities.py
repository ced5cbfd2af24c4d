"""Where a search spends its time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tune.made_up_space import SPACE, MadeUp, Tiles, made_up_task
from webmlc.tune.measure.workers import work
from webmlc.tune.search.priorities import Priorities, hints
from webmlc.tune.search.search import Search, TaskJob
from webmlc.tune.search.task_search import HINTS, Options, TaskSearch
from webmlc.tune.tasks import Task

DEFAULT = Tiles()
FAST = Tiles(rows=5, is_packed=True)


def milliseconds(member: Tiles) -> float:
    """Only one member is faster than the default."""
    return 0.5 if member == FAST else 1.0 if member == DEFAULT else 1.5


def tasks() -> list[Task]:
    """Two kernels of one rule, the first of which takes most of the model's time."""
    task = made_up_task(SPACE, DEFAULT)
    return [replace(task, key="first", calls=100), replace(task, key="second", calls=1)]


def searched(worker: MadeUp) -> tuple[Search, list[TaskSearch]]:
    """A search whose first kernel found the member that is faster."""
    search = Search(tasks(), Options("random", 3600), builder=worker)
    first, second = search.join(worker.platform)
    (fast,) = first.build([FAST])
    assert fast is not None
    first.control_ms = second.control_ms = 1.0
    first.passes = second.passes = 1
    first.learn(fast, 0.5)
    return search, [first, second]


def test_what_made_one_kernel_faster_is_tried_first_on_others() -> None:
    worker = MadeUp(milliseconds, repr)
    search, (first, second) = searched(worker)
    assert list(hints(second, [first, second])) == [FAST]
    assert list(hints(first, [first, second])) == []
    first.is_exhausted = True
    job = search.next_job(worker.platform)
    assert isinstance(job, TaskJob)
    assert job.search is second
    assert job.candidates[1].member == FAST
    search.finish(job, worker.measure(job.trial, 1))
    assert second.best == 0.5
    assert FAST not in [built.member for built in second.propose([FAST])]


def test_a_hint_of_two_kernels_is_tried_once() -> None:
    worker = MadeUp(milliseconds, repr)
    _, (_, second) = searched(worker)
    proposed = [built.member for built in second.propose([FAST, FAST])]
    assert proposed.count(FAST) == 1


def test_half_of_a_trial_is_the_strategys() -> None:
    worker = MadeUp(milliseconds, repr)
    _, (_, second) = searched(worker)
    members = [member for member in SPACE.members() if member != DEFAULT]
    proposed = [built.member for built in second.propose(members)]
    assert proposed[:HINTS] == members[:HINTS]
    assert len(proposed) == 2 * HINTS
    assert proposed[HINTS:] != members[HINTS : 2 * HINTS]


@pytest.mark.parametrize(("slowness", "expected"), [(1.0, "first"), (50.0, "second")])
def test_kernels_at_the_limit_wait_for_those_below_it(slowness: float, expected: str) -> None:
    """Both do the same work. The second takes a hundredth of the time that the first takes in a
    run; or it takes half, and is 50 times as far from the limit.
    """
    worker = MadeUp(milliseconds, repr)
    search = Search(tasks(), Options("random", 3600), builder=worker)
    first, second = search.join(worker.platform)
    first.control_ms, second.control_ms = 1.0, slowness
    assert Priorities().first([first, second], [first, second]).task.key == expected


def test_a_search_with_priorities_confirms_what_it_finds() -> None:
    worker = MadeUp(milliseconds, repr)
    search = Search(tasks(), Options("race", 3600, measurements=200), builder=worker)
    work(search, worker)
    assert [s.confirmed and s.confirmed[0] for s in search.all_searches()] == [FAST, FAST]
