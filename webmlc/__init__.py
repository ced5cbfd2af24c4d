"""webmlc: compile a trained ONNX model, ahead of time, to WebAssembly and WebGPU.

import webmlc
webmlc.build("model.onnx", "build/model", target="both")
outputs = webmlc.load("build/model", device="wasm").run({"x": array})
assert webmlc.check("model.onnx").verdict == "passed"
webmlc.tune("model.onnx", seconds=600)

Tensor programs by hand (`docs/programs.md`):

from webmlc import T, te, tir
program = webmlc.kernel(function)        # or te.create_prim_func([A, B, C])
schedule = tir.Schedule(program)
kernel = webmlc.compile(schedule, target="wasm")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from webmlc.tune import tune
from webmlc.version import VERSION as __version__

if TYPE_CHECKING:
    from webmlc.check_source import check
    from webmlc.host.load import load
    from webmlc.pipeline import build
    from webmlc.programs import te, tir
    from webmlc.programs.compiled import compile_program as compile
    from webmlc.programs.operators import operator
    from webmlc.programs.relax import R, module
    from webmlc.programs.script import from_source, kernel
    from webmlc.programs.vocabulary import T

__all__ = [
    "R",
    "T",
    "__version__",
    "build",
    "check",
    "compile",
    "from_source",
    "kernel",
    "load",
    "module",
    "operator",
    "te",
    "tir",
    "tune",
]

_PLACES = {
    "R": ("webmlc.programs.relax", "R"),
    "T": ("webmlc.programs.vocabulary", "T"),
    "build": ("webmlc.pipeline", "build"),
    "check": ("webmlc.check_source", "check"),
    "compile": ("webmlc.programs.compiled", "compile_program"),
    "from_source": ("webmlc.programs.script", "from_source"),
    "kernel": ("webmlc.programs.script", "kernel"),
    "module": ("webmlc.programs.relax", "module"),
    "operator": ("webmlc.programs.operators", "operator"),
    "load": ("webmlc.host.load", "load"),
    "te": ("webmlc.programs", "te"),
    "tir": ("webmlc.programs", "tir"),
}
"""The module and the name of each name that is imported at its first use: their dependencies
differ.
"""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'webmlc' has no attribute {name!r}")
    module, attribute = _PLACES[name]
    if attribute in ("te", "tir"):
        return import_module(f"{module}.{attribute}")
    return getattr(import_module(module), attribute)
