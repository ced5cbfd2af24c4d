"""Limit the processor time of another process: a busy machine does not make it hang."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

MAX_WAIT = 10
"""The seconds of real time for each second of processor time. Chosen by hand: ten processes may
share a processor.
"""


def answers_in_time(is_ready: Callable[[float], bool], process: int | None, seconds: float) -> bool:
    """True if a process is ready before it has computed for `seconds`. A process may also sleep:
    then the limit is `MAX_WAIT` times as many seconds of real time.
    """
    assert process is not None
    begin, used = time.monotonic(), _processor_seconds(process)
    while not is_ready(seconds / 20):
        if _processor_seconds(process) - used > seconds:
            return False
        if time.monotonic() - begin > MAX_WAIT * seconds:
            return False
    return True


def _processor_seconds(process: int) -> float:
    """The time that the threads of a process have computed; infinite if it has ended."""
    try:
        times = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return math.inf
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
