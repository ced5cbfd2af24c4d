"""Runs at the same time, and calls before, during and after `dispose`, under Node."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import webmlc
from tests.decoders import DECODER
from tests.packages import scaled

pytestmark = pytest.mark.xdist_group("lifetimes")  # one worker builds what the tests share

SCRIPT = Path(__file__).parent / "lifetimes.mjs"
MEMORY = Path(__file__).parent / "load_and_dispose.mjs"
GONE = ["DisposedError", "disposed", "this model was disposed of; load it again"]
SESSION_GONE = [*GONE[:2], "this session was disposed of; open another with model.session"]
FINE = "no error"
SLOW = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 256] x) => (float[n, 256] y) {
    count = Constant<value = int64 {20000}>()
    y = Loop<body = step (int64 i, bool go, float[n, 256] before)
        => (bool still, float[n, 256] after) {
        still = Identity(go)
        product = MatMul(before, before)
        after = Softmax(product)
    }>(count, , x)
}"""
"""Takes many seconds, unless the run is ended."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of the script."""
    root = tmp_path_factory.mktemp("lifetimes")
    scaled(root / "scaled")
    webmlc.build(DECODER, root / "decoder", target="wasm")
    webmlc.build(onnx.parser.parse_model(SLOW), root / "slow", target="wasm")
    folders = [str(root / name) for name in ("scaled", "decoder", "slow")]
    process = subprocess.run(
        ["node", str(SCRIPT), *folders], capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 0, process.stderr
    return dict(json.loads(process.stdout))


def test_dispose_ends_the_run_and_those_that_wait(results: dict[str, Any]) -> None:
    assert results["interrupted"] == [GONE, GONE]
    assert results["atOnce"] == GONE


def test_only_dispose_may_be_called_again(results: dict[str, Any]) -> None:
    assert results["again"] == [FINE, FINE, GONE]
    assert results["others"] == [GONE, GONE]
    assert results["unused"] == FINE


def test_sessions_end_with_their_model(results: dict[str, Any]) -> None:
    assert results["disposedSession"] == [SESSION_GONE, FINE]
    assert results["sessions"] == [GONE] * 4
    assert results["sessionEnd"] == [FINE, FINE]


def test_runs_at_the_same_time_do_not_meet(results: dict[str, Any]) -> None:
    """Wrong inputs and aborted runs between them leave the others right."""
    assert results["together"] is True
    assert results["mix"] == [("InputError", "AbortError", "n")[i % 3] for i in range(40)]
    assert results["after"] == [1, 0, 0.5, 3]


def test_a_signal_gives_its_reason(results: dict[str, Any]) -> None:
    assert results["timeout"] == "mine"
    assert results["noSignal"][:2] == ["InputError", "input"]
    assert results["stillIntact"] == [1, 0, 0.5, 3]


def test_models_do_not_share_an_end(results: dict[str, Any]) -> None:
    assert results["models"] == [[FINE, [1, 0, 0.5, 3], FINE, [1, 0, 0.5, 3]]]


ROUNDS, WARM_ROUNDS = 100, 20
"""Loads of a model. In the first of them the process itself grows: its heap, the code it runs."""


def weights(name: str, width: int) -> onnx.TensorProto:
    generator = np.random.default_rng(ord(name))
    values = generator.standard_normal((width, width)).astype(np.float32) / width
    return numpy_helper.from_array(values, name)


@pytest.mark.parametrize("runs", [1, 6])
@pytest.mark.parametrize("width", [64, 1024])
def test_loading_and_disposing_keeps_no_memory(tmp_path: Path, width: int, runs: int) -> None:
    """Models whose weights take 32 kB and 8 MB. After six runs, the page has executed some of them.

    The resident memory is measured after each round. No collection of garbage is requested.
    """
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, {width}] x) => (float[n, {width}] y)
        {{
            first = MatMul(x, a)
            y = MatMul(first, b)
        }}"""
    )
    model.graph.initializer.extend(weights(name, width) for name in "ab")
    webmlc.build(model, tmp_path, target="wasm")
    command = ["node", str(MEMORY), str(tmp_path), str(ROUNDS), str(runs), str(width)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr
    megabytes = json.loads(process.stdout)[WARM_ROUNDS:]
    assert max(megabytes) - min(megabytes) < 20, megabytes
