"""Build the digits page, then classify the held-out digits on every device.

In: `held_out.npz` beside this file, which `train.py` writes, and what `build.py` needs.
Out: `build/digits/` (the page, with the package in `model/`), and a table of accuracy and time.

    python demos/digits/run.py && webmlc serve build/digits
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import webmlc
from demos.digits.build import HERE, build
from webmlc.core.errors import AdapterError
from webmlc.core.machine import Device

ENOUGH = 0.97
"""The share of the held-out digits that a device must classify correctly."""
HOSTS: tuple[tuple[str, Device, int], ...] = (
    ("wasmtime, 1 thread", "wasm", 1),
    ("wasmtime, 2 threads", "wasm", 2),
    ("wgpu-py", "webgpu", 1),
)
"""The hosts that run the package: a name, the device and the number of threads."""
RUNS = 20
"""The timed runs, whose median counts."""


@dataclass(frozen=True, slots=True)
class Result:
    """The share of correct digits, and the seconds for all held-out digits as one batch and
    for a single digit.
    """

    accuracy: float
    batch_seconds: float
    single_seconds: float


def held_out() -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Images (450, 1, 8, 8) with values from 0 to 16, and their digits."""
    with np.load(HERE / "held_out.npz") as stored:
        return stored["image"].astype(np.float32), stored["label"]


def median_seconds(run: Callable[[], object]) -> float:
    """The median time of a run."""
    run()  # engines compile some code lazily, in the first run
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return median(times)


def classify(package: Path, device: Device, threads: int) -> Result:
    """Classify the held-out digits on a device."""
    image, label = held_out()
    model = webmlc.load(package, device=device, threads=threads)
    try:
        predicted = model.run({"image": image})["probabilities"].argmax(axis=1)
        return Result(
            accuracy=float((predicted == label).mean()),
            batch_seconds=median_seconds(lambda: model.run({"image": image})),
            single_seconds=median_seconds(lambda: model.run({"image": image[:1]})),
        )
    finally:
        model.dispose()


def main() -> int:
    console = Console()
    with console.status("building the package"):
        begin = time.perf_counter()
        package = build()
        seconds = time.perf_counter() - begin
    console.print(f"built build/digits in {seconds:.1f} s")
    count = len(held_out()[1])
    table = Table(title=f"{count} held-out digits")
    table.add_column("device")
    for heading in ("accuracy", f"batch of {count}", "one digit"):
        table.add_column(heading, justify="right")
    wrong = False
    for name, device, threads in HOSTS:
        try:
            result = classify(package, device, threads)
        except AdapterError as error:
            console.print(f"no GPU adapter, so {name} is left out: {error}")
            continue
        wrong = wrong or result.accuracy < ENOUGH
        table.add_row(
            name,
            f"{result.accuracy:.2%}",
            f"{1e3 * result.batch_seconds:.2f} ms",
            f"{1e3 * result.single_seconds:.3f} ms",
        )
    console.print(table)
    if wrong:
        console.print(f"accuracy is under {ENOUGH:.0%}: something is broken")
        return 1
    command = Path(sys.executable).with_name("webmlc")
    if command.is_relative_to(Path.cwd()):
        command = command.relative_to(Path.cwd())
    console.print(f"draw digits yourself:  {command} serve build/digits", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
