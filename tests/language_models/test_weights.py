"""Each quantisation type against the dequantisation of the library `gguf`."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES

from webmlc.frontend.gguf.weights import READERS, read_matrix
from webmlc.graph.ops.block_quantised import BlockQuantised

ROWS, COLUMNS = 3, 512
FLOATS = {"F32": np.float32, "F16": np.float16}
HALVES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2)}
"""The bytes of a block at which a float16 number begins. By default, at 0."""


def stored(name: str) -> np.ndarray:
    """Rows of random bytes of a type, whose scales and minimums are finite."""
    rng = np.random.default_rng(3)
    if name in FLOATS:
        return rng.standard_normal((ROWS, COLUMNS)).astype(FLOATS[name])
    block, size = GGML_QUANT_SIZES[Type[name]]
    data = rng.integers(0, 256, (ROWS, COLUMNS // block, size), dtype=np.uint8)
    for position in HALVES.get(name, (0,)):
        numbers = rng.standard_normal((ROWS, COLUMNS // block, 1)).astype(np.float16)
        data[:, :, position : position + 2] = numbers.view(np.uint8)
    return data.reshape(ROWS, -1)


@pytest.mark.parametrize("name", READERS)
def test_type_equals_library(name: str) -> None:
    data = stored(name)
    matrix = read_matrix(data, name, (ROWS, COLUMNS))
    expected = quants.dequantize(data, Type[name]).reshape(ROWS, COLUMNS)
    np.testing.assert_array_equal(floats_of(matrix), expected)


def test_values_have_the_bits_of_the_record() -> None:
    for name in set(READERS) - {"F32", "F16", "BF16"}:
        matrix = read_matrix(stored(name), name, (ROWS, COLUMNS))
        assert isinstance(matrix, BlockQuantised)
        assert matrix.values.dtype == (np.int8 if matrix.bits == 8 else np.uint8)
        assert matrix.bits == 8 or matrix.values.max() < 1 << matrix.bits
        assert matrix.scales.shape == (ROWS, COLUMNS // matrix.block)


def floats_of(matrix: BlockQuantised | np.ndarray) -> np.ndarray:
    """The weights as float32, by the definition of the record."""
    if not isinstance(matrix, BlockQuantised):
        return matrix.astype(np.float32)
    scales = matrix.scales.repeat(matrix.block, axis=1)
    weights = scales * matrix.values.astype(np.float32)
    if matrix.minimums is not None:
        weights = weights + matrix.minimums.repeat(matrix.block, axis=1)
    return weights
