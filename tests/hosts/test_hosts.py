"""Three packages in every host, with and without headers: the same results as onnxruntime's."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.hosts.conftest import Site
from tests.hosts.hosts import HERE, HOSTS, ISOLATION, POLICY, Host, RunningHost, start
from tests.hosts.packages import PACKAGES, Package
from tests.hosts.table import Load, Results
from webmlc.host.serve import Server, serve

HEADERS: Mapping[str, Mapping[str, str] | None] = {
    "isolated": ISOLATION,
    "plain": {},
    "policy": ISOLATION | POLICY,
    "none": None,
}
"""The headers of a page, by name; `none` where there is no page."""

IS_ALONE = "PYTEST_XDIST_WORKER" not in os.environ
"""Whether no other tests run beside these. The tables of hosts are written after such a run."""
MEASURED_MILLISECONDS = 300 if IS_ALONE else 20
"""How long runs are measured. A few runs are enough if only their results count."""
SETTINGS: tuple[dict[str, Any], ...] = (
    {"device": "auto"},
    {"device": "wasm", "threads": 1, "measured": MEASURED_MILLISECONDS},
    {"device": "wasm", "threads": 2, "measured": MEASURED_MILLISECONDS},
    {"device": "webgpu"},
)
BROWSERS = [name for name, host in HOSTS.items() if host.is_browser]
SCRIPTS = [name for name, host in HOSTS.items() if not host.is_browser]


def places() -> list[tuple[str, str]]:
    """The hosts, browsers once for each set of headers."""
    browsers = [(name, headers) for name in BROWSERS for headers in ("isolated", "plain", "policy")]
    # The option that turns shared memory on does so in pages that are not isolated, too.
    browsers.remove(("webkit_shared", "plain"))
    return [*browsers, *((name, "none") for name in SCRIPTS)]


@pytest.fixture(scope="module")
def server(site: Site) -> Iterator[Server]:
    """`webmlc serve` of the site."""
    with serve(site.folder, quiet=True) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize(("host", "headers"), places(), indirect=["host"], scope="session")
def test_a_package_computes_what_onnxruntime_does(
    host: RunningHost, headers: str, package: str, site: Site, results: Results
) -> None:
    model = site.packages[package]
    job = {"name": package, "settings": SETTINGS, "feeds": model.feeds_as_json()}
    answer = host.call("runPackage", job, headers=HEADERS[headers])
    for setting, report in zip(SETTINGS, answer["loads"], strict=True):
        check_results(model, report, setting["device"] == "webgpu" and not answer["hasAdapter"])
        load = Load.of(host, headers, package, setting, report)
        check_choice(load, answer["sharesMemory"], answer["hasAdapter"])
        results.loads.append(load)


def check_results(package: Package, report: Mapping[str, Any], lacks_adapter: bool) -> None:
    """Cold runs and warm runs equal onnxruntime's; without an adapter, a typed error says so."""
    if lacks_adapter:
        assert report["code"] == "adapter", report
        return
    assert "error" not in report, report["error"]
    package.check(report["cold"])
    package.check(report["warm"])


def check_choice(load: Load, shares_memory: bool, has_adapter: bool) -> None:
    """The runtime's choices are those that the host allows, and it says why."""
    if load.error:
        return
    assert load.threads_reason
    assert load.device_reason
    if load.wanted_threads:
        assert (load.device, load.device_reason) == ("wasm", "requested")
        assert load.variant in ("dot", "pairs", "relaxed", "simd128")
        assert load.threads == (load.wanted_threads if shares_memory else 1)
    if load.threads == load.wanted_threads:
        assert load.threads_reason == "requested"
    elif not shares_memory:
        lacks = "cross-origin isolated" if load.headers == "plain" else "SharedArrayBuffer"
        assert lacks in load.threads_reason
    if not has_adapter:
        assert load.device == "wasm"
        assert "GPU" in load.device_reason or load.wanted_device == "wasm"


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("host", BROWSERS, indirect=True)
def test_the_page_of_a_package_runs(host: RunningHost, package: str, server: Server) -> None:
    """As `webmlc serve` sends it, under the policy that the page itself states."""
    shown = host.call("usePackagePage", page=f"{server.url}{package}/?threads=2", headers=None)
    assert "Threads" in shown["facts"]
    assert re.search(r"\w+ (float|u?int)\d+\[", shown["outputs"])


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("host", SCRIPTS, indirect=True)
def test_a_package_is_read_from_a_server(
    host: RunningHost, package: str, site: Site, server: Server
) -> None:
    """Without a page, too: runtime from files, data over HTTP."""
    model = site.packages[package]
    job = {
        "name": package,
        "url": f"{server.url}{package}/",
        "settings": [{"device": "wasm", "threads": 2}],
        "feeds": model.feeds_as_json(),
    }
    (report,) = host.call("runPackage", job, headers=None)["loads"]
    check_results(model, report, lacks_adapter=False)


@pytest.mark.parametrize("host", ["node"], indirect=True)
def test_an_error_in_a_host_is_raised(host: RunningHost) -> None:
    with pytest.raises(AssertionError, match=r"Node: runPackage: .*absent/webmlc\.js"):
        host.call("runPackage", {"name": "absent", "settings": [], "feeds": []}, headers=None)


def test_a_missing_host_says_what_to_install(site: Site) -> None:
    call = 'findExecutable("Firefox", "firefox-esr", ["/absent/firefox"])'
    script = f'import {{ findExecutable }} from "{HERE / "executables.mjs"}"; {call}'
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", script], capture_output=True, text=True
    )
    assert "Firefox: there is no /absent/firefox; install Debian's firefox-esr" in done.stderr
    absent = replace(HOSTS["chromium"], environment={"WEBMLC_CHROMIUM": "/absent/chromium"})
    with pytest.raises(RuntimeError, match=r"(?s)Chromium .*install Debian's chromium"):
        start_and_stop(absent, site)
    absent = replace(HOSTS["bun"], program=("@absent/bun-*",))
    with pytest.raises(RuntimeError, match=r"Bun: no node_modules/@absent/bun-\*; run `npm ci`"):
        start_and_stop(absent, site)


def start_and_stop(host: Host, site: Site) -> None:
    with start(host, site.folder):
        pass
