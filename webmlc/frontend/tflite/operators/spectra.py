"""Rows of operators on complex numbers.

ONNX's graphs have pairs of floats in place of complex numbers. Only these operators read or return
them, so a model has no complex inputs or outputs:

    RFFT2D(x [.., h, w])   ->   DFT over w, one-sided · DFT over h   [.., h, w / 2 + 1, 2]
"""

from __future__ import annotations

import numpy as np

from webmlc.frontend.tflite.operation import Operation, Row
from webmlc.graph.builder import Value


def _rfft_2d(op: Operation) -> Value:
    """The spectrum of the last two dimensions of real numbers."""
    rank = op.rank(0)
    height, width = op.integers(1, "the length of the transform")
    x = op.input(0).unsqueeze(rank)
    x = op.build("DFT", x, np.int64(width), np.int64(rank - 1), onesided=1)
    return op.build("DFT", x, np.int64(height), np.int64(rank - 2))


def _part(index: int) -> Row:
    """The row of the real or the imaginary part."""
    name = ("REAL", "IMAG")[index]
    return Row(name, lambda op: op.input(0).element(index, -1), is_complex=True)


ROWS = (
    Row("RFFT2D", _rfft_2d, is_complex=True),
    _part(0),
    _part(1),
    Row("COMPLEX_ABS", lambda op: op.build("ReduceL2", op.input(0), (-1,), keepdims=0),
        is_complex=True),
)  # fmt: skip
"""The rows."""
