"""A model's package against onnxruntime: with one thread, with two, and on the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx.parser
import onnxruntime

import webmlc

Device = Literal["wasm", "webgpu"]
SETTINGS: tuple[tuple[Device, int], ...] = (("wasm", 1), ("wasm", 2), ("webgpu", 1))
ERRORS_ONLY = 4


def parse(text: str, opset: int = 17) -> onnx.ModelProto:
    """The model of a graph in ONNX's text form."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n' + text)


def check(model: onnx.ModelProto, folder: Path, *runs: dict[str, Any]) -> None:
    """One package, built into `folder`, computes what onnxruntime does in every run; a later run
    may need more memory than an earlier one, or less.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    webmlc.build(model, folder)
    for device, threads in SETTINGS:
        loaded = webmlc.load(folder, device=device, threads=threads)
        for feeds in runs:
            actual = loaded.run(feeds)
            expected = session.run(None, {k: np.asarray(v) for k, v in feeds.items()})
            for info, want in zip(model.graph.output, expected, strict=True):
                got = actual[info.name]
                assert (got.shape, got.dtype) == (want.shape, want.dtype)
                # A sum that is nearly 0 has the rounding errors of its terms.
                magnitudes = np.abs(np.asarray(want, np.float64))
                largest = float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0))
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 + 1e-6 * largest)
        loaded.dispose()
