"""A package run by the JavaScript runtime under Node."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

SCRIPT = Path(__file__).parent / "js" / "run_once.mjs"


def in_node(folder: Path, runs: list[dict[str, Any]]) -> Any:
    """The results of some runs on the CPU: `{name: {shape, data: [text]}}`, or `{error, code}`."""
    done = subprocess.run(
        ["node", str(SCRIPT), str(folder)],
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
