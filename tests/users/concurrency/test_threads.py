"""Any number of threads use a model, its sessions and its generations at once."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import webmlc
from tests.decoders import expected, rows
from tests.users.concurrency.__main__ import tally
from tests.users.concurrency.model import Case
from tests.users.concurrency.threads import at_once
from webmlc.core.errors import UserError
from webmlc.host.load import Model
from webmlc.host.session import Session

pytestmark = pytest.mark.xdist_group("concurrency")


def test_every_thread_has_its_results(load: Callable[[Path], Model], classifier: Path) -> None:
    model = load(classifier)
    runs = 60 if model.device == "wasm" else 16
    tallies = at_once([partial(tally, model, runs, seed) for seed in range(8)])
    assert sum(tallies, Counter()) == {"right": 8 * runs}


def test_threads_load_at_once(load: Callable[[Path], Model], classifier: Path) -> None:
    def begin(seed: int) -> bool:
        model = load(classifier)
        return Case(model, seed, 5).is_right(model)

    assert all(at_once([partial(begin, seed) for seed in range(4)]))


def test_every_thread_has_its_session(load: Callable[[Path], Model], decoder: Path) -> None:
    model = load(decoder)

    def converse(first: int) -> None:
        session, past = model.session(capacity=32), np.zeros((1, 0, 4), np.float32)
        for count in (first, 1, 2, 1):
            feeds = rows(count)
            y, past = expected(feeds, past)
            np.testing.assert_allclose(session.run(feeds)["y"], y, rtol=1e-4, atol=1e-5)
        session.dispose()

    for _ in range(3):
        at_once([partial(converse, first) for first in range(1, 5)])


def test_threads_append_to_one_session(load: Callable[[Path], Model], decoder: Path) -> None:
    """In some order: the states hold the rows of every run."""
    model = load(decoder)
    session = model.session(capacity=64)
    at_once([lambda: [session.run(rows(1)) for _ in range(10)] for _ in range(4)])
    assert session.length == 40
    session.truncate(0)
    feeds = rows(3)
    y, _ = expected(feeds, np.zeros((1, 0, 4), np.float32))
    np.testing.assert_allclose(session.run(feeds)["y"], y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["model", "session"])
def test_dispose_lets_a_run_end(load: Callable[[Path], Model], decoder: Path, kind: str) -> None:
    """Every run is right, or says that the model or its session has ended."""
    feeds = rows(400)
    y, _ = expected(feeds, np.zeros((1, 0, 4), np.float32))

    def run_until_error(session: Session) -> str:
        try:
            while True:
                np.testing.assert_allclose(session.run(feeds)["y"], y, rtol=1e-3, atol=1e-4)
                session.truncate(0)
        except UserError as error:
            return str(error)

    for attempt in range(4):
        model = load(decoder)
        session = model.session(capacity=400)
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(run_until_error, session)
            time.sleep(0.01 * attempt)
            (model if kind == "model" else session).dispose()
            assert f"this {kind} was disposed of" in call.result(60)


def test_tasks_share_a_model(load: Callable[[Path], Model], classifier: Path) -> None:
    model = load(classifier)
    cases = [Case(model, seed, 1 + seed % 7) for seed in range(20)]

    async def run_all() -> list[bool]:
        calls = [asyncio.to_thread(case.is_right, model) for case in cases]
        here = cases[0].is_right(model)  # in the loop, while threads run
        return [here, *await asyncio.gather(*calls)]

    assert all(asyncio.run(run_all()))


def test_a_model_that_nobody_refers_to_ends_its_threads(classifier: Path) -> None:
    def helpers() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if t.name.startswith("webmlc-")}

    before = helpers()
    model = webmlc.load(classifier, "wasm", threads=3)
    assert Case(model, 0, 4).is_right(model)
    started = helpers() - before
    assert len(started) == 2
    del model
    gc.collect()
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()


def test_the_garbage_collector_disposes_within_a_run(
    load: Callable[[Path], Model], classifier: Path
) -> None:
    """Finalisers end models, sessions and runs of other threads wherever they run."""
    model = load(classifier)
    case = Case(model, 0, 4)

    class Owner:
        """An owner of a model that the garbage collector finds in a cycle."""

        def __init__(self) -> None:
            self.model = load(classifier)
            self.cycle = self

        def __del__(self) -> None:
            self.model.dispose()

    def run() -> bool:
        for _ in range(3):
            Owner()
        return all(case.is_right(model) for _ in range(10))

    threshold = gc.get_threshold()
    gc.set_threshold(50)
    try:
        assert all(at_once([run] * 3))
    finally:
        gc.set_threshold(*threshold)
