"""Open real pages in a real Chromium.

In: folders to serve and, per page, a function to run inside it (or a Node module that drives it).
Out: a `PageReport` per page, with the result of the function as JSON.

    (tmp_path / "index.html").write_text("<!doctype html>")
    [report] = open_pages({"/": tmp_path}, Page("/", "() => crossOriginIsolated"))
    assert report.value is True

A missing Chromium or missing node_modules is an error that says what to install, never a skip.
"""

import atexit
import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Timer
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
START_SECONDS = 60
CORS = {"Access-Control-Allow-Origin": "*"}


@dataclass(frozen=True, slots=True)
class Page:
    """A page to open.

    `evaluate` runs in the page. `script`, a module file, runs in Node and drives the page.

    `path` is a path on the server, or a whole URL ("file:///...").
    `context` holds playwright's options of a browser context: viewport, colorScheme and so on.
    `timeout` is in milliseconds.
    """

    path: str
    evaluate: str = ""
    script: str = ""
    arg: Any = None
    context: Mapping[str, Any] = field(default_factory=dict)
    timeout: int = 120_000


@dataclass(frozen=True, slots=True)
class PageReport:
    """The result of a page, its console, and its requests to the server."""

    value: Any
    console: list[str]
    errors: list[str]
    requests: list[dict[str, Any]]


def open_pages(
    mounts: Mapping[str, Path],
    *pages: Page,
    isolated: bool = True,
    headers: Mapping[str, str] | None = None,
    delays: Mapping[str, float] | None = None,
    other: Mapping[str, Path] | None = None,
    other_headers: Mapping[str, str] = CORS,
) -> list[PageReport]:
    """Open the pages one after the other in one Chromium, which all tests of a process share. Each
    page has a profile of its own.

    `mounts` maps URL prefixes to folders; `isolated` sends COOP and COEP; `delays` holds the
    milliseconds before the answer for a path. `other` holds the mounts
    of a second origin, whose address is the second argument of the pages' functions. Raises
    AssertionError with what the page said when its function throws or its time is over.
    """
    if not (ROOT / "node_modules" / "playwright-core").is_dir():
        raise RuntimeError("the browser tests need node_modules: run `npm ci` (make test does)")
    job = {
        "mounts": {prefix: str(folder) for prefix, folder in mounts.items()},
        "isolated": isolated,
        "headers": dict(headers or {}),
        "delays": dict(delays or {}),
        "other": {prefix: str(folder) for prefix, folder in (other or {}).items()},
        "otherHeaders": dict(other_headers),
        "pages": [asdict(page) for page in pages],
    }
    reports = _run(job, START_SECONDS + sum(page.timeout for page in pages) / 1000)
    for page, report in zip(pages, reports, strict=True):
        if "error" in report:
            heard = "\n".join([*report["errors"], *report["console"]])
            raise AssertionError(f"page {page.path}: {report['error']}\n{heard}")
    return [PageReport(**report) for report in reports]


def _run(job: Mapping[str, Any], seconds: float) -> Any:
    """The answer of `run_pages.mjs` to a job."""
    runner = _runner()
    assert runner.stdin is not None and runner.stdout is not None
    runner.stdin.write(f"{json.dumps(job)}\n")
    runner.stdin.flush()
    watchdog = Timer(seconds, runner.kill)
    watchdog.start()
    try:
        line = runner.stdout.readline()
    finally:
        watchdog.cancel()
    if not line:
        _runner.cache_clear()
        raise RuntimeError(f"the browser did not run: exit code {runner.wait()} (see above)")
    return json.loads(line)


@lru_cache(maxsize=1)
def _runner() -> subprocess.Popen[str]:
    """The process that runs the jobs of this one, and ends with it."""
    runner = subprocess.Popen(
        ["node", str(HERE / "run_pages.mjs")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(_end, runner)
    return runner


def _end(runner: subprocess.Popen[str]) -> None:
    assert runner.stdin is not None
    runner.stdin.close()
    try:
        runner.wait(timeout=10)
    except subprocess.TimeoutExpired:
        runner.kill()
