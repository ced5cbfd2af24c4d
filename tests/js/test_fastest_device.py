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

    assert json.loads(process.stdout) == {
        "gpu": choice("webgpu", "webgpu wasm", "wasm", stored=1),
        "again": choice("webgpu", "webgpu", "", stored=1),
        "rebuilt": choice("wasm", "webgpu webgpu wasm", "webgpu webgpu", stored=1),
        "cpu": choice("wasm", "webgpu wasm", "webgpu"),
        "alone": choice("wasm", "wasm", "", ALONE),
        "gpuOnly": choice("webgpu", "webgpu", "", ALONE),
        "failing": choice(
            "wasm", "webgpu wasm", "webgpu", "measured: webgpu Infinity ms, wasm N ms", 1
        ),
        "full": choice("wasm", "webgpu wasm", "webgpu"),
    }
