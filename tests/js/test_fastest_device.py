"""The device is chosen by measuring, and remembered."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent / "fastest_device.mjs"
MEASURED = "measured: webgpu N ms, wasm N ms"
ALONE = "the only one"


def test_the_faster_device_is_taken_and_remembered() -> None:
    process = subprocess.run(
        ["node", str(SCRIPT)], capture_output=True, text=True, timeout=60, check=True
    )

    def choice(
        device: str, opened: str, disposed: str, reason: str = MEASURED, stored: int = 0
    ) -> dict[str, Any]:
        return {
            "device": device,
            "opened": opened.split(),
            "disposed": disposed.split(),
            "reason": reason,
            "stored": stored,
        }

    results = json.loads(process.stdout)
    assert results.pop("sample") == [
        ["int64", [1, 64], 64],
        ["float32", [1, 3, 224, 448], 3 * 224 * 448],
        ["uint8", [480, 640, 4], 480 * 640 * 4],
    ]
    assert results == {
        "gpu": choice("webgpu", "webgpu wasm", "wasm", stored=1),
        "again": choice("webgpu", "webgpu", "", stored=1),
        "rebuilt": choice("wasm", "webgpu wasm", "webgpu", stored=1),
        "rebuiltAgain": choice("wasm", "wasm", "", stored=1),
        "alone": choice("wasm", "wasm", "", ALONE),
        "gpuOnly": choice("webgpu", "webgpu", "", ALONE),
        "failing": choice(
            "wasm", "webgpu wasm", "webgpu", "measured: webgpu Infinity ms, wasm N ms", 1
        ),
        "neither": choice("webgpu", "webgpu wasm", "wasm", ALONE),
        "full": choice("wasm", "webgpu wasm", "webgpu"),
    }
