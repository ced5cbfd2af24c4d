"""Use pages in Debian's Firefox, and again when their server has ended.

    [visit] = visit_twice({"/": site}, ("/digits/", "digits"))
    visit.online, visit.offline      # what a function of firefox_uses.mjs returned

The server sends no isolation headers. A missing Firefox is an error that says what to install.
"""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SECONDS = 300


@dataclass(frozen=True, slots=True)
class Visit:
    """The texts of a page while its server ran, and without it."""

    online: Any
    offline: Any


def visit_twice(mounts: Mapping[str, Path], *visits: tuple[str, str]) -> list[Visit]:
    """Use pages, each a path of the server and the name of a function of firefox_uses.mjs.

    `mounts` maps URL prefixes to folders. Raises AssertionError if a page cannot be used or reports
    an error, and `RuntimeError` if Firefox does not run.
    """
    job = {
        "mounts": {prefix: str(folder) for prefix, folder in mounts.items()},
        "visits": [{"path": path, "use": use} for path, use in visits],
    }
    reports = json.loads(_answer(json.dumps(job)))
    for (path, _), report in zip(visits, reports, strict=True):
        problems = [*([report["error"]] if "error" in report else []), *report["errors"]]
        if problems:
            raise AssertionError(f"page {path}: " + "\n".join(problems))
    return [Visit(report["online"], report["offline"]) for report in reports]


def _answer(job: str) -> str:
    """The output of `run_firefox.mjs` for a job. If that takes too long, Firefox is ended, too."""
    command = ["node", str(HERE / "run_firefox.mjs")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as driver:
        try:
            answer, _ = driver.communicate(job, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(driver.pid, signal.SIGKILL)
            raise
    if driver.returncode:
        raise RuntimeError(f"Firefox did not run: exit code {driver.returncode} (see above)")
    return answer
