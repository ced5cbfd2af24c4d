"""Sessions of the JavaScript runtime in Node, against onnxruntime."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import webmlc
from tests import recurrent
from tests.decoders import DECODER, check_session, session_data
from tests.graph.algorithms.attention.test_group_query_attention import GROUPS, SIZE, feeds_of
from tests.host.test_buffer_session import MODEL, PASTS, TOLERANCE
from tests.node import as_tensors

SCRIPT = Path(__file__).parent / "run_session.mjs"


def exercised(folder: Path, threads: int, script: str, data: Any) -> Any:
    """The results of a script that exercises the sessions of a package."""
    process = subprocess.run(
        ["node", str(SCRIPT), str(folder), str(threads), script],
        input=json.dumps(data),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.parametrize("threads", [1, 2])
def test_states_grow_in_place(tmp_path: Path, threads: int) -> None:
    webmlc.build(DECODER, tmp_path, target="wasm")
    data = session_data()
    check_session(data, exercised(tmp_path, threads, "./session.mjs", data))


@pytest.mark.parametrize("threads", [1, 2])
def test_states_are_replaced(tmp_path: Path, threads: int) -> None:
    webmlc.build(recurrent.RECURRENT, tmp_path, target="wasm")
    data = recurrent.session_data()
    results = exercised(tmp_path, threads, "./recurrent.mjs", data)
    recurrent.check_session(data, results)


def test_a_run_without_a_session_is_one_request(tmp_path: Path) -> None:
    """The first run requests it by message. Later runs only repeat the request."""
    webmlc.build(recurrent.RECURRENT, tmp_path, target="wasm")
    script = SCRIPT.parent / "count_messages.mjs"
    process = subprocess.run(
        ["node", str(script), str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(process.stdout) == [1, 0, 0, 0, 0, 0]


def test_states_are_buffers(tmp_path: Path) -> None:
    webmlc.build(MODEL, tmp_path, target="wasm")
    reference = onnxruntime.InferenceSession(MODEL.SerializeToString())
    runs = [feeds_of([n, n], 5 if n == 5 else 1, None, n, True) for n in range(5, 10)]
    alone = [feeds_of([7, 7], 1, stored, 7, True) for stored in (16, 6)]
    data = {
        "runs": list(map(as_tensors, runs)),
        "capacity": 12,
        "alone": list(map(as_tensors, alone)),
    }
    results = exercised(tmp_path, 2, "./buffers.mjs", data)
    pasts = {name: np.zeros((2, GROUPS, 12, SIZE), np.float32) for name in PASTS}
    for feeds, got in zip(runs, results["together"], strict=True):
        y, *presents = reference.run(None, feeds | pasts)
        pasts = dict(zip(PASTS, presents, strict=True))
        np.testing.assert_allclose(got["y"]["data"], y.ravel(), **TOLERANCE)
    assert results["continued"] == results["together"][-1]
    assert "the first must not be larger" in results["full"]
    for feeds, got in zip(alone, results["alone"], strict=True):
        wanted = reference.run(None, feeds)
        for name, array in zip(("y", "present_k", "present_v"), wanted, strict=True):
            actual = np.reshape(got[name]["data"], array.shape)
            valid = (slice(None), slice(None), slice(0, 7))  # rows behind the last are undefined
            np.testing.assert_allclose(actual[valid], array[valid], **TOLERANCE)
