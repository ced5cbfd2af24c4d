"""Choose schedules from a database: what `webmlc build --tuned FILE` does.

    with Database(Path("tuned.db"), must_exist=True) as database:
        build(model, out, choose=TunedChooser(database))

A kernel gets the parameters of the confirmed record that serves best: one of the platform that the
build is for, else one of a similar platform (`Platform.similarity`). A kernel without such a
record, or whose rule has changed since it was tuned, gets its default schedule.
"""

from __future__ import annotations

from collections.abc import Sequence

from webmlc.core.errors import InternalError, UserError
from webmlc.schedule.rules import Tuning, default_schedule
from webmlc.schedule.rules.rule import Match
from webmlc.schedule.rules.space import changes, from_values, values_of
from webmlc.schedule.schedule import Schedule
from webmlc.tune.database import AlgorithmRecord, Database, Record
from webmlc.tune.platforms import Platform, cpu_platform
from webmlc.tune.tasks import kernel_key
from webmlc.tune.workers import LOCAL_ENGINES


class TunedChooser:
    """Chooses the schedule of each kernel (`schedule.rules.Chooser`)."""

    def __init__(self, database: Database, platform: str = "") -> None:
        """`platform` is a part of the names of the platforms to build for. Without it, the build is
        for this machine, or for the only platform that the database has records of.

        Raises `UserError` where the database has no platform of that name.
        """
        self.database = database
        self.platforms = _platforms(database, platform)

    def __call__(self, match: Match) -> tuple[Schedule, Tuning | None]:
        """The best known schedule of a kernel."""
        record = self._record(match)
        if record is None:
            return default_schedule(match)
        default = match.default()
        changed = changes(values_of(default), record.parameters)
        try:
            schedule = match.build(from_values(default, record.parameters))
        except InternalError:
            return default_schedule(match)
        assert record.ratio is not None
        return schedule, Tuning(changed, record.platform.key, round(record.ratio, 4))

    def algorithms(self) -> dict[str, str]:
        """The best known algorithms of layers, where they are not the default ones."""
        best: dict[str, AlgorithmRecord] = {}
        for record in self.database.algorithms():
            if self._similarity(record) > 0:
                best[record.layer] = max(record, best.get(record.layer, record), key=self._rank)
        return {layer: record.name for layer, record in best.items() if record.ratio < 1}

    def _record(self, match: Match) -> Record | None:
        """The record that serves a kernel best, if it is worth a change."""
        key = kernel_key(match.function, match.machine)
        usable = [
            record
            for record in self.database.records(task=key, state="confirmed")
            if record.ratio is not None
            and record.rule == match.rule.name
            and self._similarity(record) > 0
            and record.parameters in match.space()
        ]
        if not usable:
            return None
        best = max(usable, key=self._rank)
        return best if best.ratio is not None and best.ratio < 1 else None

    def _rank(self, record: Record | AlgorithmRecord) -> tuple[int, bool, str]:
        """How well a record serves the build. Packages are for browsers, so records of the
        engines that only Python uses come last.
        """
        is_for_browsers = record.platform.engine not in LOCAL_ENGINES
        return self._similarity(record), is_for_browsers, record.date

    def _similarity(self, record: Record | AlgorithmRecord) -> int:
        """How well a record serves the platforms of the build."""
        return max((p.similarity(record.platform) for p in self.platforms), default=0)


def _platforms(database: Database, name: str) -> Sequence[Platform]:
    """The platforms of the database that a build is for: those with a name, else those of this
    machine, else those of similar machines, else the only one.
    """
    available = database.platforms()
    if name:
        chosen = [p for p in available if name.lower() in p.key.lower()]
        if not chosen:
            names = "; ".join(p.key for p in available) or "nothing"
            raise UserError(f"--platform {name!r}: {database.path} has records of {names}")
        return chosen
    this_machine = cpu_platform("", "", 1)
    here = [p for p in available if p.hardware == this_machine.hardware]
    similar = [p for p in available if this_machine.similarity(p) > 0]
    return here or similar or (available if len(available) == 1 else [])
