"""Measure operators over 10^6 elements on WebAssembly against native onnxruntime, one thread each.

In: names of operators; without any, all of `CASES`.
Out: a line an operator: milliseconds of a run, which copies inputs and outputs, of its kernels
alone, and of onnxruntime; the ratio of the last two, and whether the results agree. The engines
take turns, run by run, and of each the fastest run counts: a busy machine disturbs both alike.

    python benchmarks/operators.py --operators TopK,Softmax --runs 30
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import onnx.parser
import onnxruntime
import typer
from rich.console import Console
from rich.table import Table

import webmlc

N = 10**6
SIDE = 1000
BOXES = 10**5
QUIET = 3  # onnxruntime: errors only
RNG = np.random.default_rng(0)
FLOATS = RNG.normal(size=N).astype(np.float32)
CORNERS = RNG.uniform(0, 1000, (1, BOXES, 2))
TOLERANCE = 1e-4
"""Of a result's largest element, that results may differ by: 10^6 floats in another order."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A graph in ONNX's text form, and its inputs."""

    text: str
    inputs: Mapping[str, Any]


CASES = {
    "CumSum": Operator(
        f"(float[{N}] x) => (float[{N}] y) <int64 a = {{0}}> {{ y = CumSum(x, a) }}",
        {"x": FLOATS},
    ),
    "CumSum int64": Operator(
        f"(int64[{N}] x) => (int64[{N}] y) <int64 a = {{0}}> {{ y = CumSum(x, a) }}",
        {"x": RNG.integers(-9, 9, N)},
    ),
    "TopK": Operator(
        f"(float[{N}] x) => (float[100] v, int64[100] i) <int64[1] k = {{100}}>"
        " { v, i = TopK(x, k) }",
        {"x": FLOATS},
    ),
    "ScatterND": Operator(
        f"(float[{N}] x, int64[{N}, 1] i, float[{N}] u) => (float[{N}] y)"
        " { y = ScatterND(x, i, u) }",
        {"x": FLOATS, "i": RNG.permutation(N)[:, None], "u": FLOATS[::-1].copy()},
    ),
    "Softmax": Operator(f"(float[{N}] x) => (float[{N}] y) {{ y = Softmax(x) }}", {"x": FLOATS}),
    "Softmax rows": Operator(
        f"(float[{SIDE}, {SIDE}] x) => (float[{SIDE}, {SIDE}] y) {{ y = Softmax(x) }}",
        {"x": FLOATS.reshape(SIDE, SIDE)},
    ),
    "NonMaxSuppression": Operator(
        f"(float[1, {BOXES}, 4] b, float[1, 1, {BOXES}] s) => (int64[n, 3] y)"
        " <int64[1] k = {100}, float[1] t = {0.5}> { y = NonMaxSuppression(b, s, k, t) }",
        {
            "b": np.concatenate([CORNERS, CORNERS + 50], 2).astype(np.float32),
            "s": RNG.random((1, 1, BOXES), np.float32),
        },
    ),
}


def fastest(runs: int, *engines: Callable[[], Any]) -> list[float]:
    """Milliseconds of the fastest run of each engine."""
    times: list[list[float]] = [[] for _ in engines]
    for _ in range(runs):
        for run, taken in zip(engines, times, strict=True):
            start = time.perf_counter()
            run()
            taken.append(1e3 * (time.perf_counter() - start))
    return [min(taken) for taken in times]


def kernel_milliseconds(model: webmlc.Model, inputs: Mapping[str, Any], runs: int) -> float | None:
    """The sum of the steps' fastest times, each with a call from here; None where it has loops."""
    profiles = [model.profile(inputs) for _ in range(runs)]
    if any(step.kernel == "next" for step in profiles[0]):
        return None
    steps = zip(*([step.seconds for step in profile] for profile in profiles), strict=True)
    fastest: list[float] = [min(seconds) for seconds in steps]
    return 1e3 * sum(fastest)


def agree(results: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Whether all outputs are as onnxruntime's, up to rounding."""
    return all(
        results[name].shape == want.shape
        and np.allclose(results[name], want, rtol=0, atol=TOLERANCE * max(1, np.abs(want).max()))
        for name, want in expected.items()
    )


def measure(operator: Operator, runs: int) -> tuple[float, float | None, float, bool]:
    """Milliseconds of a run, of its kernels, and of onnxruntime; whether they agree."""
    header = '<ir_version: 8, opset_import: ["" : 18]>\n'
    model = onnx.parser.parse_model(f"{header}operator {operator.text}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    inputs = dict(operator.inputs)
    with tempfile.TemporaryDirectory() as folder:
        webmlc.build(model, folder, target="wasm")
        loaded = webmlc.load(folder, device="wasm")
        try:
            expected = dict(zip(names, session.run(names, inputs), strict=True))
            same = agree(loaded.run(inputs), expected)
            run, native = fastest(
                runs, lambda: loaded.run(inputs), lambda: session.run(names, inputs)
            )
            return run, kernel_milliseconds(loaded, inputs, runs), native, same
        finally:
            loaded.dispose()


def main(
    operators: Annotated[str, typer.Option(help="Names, separated by commas.")] = "",
    runs: Annotated[int, typer.Option(help="Runs of each engine.")] = 20,
) -> None:
    """Print the table."""
    columns = ("operator", "run ms", "kernels ms", "onnxruntime ms", "ratio", "results")
    table = Table(*columns, title="webmlc on WebAssembly (wasmtime), one thread")
    for name in operators.split(",") if operators else CASES:
        run, kernels, native, same = measure(CASES[name], runs)
        kernels = min(kernels or run, run)
        results = "agree" if same else "differ"
        table.add_row(
            name, *(f"{n:.2f}" for n in (run, kernels, native, kernels / native)), results
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
