"""The cost of an algorithm for a product, in multiply-adds of an inner loop.

The cost models of Winograd's and Strassen's algorithms count in this unit, with the numbers of a
`Machine`. They compare the algorithm with the direct product. An algorithm is chosen where it gains
more than its code is worth.

    gain(direct, cost, layers=12, code=8_000_000)     12 layers share the code of their kernels
"""

from __future__ import annotations

from dataclasses import dataclass

from webmlc.core.machine import Machine

ELEMENT_BYTES = 4
"""Bytes of an element: these algorithms compute in float32."""


DIRECT = "direct"
"""The name of the algorithm that computes a product or a convolution as it is."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The times of the parts of an algorithm in one run of one layer, in multiply-adds."""

    products: int
    """The products, with the cost of entering their inner loops."""
    transforms: int = 0
    """The sums before and after the products, and the memory that they read and write."""
    load: int = 0
    """The multiply-adds that a run must save to pay for loading and storing the weights."""

    @property
    def total(self) -> int:
        """The cost of all parts."""
        return self.products + self.transforms + self.load


def product_cost(machine: Machine, rows: int, depth: int, columns: int) -> int:
    """The cost of a matrix product, with the cost of entering its inner loops."""
    return rows * columns * (depth + machine.costs.loop_entry_iterations)


def gain(direct: int, cost: Cost, layers: int, code: int) -> int:
    """Multiply-adds that equal layers save in a run, less the worth of the code that they share."""
    return layers * (direct - cost.total) - code
