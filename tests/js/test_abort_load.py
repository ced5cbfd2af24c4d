"""A signal ends a load at once, wherever the load is, and frees what it had opened."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Type

import webmlc
from tests.language_models.small_models import LLAMA, write_model

SCRIPT = Path(__file__).parent / "abort_load.mjs"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script says. It ends by itself only if no worker and no connection is left."""
    folder = tmp_path_factory.mktemp("abort")
    small = replace(LLAMA, tied=True, layers=1, hidden=64, positions=32, types=(Type.F32,))
    write_model(folder / "small.gguf", small)
    webmlc.build(folder / "small.gguf", folder / "package", target="wasm")
    command = ["node", str(SCRIPT), str(folder / "package")]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 0, process.stderr
    return dict(json.loads(process.stdout))


def test_a_load_ends_with_the_reason_while_any_file_arrives(results: dict[str, Any]) -> None:
    """And reports no more progress."""
    files = ("manifest", "weights", ".wasm", "tokenizer")
    assert results["files"] == [[f"Error: no {file}", 0] for file in files]


def test_an_aborted_signal_loads_nothing(results: dict[str, Any]) -> None:
    assert results["before"].startswith("AbortError: ")
    assert results["folder"].startswith("TimeoutError: ")


def test_another_value_is_no_signal(results: dict[str, Any]) -> None:
    assert results["none"].startswith("InputError: signal is ")


def test_a_loaded_model_does_not_see_the_signal(results: dict[str, Any]) -> None:
    assert results["after"] == "string"
