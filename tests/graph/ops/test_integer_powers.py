"""Powers of integers are exact on both devices, with exponents of either kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import webmlc
from tests.against_onnxruntime import check, parse

BASES = np.array([0, 1, 2, 3, 5, 7, 13, -1, -2, -3])
EXPONENTS = np.array([7, 9, 20, 13, 2, 8, 7, 5, 11, 0], np.float32)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_natural_exponent_that_is_a_float(dtype: str, tmp_path: Path) -> None:
    """13^7 is no float32, and a GPU's 5^2 is a little less than 25."""
    model = parse(f"g ({dtype}[10] x, float[10] e) => ({dtype}[10] y) {{ y = Pow (x, e) }}")
    feeds = {"x": BASES.astype(dtype), "e": EXPONENTS}
    roots = {"x": np.abs(BASES).astype(dtype) + 1, "e": np.full(10, 0.5, np.float32)}
    inverse = {"x": BASES.astype(dtype) + 9, "e": np.full(10, -1, np.float32)}
    check(model, tmp_path, feeds, roots, inverse)


@pytest.mark.parametrize("exponent", [0, 4, 5, 13, 16, 17])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "int64"])
def test_a_constant_exponent_wraps_as_numpy_does(dtype: str, exponent: int, tmp_path: Path) -> None:
    """ONNX has no powers of small integers; a package computes them in vectors."""
    x = np.abs(BASES).astype(dtype)
    model = parse(
        f"g ({dtype}[10] x) => ({dtype}[10] y) <{dtype} e = {{{exponent}}}> {{ y = Pow (x, e) }}"
    )
    webmlc.build(model, tmp_path)
    for device in ("wasm", "webgpu"):
        loaded = webmlc.load(tmp_path, device=device)
        y = loaded.run({"x": x})["y"]
        loaded.dispose()
        np.testing.assert_array_equal(y, np.power(x, np.array(exponent, dtype)))
