"""Note which nodes of a fused body each stage of its kernel computes.

In: the nodes of a body, the tensors that each computes, and the tensors that become stages. Out:
the ONNX nodes of each stage. A stage also computes the nodes that are inlined into it:

    %c = Conv(%x, %w); %y = Relu(Add(%c, %b))   ->   ("conv",), ("add", "relu")
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from webmlc.graph.compute import Tensor
from webmlc.graph.ir import Node


@dataclass(slots=True)
class StageNodes:
    """The stages so far. `owners` maps each tensor to the position of the node that computes it,
    and `stages` holds the positions of the nodes of each stage.
    """

    nodes: Sequence[Node]
    owners: dict[Tensor, int] = field(default_factory=dict)
    stages: list[set[int]] = field(default_factory=list)

    def own(self, position: int, tensors: Iterable[Tensor]) -> None:
        """Note that the node at a position computes these tensors, and every tensor that they need
        and no earlier node computes.
        """
        needed = list(tensors)
        while needed:
            tensor = needed.pop()
            if tensor.body is not None and tensor not in self.owners:
                self.owners[tensor] = position
                needed += tensor.sources

    def own_as(self, tensor: Tensor, other: Tensor) -> None:
        """Note that the node of `tensor` computes another tensor, too."""
        if tensor in self.owners:
            self.owners[other] = self.owners[tensor]

    def begin(self, tensor: Tensor, stored: Collection[Tensor]) -> int:
        """The number of a new stage that computes a tensor. The stage reads `stored` tensors, and
        computes every other tensor that it needs.
        """
        inlined, visited = [tensor], {tensor}
        while inlined:
            sources = {source for source in inlined.pop().sources if source not in stored}
            inlined += sources - visited
            visited |= sources
        self.stages.append({self.owners[t] for t in visited if t in self.owners})
        return len(self.stages) - 1

    def origins(self) -> tuple[tuple[str, ...], ...]:
        """The ONNX nodes of each stage."""
        return tuple(origin_of([self.nodes[p] for p in sorted(stage)]) for stage in self.stages)


def origin_of(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The ONNX nodes that some nodes come from, each once."""
    return tuple(dict.fromkeys(name for node in nodes for name in node.origin))
