"""The page waits until the worker has executed the request that it repeats."""

import json
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parent / "repeat_once.mjs"


def test_a_late_notification_does_not_end_the_next_request() -> None:
    """The worker counts a request before it notifies, so the page may already wait for the next."""
    process = subprocess.run(
        ["node", str(SCRIPT)], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(process.stdout) == ["late notification", "done", "repeated"]
