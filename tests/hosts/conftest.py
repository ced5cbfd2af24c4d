"""The site that every host reads, the hosts themselves, and the file that their results go into."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tests.hosts.hosts import HERE, HOSTS, RunningHost, start
from tests.hosts.packages import DIGITS, PACKAGES, Package
from tests.hosts.table import RESULTS, Results, machine

# The icon is a file: a browser asks for one, and a policy may forbid one in the page itself.
PAGE = '<!doctype html><meta charset="utf-8"><link rel="icon" href="icon.svg"><title>webmlc</title>'


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker runs the tests in hosts: each host starts once, and one file holds the results of
    all. Others share what their file builds.
    """
    for item in items:
        if HERE in item.path.parents:
            fixtures = getattr(item, "fixturenames", ())
            group = "hosts" if "site" in fixtures else item.path.name
            item.add_marker(pytest.mark.xdist_group(group))


@dataclass(frozen=True, slots=True)
class Site:
    """A folder with page.js, a blank page and the packages, each in a folder of its name."""

    folder: Path
    packages: Mapping[str, Package]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("site")
    (folder / "index.html").write_text(PAGE)
    shutil.copy(DIGITS / "icon.svg", folder)
    shutil.copy(HERE / "page.js", folder)
    return Site(folder, {name: build(folder) for name, build in PACKAGES.items()})


@pytest.fixture(scope="session")
def host(request: pytest.FixtureRequest, site: Site) -> Iterator[RunningHost]:
    """The host that a test's parameter names; it serves all tests with that parameter."""
    with start(HOSTS[request.param], site.folder) as running:
        yield running


@pytest.fixture(scope="session")
def results() -> Iterator[Results]:
    """What hosts chose and how long runs took; written at the end, for `tests.hosts.table`."""
    collected = Results(machine(), [])
    yield collected
    RESULTS.write_text(json.dumps(asdict(collected), indent=1) + "\n")
