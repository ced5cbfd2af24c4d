"""One bench for all tests of this folder, whose processes import the compiler only once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.sizes.check import Bench


@pytest.fixture(scope="session")
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()
