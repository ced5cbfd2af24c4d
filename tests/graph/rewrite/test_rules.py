"""Test each rule on random graphs that are built from its own pattern: the results stay equal."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pytest

from tests.graph.rewrite.uses import rewritten
from webmlc.core.dtypes import DType
from webmlc.core.expr import as_expr, const
from webmlc.graph.builder import Builder
from webmlc.graph.infer.evaluate import evaluate_module
from webmlc.graph.ir import Array, Attribute, Function, Module, Node, TensorType
from webmlc.graph.quantise import compute_in_integers
from webmlc.graph.rewrite.patterns import (
    Condition,
    Either,
    Nodes,
    Nothing,
    P,
    Pattern,
    Rule,
    Rules,
    View,
    by_operator,
    constant,
    number,
    value,
    view,
)
from webmlc.graph.rewrite.rewriting import Rewriting
from webmlc.graph.simplify import simplify_graph

Operand = TensorType | Array
"""An operand of a node: a value of a type, or this constant."""
Form = tuple[dict[str, Attribute], list[Operand]]
"""The attributes and operands of a node."""
TRIALS = 40


def tensor(dtype: DType, *shape: int) -> TensorType:
    return TensorType(dtype, tuple(map(const, shape)))


@dataclass
class Graphs:
    """A function that is built from a pattern, from the outputs to the inputs."""

    rng: np.random.Generator
    writer: Rewriting
    inputs: dict[str, TensorType] = field(default_factory=dict)
    captured: dict[str, str] = field(default_factory=dict)
    count: int = 0

    @property
    def build(self) -> Builder:
        self.count += 1
        return Builder(Node("", (), (f"v{self.count}",)), self.writer)

    def value(self, pattern: Pattern | None, operand: Operand) -> str:
        """A value of the pattern."""
        match pattern:
            case Either():
                return self.value(self.choice((pattern.first, pattern.second)), operand)
            case Condition():
                is_ones = getattr(pattern.pattern, "name", "") == "a"
                inner = np.ones((), np.float32) if is_ones else operand
                return self.value(pattern.pattern, inner)
            case Nothing():
                return ""
            case Nodes() if isinstance(operand, TensorType):
                return self.node(pattern, operand)
            case View():
                if pattern.name not in self.captured:
                    self.captured[pattern.name] = self.leaf(pattern, operand)
                return self.captured[pattern.name]
        return self.leaf(None, operand)

    def leaf(self, pattern: View | None, operand: Operand) -> str:
        """A constant, an input, or what the function of a view looks for."""
        function = "" if pattern is None else pattern.function.__qualname__
        if function in ("quantised", "uniform_bytes"):
            source = self.input(TensorType(DType.int8, tuple(map(as_expr, operand.shape))))
            scale, zero = np.float32(self.choice((0.5, 0.25))), np.int8(self.choice((0, 3)))
            return self.build("DequantizeLinear", source, scale, zero)
        if isinstance(operand, np.ndarray):
            return self.build.constant(operand)
        if function == "single_value":
            fill = np.full((), self.choice((0, 1)), operand.dtype.numpy)
            return self.build.constant(fill)
        if "constant" in function or "number" in function:
            return self.build.constant(self.numbers(self.stretched(operand, "number" in function)))
        return self.input(operand)

    def stretched(self, type_: TensorType, is_number: bool) -> TensorType:
        """The type of a number, or of a constant that may be stretched to a type."""
        sizes = type_.static_shape or ()
        channels = [n if d == 1 else 1 for d, n in enumerate(sizes)]
        shape = self.choice(((), channels, sizes)) if not is_number else ()
        return tensor(type_.dtype, *shape)

    def input(self, type_: TensorType) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.writer.types[name] = type_
        return name

    def numbers(self, type_: TensorType) -> Array:
        shape = type_.static_shape or ()
        if type_.dtype.is_float:
            return self.rng.standard_normal(shape).astype(type_.dtype.numpy)
        return self.rng.integers(0, 4, shape).astype(type_.dtype.numpy)

    def choice(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def node(self, pattern: Nodes, type_: TensorType, output: str = "") -> str:
        """A node of the pattern, whose output has this type."""
        known = [op for _, op in sorted(pattern.operators) if op in FORMS]
        assert known, f"no form of {sorted(pattern.operators)}"
        op = self.choice(known)
        attributes, operands = FORMS[op](self, type_)
        patterns: list[Pattern | None] = [*pattern.operands]
        patterns += [None] * (len(operands) - len(patterns))
        names = [self.value(*pair) for pair in zip(patterns, operands, strict=False)]
        return self.build(op, *names, output=output, type_=type_, **attributes)


def elementwise(count: int, graphs: Graphs, type_: TensorType) -> Form:
    return {}, [type_] * count


def reshape(graphs: Graphs, type_: TensorType) -> Form:
    """A view, which may split the channels in two."""
    sizes = list(type_.static_shape or ())
    if len(sizes) == 4 and sizes[1] == 6:
        return {"shape": type_.shape}, [tensor(type_.dtype, sizes[0], 3, 2, *sizes[2:])]
    if len(sizes) == 5:
        return {"shape": type_.shape}, [tensor(type_.dtype, sizes[0], 6, *sizes[3:])]
    return {"shape": type_.shape}, [tensor(type_.dtype, *sizes[::-1])]


def transpose(graphs: Graphs, type_: TensorType) -> Form:
    sizes = type_.static_shape or ()
    if len(sizes) == 5:
        return {"perm": (0, 2, 1, 3, 4)}, [tensor(type_.dtype, sizes[0], 2, 3, *sizes[3:])]
    perm = tuple(map(int, graphs.rng.permutation(len(sizes))))
    shape = [sizes[perm.index(d)] for d in range(len(sizes))]
    return {"perm": perm}, [tensor(type_.dtype, *shape)]


def concat(graphs: Graphs, type_: TensorType) -> Form:
    batch, channels, *rest = type_.static_shape or ()
    first = graphs.choice((0, 2, channels))
    parts = [tensor(type_.dtype, batch, n, *rest) for n in (first, channels - first)]
    return {"axis": 1}, list(parts)


def convolution(graphs: Graphs, type_: TensorType) -> Form:
    batch, channels, height, width = type_.static_shape or ()
    weights = graphs.numbers(tensor(DType.float32, channels, 2, 3, 3))
    data = tensor(type_.dtype, batch, 2, height, width)
    bias = [graphs.numbers(tensor(DType.float32, channels))] if graphs.choice((True, False)) else []
    return {"pads": (1, 1, 1, 1)}, [data, weights, *bias]


def pad(graphs: Graphs, type_: TensorType) -> Form:
    *outer, height, width = type_.static_shape or ()
    amounts = np.array([0, 0, 1, 0, 0, 0, 0, 2])
    return {}, [tensor(type_.dtype, *outer, height - 1, width - 2), amounts]


def gemm(graphs: Graphs, type_: TensorType) -> Form:
    rows, columns = type_.static_shape or ()
    return {}, [tensor(type_.dtype, rows, 5), graphs.numbers(tensor(DType.float32, 5, columns))]


def matmul(graphs: Graphs, type_: TensorType) -> Form:
    *rows, columns = type_.static_shape or ()
    return {}, [tensor(type_.dtype, *rows, 5), graphs.numbers(tensor(type_.dtype, 5, columns))]


def batch_normalisation(graphs: Graphs, type_: TensorType) -> Form:
    channels = (type_.static_shape or ())[1]
    arrays = [np.abs(graphs.numbers(tensor(DType.float32, channels))) + 0.1 for _ in range(4)]
    return {}, [type_, *(array.astype(np.float32) for array in arrays)]


def quantise(graphs: Graphs, type_: TensorType) -> Form:
    scale = np.array(graphs.choice((0.5, 0.25, 2.0)), np.float32)
    data = TensorType(DType.float32, type_.shape)
    return {}, [data, scale, np.array(graphs.choice((0, 3)), np.int8)]


def one_hot(graphs: Graphs, type_: TensorType) -> Form:
    *rows, depth = type_.static_shape or ()
    ends = np.array([0, 1], type_.dtype.numpy)
    return {"axis": -1}, [tensor(DType.int64, *rows), np.array(depth), ends]


def equal(graphs: Graphs, type_: TensorType) -> Form:
    *rows, depth = type_.static_shape or ()
    return {}, [tensor(DType.int64, *rows, 1), np.arange(depth)]


def pooled(graphs: Graphs, type_: TensorType) -> Form:
    batch, channels, height, width = type_.static_shape or ()
    return {"kernel_shape": (2, 2)}, [tensor(type_.dtype, batch, channels, height + 1, width + 1)]


def global_pooled(graphs: Graphs, type_: TensorType) -> Form:
    return {}, [tensor(type_.dtype, *(type_.static_shape or ())[:2], 3, 4)]


FORMS: dict[str, Callable[[Graphs, TensorType], Form]] = {
    **{op: partial(elementwise, 1) for op in ("Identity", "Tanh", "Relu", "Sum", "Max", "Clip")},
    **{op: partial(elementwise, 2) for op in ("Add", "Mul", "Sub", "Div", "Pow")},
    "Where": lambda _, t: ({}, [TensorType(DType.bool, t.shape), t, t]),
    "Cast": lambda _, t: ({"to": 1}, [TensorType(DType.int32, t.shape)]),
    "Reshape": reshape,
    "Transpose": transpose,
    "Concat": concat,
    "Conv": convolution,
    "Pad": pad,
    "Gemm": gemm,
    "MatMul": matmul,
    "BatchNormalization": batch_normalisation,
    "QuantizeLinear": quantise,
    "OneHot": one_hot,
    "Equal": equal,
    "AveragePool": pooled,
    "MaxPool": pooled,
    "GlobalAveragePool": global_pooled,
}
"""A form of each operator, from the type of its output."""

MATRIX_OPERATORS = frozenset({"Gemm", "MatMul"})


def root_type(op: str) -> TensorType:
    """The type of the output of an operator."""
    if op == "QuantizeLinear":
        return tensor(DType.int8, 2, 6, 3, 4)
    if op in MATRIX_OPERATORS:
        return tensor(DType.float32, 3, 4)
    map_size = (1, 1) if op == "GlobalAveragePool" else (3, 4)
    return tensor(DType.float32, 2, 6, *map_size)


def quantised(name: str) -> Pattern:
    return view(name, compute_in_integers.quantised)


_SCALE = (number("scale"), number("zero"))
EXAMPLES: dict[str, list[Nodes]] = {
    "_canonical_view": [P("Reshape", P("Reshape", value("x")))],
    "_hoist_elementwise": [
        P("Relu", P("Reshape", P("Tanh", value("x")))),
        P("Relu", P("Transpose", P("Conv", value("x")))),
    ],
    "_fold_into_weights": [P(op, P("Conv"), constant("operand")) for op in ("Add", "Mul")],
    "_move_parts": [P("Concat", quantised("left"), quantised("right"))],
    "_quantise_parts": [
        P("QuantizeLinear", P("Concat", quantised("left"), quantised("right")), *_SCALE)
    ],
    "_multiply_integers": [
        P("MatMul", quantised("left"), quantised("right")),
        P("Conv", quantised("left"), quantised("right")),
    ],
    "_scale_once": [
        P("QuantizeLinear", P("Relu", P("Mul", P("Cast", value("x")), number("a"))), *_SCALE)
    ],
}
"""The graphs of rules that look at nodes which their pattern does not name."""


def rules_of(table: Rules) -> list[Rule]:
    return list(dict.fromkeys(chain.from_iterable(table.values())))


RULES = [
    pytest.param(rule, id=rule.function.__name__.strip("_"))
    for table in (simplify_graph.RULES, compute_in_integers.RULES)
    for rule in rules_of(table)
]


def instance(rule: Rule, seed: int) -> Module:
    """A random graph of the rule's pattern."""
    source = Function("main", (), ("y",), (), {}, {})
    graphs = Graphs(np.random.default_rng(seed), Rewriting(source))
    pattern = graphs.choice(EXAMPLES.get(rule.function.__name__, [rule.pattern]))
    op = graphs.choice([op for _, op in sorted(pattern.operators) if op in FORMS])
    root = P(op, *pattern.operands, more=pattern.has_more)
    graphs.node(root, root_type(op), output="y")
    writer = graphs.writer
    function = Function(
        "main", tuple(graphs.inputs), ("y",), tuple(writer.nodes), writer.types, writer.constants
    )
    return Module("rule", {"main": function})


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_keeps_the_results(rule: Rule) -> None:
    applied = 0
    for trial in range(TRIALS):
        seed = zlib.crc32(f"{rule.function.__name__} {trial}".encode())
        module = instance(rule, seed)
        before = module.main
        after = rewritten(before, by_operator([rule]))
        if [(n.op, n.inputs) for n in after.nodes] == [(n.op, n.inputs) for n in before.nodes]:
            continue
        applied += 1
        rng = np.random.default_rng(seed)
        inputs = {
            name: rng.integers(-3, 4, before.types[name].static_shape).astype(
                before.types[name].dtype.numpy
            )
            for name in before.inputs
        }
        expected = evaluate_module(module, inputs)["y"]
        result = evaluate_module(Module("rule", {"main": after}), inputs)["y"]
        assert result.dtype == expected.dtype
        tolerance = 1 if expected.dtype == np.int8 else 1e-4  # a step of quantisation
        np.testing.assert_allclose(
            result.astype(np.float64), expected.astype(np.float64), rtol=1e-4, atol=tolerance
        )
    assert applied, "no instance of the pattern was rewritten"
