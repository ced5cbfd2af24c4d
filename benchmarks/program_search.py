"""Judge searches of a user's own space on a product: how near a schedule by hand they come.

    .venv/bin/python -m benchmarks.program_search --seeds 5

Each strategy searches the same space of schedules (`tiled`: 2,880 legal ones) from the same slow
default, once for each seed. The best schedules after 8, 16, 32 and 64 measurements are then
measured by turns beside the schedule by hand (`HAND`), which is a member of the space. The last of
them is the search's answer, which its last trial has confirmed. The quality of a schedule is the
time of the schedule by hand over its own. The table holds the median, the lowest and the highest
quality of the seeds.

Finished searches stay in `--folder`, one database each: a command that was interrupted goes on, and
measures again only the last comparison.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import webmlc
from webmlc import te, tir
from webmlc.core.machine import RELAXED
from webmlc.tune.measure.candidates import candidate
from webmlc.tune.measure.make_trials import make_trial
from webmlc.tune.measure.workers import ProcessWorker
from webmlc.tune.schedule_function import UserTask, task_of
from webmlc.tune.search.search import CONFIRMATION
from webmlc.tune.search.task_search import relative_time
from webmlc.tune.tune_program import ProgramResult
from webmlc.tune.user_space import read_space

SIZE = 512
"""Rows, columns and depth of the product."""
STRATEGIES = ("random", "evolve", "model")
CHECKPOINTS = (8, 16, 32, 64)
"""The numbers of measurements after which the best schedule is judged."""
LANES = 4
"""The float32 elements of a vector."""
SECONDS = 3600.0
"""The seconds that a search may take: its measurements end it before."""
FOLDER = Path("build/program_search")
"""The folder of the searches' databases."""
BATCH = 8
"""The schedules that are measured beside the schedule by hand in one trial."""


def product() -> tir.PrimFunc:
    """The course's product: relu(A @ B)."""
    a = te.placeholder((SIZE, SIZE), "float32", name="A")
    b = te.placeholder((SIZE, SIZE), "float32", name="B")
    k = te.reduce_axis((0, SIZE), name="k")
    y = te.compute((SIZE, SIZE), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="Y")
    c = te.compute((SIZE, SIZE), lambda i, j: te.max(y[i, j], 0.0), name="C")
    return te.create_prim_func([a, b, c])


PRODUCT = product()
SPACE: Mapping[str, Any] = {
    "rows": tir.perfect_tiles(SIZE, 3, max_innermost_factor=16),
    "columns": [4, 8, 16, 32],
    "steps": [1, 2, 4, 8],
    "is_columns_first": [False, True],
    "packing": [None, {"type": "panel", "is_vector": [False, True]}],
}
"""Blocks of rows and register tiles, columns of a register tile, steps of the reduction that are
unrolled, the order of the outer loops, and a copy of the columns that a register tile reads."""
HAND: Mapping[str, Any] = {
    "rows": (None, 16, 4),
    "columns": 8,
    "steps": 2,
    "is_columns_first": True,
    "packing": {"type": "panel", "is_vector": True},
}
"""The schedule by hand: a register tile of 4 × 8, which leaves registers for operands, panels that
are packed once, and two steps of the reduction in an iteration. It was the fastest of 36 that a
person tried (wasmtime, a shared EPYC core, 2026-11-30)."""


def tiled(
    rows: Sequence[int],
    columns: int,
    steps: int,
    is_columns_first: bool,
    packing: Mapping[str, Any] | None,
) -> tir.Schedule:
    """The product by register tiles, whose rows and columns are unrolled vectors."""
    schedule = tir.Schedule(PRODUCT)
    i, j, k = schedule.get_loops("Y")
    i0, i1, i2 = schedule.split(i, rows)
    j0, j1 = schedule.split(j, [None, columns])
    outer = (j0, i0, i1) if is_columns_first else (i0, j0, i1)
    schedule.reorder(*outer, k, i2, j1)
    k0, k1 = schedule.split(k, [None, steps])
    schedule.unroll(k1)
    schedule.reverse_compute_at("C", i1)
    schedule.set_scope("Y", "local")
    if packing is not None:
        copy = schedule.cache_read("Y", "B", "local")
        schedule.compute_at(copy, j0)
        if packing["is_vector"]:
            *_, last = schedule.get_loops(copy)
            schedule.vectorize(schedule.split(last, [None, LANES])[1])
    init = schedule.decompose_reduction("Y", k0)
    for block in (init or "Y_init", "Y", "C"):
        *_, row, column = schedule.get_loops(block)
        vectors, lanes = schedule.split(column, [None, LANES])
        schedule.vectorize(lanes)
        schedule.unroll(vectors)
        schedule.unroll(row)
    return schedule


def search(strategy: str, seed: int, folder: Path, engine: str) -> ProgramResult:
    """The search of one strategy from one seed, which goes on where it was interrupted."""
    folder.mkdir(parents=True, exist_ok=True)
    return webmlc.tune(
        tiled,
        SPACE,
        engine=engine,
        strategy=strategy,
        seed=seed,
        measurements=CHECKPOINTS[-1],
        seconds=SECONDS,
        database=folder / f"{strategy}_{seed}.db",
    )


def bests(result: ProgramResult) -> list[Mapping[str, Any]]:
    """The best parameters after each number of measurements. The last are the search's answer,
    which its last trial confirmed.
    """
    return [*(_best(result, count) for count in CHECKPOINTS[:-1]), result.parameters]


def _best(result: ProgramResult, count: int) -> Mapping[str, Any]:
    measured = [row for row in result.measurements[:count] if row.milliseconds is not None]
    return min(measured, key=lambda row: row.milliseconds or 0.0).parameters


def qualities(every: Iterable[Mapping[str, Any]], engine: str) -> dict[str, float]:
    """The time of the schedule by hand over the time of each schedule, by its parameters. All are
    measured by turns.
    """
    space = read_space(SPACE)
    task: UserTask = task_of(tiled, space, RELAXED, {}, HAND)
    hand = candidate(task, task.match.default())
    unique = {str(parameters): parameters for parameters in every}
    keys = list(unique)
    worker = ProcessWorker(engine)
    results: dict[str, float] = {}
    try:
        for first in range(0, len(keys), BATCH):
            batch = keys[first : first + BATCH]
            built = [candidate(task, space.read(dict(unique[key]))) for key in batch]
            trial = make_trial(task, [hand, *built], 1, CONFIRMATION)
            control, *rows = worker.measure(trial, SECONDS).milliseconds
            for key, row in zip(batch, rows, strict=True):
                results[key] = 1 / relative_time(row, control)
    finally:
        worker.stop()
    return results


def main(
    seeds: Annotated[int, typer.Option(help="Searches of each strategy.")] = 5,
    engine: Annotated[str, typer.Option(help="What measures: wasmtime.")] = "wasmtime",
    folder: Annotated[Path, typer.Option(help="Keeps the searches.")] = FOLDER,
) -> None:
    """Search with each strategy and seed, and print the curve of the quality."""
    console = Console()
    searches: dict[str, list[list[Mapping[str, Any]]]] = {s: [] for s in STRATEGIES}
    for seed in range(seeds):
        for strategy in STRATEGIES:  # by turns: a disturbance affects all strategies alike
            result = search(strategy, seed, folder, engine)
            searches[strategy].append(bests(result))
            console.print(strategy, seed, f"{result.milliseconds:.2f} ms", str(result.parameters))
    parameters = [p for rows in searches.values() for row in rows for p in row]
    quality = qualities(parameters, engine)
    load = os.getloadavg()[0]
    table = Table(
        title=f"Time by hand / time of the best schedule, {seeds} seeds (load {load:.1f})"
    )
    table.add_column("measurements")
    for strategy in STRATEGIES:
        table.add_column(strategy)
    for number, count in enumerate(CHECKPOINTS):
        cells = []
        for strategy in STRATEGIES:
            values = [quality[str(rows[number])] for rows in searches[strategy]]
            cells.append(f"{median(values):.3f} ({min(values):.3f} … {max(values):.3f})")
        table.add_row(str(count), *cells)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
