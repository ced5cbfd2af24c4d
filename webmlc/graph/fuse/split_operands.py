"""A node of more operands than one kernel can bind becomes several nodes.

In: a module after layouts, and how many buffers a kernel may hold. Out: the same results; no
Concat, Sum, Mean, Max, Min or Split reads or writes more.

    %y = Concat(%a, ..., %i)  ->  %p = Concat(%a, ..., %g); %q = Concat(%h, %i); %y = Concat(%p, %q)
    %y = Sum(%a, ..., %i)     ->  %p = Sum(%a, ..., %g); %y = Sum(%p, %h, %i)
    %a, ..., %i = Split(%x)   ->  %a, ..., %g = Split(%x); %h, %i = Split(%x) {start=...}

A sum of float32 keeps its order, so the result is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, const
from webmlc.core.simplify import simplify
from webmlc.graph.fuse.fuse import FusionLimits
from webmlc.graph.ir import Array, Attribute, Function, Module, Node, TensorType
from webmlc.graph.ops.operator import object_array, symbolic_constant
from webmlc.graph.ops.view import START
from webmlc.graph.rewrite.meaning import infer_node

T = TypeVar("T")

FOLDS = frozenset({"Sum", "Max", "Min", "Mean"})
"""Operators that fold their inputs from the left."""

MAX_PARTS = 16
"""Outputs of one Split: each is a block of its own, and scheduling a kernel takes time with the
square of its blocks. The Splits of models that we know have at most a dozen.
"""


def split_operands(module: Module, limits: FusionLimits) -> Module:
    """needs: inferred types. guarantees: every node of `FOLDS`, every Concat and every Split has
    less than `limits.buffers` inputs and outputs, and a Split no more than `MAX_PARTS`.
    """
    functions = {
        name: _Splitting(f, limits.buffers - 1).run() for name, f in module.functions.items()
    }
    return replace(module, functions=functions)


@dataclass(slots=True)
class _Splitting:
    """The rewriting of one function: at most `most` operands a node."""

    function: Function
    most: int
    types: dict[str, TensorType] = field(init=False)
    constants: dict[str, Array] = field(init=False)

    def run(self) -> Function:
        self.types, self.constants = dict(self.function.types), dict(self.function.constants)
        nodes = tuple(part for node in self.function.nodes for part in self.parts(node))
        return replace(self.function, nodes=nodes, types=self.types, constants=self.constants)

    def parts(self, node: Node) -> Iterator[Node]:
        """What becomes of a node."""
        many = len(node.inputs) > self.most
        match node.domain, node.op:
            case "", "Concat" if many:
                yield from self.concats(node)
            case "", op if many and op in FOLDS:
                yield from self.folds(node)
            case "", "Split" if len(node.outputs) > min(self.most, MAX_PARTS):
                yield from self.splits(node)
            case _:
                yield node

    def concats(self, node: Node) -> Iterator[Node]:
        """A tree of Concats, the leaves first."""
        inputs = node.inputs
        count = 0
        while len(inputs) > self.most:
            joined: list[str] = []
            for group in _groups(inputs, self.most):
                if len(group) == 1:
                    joined += group
                    continue
                name, count = f"{node.outputs[0]}/part{count}", count + 1
                yield self.typed(replace(node, inputs=group, outputs=(name,)))
                joined.append(name)
            inputs = tuple(joined)
        yield replace(node, inputs=inputs)

    def folds(self, node: Node) -> Iterator[Node]:
        """A chain of folds, each of which starts from the result of the one before."""
        op = "Sum" if node.op == "Mean" else node.op
        inputs = node.inputs
        count = 0
        while len(inputs) > self.most or (op != node.op and len(inputs) > 1):
            name, count = f"{node.outputs[0]}/part{count}", count + 1
            group = inputs[: self.most]
            yield self.typed(replace(node, op=op, inputs=group, outputs=(name,)))
            inputs = (name, *inputs[self.most :])
        if op == node.op:
            yield replace(node, inputs=inputs)
            return
        factor = f"{node.outputs[0]}/factor"
        dtype = self.types[node.outputs[0]].dtype
        self.constants[factor] = np.array(1 / len(node.inputs), dtype.numpy)
        yield replace(node, op="Mul", inputs=(*inputs, factor))

    def splits(self, node: Node) -> Iterator[Node]:
        """A Split for each group of outputs, of what starts behind the groups before it."""
        rank = self.types[node.outputs[0]].rank
        axis = int(node.attributes.get("axis", 0)) % rank
        start: Expr = const(0)
        for number, group in enumerate(_groups(node.outputs, min(self.most, MAX_PARTS))):
            lengths = [self.types[output].shape[axis] for output in group]
            name = f"{node.outputs[0]}/lengths{number}"
            yield from self.value(name, lengths, node)
            attributes: dict[str, Attribute] = {"axis": axis, START: start}
            inputs = (node.inputs[0], name)
            yield replace(node, inputs=inputs, outputs=group, attributes=attributes)
            start = simplify(sum(lengths, start))

    def value(self, name: str, elements: Sequence[Expr], node: Node) -> Iterator[Node]:
        """Integers under a name: a constant, or the node of those that hold symbols."""
        numbers = [simplify(e) for e in elements]
        if all(isinstance(e, Const) for e in numbers):
            values = [e.value for e in numbers if isinstance(e, Const)]
            self.constants[name] = np.array(values, np.int64)
            return
        mixed: list[int | float | Expr] = [e.value if isinstance(e, Const) else e for e in numbers]
        value = object_array(mixed, (len(mixed),))
        self.types[name] = TensorType(DType.int64, (const(len(numbers)),))
        yield symbolic_constant(value, DType.int64, name, node.origin)

    def typed(self, node: Node) -> Node:
        """The node, its output's type inferred."""
        (self.types[node.outputs[0]],) = infer_node(node, self.types, self.constants)
        return node


def _groups(items: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    """The items in order, `size` at a time."""
    return (tuple(items[start : start + size]) for start in range(0, len(items), size))
