"""A build chooses from a database in which platforms disagree."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import structs

from tests.schedule.rules import kernels as k
from tests.tune.small_search import small_tasks
from webmlc.core.machine import SOFTWARE, WEBGPU, Machine
from webmlc.core.machine_class import MachineClass
from webmlc.schedule.rules import Selection, find_match
from webmlc.schedule.rules.rule import Match
from webmlc.schedule.rules.space import plain
from webmlc.tune.choose import TunedChooser
from webmlc.tune.database import Database, Record
from webmlc.tune.measure.platforms import Platform, cpu_platform, gpu_platform
from webmlc.tune.tasks import Task, kernel_key

HERE = cpu_platform("chromium", "140", 1)


def a_task() -> Task:
    """A kernel with several schedules."""
    (task,) = (t for t in small_tasks() if t.match.rule.name == "contraction")
    return task


def record(task: Task, platform: Platform, member: Any, ratio: float) -> Record:
    """A confirmed record of some parameters."""
    return Record(
        task.key, task.name, task.device, task.match.rule.name, task.size_bucket, platform,
        plain(member), "confirmed", 1.0, ratio, 30, "", (), "m", "0", "2026-11-25T00:00:00+00:00",
    )  # fmt: skip


def selection(path: Path, *records: Record, platform: str = "") -> Selection:
    """The choice for the kernel of the records."""
    with Database(path) as database:
        database.add(records)
        return TunedChooser(database, platform)(a_task().match)


def test_another_engine_gets_a_schedule_of_its_own(tmp_path: Path) -> None:
    task = a_task()
    default = task.match.default()
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


GPU = gpu_platform("chromium", "140", {"vendor": "a vendor", "architecture": "fast"})
SLOW = gpu_platform("wgpu", "0.30", {"vendor": "llvmpipe", "adapter_type": "CPU"})


def shader_match(machine: Machine) -> Match:
    """A product on an adapter."""
    return find_match(k.matmul(16, 16, 24), machine)


def shader_record(machine: Machine, platform: Platform, workgroup: int) -> Record:
    """A confirmed record of the product with another workgroup than the default one."""
    match = shader_match(machine)
    task = Task(kernel_key(match.function, machine), "matmul", match, (), frozenset(), {}, 1, 0)
    member = structs.replace(match.default(), workgroup=workgroup)
    assert member in match.space()
    return record(task, platform, member, 0.5)


def test_shaders_for_gpus_and_for_software_have_records_of_their_own(tmp_path: Path) -> None:
    with Database(tmp_path / "a.db") as database:
        database.add([shader_record(WEBGPU, GPU, 32), shader_record(SOFTWARE, SLOW, 256)])
        for_gpus = TunedChooser(database)
        chosen = for_gpus(shader_match(WEBGPU))
        assert chosen.tuning is not None and chosen.tuning.changes["workgroup"] == 32
        assert chosen.alternatives == ()
        for_software = TunedChooser(database, adapter="software")
        chosen = for_software(shader_match(SOFTWARE))
        assert chosen.tuning is not None and chosen.tuning.changes == {"workgroup": 256}
        assert chosen.alternatives == ()
        for_both = TunedChooser(database, adapter="all")
        for machine, workgroup in ((WEBGPU, 32), (SOFTWARE, 256)):
            chosen = for_both(shader_match(machine))
            assert chosen.tuning is not None and chosen.tuning.changes["workgroup"] == workgroup


def test_what_a_software_adapter_measured_for_gpus_serves_it_alone(tmp_path: Path) -> None:
    with Database(tmp_path / "a.db") as database:
        database.add([shader_record(WEBGPU, SLOW, 32)])
        chosen = TunedChooser(database)(shader_match(WEBGPU))
        assert chosen.tuning is None
        assert chosen.schedule.trace == shader_match(WEBGPU).default_schedule().trace
        (other,) = chosen.alternatives
        assert other.machine == MachineClass("webgpu", "wgpu", "llvmpipe")
        assert other.tuning.changes["workgroup"] == 32
        named = TunedChooser(database, "wgpu")(shader_match(WEBGPU))
        assert named.tuning is not None
