"""Sessions of the JavaScript runtime in Node, against onnxruntime."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import webmlc
from tests import recurrent
from tests.decoders import DECODER, check_session, session_data

SCRIPT = Path(__file__).parent / "run_session.mjs"


def exercised(folder: Path, threads: int, script: str, data: dict[str, Any]) -> dict[str, Any]:
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
    results: dict[str, Any] = json.loads(process.stdout)
    return results


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
