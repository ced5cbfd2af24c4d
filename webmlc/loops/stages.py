"""The stages of a kernel: the loops and the block of each, and the nodes that it computes.

%c = Conv(%x, %w); %y = Relu(Add(%c, %b))   ->   stages of ("conv",) and ("add", "relu")
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import substitute
from webmlc.graph.compute import ReduceAxis, Tensor
from webmlc.graph.ir import Node
from webmlc.loops.ir import Axis, AxisKind, Block, Stmt, grid


class StageNest:
    """The loops and the block of a stage, before any schedule: serial loops in the order of the
    axes.

    nest = StageNest("y", spatial, reduce_axes)     # the axes of a tensor and of its reduction
    nest.around(Store(y, indices, value), init)     # for y_0, y_1, y_r0 in ...: block "y"

    `slices` are its spatial axes. `axis_vars` maps the variables of the stage to the axis variables
    of the block. `labels` are the names of the loops; without them, the name of the stage and a
    number name each loop.
    """

    def __init__(
        self,
        name: str,
        slices: Sequence[ReduceAxis],
        reduce_axes: Sequence[ReduceAxis],
        labels: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.loops: list[tuple[Var, Expr]] = []
        self.axes: list[Axis] = []
        self.axis_vars: dict[Var, Expr] = {}
        numbered = (
            *(f"{name}_{number}" for number in range(len(slices))),
            *(f"{name}_r{number}" for number in range(len(reduce_axes))),
        )
        axes: list[tuple[AxisKind, ReduceAxis]] = [
            *(("spatial", axis) for axis in slices),
            *(("reduce", axis) for axis in reduce_axes),
        ]
        for label, (kind, axis) in zip(labels or numbered, axes, strict=True):
            self.loops.append((Var(label), axis.extent))
            self.axes.append(Axis(Var(f"v_{label}"), axis.extent, kind))
            self.axis_vars[axis.var] = self.axes[-1].var

    def around(self, body: Stmt, init: Stmt | None = None, predicate: Expr | None = None) -> Stmt:
        """Build the serial loops around a block of this body. `predicate` uses the block's axes."""
        bindings = tuple(var for var, _ in self.loops)
        if predicate is not None:
            values = zip((axis.var for axis in self.axes), bindings, strict=True)
            predicate = substitute(predicate, dict(values))
        block = Block(self.name, tuple(self.axes), bindings, body, init, predicate)
        return grid(tuple(self.loops), block)


@dataclass(slots=True)
class StageNodes:
    """The nodes that each stage computes: its own, and the nodes that are inlined into it.

    `owners` maps each tensor to the position of the node that computes it, and `stages` holds the
    positions of the nodes of each stage.
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
