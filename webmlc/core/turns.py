"""Let threads use a resource, such as the devices of a model, one at a time.

In: functions that use the resource. Out: their results, as if the functions had run one after
another.

    turns = Turns()
    turns.take(lambda: executor.execute(...))   # waits until no other thread has its turn
    turns.later(executor.dispose)               # now, or at the end of the turn of another thread

- A turn ends with its function, also if the function raises. An exception of a signal handler
  (Ctrl-C) leaves no turn open: CPython handles no signal between a lock and the `with` around it.
- `later` does not wait for other threads, so finalisers may call it. The garbage collector runs
  finalisers anywhere, also in a turn. (SQLite's `sqlite3_close_v2` frees connections this way.)
- A thread that has its turn cannot take another turn. A signal handler that runs the model in the
  middle of a run therefore raises an error, and does not wait for ever.
- A forked process inherits no turn: the thread that has the turn stays in the parent.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakSet

from webmlc.core.errors import UserError

T = TypeVar("T")


class Turns:
    """The turns of threads at one thing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._deferred: deque[Callable[[], object]] = deque()
        _ALL.add(self)

    def take(self, function: Callable[[], T]) -> T:
        """Wait for the turn of this thread, call the function, and return its result.

        Raises `UserError` if this thread already has its turn.
        """
        if self._owner == threading.get_ident():
            raise UserError(
                "this thread is in the middle of a run of this model; a signal handler or a "
                "finaliser cannot use the model until the run has ended"
            )
        try:
            return self._hold(function)
        finally:
            self._settle()

    def later(self, function: Callable[[], object]) -> None:
        """Call the function as soon as no thread has its turn: now, or by the thread whose turn
        ends.
        """
        self._deferred.append(function)
        self._settle()

    def renew(self) -> None:
        """Begin without a turn, in a process that was forked."""
        self._lock, self._owner = threading.Lock(), 0

    def _hold(self, function: Callable[[], T]) -> T:
        with self._lock:
            try:
                self._owner = threading.get_ident()
                return function()
            finally:
                self._owner = 0

    def _settle(self) -> None:
        """Call the deferred functions, unless a thread has its turn. That thread calls them: it
        looks for deferred functions after it has released the lock.
        """
        while self._deferred and not self._lock.locked():
            self._hold(self._call_deferred)

    def _call_deferred(self) -> None:
        while self._deferred:
            self._deferred.popleft()()


_ALL: WeakSet[Turns] = WeakSet()
"""All turns of this process."""


def _renew_all() -> None:
    for turns in list(_ALL):
        turns.renew()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_renew_all)
