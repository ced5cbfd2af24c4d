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
result = webmlc.tune(schedule_function, {"rows": [1, 2, 4]})
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
    "R": "programs.relax:R",
    "T": "programs.vocabulary:T",
    "build": "pipeline:build",
    "check": "check_source:check",
    "compile": "programs.compiled:compile_program",
    "from_source": "programs.script:from_source",
    "kernel": "programs.script:kernel",
    "load": "host.load:load",
    "module": "programs.relax:module",
    "operator": "programs.operators:operator",
    "te": "programs.te",
    "tir": "programs.tir",
}
"""The module, and the name in it, of each name that is imported at its first use: their
dependencies differ. `te` and `tir` are modules.
"""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'webmlc' has no attribute {name!r}")
    path, _, attribute = _PLACES[name].partition(":")
    module = import_module(f"webmlc.{path}")
    return getattr(module, attribute) if attribute else module
