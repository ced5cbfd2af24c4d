"""Sparse constants of TensorFlow Lite become dense: rows, columns, and blocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from webmlc.frontend.doors.tensorflow import dense_values

MATRIX = [[1, 0, 2, 3], [0, 4, 0, 0], [0, 0, 5, 0], [0, 0, 0, 6]]
"""The example of TensorFlow Lite's description of its format."""


def dense(size: int) -> Any:
    return SimpleNamespace(format=0, denseSize=size)


def sparse(segments: list[int], indices: list[int]) -> Any:
    lists = (SimpleNamespace(values=values) for values in (segments, indices))
    return SimpleNamespace(format=1, denseSize=0, **dict(zip(NAMES, lists, strict=True)))


NAMES = ("arraySegments", "arrayIndices")
FORMS: dict[str, tuple[list[int], list[int] | None, list[Any], list[float]]] = {
    "rows": ([0, 1], None, [dense(4), sparse([0, 3, 4, 5, 6], [0, 2, 3, 1, 2, 3])],
             [1, 2, 3, 4, 5, 6]),
    "columns": ([1, 0], None, [dense(4), sparse([0, 1, 2, 4, 6], [0, 1, 0, 2, 0, 3])],
                [1, 4, 2, 5, 3, 6]),
    "rows of few": ([0, 1], None, [sparse([0, 3], [0, 2, 3]), dense(4)],
                    [1, 0, 2, 3, 0, 0, 5, 0, 0, 0, 0, 6]),
    "blocks": ([0, 1, 2, 3], [0, 1], [dense(2), sparse([0, 2, 3], [0, 1, 1]), dense(2), dense(2)],
               [1, 0, 0, 4, 2, 3, 0, 0, 5, 0, 0, 6]),
}  # fmt: skip


@pytest.mark.parametrize(("order", "blocks", "levels", "values"), FORMS.values(), ids=FORMS)
def test_a_sparse_tensor_is_made_dense(
    order: list[int], blocks: list[int] | None, levels: list[Any], values: list[float]
) -> None:
    sparsity = SimpleNamespace(traversalOrder=order, blockMap=blocks, dimMetadata=levels)
    tensor = SimpleNamespace(shape=[4, 4], type=0, sparsity=sparsity)
    content = np.array(values, np.float32).view(np.uint8)
    expected = np.array(MATRIX, np.float32)
    if len(levels) == 2 and levels[0].format == 1:
        expected[1] = 0  # this form leaves the second row out
    np.testing.assert_array_equal(dense_values(tensor, content), expected)
