"""The budget of a search: some seconds, and parts of these seconds.

    budget = Budget(600)
    survey = budget.part(0.3)
    survey.start()                      # the first trial starts both
    survey.seconds_left                 # until three tenths of the budget are spent

Work that begins before the end may end after it, so every piece of work is small against the
budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Budget:
    """Some seconds, which begin when `start` is called.

    >>> now = 0.0
    >>> budget = Budget(10, lambda: now)
    >>> part = budget.part(0.5)
    >>> now = 5.0
    >>> budget.seconds_left, part.seconds_left
    (10.0, 5.0)
    >>> part.start()
    >>> now = 8.0
    >>> budget.seconds_left, part.seconds_left, budget.part(0.25).seconds_left
    (7.0, 2.0, 0.0)
    >>> budget.rest().part(0.5).seconds_left
    3.5
    """

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        whole: Budget | None = None,
    ) -> None:
        """`whole` is the budget whose first part this is."""
        self.seconds = float(seconds)
        self._clock = clock
        self._whole = whole
        self._started: float | None = None

    @property
    def seconds_left(self) -> float:
        """The seconds until the end, 0 after it."""
        return max(0.0, self.seconds - self.seconds_spent)

    @property
    def seconds_spent(self) -> float:
        """The seconds since the start."""
        if self._whole is not None:
            return self._whole.seconds_spent
        return 0.0 if self._started is None else self._clock() - self._started

    def start(self) -> None:
        """Start the budget and its whole, unless they have started."""
        if self._whole is not None:
            self._whole.start()
        elif self._started is None:
            self._started = self._clock()

    def part(self, share: float) -> Budget:
        """The first part of the budget: `share` of its seconds, from its start on."""
        return Budget(self.seconds * share, self._clock, self)

    def rest(self) -> Budget:
        """The seconds left of the budget, as a budget that starts now."""
        remainder = Budget(self.seconds_left, self._clock)
        remainder.start()
        return remainder

    def shorten(self, seconds: float) -> None:
        """Let the budget end in at most some seconds."""
        self.start()
        self.seconds = min(self.seconds, self.seconds_spent + seconds)
