"""`webmlc.tune(schedule_function, space)`: from a schedule function to the fastest kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webmlc
from webmlc import T, te, tir
from webmlc.core.errors import UserError
from webmlc.core.machine import RELAXED
from webmlc.tune.database import Database
from webmlc.tune.measure.candidates import Candidate
from webmlc.tune.measure.make_trials import CandidateBuilder
from webmlc.tune.measure.platforms import Platform
from webmlc.tune.measure.trial import Measurement, Protocol, Trial
from webmlc.tune.measure.workers import ProcessWorker, work
from webmlc.tune.schedule_function import task_of
from webmlc.tune.search.budget import Budget
from webmlc.tune.search.search import Search
from webmlc.tune.search.task_search import Options
from webmlc.tune.tasks import Task
from webmlc.tune.tune_program import ProgramResult
from webmlc.tune.user_space import arguments_of, read_space

SIZE = 16


def product() -> tir.PrimFunc:
    """A square product."""
    a = te.placeholder((SIZE, SIZE), "float32", name="A")
    b = te.placeholder((SIZE, SIZE), "float32", name="B")
    k = te.reduce_axis((0, SIZE), name="k")
    rows = te.compute((SIZE, SIZE), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return te.create_prim_func([a, b, rows])


PRODUCT = product()
SPACE: Mapping[str, Any] = {
    "rows": [1, 2, 3, 4],
    "columns": [4, 8],
    "packing": [None, {"type": "panel", "is_vector": [False, True]}],
}


def tiled(rows: int, columns: int, packing: Mapping[str, Any] | None) -> tir.Schedule:
    """The product by tiles. Three rows do not divide it: `split` refuses the factors."""
    schedule = tir.Schedule(PRODUCT)
    i, j, k = schedule.get_loops("C")
    _, i1 = schedule.split(i, [SIZE // rows, rows])
    j0, j1 = schedule.split(j, [None, columns])
    schedule.reorder(j0, k, i1, j1)
    if packing is not None:
        copy = schedule.cache_read("C", "B", "local")
        schedule.compute_at(copy, j0)
        if packing["is_vector"]:
            *_, column = schedule.get_loops(copy)
            schedule.vectorize(column)
    schedule.decompose_reduction("C", k)
    schedule.vectorize(j1)
    return schedule


def bound(blocks: int, scope: str) -> tir.Schedule:
    """The product on a GPU, whose threads each compute an element."""
    schedule = tir.Schedule(PRODUCT)
    i, j, _ = schedule.get_loops("C")
    fused = schedule.fuse(i, j)
    outer, inner = schedule.split(fused, [blocks, None])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
    if scope == "local":
        schedule.cache_write("C", scope)
    return schedule


def search_of(folder: Path, **options: Any) -> ProgramResult:
    """A real search of the product's tiles."""
    chosen = {"engine": "wasmtime", "measurements": 6, "strategy": "random", **options}
    return webmlc.tune(tiled, SPACE, database=folder / "tuned.db", **chosen)


def check(kernel: Any) -> None:
    """A kernel computes the product."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((SIZE, SIZE)).astype(np.float32) for _ in "ab")
    c = np.empty((SIZE, SIZE), np.float32)
    kernel(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)


def test_a_search_ends_with_the_parameters_the_schedule_and_the_kernel(tmp_path: Path) -> None:
    result = search_of(tmp_path, measurements=30)
    assert len(result.measurements) + 1 == 3 * 2 * 3  # the default has no row
    assert {reason.split(":")[0] for _, reason in result.refusals} == {"split"}
    assert all(parameters["rows"] == 3 for parameters, _ in result.refusals)
    assert len(result.refusals) == 6
    assert tiled(**result.parameters).function == result.schedule.function
    assert result.gain >= 1
    assert not result.was_interrupted
    assert result.default_milliseconds > 0
    bests = [row.best_milliseconds for row in result.measurements]
    assert bests == sorted(bests, reverse=True)
    times = [row.milliseconds for row in result.measurements if row.milliseconds is not None]
    assert bests[-1] <= min(times)
    assert result.report.read_text("utf-8").startswith("<!doctype html>")
    assert "tiled" in result.report.read_text("utf-8")
    check(result.kernel)


def test_a_second_search_measures_nothing_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = search_of(tmp_path)
    with Database(first.database) as database:
        records = list(database.records())

    def fail(worker: ProcessWorker, trial: Trial, seconds: float) -> Measurement:
        raise AssertionError("it measures")

    with monkeypatch.context() as patch:
        patch.setattr(ProcessWorker, "measure", fail)
        second = search_of(tmp_path)
    with Database(first.database) as database:
        assert list(database.records()) == records
    assert second.parameters == first.parameters
    assert second.gain == pytest.approx(first.gain)
    assert len(second.measurements) == len(first.measurements) == 6
    more = search_of(tmp_path, measurements=8)
    assert len(more.measurements) == 8
    assert more.measurements[-1].parameters not in [m.parameters for m in first.measurements]


def test_a_search_of_all_members_is_over_without_a_confirmed_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only(rows: int) -> tir.Schedule:
        return tiled(rows, 8, None)

    options: dict[str, Any] = {"engine": "wasmtime", "database": tmp_path / "tuned.db"}
    webmlc.tune(only, {"rows": [4]}, **options)
    monkeypatch.setattr(ProcessWorker, "measure", None)
    result = webmlc.tune(only, {"rows": [4]}, **options)
    assert (result.parameters, result.gain, result.measurements) == ({"rows": 4}, 1.0, ())


def test_lambdas_are_searched_on_a_gpu(tmp_path: Path) -> None:
    result = webmlc.tune(
        lambda blocks, scope: bound(blocks, scope),
        {"blocks": [2, 3, 4, 8], "scope": ["global", "local"]},
        target="webgpu",
        engine="wgpu",
        measurements=3,
        strategy="random",
        database=tmp_path / "tuned.db",
    )
    assert result.platform.startswith("wgpu / ")
    assert len(result.measurements) == 3
    assert not [row.reason for row in result.measurements if row.reason]
    assert "@compute" in result.kernel.text
    check(result.kernel)


def test_a_program_of_unknown_size_is_searched_at_a_size(tmp_path: Path) -> None:
    n = T.symbol("n")
    a = te.placeholder((n, 8), "float32", name="A")
    program = te.create_prim_func([a, te.compute((n, 8), lambda i, j: a[i, j] * 2.0, name="B")])

    def split(rows: int) -> tir.Schedule:
        schedule = tir.Schedule(program)
        i, j = schedule.get_loops("B")
        schedule.split(i, [None, rows])
        schedule.vectorize(j)
        return schedule

    database = tmp_path / "tuned.db"
    options: dict[str, Any] = {"engine": "wasmtime", "database": database, "sizes": {"n": 20}}
    result = webmlc.tune(split, {"rows": [2, 4, 3]}, **options)
    assert len(result.measurements) == 2
    for rows in (5, 20):
        x, y = np.ones((rows, 8), np.float32), np.empty((rows, 8), np.float32)
        result.kernel(x, y)
        assert (y == 2).all()


class MadeUpEngine(CandidateBuilder):
    """A worker whose clock is made up: a kernel takes the longer, the farther its parameters are
    from four rows, eight columns and a packed panel.
    """

    platform = Platform("an engine", "1", "a CPU", "x86_64")

    def __init__(self) -> None:
        super().__init__()
        self.measured: list[Mapping[str, Any]] = []

    def trial(self, task: Task, candidates: Sequence[Candidate], protocol: Protocol) -> Trial:
        """A trial that holds the times of its candidates, as text."""
        every = [arguments_of(candidate.member) for candidate in candidates]
        if protocol.hopeless < 1e3:  # it does not confirm
            self.measured += every[1:]
        times = tuple(
            repr(1 + abs(p["rows"] - 4) + (p["columns"] != 8) + (p["packing"] is None))
            for p in every
        )
        return Trial("wasm", (), (), 0, 1, len(every), protocol=protocol, entries=times)

    def measure(self, trial: Trial, seconds: float) -> Measurement:
        """The same time in each round."""
        times = tuple((float(text),) * trial.protocol.rounds for text in trial.entries)
        return Measurement(times, ("",) * len(times))

    def stop(self) -> None:
        """There is nothing to stop."""


def made_up_search(strategy: str, seed: int) -> tuple[list[Mapping[str, Any]], Any]:
    """The measured parameters, and the winner, of a search with a made-up clock."""
    engine = MadeUpEngine()
    search = Search(
        [task_of(tiled, read_space(SPACE), RELAXED, {})],
        Options(strategy, seconds=3600, measurements=12, seed=seed),
        builder=engine,
        compare=lambda searches: (),
        budget=Budget(3600, lambda: 0.0),
    )
    work(search, engine)
    (searched,) = search.all_searches()
    assert searched.confirmed is not None
    return engine.measured, arguments_of(searched.confirmed[0])


@pytest.mark.parametrize("strategy", ["auto", "evolve", "model", "random", "tpe"])
def test_a_seed_decides_what_is_measured(strategy: str) -> None:
    measured, winner = made_up_search(strategy, seed=2)
    assert made_up_search(strategy, seed=2) == (measured, winner)
    assert made_up_search(strategy, seed=3)[0] != measured
    assert len(measured) == 12
    default, other = tiled(1, 4, None).function, tiled(**winner).function
    assert other != default


def test_a_race_finds_the_fastest_of_all() -> None:
    measured, winner = made_up_search("race", seed=0)
    assert (winner["rows"], winner["columns"]) == (4, 8)
    assert len({str(parameters) for parameters in measured}) == len(measured)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((tiled,), {}, "a schedule function needs a space"),
        (("model.onnx", SPACE), {}, "a space belongs to a schedule function"),
        ((tiled, SPACE), {"measurements": 0}, "a search needs one or more"),
        ((tiled, SPACE), {"target": "webgpu", "engine": "node"}, "kernels on webgpu are measured"),
        ((tiled, SPACE), {"strategy": "guess"}, "--strategy guess: choose one of"),
        ((tiled, {}), {}, "a space is a mapping"),
    ],
)
def test_requests_that_cannot_be_searched_are_refused(
    arguments: tuple[Any, ...], options: Mapping[str, Any], message: str, tmp_path: Path
) -> None:
    tune: Any = webmlc.tune
    with pytest.raises(UserError, match=message):
        tune(*arguments, database=tmp_path / "tuned.db", **options)
    assert not list(tmp_path.iterdir())


def test_nothing_measured_in_time_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tiled: nothing was measured in 1e-09 s"):
        search_of(tmp_path, seconds=1e-9)
