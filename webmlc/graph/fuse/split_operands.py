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
from dataclasses import replace
from functools import partial
from typing import TypeVar

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, const
from webmlc.core.simplify import simplify
from webmlc.graph.builder import Builder, Value
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.ir import Attribute, Module, Node, TensorType
from webmlc.graph.ops.operator import object_array, symbolic_constant
from webmlc.graph.ops.view import START
from webmlc.graph.rewrite.patterns import P, Rule, by_operator
from webmlc.graph.rewrite.rewriting import Rewriting

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
    operands = limits.buffers - 1
    rules = by_operator(
        (
            Rule(P("Concat"), partial(_split_concat, operands)),
            Rule(P(FOLDS), partial(_split_fold, operands)),
            Rule(P("Split"), partial(_split_split, min(operands, MAX_PARTS))),
        )
    )
    return module.map_functions(lambda function: Rewriting(function, rules).run())


def _split_concat(operands: int, node: Node, build: Builder) -> Node | None:
    """A Concat of many operands  ->  a tree of Concats, the leaves first"""
    if len(node.inputs) <= operands:
        return None
    inputs = node.inputs
    count = 0
    while len(inputs) > operands:
        joined: list[str] = []
        for group in _groups(inputs, operands):
            if len(group) == 1:
                joined += group
                continue
            name, count = f"{node.outputs[0]}/part{count}", count + 1
            joined.append(build("Concat", *group, output=name, **node.attributes))
        inputs = tuple(joined)
    return replace(node, inputs=inputs)


def _split_fold(operands: int, node: Node, build: Builder, y: Value) -> Node | None:
    """A fold of many operands  ->  a chain of folds, each from the result of the fold before"""
    if len(node.inputs) <= operands:
        return None
    op = "Sum" if node.op == "Mean" else node.op
    inputs = node.inputs
    count = 0
    while len(inputs) > operands or (op != node.op and len(inputs) > 1):
        name, count = f"{y}/part{count}", count + 1
        build(op, *inputs[:operands], output=name, **node.attributes)
        inputs = (name, *inputs[operands:])
    if op == node.op:
        return replace(node, inputs=inputs)
    factor = build.constant(1 / len(node.inputs), y.type.dtype, f"{y}/factor")
    return replace(node, op="Mul", inputs=(*inputs, factor))


def _split_split(parts: int, node: Node, build: Builder) -> str | None:
    """A Split of many parts  ->  a Split of each group, from where the group before it ends

    Devices have groups of different sizes, and a package has one constant of each name.
    """
    if len(node.outputs) <= parts:
        return None
    types = [build.value(output).type for output in node.outputs]
    axis = int(node.attributes.get("axis", 0)) % types[0].rank
    start: Expr = const(0)
    for group in _groups(range(len(types)), parts):
        lengths = [types[index].shape[axis] for index in group]
        name = f"{node.outputs[0]}/lengths{group[0]}to{group[-1]}"
        _write_integers(build, name, lengths)
        attributes: dict[str, Attribute] = {"axis": axis, START: start}
        outputs = tuple(node.outputs[index] for index in group)
        split = replace(node, inputs=(node.inputs[0], name), outputs=outputs, attributes=attributes)
        build.append(split, [types[index] for index in group])
        start = simplify(sum(lengths, start))
    return node.outputs[0]


def _write_integers(build: Builder, name: str, elements: Sequence[Expr]) -> None:
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
