"""The changes that made kernels faster in earlier searches on a platform.

    gains = EarlierGains(database.records(platform=platform.key))
    gains.changes("contraction")        # of default parameters: largest savings first

A change that makes one kernel faster on a platform often helps other kernels of its rule, in any
model: tiles that fit the platform's registers, workgroups that suit its adapter. A search tries
such changes first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from webmlc.schedule.rules.space import Leaves, changes
from webmlc.tune.database import Record


class EarlierGains:
    """The changes of default parameters that earlier searches have confirmed."""

    def __init__(self, records: Iterable[Record]) -> None:
        """`records` are the records of one platform, the oldest first: the last winner of a kernel
        counts.
        """
        defaults: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
        winners: dict[tuple[str, str], Record] = {}
        for record in records:
            kernel = record.task, record.sizes
            if record.state == "confirmed":
                winners[kernel] = record
            elif record.ratio == 1.0:
                defaults[kernel].append(record.parameters)
        saved_ms: defaultdict[tuple[str, str], float] = defaultdict(float)
        changed: dict[tuple[str, str], Leaves] = {}
        for kernel, winner in winners.items():
            values = _changes(defaults[kernel], winner.parameters)
            if values is not None:
                key = winner.rule, repr(sorted(values.items()))
                changed[key] = values
                saved_ms[key] += _saved_ms(winner)
        self._changes: defaultdict[str, list[Leaves]] = defaultdict(list)
        for key in sorted(saved_ms, key=lambda key: saved_ms[key], reverse=True):
            if saved_ms[key] > 0:
                self._changes[key[0]].append(changed[key])

    def changes(self, rule: str) -> Sequence[Leaves]:
        """The changes that made kernels of a rule faster; changes that saved most time come
        first.
        """
        return self._changes.get(rule, ())


def _changes(defaults: Iterable[Any], winner: Any) -> Leaves | None:
    """The leaves in which a winner differs from its default. Several members may be as fast as the
    default: the nearest to the winner counts as the default. `None` if its rule has other
    parameters since.
    """
    alternatives = [changes(d, winner) for d in defaults if d.keys() == winner.keys()]
    return min(alternatives, key=len, default=None)


def _saved_ms(winner: Record) -> float:
    """The milliseconds that a call of a kernel takes less than with its default."""
    if winner.milliseconds is None or winner.ratio is None:
        return 0.0
    return winner.milliseconds * (1 / winner.ratio - 1)
