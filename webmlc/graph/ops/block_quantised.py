"""Weights that are quantised in blocks, and the nodes that multiply by them or gather their rows.

The block `b` of row `n` has a scale and a minimum:

    W[n, k] = scales[n, k // block] * values[n, k] + minimums[n, k // block]

The nodes here multiply by floats: the weights are dequantised when the model is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from webmlc.graph.builder import Builder
from webmlc.graph.ir import Array


@dataclass(frozen=True, slots=True, eq=False)
class BlockQuantised:
    """A matrix [N, K] of block-quantised weights.

    - `values`: [N, K]; unsigned numbers of `bits` bits (uint8), or signed bytes if `bits` is 8.
    - `block`: the number of consecutive elements of a row that share a scale.
    - `scales`, `minimums`: float32 [N, K / block]. Without minimums, they are 0.
    """

    values: Array
    bits: int
    block: int
    scales: Array
    minimums: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """N rows and K columns."""
        rows, columns = self.values.shape
        return rows, columns

    def floats(self) -> Array:
        """The weights as float32 [N, K]."""
        rows, columns = self.shape
        blocks = self.values.reshape(rows, columns // self.block, self.block).astype(np.float32)
        weights = blocks * self.scales[..., None]
        if self.minimums is not None:
            weights += self.minimums[..., None]
        return weights.reshape(rows, columns)


def block_product(build: Builder, data: str, weights: BlockQuantised, output: str = "") -> str:
    """Multiply the rows of `data`, float32 [*, K], by those of the weights: [*, N]."""
    matrix = build.constant(np.ascontiguousarray(weights.floats().T))
    return build("MatMul", data, matrix, output=output)


def block_gather(build: Builder, indices: str, weights: BlockQuantised, output: str = "") -> str:
    """Gather rows of the weights, dequantised: [*, K]."""
    return build("Gather", build.constant(weights.floats()), indices, axis=0, output=output)
