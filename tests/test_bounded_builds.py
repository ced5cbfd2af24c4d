"""Building takes time and memory in proportion to a model's nodes and operands, or is refused.

Builds run in processes with several times the processor time and the memory that they take, so
that a pass that is quadratic or exponential again ends there. What can be built is run, and
compared with onnxruntime.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.large_models import MODELS, limited
from webmlc import build, load
from webmlc.core.errors import UserError

SECONDS, GIGABYTES = 40, 8
"""What the builds of one process may take: some five times what they do, three times if all
processors are busy.
"""

ANSWERS = {
    "operands": {"concat": 1000, "sum": 2000, "max": 500, "mean": 500, "split": 500},
    "results": {"concat_of_results": 200, "split_and_join": 300, "inputs": 1000, "outputs": 500},
    "elementwise": {"chain_add": 10_000, "chain_mul_add": 2000, "doubling": 200, "shared": 200},
    "kernels": {"chain_matmul": 500, "chain_conv": 500, "chain_softmax": 500, "chain_reduce": 500},
    "elements": {"chain_pad_slice": 300, "chain_gather": 2000, "chain_cumsum": 300},
    "views": {"chain_transpose": 20_000},
    "sizes": {"shape_arithmetic": 60, "shape_growth": 7, "sizes": 300, "concat_growth": 30},
    "control": {"loops": 20, "constant_loops": 4, "branches": 20},
}
"""Models that are built and run, a process a group, and their sizes. Most took minutes, gigabytes
or ended in a RecursionError once.
"""

BUILDS = {"chain_exp": 5000, "chain_symbolic": 1000, "constant_loops": 12, "functions": 10}
"""Models that are built, and whose numbers say nothing: they overflow, or take long."""

REFUSALS = {
    "functions": (
        40,
        "the model has more than 200,000 nodes when its local functions are written out. Most come "
        "from node 'y', a call of 'f39'. Export the model without nested functions, or split it",
    ),
    "loops": (
        32,
        "large: its sub-graphs nest more than 31 levels deep, which protobuf cannot read. Export "
        "the model with fewer nested loops and branches",
    ),
    "resize": (
        1_000_000,
        "1 node of this model cannot be compiled:\n"
        "  Resize (node 'grow'): its result, float32[1, 1, 1000000, 1000000], is larger than 32-bit"
        " memory\n"
        "`webmlc ops` lists what is supported; CONTRIBUTING.md shows how to add an operator.",
    ),
    "sparse": (
        1 << 36,
        "sparse tensor 'w' has shape [68719476736]: as a dense tensor, it is larger than 32-bit "
        "memory. Make it smaller",
    ),
}
"""Models that cannot be built, their sizes, and what the errors say. One process refuses all."""


@pytest.mark.parametrize("group", ANSWERS)
def test_large_models_are_built_and_right(group: str) -> None:
    assert run("answer", ANSWERS[group]).returncode == 0


def test_large_models_are_built() -> None:
    assert run("only_build", BUILDS).returncode == 0


def test_what_cannot_be_built_is_refused_at_once() -> None:
    done = run("refusal", {name: n for name, (n, _) in REFUSALS.items()})
    assert done.returncode == 0
    assert json.loads(done.stdout) == {name: text for name, (_, text) in REFUSALS.items()}


def run(what: str, models: Mapping[str, int]) -> subprocess.CompletedProcess[str]:
    """Call a function of this file for each model, in one process with limits. It prints the
    results.
    """
    words = [str(word) for pair in models.items() for word in pair]
    done = limited(["-m", "tests.test_bounded_builds", what, *words], SECONDS, GIGABYTES)
    sys.stderr.write(done.stderr)
    return done


def only_build(name: str, n: int) -> None:
    """Build a model."""
    with tempfile.TemporaryDirectory() as folder:
        build(MODELS[name][0](n), folder, "wasm")


def refusal(name: str, n: int) -> str:
    """Build a model that cannot be built; what the error says."""
    try:
        only_build(name, n)
    except UserError as error:
        return str(error)
    return ""


def answer(name: str, n: int) -> None:
    """Build a model, run it, and compare what it returns with what onnxruntime does."""
    proto = MODELS[name][0](n)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    inputs = {port.name: value(port) for port in session.get_inputs()}
    names = [port.name for port in session.get_outputs()]
    with tempfile.TemporaryDirectory() as folder:
        build(proto, folder, "wasm")
        outputs = load(folder, device="wasm", threads=1).run(inputs)
    for output, expected in zip(names, session.run(names, inputs), strict=True):
        np.testing.assert_allclose(outputs[output], expected, rtol=1e-4, atol=1e-5, err_msg=output)


def value(port: Any) -> np.ndarray:
    """Values for an input: numbers around 1, one iteration, a true condition, and five elements
    along a symbolic axis.
    """
    shape = [5 if isinstance(size, str) else size for size in port.shape]
    if port.type == "tensor(bool)":
        return np.ones(shape, bool)
    if port.type == "tensor(int64)":
        return np.full(shape, 1)
    return np.random.default_rng(len(port.name)).uniform(0.5, 1.5, shape).astype(np.float32)


if __name__ == "__main__":
    function = {"answer": answer, "only_build": only_build, "refusal": refusal}[sys.argv[1]]
    results = {}
    for name, n in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
        print(f"{name} {n}", file=sys.stderr)
        results[name] = function(name, int(n))
    print(json.dumps(results))
