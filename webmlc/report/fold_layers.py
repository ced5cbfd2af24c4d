"""Find the equal layers of a model, so that a drawing can show only one layer.

In: the nodes of a graph in topological order, each with a text that describes its operation. Out:
the repetitions: consecutive groups of nodes with the same operations in the same order.

    >>> find_layers(["Gemm", "MatMul", "Add", "MatMul", "Add", "MatMul", "Add", "Softmax"])
    [Layers(first=1, period=2, count=3)]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FEWEST = 3
"""The fewest equal layers to fold. Two equal layers are drawn in full. Chosen by hand."""
SMALLEST = 12
"""The fewest nodes that folding must hide. Hiding fewer nodes makes a drawing no easier to read."""
LONGEST = 512
"""The most nodes of a layer, which bounds the time of the search."""


@dataclass(frozen=True, slots=True)
class Layers:
    """`count` equal layers of `period` nodes each, from node `first` on."""

    first: int
    period: int
    count: int

    @property
    def hidden(self) -> range:
        """The nodes of all layers but the first."""
        return range(self.first + self.period, self.first + self.period * self.count)


def find_layers(texts: Sequence[str], fewest: int = FEWEST, smallest: int = 0) -> list[Layers]:
    """The repetitions from left to right, each with the period that hides the most nodes. A
    repetition that hides fewer than `smallest` nodes is left out.
    """
    layers: list[Layers] = []
    position = 0
    equal_from = _equal_runs(texts)
    while position < len(texts):
        best: Layers | None = None
        for period, lengths in equal_from.items():
            count = 1 + lengths[position] // period
            candidate = Layers(position, period, count)
            if count >= fewest and (best is None or len(candidate.hidden) > len(best.hidden)):
                best = candidate
        if best is None or len(best.hidden) < smallest:
            position += 1
            continue
        layers.append(best)
        position += best.period * best.count
    return layers


def _equal_runs(texts: Sequence[str]) -> dict[int, list[int]]:
    """For each period and each node, the number of nodes from there on that equal the node one
    period later.
    """
    runs = {}
    for period in range(1, min(len(texts) // FEWEST, LONGEST) + 1):
        lengths = [0] * (len(texts) + 1)
        for i in range(len(texts) - period - 1, -1, -1):
            if texts[i] == texts[i + period]:
                lengths[i] = lengths[i + 1] + 1
        if max(lengths) >= (FEWEST - 1) * period:
            runs[period] = lengths
    return runs
