"""Make the sparse constants of TensorFlow Lite dense.

A sparse tensor is stored level by level (`SparsityParameters` in TensorFlow Lite's schema). A level
is a dimension, in the order of `TraversalOrder`, or a part of a block. A dense level has all of its
places. A sparse level has only the places in `ArrayIndices`: for place p of the level above, the
entries from `ArraySegments[p]` to `ArraySegments[p + 1]`:

    [[0, 5, 0], [7, 0, 9]]   ->   dense level of 2; sparse level: segments 0 1 3, indices 1 0 2;
                                  values 5 7 9
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np

from webmlc.graph.ir import Array

DENSE = 0
"""The format of a dense level (`DimensionType.DENSE`)."""
MOST_ZEROS = 1 << 12
"""The most elements of a dense tensor for each stored element. More are a defect of a file. Chosen
by hand: published models store at least a tenth of their elements.
"""


def dense_values(sparsity: Any, schema: Any, values: Array, shape: tuple[int, ...]) -> Array:
    """The elements of a sparse tensor of this shape, whose stored elements are `values`. `sparsity`
    is a table of the library `schema`, which knows the types of indices.
    """
    if prod(shape) > MOST_ZEROS * max(values.size, 1):
        raise ValueError(f"{values.size} elements stand for a tensor of shape {shape}")
    levels = [sparsity.DimMetadata(i) for i in range(sparsity.DimMetadataLength())]
    places = np.zeros(1, np.int64)
    coordinates: list[Array] = []
    for level in levels:
        if level.Format() == DENSE:
            counts = np.full(len(places), level.DenseSize())
            starts, indices = places * level.DenseSize(), None
        else:
            segments, indices = (
                _numbers(schema, getattr(level, f"{field}Type")(), getattr(level, field)())
                for field in ("ArraySegments", "ArrayIndices")
            )
            starts, counts = segments[places], segments[places + 1] - segments[places]
        if int(counts.min(initial=0)) < 0 or sum(counts.tolist()) > prod(shape):
            raise ValueError(f"a level has more places than a tensor of shape {shape}")
        first = np.repeat(np.cumsum(counts) - counts, counts)
        offsets = np.arange(counts.sum()) - first
        coordinates = [np.repeat(c, counts) for c in coordinates]
        places = np.repeat(starts, counts) + offsets
        coordinates.append(offsets if indices is None else indices[places])
    dense: Array = np.zeros(shape, values.dtype)
    sizes = [level.DenseSize() for level in levels]
    dense[_positions(sparsity, sizes, coordinates, len(shape))] = values[places]
    return dense


@cache
def member_names(schema: Any, enumeration: str) -> dict[int, str]:
    """The names of an enumeration of the library `schema` by number."""
    members = vars(getattr(schema, enumeration)).items()
    return {number: name for name, number in members if isinstance(number, int)}


def _numbers(schema: Any, kind: int, table: Any) -> Array:
    """The numbers of a vector of indices, whose type is one of three tables."""
    vector = getattr(schema, member_names(schema, "SparseIndexVector")[kind])()
    vector.Init(table.Bytes, table.Pos)
    return np.array(vector.ValuesAsNumpy() if vector.ValuesLength() else [], np.int64)


def _positions(
    sparsity: Any, sizes: list[int], coordinates: list[Array], rank: int
) -> tuple[Array, ...]:
    """The indices of elements, from their coordinates in each level. The coordinate in a block's
    level is the position within a block of its dimension.
    """
    order = [int(d) for d in sparsity.TraversalOrderAsNumpy()]
    indices = [coordinates[order.index(d)] for d in range(rank)]
    blocks = [] if sparsity.BlockMapIsNone() else [int(d) for d in sparsity.BlockMapAsNumpy()]
    for number, dimension in enumerate(blocks):
        level = order.index(rank + number)
        indices[dimension] = indices[dimension] * sizes[level] + coordinates[level]
    return tuple(indices)
