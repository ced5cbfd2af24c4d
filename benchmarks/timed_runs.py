"""Run a package in Python once for each line of standard input.

In: the package's folder, whose parent has `data.json` (see `models.py`), and the device. Out: for
each line, the milliseconds of a run. It imports nothing of `benchmarks`, and only `load` of
webmlc, so that `PYTHONPATH` can name an earlier checkout.

    yes | head -5 | python benchmarks/timed_runs.py build/benchmarks/squeezenet/package wasm
"""

import json
import sys
from pathlib import Path
from time import perf_counter

import numpy as np

import webmlc


def main() -> None:
    """Load the package, run it once, then once a line."""
    folder, device = Path(sys.argv[1]), sys.argv[2]
    data = json.loads((folder.parent / "data.json").read_text("utf-8"))
    inputs = {
        entry["name"]: np.fromfile(folder.parent / entry["file"], entry["dtype"]).reshape(
            entry["shape"]
        )
        for entry in data["inputs"]
    }
    model = webmlc.load(folder, device)  # type: ignore[arg-type]
    model.run(inputs)
    for _ in sys.stdin:
        begin = perf_counter()
        model.run(inputs)
        print(1e3 * (perf_counter() - begin), flush=True)


if __name__ == "__main__":
    main()
