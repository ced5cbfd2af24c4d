"""Split nodes of more operands than one kernel can bind.

In: a module after layouts, and the number of buffers that a kernel may hold. Out: the same results.
No Concat, Sum, Mean, Max, Min or Split reads or writes more buffers.

    %y = Concat(%a, ..., %i)  ->  %p = Concat(%a, ..., %g); %q = Concat(%h, %i); %y = Concat(%p, %q)
    %y = Sum(%a, ..., %i)     ->  %p = Sum(%a, ..., %g); %y = Sum(%p, %h, %i)
    %a, ..., %i = Split(%x)   ->  %a, ..., %g = Split(%x); %h, %i = Split(%x) {start=...}

A sum of float32 keeps its order, so the result is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, const
from webmlc.core.simplify import simplify
from webmlc.graph.builder import Builder
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.ir import Attribute, Module, Node, TensorType
from webmlc.graph.ops.operator import object_array, symbolic_constant
from webmlc.graph.ops.view import START
from webmlc.graph.rewrite.rewriting import FunctionRewriter

T = TypeVar("T")

FOLDS = frozenset({"Sum", "Max", "Min", "Mean"})
"""Operators that fold their inputs from the left."""

MAX_PARTS = 16
"""The largest number of outputs of one Split. Each output is a separate block, and the time to
schedule a kernel grows with the square of the number of its blocks. The real models of the tests
have Splits of at most a dozen outputs.
"""


def split_operands(module: Module, limits: FusionLimits) -> Module:
    """Split the nodes of every function.

    needs: inferred types. guarantees: every node of `FOLDS`, every Concat and every Split has fewer
    than `limits.buffers` inputs and outputs. A Split has at most `MAX_PARTS` outputs.
    """
    return module.map_functions(
        lambda function: _Rewrite(function, max_operands=limits.buffers - 1).rewritten()
    )


@dataclass(slots=True)
class _Rewrite(FunctionRewriter):
    """The function being written; a node has at most `max_operands`."""

    max_operands: int = field(kw_only=True)

    def rewrite(self, node: Node) -> None:
        """Write a node, split if it has too many operands."""
        has_many_inputs = len(node.inputs) > self.max_operands
        match node.operator:
            case "", "Concat" if has_many_inputs:
                self.split_concat(node)
            case "", op if has_many_inputs and op in FOLDS:
                self.split_fold(node)
            case "", "Split" if len(node.outputs) > min(self.max_operands, MAX_PARTS):
                self.split_split(node)
            case _:
                self.keep(node)

    def split_concat(self, node: Node) -> None:
        """Write a tree of Concats, the leaves first."""
        build = Builder(node, self)
        inputs = node.inputs
        count = 0
        while len(inputs) > self.max_operands:
            joined: list[str] = []
            for group in _groups(inputs, self.max_operands):
                if len(group) == 1:
                    joined += group
                    continue
                name, count = f"{node.outputs[0]}/part{count}", count + 1
                joined.append(build("Concat", *group, output=name, **node.attributes))
            inputs = tuple(joined)
        self.keep(replace(node, inputs=inputs))

    def split_fold(self, node: Node) -> None:
        """Write a chain of folds. Each fold starts from the result of the fold before."""
        build = Builder(node, self)
        op = "Sum" if node.op == "Mean" else node.op
        inputs = node.inputs
        count = 0
        while len(inputs) > self.max_operands or (op != node.op and len(inputs) > 1):
            name, count = f"{node.outputs[0]}/part{count}", count + 1
            group = inputs[: self.max_operands]
            build(op, *group, output=name, **node.attributes)
            inputs = (name, *inputs[self.max_operands :])
        if op == node.op:
            self.keep(replace(node, inputs=inputs))
            return
        dtype = self.types[node.outputs[0]].dtype
        factor = build.constant(1 / len(node.inputs), dtype, f"{node.outputs[0]}/factor")
        self.keep(replace(node, op="Mul", inputs=(*inputs, factor)))

    def split_split(self, node: Node) -> None:
        """Write a Split for each group of outputs. It starts where the group before it ends."""
        rank = self.types[node.outputs[0]].rank
        axis = int(node.attributes.get("axis", 0)) % rank
        start: Expr = const(0)
        for number, group in enumerate(_groups(node.outputs, min(self.max_operands, MAX_PARTS))):
            lengths = [self.types[output].shape[axis] for output in group]
            name = f"{node.outputs[0]}/lengths{number}"
            self.write_integers(Builder(node, self), name, lengths)
            attributes: dict[str, Attribute] = {"axis": axis, START: start}
            inputs = (node.inputs[0], name)
            self.keep(replace(node, inputs=inputs, outputs=group, attributes=attributes))
            start = simplify(sum(lengths, start))

    def write_integers(self, build: Builder, name: str, elements: Sequence[Expr]) -> None:
        """Write integers as a constant, or as a symbolic constant if they hold symbols."""
        numbers = [simplify(e) for e in elements]
        if all(isinstance(e, Const) for e in numbers):
            values = [e.value for e in numbers if isinstance(e, Const)]
            build.constant(values, DType.int64, name)
            return
        mixed: list[int | float | Expr] = [e.value if isinstance(e, Const) else e for e in numbers]
        value = object_array(mixed, (len(mixed),))
        type_ = TensorType(DType.int64, (const(len(numbers)),))
        build.append(symbolic_constant(value, DType.int64, name, build.source.origin), (type_,))


def _groups(items: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    """The items in order, `size` at a time."""
    return (tuple(items[start : start + size]) for start in range(0, len(items), size))
