"""Run functions in threads at once, or raise exceptions in them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def at_once(functions: Sequence[Callable[[], T]], seconds: float = 60.0) -> list[T]:
    """Begin the functions in threads of their own at the same time; return their results."""
    barrier = threading.Barrier(len(functions))

    def begin(function: Callable[[], T]) -> T:
        barrier.wait(seconds)
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return [call.result(seconds) for call in [pool.submit(begin, f) for f in functions]]


class Stopped(BaseException):
    """An interruption of a call by a test. Like KeyboardInterrupt, it is no `Exception`."""


def stopped_at(line: int, files: Sequence[str], function: Callable[[], object]) -> bool:
    """Call a function, and raise `Stopped` before the given line that it executes in these files,
    counted from 0. Returns False if it executes fewer lines.
    """
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(tuple(files)):
            return None
        if event == "line":
            if left == 0:
                sys.settrace(None)
                raise Stopped
            left -= 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except Stopped:
        return True
    finally:
        sys.settrace(before)
    return False
