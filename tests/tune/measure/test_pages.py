"""The server of pages waits for those that work, and for those that wait for it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.tune.measure.page_trials import check_engine
from tests.tune.small_search import PLATFORM
from webmlc.tune.measure import pages
from webmlc.tune.measure.pages import Page, PageServer
from webmlc.tune.measure.platforms import Platform


class SlowSearch:
    """A search whose budget is spent, and that takes its time to find the next job."""

    is_done, is_idle, seconds_left, threads = False, True, 0.0, 1

    def __init__(self) -> None:
        self.tasks: list[Any] = []
        self.is_asked, self.may_answer = threading.Event(), threading.Event()

    def next_job(self, platform: Platform) -> None:
        """There is none, in the end."""
        self.is_asked.set()
        self.may_answer.wait()


def test_the_server_does_not_give_up_a_page_that_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(pages, "CHECK_SECONDS", 0.02)
    search: Any = SlowSearch()
    with PageServer(search, "wasm") as server:
        server.pages["page"] = Page(PLATFORM, is_ours=True)
        asking = threading.Thread(target=server.next, args=("page",))
        asking.start()
        assert search.is_asked.wait(30)
        waiting = threading.Thread(target=server.wait)
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive(), "the page waits for its next job"
        search.may_answer.set()
        waiting.join(30)
        assert not waiting.is_alive(), "no page has asked for long"
        asking.join()


def test_node_measures_on_the_cpu() -> None:
    """`tests/hosts/test_tune.py` does the same in browsers."""
    check_engine("node")
