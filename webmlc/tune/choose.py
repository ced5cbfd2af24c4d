"""Choose schedules from a database, for `webmlc build --tuned FILE`.

    with open_records(Path("tuned.db")) as database:
        build(model, out, choose=TunedChooser(database))

A kernel gets the parameters of the confirmed record that serves best: a record of the build's
platform, else a record of a similar platform (`Platform.similarity`). A kernel without such a
record, or whose rule has changed since it was tuned, gets its default schedule.

If the platforms of the build belong to several classes of machines, such as two browsers, a kernel
has an alternative for each class whose best schedule differs (`core.machine_class`).

Records hold for the machine whose defaults they were measured beside (`core.machine.MACHINES`): the
schedules of a build for GPUs come from searches for GPUs. Measurements of these schedules on a
software adapter say little about hardware, and serve that adapter alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from webmlc.core.errors import InternalError, UserError
from webmlc.core.machine import (
    ADAPTERS,
    DEFAULT_MACHINES,
    DEVICES,
    SOFTWARE_ADAPTERS,
    SOFTWARE_MACHINES,
    WASM_MACHINES,
    Device,
    Machine,
)
from webmlc.core.machine_class import MachineClass
from webmlc.schedule.rules import Alternative, Selection, default_schedule
from webmlc.schedule.rules.rule import Match
from webmlc.schedule.rules.space import changes
from webmlc.schedule.schedule import Schedule
from webmlc.schedule.tuning import Tuning
from webmlc.tune.database import AlgorithmRecord, Database, Record
from webmlc.tune.measure.platforms import Platform, cpu_platform
from webmlc.tune.measure.workers import LOCAL_ENGINES
from webmlc.tune.tasks import kernel_key


class TunedChooser:
    """Chooses the schedules of each kernel (`schedule.rules.Chooser`)."""

    def __init__(self, database: Database, platform: str = "", adapter: str = "gpu") -> None:
        """`platform` is a part of the names of the platforms to build for. Without it, the build is
        for this machine's CPU, or for the only CPU in the database, and for every GPU. `adapter` is
        the kind of adapter that shaders are for, as in `webmlc.build`. With "all", the algorithms
        for GPUs are chosen.

        Raises `UserError` if the database has no platform of that name.
        """
        self.database, self.is_named = database, bool(platform)
        self.adapter = DEFAULT_MACHINES["webgpu"] if adapter == "all" else adapter
        self.platforms = _platforms(database, platform)

    def __call__(self, match: Match) -> Selection:
        """The best known schedules of a kernel."""
        default = default_schedule(match)
        best = self._best(match)
        general = [record for record in best.values() if self._serves_others(record, match.machine)]
        schedule, tuning = default.schedule, Tuning({}, "", 1.0)
        if general:
            schedule, tuning = self._schedule(match, max(general, key=self._rank))
        is_tuned = bool(tuning.changes)
        alternatives = []
        for machine, record in best.items():
            if not any(machine == machine_class(p, machine.device) for p in self.platforms):
                continue
            other, why = self._schedule(match, record)
            if why.changes != tuning.changes:
                alternatives.append(Alternative(machine, other, why))
        return Selection(schedule, tuning if is_tuned else None, tuple(alternatives))

    def algorithms(self) -> dict[Device, dict[str, str]]:
        """The best known algorithms of each device's layers, without the layers whose default is
        best.

        The variants of WebAssembly share these algorithms. Algorithms measured with relaxed SIMD
        come first.
        """
        best: dict[tuple[Device, str], AlgorithmRecord] = {}
        machine = ADAPTERS[self.adapter]
        adapters = SOFTWARE_ADAPTERS if machine in SOFTWARE_MACHINES else (self.adapter,)
        for record in self.database.algorithms():
            is_built = record.machine in (*WASM_MACHINES, *adapters)
            if is_built and self._similarity(record) > 0 and self._serves_others(record, machine):
                key = record.device, record.layer
                best[key] = max(record, best.get(key, record), key=self._rank)
        chosen: dict[Device, dict[str, str]] = {}
        for (device, layer), record in best.items():
            if record.ratio < 1:
                chosen.setdefault(device, {})[layer] = record.name
        return chosen

    def _best(self, match: Match) -> Mapping[MachineClass, Record]:
        """The record that serves a kernel best on each class of machines."""
        key = kernel_key(match.function, match.machine)
        best: dict[MachineClass, Record] = {}
        space = match.space()
        for record in self.database.records(task=key, state="confirmed"):
            is_usable = record.ratio is not None and record.rule == match.rule.name
            is_usable = is_usable and self._similarity(record) > 0
            if is_usable and space.read(record.parameters) is not None:
                machine = machine_class(record.platform, record.device)
                best[machine] = max(record, best.get(machine, record), key=self._rank)
        return best

    def _schedule(self, match: Match, record: Record) -> tuple[Schedule, Tuning]:
        """The schedule of a record, and its changes of the default; the default schedule if the
        record's schedule cannot be built.
        """
        assert record.ratio is not None
        changed = changes(match.default(), record.parameters) if record.ratio < 1 else {}
        platform = record.platform.key
        try:
            schedule = match.build(match.space().read(record.parameters)) if changed else None
        except InternalError:
            schedule = None
        if schedule is None:
            return default_schedule(match).schedule, Tuning({}, platform, 1.0)
        return schedule, Tuning(changed, platform, round(record.ratio, 4))

    def _rank(self, record: Record | AlgorithmRecord) -> tuple[bool, int, bool, str]:
        """How well a record serves the build. Packages are for browsers, so records of the
        engines that only Python uses come last.
        """
        is_default = isinstance(record, Record) or record.machine in DEFAULT_MACHINES.values()
        is_for_browsers = record.platform.engine not in LOCAL_ENGINES
        return is_default, self._similarity(record), is_for_browsers, record.date

    def _serves_others(self, record: Record | AlgorithmRecord, machine: Machine) -> bool:
        """True if a record serves machines of other classes than its own, too, in code for
        `machine`.
        """
        is_alike = record.platform.is_software == (machine in SOFTWARE_MACHINES)
        return not DEVICES[record.device].has_adapters or self.is_named or is_alike

    def _similarity(self, record: Record | AlgorithmRecord) -> int:
        """How well a record serves the platforms of the build."""
        return max((p.similarity(record.platform) for p in self.platforms), default=0)


def machine_class(platform: Platform, device: Device) -> MachineClass:
    """The class of machines that a platform belongs to, as far as the loader of a package can
    tell.
    """
    if DEVICES[device].has_adapters:
        return MachineClass(device, platform.engine, platform.family)
    return MachineClass(device, platform.engine, is_parallel=platform.threads > 1)


def _platforms(database: Database, name: str) -> Sequence[Platform]:
    """The platforms of the database that a build is for. With a name, the platforms whose names
    contain it. Without a name, all GPUs, and the CPUs of this machine, else the CPUs of similar
    machines, else the only CPU.
    """
    available = database.platforms()
    if name:
        chosen = [p for p in available if name.lower() in p.key.lower()]
        if not chosen:
            names = "; ".join(p.key for p in available) or "nothing"
            raise UserError(f"--platform {name!r}: {database.path} has records of {names}")
        return chosen
    this_machine = cpu_platform("", "", 1)
    gpus = database.platforms("webgpu")
    cpus = [p for p in available if p not in gpus]
    here = [p for p in cpus if p.hardware == this_machine.hardware]
    similar = [p for p in cpus if this_machine.similarity(p) > 0]
    return [*(here or similar or (cpus if len(cpus) == 1 else [])), *gpus]
