"""If and Loop whose course only a run knows: their sub-graphs become functions of the module.

In: a node whose row does not expand, and what is known around it. Out: a node of domain `webmlc`
whose inputs say all that its functions read. A function's names are its own; constants that it
reads are constants of its own; its inputs are the values that it carries, then those it captures.

    %y = If(%c) {then: %t = Relu(%x), ..}  →  %y = webmlc.If(%c, %x) {functions=(y.then, y.else)}
                                              func y.then(%y.then/x) { %t = Relu(%y.then/x) .. }

A loop has one function, its body; the iteration is a symbol, like a dimension, that a run counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import NoReturn

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Call, Expr, Var, as_expr, maximum
from webmlc.core.rewrite import variables
from webmlc.graph.builder import Builder, Expansion
from webmlc.graph.ir import Array, Attribute, Function, Node, TensorType
from webmlc.graph.ops.control import ASSUMED, goes_on, places, splice
from webmlc.graph.ops.operator import (
    Context,
    NotSupportedError,
    Scope,
    UnknownValueError,
    object_array,
    symbolic_constant,
)
from webmlc.graph.ops.shapes import canonical, same

Infer = Callable[[Function, Scope], Function]


@dataclass(frozen=True, slots=True)
class Outlines:
    """The functions made so far, and numbers for the symbols of loops."""

    functions: dict[str, Function] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)


@dataclass(frozen=True, slots=True)
class Outline:
    """One If or Loop being outlined; `infer` types a function inside the scope around it."""

    context: Context
    scope: Scope
    infer: Infer
    outlines: Outlines

    def node(self) -> Node:
        """The node that calls the functions; raises `NotSupportedError` where no run could."""
        return self.branches() if self.context.node.op == "If" else self.loop()

    @property
    def outputs(self) -> tuple[str, ...]:
        """The node's outputs, those that nobody reads named too."""
        given = self.context.node.outputs
        base = next(filter(None, given))
        return tuple(o or f"{base}.unused_{k}" for k, o in enumerate(given))

    def branches(self) -> Node:
        """An If: the condition, then what each branch captures."""
        condition = self.context.node.inputs[0]
        functions, captures = [], []
        for key in ("then", "else"):
            expansion = Expansion()
            builder = self.builder(key, expansion)
            outputs = splice(self.context.attribute(f"{key}_branch"), builder, {})
            function, captured = self.function(builder, expansion, (), outputs, {})
            functions.append(function)
            captures += captured
        one, other = (tuple(_type(f, o) for o in f.outputs) for f in functions)
        alike = len(one) == len(other) and all(map(_alike, one, other))
        if any(f.sequences for f in functions) or not alike:
            branch = self.equation()
            if branch is not None and all(t.dtype.is_float for t in (*one, *other)):
                attributes = {**self.context.node.attributes, ASSUMED: branch}
                return replace(self.context.node, attributes=attributes)
            made = " or ".join(", ".join(map(str, types)) for types in (one, other))
            made = "sequences" if any(f.sequences for f in functions) else made
            raise UnknownValueError(condition, f"the condition of an If that gives {made}")
        return self.call((condition, *captures), functions, one)

    def equation(self) -> str | None:
        """The branch where the condition, an equation of sizes, holds: a model that squeezes an
        axis of size 1 goes on with that, and has no use for other sizes.
        """
        known = self.context.value(0)
        match None if known is None else known.reshape(-1)[0]:
            case Call(op="eq"):
                return "then_branch"
            case Call(op="ne"):
                return "else_branch"
        return None

    def loop(self) -> Node:
        """A Loop: the condition, or "" where the trip count alone decides; the initial values of
        what it carries; what its body captures.
        """
        source: Function = self.context.attribute("body")
        initial = self.context.node.inputs[2:]
        scanned = len(source.outputs) - 1 - len(initial)
        asks = not goes_on(source) or (self.context.has(1) and self.context.value(1) is None)
        trips = self.trips()
        if scanned and trips is None:
            raise NotSupportedError("a loop that scans needs a largest number of iterations")
        symbol = Var(f"iteration_{next(self.outlines.numbers)}")
        function, captured = self.body(source, symbol, asks)
        if asks and not _is_truth(_type(function, function.outputs[0])):
            raise NotSupportedError(f"the condition {source.outputs[0]!r} is no boolean")
        results = [_type(function, o) for o in function.outputs[asks:]]
        for k, known in enumerate(results[: len(initial)]):
            if not _alike(self.context.type(2 + k), known):
                self.refuse(f"the type of {initial[k]!r} changes from iteration to iteration")
        spots = tuple(islice(places(self.context), scanned))
        types = results[: len(initial)] + [
            _stacked(known, axis, trips)
            for known, (axis, _) in zip(results[len(initial) :], spots, strict=True)
            if trips is not None
        ]
        condition = self.context.node.inputs[1] if self.context.has(1) else ""
        return self.call(
            (condition if asks else "", *initial, *captured),
            [function],
            tuple(types),
            symbol=symbol,
            trips=trips,
            asks=asks,
            carried=len(initial),
            places=spots,
        )

    def refuse(self, reason: str) -> NoReturn:
        """Say why a run cannot follow; a build that can unroll the loop may."""
        if self.context.has(0) and self.context.constant(0) is None:
            what = f"the number of iterations of a loop ({reason})"
            raise UnknownValueError(self.context.node.inputs[0], what)
        raise NotSupportedError(reason)

    def trips(self) -> Expr | None:
        """The number of iterations at most; None where there is no limit."""
        if not self.context.has(0):
            return None
        (trips,) = self.context.known(0, "the number of iterations").reshape(-1).tolist()
        return canonical(maximum(as_expr(trips), 0))

    def body(self, source: Function, symbol: Var, asks: bool) -> tuple[Function, list[str]]:
        """The body as a function of what it carries; its first output is the condition, where that
        is asked for.
        """
        expansion = Expansion()
        builder = self.builder("body", expansion)
        step, going = builder.fresh("iteration"), builder.constant(np.bool_(True))
        value = object_array([symbol], ())
        builder.append(symbolic_constant(value, DType.int64, step, builder.source.origin))
        inputs = tuple(builder.fresh(i) for i in source.inputs[2:])
        types = {name: self.context.type(2 + i) for i, name in enumerate(inputs)}
        given = dict(zip(source.inputs, (step, going, *inputs), strict=True))
        outputs = splice(source, builder, given)
        function, captured = self.function(builder, expansion, inputs, outputs[not asks :], types)
        for name, known in function.types.items():
            if any(symbol in variables(d) for d in known.shape):
                self.refuse(f"the shape of {name!r} changes from iteration to iteration")
        return function, captured

    def builder(self, what: str, expansion: Expansion) -> Builder:
        """Return the builder of a function's nodes, under names that no other function uses."""
        node = self.context.node
        return Builder(replace(node, outputs=(f"{self.outputs[0]}.{what}",)), expansion)

    def function(
        self,
        builder: Builder,
        expansion: Expansion,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        types: dict[str, TensorType],
    ) -> tuple[Function, list[str]]:
        """The function of the builder's expansion, and the values around it that it captures."""
        name = builder.source.outputs[0]
        nodes = tuple(expansion.nodes)
        draft = Function(name, inputs, outputs, nodes, types, expansion.constants)
        inferred = self.infer(draft, self.scope)
        made = {*inputs, *(o for node in inferred.nodes for o in node.outputs)}
        expansion.taken |= made
        read = dict.fromkeys(i for node in inferred.nodes for i in node.inputs if i)
        constants: dict[str, Array] = {}
        symbolic: list[Node] = []
        local: dict[str, str] = {}
        captured: list[str] = []
        for value in (v for v in (*read, *inferred.outputs) if v not in made and v not in local):
            local[value] = builder.fresh(value)
            known = self.scope.values.get(value)
            if value in inferred.constants:
                constants[local[value]] = inferred.constants[value]
            elif known is not None and not any(_is_float(e) for e in known.reshape(-1)):
                dtype = self.scope.types[value].dtype
                symbolic.append(symbolic_constant(known, dtype, local[value], ()))
            else:
                captured.append(value)
        function = Function(
            name,
            (*inputs, *(local[c] for c in captured)),
            tuple(local.get(o, o) for o in inferred.outputs),
            (*symbolic, *(_reading(node, local) for node in inferred.nodes)),
            {local.get(v, v): t for v, t in inferred.types.items() if v in made or v in local},
            constants,
            inferred.sequences,
            inferred.requirements,
        )
        self.outlines.functions[name] = function
        return function, captured

    def call(
        self,
        inputs: tuple[str, ...],
        functions: list[Function],
        types: tuple[TensorType, ...],
        **attributes: Attribute,
    ) -> Node:
        """The node that runs the functions."""
        node = self.context.node
        named = {"functions": tuple(f.name for f in functions), "types": types, **attributes}
        return Node(node.op, inputs, self.outputs, named, "webmlc", node.origin)


def _type(function: Function, value: str) -> TensorType:
    known = Scope(function.types, function.constants, {}).type_of(value)
    assert known is not None
    return known


def _stacked(known: TensorType, axis: int, extent: Expr) -> TensorType:
    """The type of `extent` slices along a new axis."""
    at = axis + known.rank + 1 if axis < 0 else axis
    return TensorType(known.dtype, (*known.shape[:at], extent, *known.shape[at:]))


def _alike(one: TensorType, other: TensorType) -> bool:
    ranks = one.dtype is other.dtype and one.rank == other.rank
    return ranks and all(map(same, one.shape, other.shape))


def _is_truth(known: TensorType) -> bool:
    return known.dtype is DType.bool and known.static_shape in ((), (1,))


def _is_float(element: object) -> bool:
    return isinstance(element, Expr) and element.dtype.is_float


def _reading(node: Node, names: dict[str, str]) -> Node:
    return replace(node, inputs=tuple(names.get(i, i) for i in node.inputs))
