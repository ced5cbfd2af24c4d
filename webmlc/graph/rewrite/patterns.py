"""Patterns of nodes, which rules match, and the rules of `Rewriting`.

A pattern is an expression of the nodes above a value. A rule pairs the pattern of a node with a
function. The parameters of the function name the captures of the pattern that it gets:

    TANH = P("Tanh", value("x")).once()

    def _use_sigmoid(x: Value, a: Value) -> Value:               a · tanh(x) + a
        return (x * 2).op("Sigmoid") * (a.array + a.array)       ->  2a · sigmoid(2x)

    use_sigmoid = Rule(P("Add", P("Mul", TANH, number("a")).once(), number("a")), _use_sigmoid)

A name that occurs twice stands for the same value, or for equal constants. The operands of Add, Mul
and Equal match in either order. Source: `UPat` of tinygrad, and the pattern language PDL of MLIR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import permutations
from typing import TYPE_CHECKING, Any

from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Node
from webmlc.graph.ops.operator import Context

if TYPE_CHECKING:
    from webmlc.graph.rewrite.rewriting import Rewriting

COMMUTATIVE = frozenset({"Add", "Equal", "Mul"})
"""Operators whose two operands match in either order."""
Captures = dict[str, Any]
"""The captures of a match by name: a `Value`, or the result of the function of a `view`."""


class Pattern:
    """A form that a value may have. The value "" stands for an omitted input."""

    def matches(self, value: Value, rewriting: Rewriting, captures: Captures) -> Iterator[Captures]:
        """Iterate over the captures of each way to match, in addition to the captures so far."""
        raise NotImplementedError

    def __or__(self, other: Pattern) -> Pattern:
        return Either(self, other)

    def once(self) -> Pattern:
        """The pattern of a value that only one node reads, and that is no output."""
        return Condition(self, lambda value, rewriting: rewriting.is_single_use(value))

    def where(self, test: Callable[[Value], bool]) -> Pattern:
        """The pattern of values that pass a test."""
        return Condition(self, lambda value, _: test(value))


@dataclass(frozen=True, slots=True)
class Either(Pattern):
    """One of two patterns."""

    first: Pattern
    second: Pattern

    def matches(self, value: Value, rewriting: Rewriting, captures: Captures) -> Iterator[Captures]:
        yield from self.first.matches(value, rewriting, captures)
        yield from self.second.matches(value, rewriting, captures)


@dataclass(frozen=True, slots=True)
class Condition(Pattern):
    """A pattern of values for which a test holds."""

    pattern: Pattern
    holds: Callable[[Value, Rewriting], bool]

    def matches(self, value: Value, rewriting: Rewriting, captures: Captures) -> Iterator[Captures]:
        for more in self.pattern.matches(value, rewriting, captures):
            if self.holds(value, rewriting):
                yield more


@dataclass(frozen=True, slots=True)
class View(Pattern):
    """A value for which `function` returns a capture; `None` is no match."""

    name: str
    function: Callable[[Rewriting, Value], Any]

    def matches(self, value: Value, rewriting: Rewriting, captures: Captures) -> Iterator[Captures]:
        capture = self.function(rewriting, value) if value else None
        if capture is None:
            return
        earlier = captures.get(self.name) if isinstance(capture, Value) else None
        if earlier is None or earlier == capture or _are_equal(rewriting, earlier, capture):
            yield {**captures, self.name: capture} if self.name else captures


@dataclass(frozen=True, slots=True)
class Nothing(Pattern):
    """An input that is omitted. The capture is `None`."""

    name: str

    def matches(self, value: Value, rewriting: Rewriting, captures: Captures) -> Iterator[Captures]:
        if not value:
            yield {**captures, self.name: None}


@dataclass(frozen=True, slots=True)
class Nodes(Pattern):
    """The output of a node of one of these operators. `operands` are the patterns of its inputs:
    all inputs, or the first ones if `has_more`. Without operands, the pattern ignores the inputs.
    """

    operators: frozenset[tuple[str, str]]
    operands: tuple[Pattern, ...]
    name: str
    has_more: bool

    def matches(self, value: Value, rewriting: Rewriting, captures: Captures) -> Iterator[Captures]:
        node = rewriting.producer(value)
        if node is not None and node.operator in self.operators:
            named = {**captures, self.name: node} if self.name else captures
            yield from self.of_node(node, value.build, rewriting, named)

    def of_node(
        self, node: Node, build: Builder, rewriting: Rewriting, captures: Captures
    ) -> Iterator[Captures]:
        """Iterate over the matches of a node. The node need not be written yet."""
        count = len(self.operands)
        if len(node.inputs) > count and not self.has_more and count:
            return
        inputs = [build.value(name) for name in node.inputs[:count]]
        inputs += [build.value("")] * (count - len(inputs))
        is_commutative = count == 2 and node.op in COMMUTATIVE and not node.domain
        for order in permutations(inputs) if is_commutative else (inputs,):
            yield from _all(self.operands, order, rewriting, captures)


def _all(
    patterns: Sequence[Pattern], values: Sequence[Value], rewriting: Rewriting, captures: Captures
) -> Iterator[Captures]:
    """Iterate over the ways in which all values match their patterns."""
    if not patterns:
        yield captures
        return
    for more in patterns[0].matches(values[0], rewriting, captures):
        yield from _all(patterns[1:], values[1:], rewriting, more)


def _are_equal(rewriting: Rewriting, left: Value, right: Value) -> bool:
    """True for two constants whose numbers are equal, once broadcast."""
    a, b = (rewriting.constants.get(value) for value in (left, right))
    return a is not None and b is not None and bool((a == b).all())


def P(
    ops: str | Iterable[str],
    *operands: Pattern,
    name: str = "",
    domain: str = "",
    more: bool = False,
) -> Nodes:
    """The output of a node. `name` captures the node. With `more`, it may have further inputs."""
    names = (ops,) if isinstance(ops, str) else ops
    return Nodes(frozenset((domain, op) for op in names), operands, name, more)


def value(name: str) -> Pattern:
    """Any value."""
    return View(name, lambda _, value: value)


def constant(name: str) -> Pattern:
    """A constant."""
    return View(name, lambda rewriting, value: value if value in rewriting.constants else None)


def number(name: str) -> Pattern:
    """A constant of one element."""

    def number_of(rewriting: Rewriting, value: Value) -> Value | None:
        array = rewriting.constants.get(value)
        return value if array is not None and array.size == 1 else None

    return View(name, number_of)


def view(name: str, function: Callable[[Rewriting, Value], Any]) -> Pattern:
    """A value for which `function` returns a capture, under this name; `None` is no match."""
    return View(name, function)


def nothing(name: str) -> Pattern:
    """An omitted input, which is captured as `None`."""
    return Nothing(name)


Result = Node | str | None
"""The result of a rule: a value that is equal to the node's output, or a better node, or `None`. If
the value is the output of the node that the rule wrote last, that node is the better node. Only a
`Simplification` takes other values.
"""


class Rule:
    """A pattern of a node, and the function that rewrites it.

    The parameters of the function are names that the pattern captures, or further names: `node`,
    `context` (the node's context), `build` (a builder of nodes that stand for the node), `y` (its
    output) and `rewriting`.
    """

    def __init__(self, pattern: Nodes, function: Callable[..., Result]) -> None:
        self.pattern = pattern
        self.function = function
        self.parameters = tuple(signature(function).parameters)

    def __call__(self, rewriting: Rewriting, node: Node, context: Context) -> Result:
        """Apply the rule to a node whose inputs are rewritten."""
        build = Builder(node, rewriting)
        for captures in self.pattern.of_node(node, build, rewriting, {}):
            arguments = {"node": node, "context": context, "build": build, "rewriting": rewriting}
            arguments |= {"y": build.value(node.outputs[0])} | captures
            result = self.function(*(arguments[name] for name in self.parameters))
            if result is not None:
                return result
        return None


Rules = Mapping[tuple[str, str], tuple[Rule, ...]]
"""Rules in the order in which they are tried, by domain and operator."""


def by_operator(rules: Iterable[Rule]) -> Rules:
    """The rules of each operator."""
    table: dict[tuple[str, str], tuple[Rule, ...]] = {}
    for rule in rules:
        for operator in sorted(rule.pattern.operators):
            table[operator] = (*table.get(operator, ()), rule)
    return table
