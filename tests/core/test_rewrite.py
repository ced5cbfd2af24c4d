"""Results of expressions that are cached."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from webmlc.core import rewrite
from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import bottom_up


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("frequent_switches")
def test_threads_empty_the_cache_while_others_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "CACHED", 1)

    @bottom_up()
    def size(root: Expr) -> int:
        return 1 + sum(map(size, root.children))

    sums = [Var(f"v{i}") * 2 + 3 for i in range(40)]
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(size, sums * 400))
    assert counts == [5] * len(counts)
