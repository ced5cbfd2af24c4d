"""Tune models, and measure the tuned packages against the default ones in one Chromium.

In: models (names or files), the time to tune each, and what measures. Out: a row for each model:
milliseconds of the default and of the tuned package, the gain in paired runs, the gain that the
search predicted, and whether both packages give the same results. The packages take turns, run by
run (see `pairs.py`). Where both packages are the same files, nothing is measured.

    python benchmarks/tuned.py --models squeezenet,minilm_l6 --budget 300 --database build/tuned.db
    python benchmarks/tuned.py --models squeezenet --engine wasmtime --budget 0   # measure only
    python benchmarks/tuned.py --models squeezenet --database shipped --budget 0

With `--engine wasmtime` or `wgpu` the packages are measured in Python instead.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import onnx
import typer
from rich.console import Console
from rich.table import Table

import webmlc
from benchmarks.models import ROOT, name_of, prepare, source_of
from benchmarks.pairs import gain, in_browser, in_python, is_same
from benchmarks.run import OUT
from webmlc.core.machine import Device
from webmlc.tune.choose import TunedChooser
from webmlc.tune.json_lines import open_records

FOLDER = "package-tuned"
LOCAL = ("wasmtime", "wgpu")


def main(
    models: Annotated[str, typer.Option()],
    device: Annotated[str, typer.Option()] = "wasm",
    adapter: Annotated[
        str, typer.Option(help="What shaders are for: software or gpu.")
    ] = "software",
    engine: Annotated[str, typer.Option()] = "chromium",
    budget: Annotated[float, typer.Option(help="Seconds for each model.")] = 300.0,
    database: Annotated[Path, typer.Option()] = ROOT / "build" / "tuned.db",
    runs: Annotated[int, typer.Option()] = 40,
    out: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Tune, build and measure each model."""
    chosen: Device = "webgpu" if device == "webgpu" else "wasm"
    kind: Literal["gpu", "software"] = "gpu" if adapter == "gpu" else "software"
    table = Table(title=f"tuned for {engine}: medians of {runs} paired runs")
    for heading in ("model", "default ms", "tuned ms", "gain", "predicted", "tuned kernels"):
        table.add_column(heading)
    figures: list[dict[str, Any]] = []
    for model in models.split(","):
        name = name_of(model)
        prepare(model, OUT, chosen, {}, kind)
        path = OUT / name / "model.onnx"
        predicted = math.nan
        if budget > 0:
            sizes = symbols_of(path, source_of(model).dims)
            predicted = webmlc.tune(
                path, database=database, device=chosen, adapter=kind, engine=engine,
                seconds=budget, resume=True, sizes=sizes,
            ).gain  # fmt: skip
        with open_records(database) as records:
            choose = TunedChooser(records, engine, kind)
            out_folder = OUT / name / FOLDER
            manifest = webmlc.build(
                path, out_folder, chosen, adapter=kind, choose=choose,
                algorithms=choose.algorithms(), state="off",
            )  # fmt: skip
        if is_same(OUT / name / "package", out_folder):
            figures.append({"model": name, "gain": 1.0, "predicted": predicted, "kernels": 0})
            print(json.dumps(figures[-1]), flush=True)
            table.add_row(name, "", "", "1.000", f"{predicted:.3f}", "the same package")
            continue
        folders = ("package", FOLDER)
        if engine in LOCAL:
            latencies = in_python([(OUT / name / f, ROOT) for f in folders], chosen, runs)
        else:
            latencies = [row["latencies"] for row in in_browser(name, folders, chosen, runs)]
        default, tuned = map(median, latencies)
        row = {"model": name, "default_ms": default, "tuned_ms": tuned, "gain": gain(*latencies),
               "predicted": predicted, "kernels": len(manifest.tuned)}  # fmt: skip
        figures.append(row)
        print(json.dumps(row), flush=True)
        cells = (f"{default:.3f}", f"{tuned:.3f}", f"{row['gain']:.3f}", f"{predicted:.3f}")
        table.add_row(name, *cells, str(len(manifest.tuned)))
    mean = math.exp(sum(math.log(row["gain"]) for row in figures) / len(figures))
    table.add_row("geometric mean", "", "", f"{mean:.3f}")
    Console().print(table)
    if out is not None:
        out.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


def symbols_of(path: Path, dims: Any) -> dict[str, int]:
    """The sizes of a benchmark by the names that the model's inputs give them."""
    graph = onnx.load(path, load_external_data=False).graph
    shapes = [i.type.tensor_type.shape.dim for i in graph.input]
    names = {d.dim_param for shape in shapes for d in shape if d.dim_param}
    return {name: size for name, size in dims.items() if name in names}


if __name__ == "__main__":
    typer.run(main)
