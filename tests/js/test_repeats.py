"""A request that the worker repeats is over when the worker says so."""

import json
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parent / "repeat_once.mjs"


def test_a_late_notification_ends_no_request() -> None:
    """The worker counts a request as done, then notifies: the page may have made the next one."""
    done = subprocess.run(
        ["node", str(SCRIPT)], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == ["late notification", "done", "repeated"]
