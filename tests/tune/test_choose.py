"""What a build takes from a database in which platforms disagree."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

from tests.tune.small_search import small_tasks
from webmlc.core.machine_class import MachineClass
from webmlc.schedule.rules import Selection
from webmlc.schedule.rules.space import Values, values_of
from webmlc.tune.choose import TunedChooser
from webmlc.tune.database import Database, Record
from webmlc.tune.platforms import Platform, cpu_platform
from webmlc.tune.tasks import Task

HERE = cpu_platform("chromium", "140", 1)


def a_task() -> Task:
    """A kernel with several schedules."""
    (task,) = (t for t in small_tasks() if t.match.rule.name == "contraction")
    return task


def record(task: Task, platform: Platform, values: Values, ratio: float) -> Record:
    """A confirmed record of some parameters."""
    return Record(
        task.key, task.name, task.device, task.match.rule.name, task.size_bucket, platform,
        dict(values), "confirmed", 1.0, ratio, 30, "", (), "m", "0", "2026-11-25T00:00:00+00:00",
    )  # fmt: skip


def selection(path: Path, *records: Record, platform: str = "") -> Selection:
    """What is chosen for the kernel of the records."""
    with Database(path) as database:
        database.add(records)
        return TunedChooser(database, platform)(a_task().match)


def test_another_engine_gets_a_schedule_of_its_own(tmp_path: Path) -> None:
    task = a_task()
    default = values_of(task.match.default())
    others = (m for m in task.match.space().members() if m != default)
    first, second = islice(others, 2)
    firefox = replace(HERE, engine="firefox")
    wasmtime = replace(HERE, engine="wasmtime")
    latest = replace(record(task, HERE, first, 0.5), date="2026-11-26T00:00:00+00:00")
    records = (
        latest,
        record(task, firefox, second, 0.8),
        record(task, wasmtime, default, 1.0),
    )
    chosen = selection(tmp_path / "a.db", *records)
    assert chosen.tuning is not None
    assert chosen.tuning.ratio == 0.5
    alternatives = {other.machine: other for other in chosen.alternatives}
    engines = [MachineClass("wasm", name) for name in ("firefox", "wasmtime")]
    assert {*alternatives} == {*engines}
    assert alternatives[engines[0]].tuning.ratio == 0.8
    unchanged = alternatives[engines[1]]
    assert unchanged.tuning.changes == {}
    assert unchanged.schedule.function == task.match.default_schedule().function
    named = selection(tmp_path / "a.db", platform="firefox")
    assert named.tuning is not None
    assert (named.tuning.ratio, named.alternatives) == (0.8, ())


def test_engines_that_agree_share_a_schedule(tmp_path: Path) -> None:
    task = a_task()
    values = next(m for m in task.match.space().members())
    firefox = replace(HERE, engine="firefox")
    chosen = selection(
        tmp_path / "a.db", record(task, HERE, values, 0.5), record(task, firefox, values, 0.6)
    )
    assert chosen.tuning is not None
    assert chosen.alternatives == ()


def test_records_of_gpus_serve_a_build_beside_those_of_this_cpu(tmp_path: Path) -> None:
    gpu = Platform("chromium", "140", "", "a vendor")
    task = a_task()
    values = next(m for m in task.match.space().members())
    with Database(tmp_path / "a.db") as database:
        on_gpu = replace(record(task, gpu, values, 0.5), device="webgpu", task="a shader")
        database.add([record(task, HERE, values, 0.5), on_gpu])
        assert {p.key for p in TunedChooser(database).platforms} == {HERE.key, gpu.key}
