"""Values of other realms, proxies, and functions that were taken from their objects, under Node."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import webmlc
from tests import recurrent
from tests.graph.ops.test_types import copied
from webmlc.core.dtypes import DType

pytestmark = pytest.mark.xdist_group("realms")  # one worker builds what the tests share

SCRIPT = Path(__file__).parent / "realms.mjs"
SUM = sum(range(12))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of the script."""
    root = tmp_path_factory.mktemp("realms")
    for dtype in DType:
        webmlc.build(copied(dtype), root / "types" / dtype, target="wasm")
    webmlc.build(recurrent.RECURRENT, root / "recurrent", target="wasm")
    command = ["node", str(SCRIPT), str(root / "types"), str(root / "recurrent")]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 0, process.stderr
    return dict(json.loads(process.stdout))


def test_arrays_of_another_realm_are_inputs_and_receive_outputs(results: dict[str, Any]) -> None:
    assert results["types"] == {str(dtype): True for dtype in DType}


def test_a_model_needs_no_this(results: dict[str, Any]) -> None:
    assert set(results["ways"].values()) == {SUM}
    assert results["facts"] == ["wasm", 1, "x", None, True]
    assert results["profile"] is True
    assert results["end"] == "DisposedError: this model was disposed of; load it again"


def test_results_can_be_posted(results: dict[str, Any]) -> None:
    assert results["clone"] == ["float32", [3, 4], SUM]


def test_a_session_needs_no_this(results: dict[str, Any]) -> None:
    assert results["session"] == [0, True, "none", "none"]
    assert results["pasts"] is True


def test_adapters_need_no_this(results: dict[str, Any]) -> None:
    assert set(results["adapter"].values()) == {SUM}
    assert results["tensor"] == [[[1, 2], [3, 4]], [1, 2], [3, 4], [2, 2], "int64"]


def test_other_values_are_named(results: dict[str, Any]) -> None:
    expected = "expected float32 as Float32Array"
    holds = ("a Proxy of Float32Array", "ArrayBuffer", "DataView", "Float64Array")
    assert results["refused"] == [
        *(f'InputError: input "x" holds {value}, {expected}' for value in holds),
        f'InputError: the array in results for "y" is Uint8Array, {expected}',
    ]
