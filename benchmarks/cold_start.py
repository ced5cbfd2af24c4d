"""Judge the tuner's strategies: how near do they come to the hand-written defaults, from nothing?

In: strategies and tasks by name. Out: for each, the best time found after so many measurements,
relative to the default schedule's in the same rounds (below 1: faster). A search starts from the
first point of the space and never sees the default. `random` is the baseline.

    python benchmarks/cold_start.py --strategies evolve,model,random --measurements 200
"""

from __future__ import annotations

import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx.parser
import typer
from rich.console import Console
from rich.table import Table

from webmlc.loops.count_work import count_work
from webmlc.tune.measure.make_trials import CandidateBuilder
from webmlc.tune.measure.workers import ProcessWorker, ignore_interrupts, work
from webmlc.tune.search.search import Search
from webmlc.tune.search.task_search import Options
from webmlc.tune.tasks import Task, read_graph

TASKS = {
    "conv 1x1": "(float[1,128,28,28] x, float[256,128,1,1] w) => (float[1,256,28,28] y)"
    " { y = Conv(x, w) }",
    "conv 3x3": "(float[1,64,28,28] x, float[64,64,3,3] w) => (float[1,64,13,13] y)"
    " { y = Conv<strides=[2,2]>(x, w) }",  # strides of 2: no Winograd
    "depthwise": "(float[1,128,30,30] x, float[128,1,3,3] w) => (float[1,128,28,28] y)"
    " { y = Conv<group=128>(x, w) }",
    "product 512": "(float[512,512] x, float[512,512] w) => (float[512,512] y)"
    " { y = MatMul(x, w) }",
    "gemv": "(float[1,1024] x, float[1024,1024] w) => (float[1,1024] y) { y = MatMul(x, w) }",
    "softmax": "(float[256,1000] x) => (float[256,1000] y) { y = Softmax(x) }",
}
RNG = np.random.default_rng(0)
CHECKPOINTS = (25, 50, 100, 200)


def task_of(name: str) -> Task:
    """The task of the kernel that takes the longest in a model of one operator."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {TASKS[name]}')
    shapes = {
        i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input
    }
    weights = {"w": RNG.normal(size=shapes["w"]).astype(np.float32)} if "w" in shapes else {}
    tasks = read_graph(model, "wasm", {}, constants=weights).tasks()
    return max(tasks, key=lambda task: count_work(task.match.function, task.all_sizes).flops)


def main(
    strategies: Annotated[str, typer.Option()] = "evolve,model,random",
    names: Annotated[str, typer.Option("--tasks")] = ",".join(TASKS),
    measurements: Annotated[int, typer.Option()] = 200,
    seed: Annotated[int, typer.Option()] = 0,
    out: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Run every strategy on every task, and print the table."""
    table = Table(title="best time over the default's, after n measurements")
    for heading in ("task", "strategy", *map(str, CHECKPOINTS), "default ms"):
        table.add_column(heading)
    figures = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), context, ignore_interrupts) as processes:
        worker = ProcessWorker("wasmtime")
        for name in names.split(","):
            task = task_of(name)
            for strategy in strategies.split(","):
                options = Options(strategy, 3600, measurements=measurements, seed=seed, cold=True)
                search = Search([task], options, builder=CandidateBuilder(1, processes))
                work(search, worker)
                (searched,) = search.all_searches()
                curve = searched.curve
                row = [curve[min(n, len(curve)) - 1] for n in CHECKPOINTS]
                milliseconds = searched.control_ms
                figures.append({"task": name, "strategy": strategy, "measurements": len(curve),
                                "best": dict(zip(CHECKPOINTS, row, strict=True))})  # fmt: skip
                cells = (f"{ratio:.3f}" for ratio in row)
                table.add_row(name, strategy, *cells, f"{milliseconds:.4f}")
                print(json.dumps(figures[-1]), flush=True)
        worker.stop()
    Console().print(table)
    if out is not None:
        out.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
