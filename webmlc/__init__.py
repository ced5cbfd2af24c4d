"""webmlc: compile a trained ONNX model, ahead of time, to WebAssembly and WebGPU.

import webmlc
webmlc.build("model.onnx", "build/model", target="both")
outputs = webmlc.load("build/model", device="wasm").run({"x": array})
assert webmlc.check("model.onnx").verdict == "passed"
webmlc.tune("model.onnx", seconds=600)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from webmlc.tune import tune
from webmlc.version import VERSION as __version__

if TYPE_CHECKING:
    from webmlc.check_source import check
    from webmlc.host.load import load
    from webmlc.pipeline import build

__all__ = ["__version__", "build", "check", "load", "tune"]


def __getattr__(name: str) -> Any:
    """Import `build`, `check` or `load` at its first use, because their dependencies differ."""
    if name == "build":
        from webmlc.pipeline import build

        return build
    if name == "check":
        from webmlc.check_source import check

        return check
    if name == "load":
        from webmlc.host.load import load

        return load
    raise AttributeError(f"module 'webmlc' has no attribute {name!r}")
