"""A package run by the JavaScript runtime under Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

SCRIPT = Path(__file__).parent / "js" / "run_once.mjs"
RUNTIME = Path(__file__).parents[1] / "runtime_js"
RED_ZONES = Path(__file__).parent / "js" / "red_zones"


def in_node(folder: Path, runs: list[dict[str, Any]], threads: int = 2) -> Any:
    """The results of some runs on the CPU: `{name: {shape, data: [text]}}`, or `{error, code}`."""
    done = subprocess.run(
        ["node", str(SCRIPT), str(folder), str(threads)],
        input=json.dumps(runs),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tensor(array: Any) -> dict[str, Any]:
    """An array of numbers or booleans as the script reads it."""
    array = np.asarray(array)
    numbers = array.ravel().astype(int) if array.dtype == bool else array.ravel()
    data = [str(n) if array.dtype.itemsize == 8 else n for n in numbers.tolist()]
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": data}


def as_tensors(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a run as the script reads them."""
    return {name: tensor(array) for name, array in feeds.items()}


def copy_with_red_zones(folder: Path) -> Path:
    """A copy of the JavaScript runtime in which a run that writes outside its buffers fails."""
    for path in RUNTIME.glob("*.js"):
        changed = (RED_ZONES / path.name).is_file()
        shutil.copy(path, folder / (f"plain_{path.name}" if changed else path.name))
    for path in RED_ZONES.glob("*.js"):
        shutil.copy(path, folder / path.name)
    return folder
