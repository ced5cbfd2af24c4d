"""Pack weights for vector loads: into contiguous panels of eight output channels.

pack_matrix(matrix of shape (3, 10)).shape  ->  (2, 3, 8): two panels, zero-padded
"""

from __future__ import annotations

import numpy as np

from webmlc.graph.ir import Array
from webmlc.graph.ops.layout import PACK


def pack_matrix(matrix: Array) -> Array:
    """Pack `[K, N]` as `[N/8, K, 8]`: zero-padded panels of eight columns. Vector loads read a row
    of a panel.
    """
    rows, columns = matrix.shape
    panels = -(-columns // PACK)
    padded = np.zeros((rows, panels * PACK), matrix.dtype)
    padded[:, :columns] = matrix
    return padded.reshape(rows, panels, PACK).transpose(1, 0, 2)


def pack_convolution(weights: Array, groups: int) -> Array:
    """Pack `[O, I, *kernel]` as `[O/8, *kernel, I, 8]`, zero-padded; with several groups as
    `[groups, ...]`. Pack a single output channel as `[1, *kernel, I, 1]`, for vectors along the
    inputs.
    """
    outputs, inputs, *kernel = weights.shape
    per_group = outputs // groups
    width = PACK if per_group > 1 else 1
    panels = -(-per_group // width)
    padded = np.zeros((groups, panels * width, inputs, *kernel), weights.dtype)
    padded[:, :per_group] = weights.reshape(groups, per_group, inputs, *kernel)
    split = padded.reshape(groups, panels, width, inputs, *kernel)
    packed = split.transpose(0, 1, *range(4, split.ndim), 3, 2)
    return packed if groups > 1 else packed[0]


def pack_depthwise(weights: Array) -> Array:
    """Pack `[C, 1, *kernel]` as `[*kernel, C]`: the channels of a tap are contiguous."""
    return np.moveaxis(weights[:, 0], 0, -1)
