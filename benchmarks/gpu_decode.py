"""Measure the tokens of a language model on a GPU, through wgpu-py.

In: the package of a language model, and a length of the context. Out: the seconds of one token on
the GPU alone, and from its id to the next id; its dispatches; and the least time of both limits:
every weight is read once, and dispatches follow each other no faster than the adapter starts them.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import webmlc
from benchmarks.gpu_limits import Limits, seconds_of
from webmlc.host.webgpu import WebGpuExecutor

CAPACITY = 2048
"""The tokens of a context."""
CHUNK = 256
"""Tokens of a prompt that run at once."""
TOKENS = 16


def measure_decode(folder: Path, length: int, limit: Limits) -> dict[str, Any]:
    """Seconds of a token after `length` others, its dispatches, and the bytes of the weights."""
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    model = webmlc.load(folder, device="webgpu")
    session = model.session(capacity=CAPACITY)

    def run(ids: list[int]) -> int:
        outputs = session.run({"input_ids": np.array([ids])}, outputs=["next_token"])
        return int(outputs["next_token"].ravel()[0])

    ids = [(7919 * i + 1) % 90 + 3 for i in range(length)]
    for begin in range(0, length, CHUNK):
        token = run(ids[begin : begin + CHUNK])
    times = []
    for _ in range(TOKENS):
        begin_time = time.perf_counter()
        token = run([token])
        times.append(time.perf_counter() - begin_time)
    executor = model._executors["webgpu"]
    assert isinstance(executor, WebGpuExecutor)
    runs = [r for r in model.program.runs if not r.once and r.device == "webgpu"]
    dispatches = sum(r.last - r.first for r in runs)
    row: dict[str, Any] = {
        "gpu": seconds_of(executor, runs),
        "run": median(times),
        "dispatches": dispatches,
    }
    row |= {"weights": weights, "least": weights / limit.bytes}
    row |= {"pauses": dispatches * limit.pause, "changes": dispatches * limit.change}
    row |= {"shaders": model.shaders}
    session.dispose()
    model.dispose()
    return row
