"""Sessions of the JavaScript runtime in Node, against onnxruntime."""

import json
import subprocess
from pathlib import Path

import pytest

import webmlc
from tests.decoders import DECODER, check_session, session_data

SCRIPT = Path(__file__).parent / "run_session.mjs"


@pytest.mark.parametrize("threads", [1, 2])
def test_states_grow_in_place(tmp_path: Path, threads: int) -> None:
    webmlc.build(DECODER, tmp_path, target="wasm")
    data = session_data()
    process = subprocess.run(
        ["node", str(SCRIPT), str(tmp_path), str(threads)],
        input=json.dumps(data),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    check_session(data, json.loads(process.stdout))
