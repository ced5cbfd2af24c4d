"""Give values shapes that only a run knows.

In: the elements of a tensor along one axis, and its shape; or the elements of several tensors, and
their shapes, one in each row. Out: the tensor, or the list of tensors.

    >>> with_shape(np.arange(7), np.array([[2, 2], [1, 3]]))
    [array([[0, 1],
           [2, 3]]), array([[4, 5, 6]])]
"""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray


def with_shape(elements: NDArray[Any], sizes: NDArray[Any]) -> Any:
    """The tensor of a shape, or the tensors of several shapes. Raises `ValueError` if a shape does
    not fit.
    """
    shapes = sizes.tolist() if sizes.ndim > 1 else [sizes.tolist()]
    counts = [prod(shape) for shape in shapes]
    if sum(counts) != elements.size or min(sizes.ravel().tolist(), default=0) < 0:
        raise ValueError(f"{elements.size} elements do not have the shapes {shapes}")
    parts = np.split(elements, list(accumulate(counts))[:-1]) if counts else []
    tensors = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    return tensors if sizes.ndim > 1 else tensors[0]
