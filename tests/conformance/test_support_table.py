"""The documents that are written from results say what the results say."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tests.conformance.run import Outcome
from tests.conformance.support_table import not_passing_document, read_results, support_document

OUTCOMES = {
    "wasm": [
        Outcome("test_gelu_default_1", "Gelu", "passed"),
        Outcome("test_gelu_default_2", "Gelu", "failed", "AssertionError: in /home/me/x.py: a|b"),
    ],
    "webgpu": [
        Outcome("test_gelu_default_1", "Gelu", "passed", on_cpu=("gelu",)),
        Outcome("test_gelu_default_2", "Gelu", "passed", built_in=("approximate", "x")),
    ],
}


def _results(folder: Path) -> list[Path]:
    paths = []
    for device, outcomes in OUTCOMES.items():
        results = {"device": device, "group": "node", "outcomes": [asdict(o) for o in outcomes]}
        paths.append(folder / f"{device}.json")
        paths[-1].write_text(json.dumps(results))
    return paths


def test_support(tmp_path: Path) -> None:
    lines = support_document(read_results(_results(tmp_path))).splitlines()
    assert "| operators | WASM | 1 | 1 |  | 2 |" in lines
    assert "| operators | WebGPU | 2 | 1 | 1 | 2 |" in lines
    assert "| Gelu | 20–28 | float32 | 1 / 2 | 1 | 2 / 2 | 1 | 1 |" in lines
    assert "| Upsample | 1–9 |  | · | · | · | · | · |" in lines


def test_not_passing(tmp_path: Path) -> None:
    text = not_passing_document(read_results(_results(tmp_path)))
    assert "## WASM: 1\n" in text
    assert "| test_gelu_default_2 | failed | AssertionError: in x.py: a\\|b |" in text
    assert "## WebGPU: 0\n\nNone." in text
    assert "with inputs built in: 1\n" in text
    assert "| test_gelu_default_2 | approximate, x |" in text
