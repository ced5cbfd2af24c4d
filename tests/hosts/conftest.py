"""The site that every host reads, the hosts themselves, and the file that their results go into."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from demos.digits.build import HERE as DIGITS
from tests.hosts.hosts import HERE, HOSTS, RunningHost, start
from tests.hosts.packages import PACKAGES, Package
from tests.hosts.table import RESULTS, Results, machine

# The icon is a file: a browser asks for one, and a policy may forbid one in the page itself.
PAGE = '<!doctype html><meta charset="utf-8"><link rel="icon" href="icon.svg"><title>webmlc</title>'


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """One worker runs the tests in hosts, host by host: each host starts once, and one file holds
    the results of all. The other tests are in no group. They run last, on whichever worker has
    time.
    """
    for item in items:
        if HERE in item.path.parents and "site" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("hosts"))
    yield
    items.sort(key=_host_number)  # pytest sorts by the positions of parameters, which differ


def _host_number(item: pytest.Item) -> int:
    """The position of a test's host in `HOSTS`. Other tests come last."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    is_in_host = "host" in params and "site" in getattr(item, "fixturenames", ())
    return list(HOSTS).index(params["host"]) if is_in_host else len(HOSTS)


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
    """The choices of hosts and the times of runs, written at the end for `tests.hosts.table`."""
    collected = Results(machine(), [])
    yield collected
    RESULTS.write_text(json.dumps(asdict(collected), indent=1) + "\n")
