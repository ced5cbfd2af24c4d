"""The loops and the block of one stage of a kernel, before any schedule.

In: the axes of a tensor and of its reduction. Out: serial loops in the order of the axes.

    nest = StageNest("y", spatial, reduce_axes)     # the axes of a tensor and of its reduction
    nest.around(Store(y, indices, value), init)     # for y_0, y_1, y_r0 in ...: block "y"
"""

from __future__ import annotations

from collections.abc import Sequence

from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import substitute
from webmlc.graph.compute import ReduceAxis
from webmlc.loops.ir import Axis, AxisKind, Block, Stmt, grid


class StageNest:
    """The loops and the block of a stage.

    `slices` are its spatial axes. `axis_vars` maps the variables of the stage to the axis variables
    of the block.
    """

    def __init__(
        self, name: str, slices: Sequence[ReduceAxis], reduce_axes: Sequence[ReduceAxis]
    ) -> None:
        self.name = name
        self.loops: list[tuple[Var, Expr]] = []
        self.axes: list[Axis] = []
        self.axis_vars: dict[Var, Expr] = {}
        kinds: tuple[tuple[AxisKind, str, Sequence[ReduceAxis]], ...] = (
            ("spatial", name, slices),
            ("reduce", f"{name}_r", reduce_axes),
        )
        for kind, prefix, axes in kinds:
            for number, axis in enumerate(axes):
                label = f"{prefix}_{number}" if kind == "spatial" else f"{prefix}{number}"
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
