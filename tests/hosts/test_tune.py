"""Firefox joins a search by the URL of its page, and measures trials."""

from __future__ import annotations

from tests.tune.page_trials import check_engine


def test_firefox_measures_on_the_cpu() -> None:
    check_engine("firefox")
