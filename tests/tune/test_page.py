"""Trials measured by a JavaScript engine that joins a search, as `webmlc tune` starts it.

`tests/hosts/test_tune.py` does the same in browsers.
"""

from __future__ import annotations

from tests.tune.page_trials import check_engine


def test_node_measures_on_the_cpu() -> None:
    check_engine("node")
