"""Run a script in Node that takes a job and returns its figures, both as JSON."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def run_job(script: Path, job: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a job, which the script reads from standard input. Its progress goes to
    stderr.
    """
    process = subprocess.run(
        ["node", str(script)], input=json.dumps(job), stdout=subprocess.PIPE, text=True, check=True
    )
    figures: dict[str, Any] = json.loads(process.stdout)
    return figures
