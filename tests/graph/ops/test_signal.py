"""Fourier transforms that are too long for a constant matrix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.against_onnxruntime import check, parse
from webmlc.core.errors import UnsupportedError
from webmlc.graph.ops import signal
from webmlc.pipeline import compile_model

LIMIT = 16
"""A limit that transforms of a few elements exceed."""


def transform(attributes: str, sizes: str, length: str = "") -> onnx.ModelProto:
    text = f"""g (float[{sizes}] x) => (float[a, b, c] y)
        <int64 last = {{-2}}{length and f", int64 length = {{{length}}}"}> {{
        y = DFT <{attributes}> (x, {length and "length"}, last)
    }}"""
    return parse(text, 20)


@pytest.mark.parametrize(
    ("attributes", "shape", "length"),
    [
        ("onesided = 0", (2, 10, 1), ""),
        ("onesided = 1", (2, 9, 1), ""),
        ("inverse = 1", (2, 10, 2), ""),
        ("onesided = 0", (1, 7, 2), "12"),
        ("onesided = 0", (1, 12, 2), "7"),
    ],
)
def test_a_run_computes_the_matrix_of_a_long_transform(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    attributes: str,
    shape: tuple[int, ...],
    length: str,
) -> None:
    monkeypatch.setattr(signal, "MATRIX_LIMIT", LIMIT)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    check(transform(attributes, ", ".join(map(str, shape)), length), tmp_path, {"x": x})


def test_a_transform_that_no_memory_holds_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="larger than 32-bit memory"):
        compile_model(transform("onesided = 0", "1, 8, 1", "2147483647"))
