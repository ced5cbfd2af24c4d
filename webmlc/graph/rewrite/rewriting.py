"""Write a function in one forward walk over the nodes of another function.

A `Rewriting` is the walk of every pass over a graph. The pass is a table of rules
(`rewrite.patterns`). A rule gets a node whose inputs are already written, and returns an equal
value, or an equal node that is better, or `None`. A node without a result is written as it is:

    use_relu = Rule(P("Max", value("x"), number("zero")), _use_relu)

    def _use_relu(x: Value, zero: Value) -> Value | None:         %y = Max(%x, 0)  ->  %y = Relu(%x)
        return x.op("Relu") if zero.array == 0 else None

A `Simplification` also applies the rules to their own results, and lets equal nodes become one.
Both are destinations of the rules' builders: the type of each node is inferred at once, so that the
next step can ask for it.

    >>> Builder(node, rewriting)("Relu", "x", output="y")      # appends %y = Relu(%x)
    'y'
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from webmlc.core.errors import InternalError
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Array, Attribute, Function, Node, TensorType
from webmlc.graph.ops.operator import Context, Scope, array_type, symbols_bound_by
from webmlc.graph.rewrite.bound_symbols import BoundSymbols
from webmlc.graph.rewrite.meaning import infer_node, row_of
from webmlc.graph.rewrite.patterns import Result, Rule, Rules, by_operator

COMPARED = 1 << 20
"""Constants of at most this many bytes are compared by content. Larger ones are rarely equal, and
hashing them takes time (chosen by hand).
"""

_NUMBER = re.compile(r"/\d+$")
"""The end of the name of a constant that a rule added."""


@dataclass(slots=True)
class Rewriting:
    """The nodes, types and constants so far of the function that replaces `source`. Each node is
    written once: as the result of the first of its `rules` that has one, or as it is. Values keep
    their names, and rules ask the rewriting about values.

    `uses` has the number of times that live nodes of the source read each value, as `count_uses`
    counts them.
    """

    source: Function
    rules: Rules = field(default_factory=dict)
    nodes: list[Node] = field(init=False, default_factory=list)
    types: dict[str, TensorType] = field(init=False, default_factory=dict)
    constants: dict[str, Array] = field(init=False, default_factory=dict)
    scope: Scope = field(init=False)
    uses: Counter[str] = field(init=False)
    _producers: dict[str, Node] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name, array in self.source.constants.items():
            self.constants[name] = np.asarray(array, order="C")
            self.types[name] = array_type(array)
        self.types.update(self.source.types)
        self.scope = Scope(self.types, self.constants, Scope.of(self.source).values)
        self.uses = count_uses(self.source)

    def producer(self, value: str) -> Node | None:
        """The node that computes a value, in its present form; `None` for inputs and constants."""
        return self._producers.get(value)

    def is_single_use(self, value: str) -> bool:
        """True where one node reads the value, and it is not an output."""
        return self.uses[value] == 1

    def type_of(self, name: str) -> TensorType | None:
        """The type of a value; `None` for an unknown name."""
        return self.types.get(name)

    def append(self, node: Node, types: Sequence[TensorType] = ()) -> tuple[str, ...]:
        """Append a node; the types of its outputs are `types`, or else inferred."""
        inferred = types or infer_node(node, self.types, self.constants)
        self.types.update(zip(filter(None, node.outputs), inferred, strict=True))
        self.nodes.append(node)
        self._producers.update((output, node) for output in node.outputs if output)
        return node.outputs

    def keep(self, node: Node) -> None:
        """Append a node whose outputs have their types already."""
        self.append(node, [self.types[output] for output in node.outputs if output])

    def store(self, array: Array, source: Node, name: str) -> str:
        """Store a constant under its name, in row-major order."""
        name = name or self.fresh(source, "constant")
        self.constants[name] = np.asarray(array, order="C")
        self.types[name] = array_type(array)
        return name

    def fresh(self, source: Node, what: str) -> str:
        """Return a name under the first output of `source`."""
        stem = name = f"{source.outputs[0]}/{what}"
        number = 0
        while name in self.types:
            number += 1
            name = f"{stem}_{number}"
        return name

    def view(self, build: Builder, value: str, type_: TensorType, output: str) -> str:
        """The bytes of `value` under another shape, perhaps of another element type."""
        shape = type_.static_shape
        if value in self.constants and shape is not None:
            array = self.constants[value].view(type_.dtype.numpy).reshape(shape)
            return build.constant(array, name=output)
        attributes: dict[str, Attribute] = {"shape": type_.shape}
        if type_.dtype != self.types[value].dtype:
            attributes["dtype"] = type_.dtype
        return build("View", value, output=output, domain="webmlc", type_=type_, **attributes)

    def run(self) -> Function:
        """Rewrite all nodes of the function."""
        for node in self.source.nodes:
            self.add(node)
        return self.finish()

    def add(self, node: Node) -> None:
        """Write a node of the source, or the result of a rule in its place. A rule may write the
        values of this node and of later nodes, which need no other result then.
        """
        if self._is_written(node):
            return
        written = len(self.nodes)
        result = self.result_of(node, self.scope.context(node))
        if isinstance(result, Node):
            self.keep(result)
        elif isinstance(result, str) and result != node.outputs[0]:
            last = self._taken_back(result, written)
            if last is None:
                raise InternalError(f"{result!r} is not the last value written ({node.name!r})")
            self.types[node.outputs[0]] = self.types.pop(result)
            self.keep(replace(last, outputs=node.outputs[:1]))
        elif result is None and not self._is_written(node):
            self.keep(node)

    def _is_written(self, node: Node) -> bool:
        return any(output in self._producers for output in node.outputs if output)

    def _taken_back(self, value: str, written: int) -> Node | None:
        """Remove the last node, if it computes `value` and follows the first `written` nodes."""
        if len(self.nodes) <= written or self.nodes[-1].outputs != (value,):
            return None
        del self._producers[value]
        return self.nodes.pop()

    def result_of(self, node: Node, context: Context) -> Result:
        """The first result of a rule for a node."""
        results = (rule(self, node, context) for rule in self.rules.get(node.operator, ()))
        return next((result for result in results if result is not None), None)

    def finish(self) -> Function:
        """The function, under the signature of its source, once all nodes are written."""
        return replace(
            self.source, nodes=tuple(self.nodes), types=self.types, constants=self.constants
        )


def rewritten(function: Function, rules: Iterable[Rule]) -> Function:
    """Apply rules to each node of a function, and remove the nodes that nothing reads any more."""
    return remove_dead_code(Rewriting(function, by_operator(rules)).run())


def remove_dead_code(function: Function) -> Function:
    """Remove the nodes and constants that neither an output nor a requirement needs."""
    bound = BoundSymbols(function)
    checked = (binder.outputs[0] for binder in bound.checked_by(function.requirements))
    needed = {*function.outputs, *checked}
    live: list[Node] = []
    for node in reversed(function.nodes):
        if needed.intersection(o for o in node.outputs if o):
            live.append(node)
            needed.update(node.inputs)
            needed.update(binder.outputs[0] for binder in bound.needed_by(node))
    values = {o for node in live for o in node.outputs} | set(function.inputs)
    return replace(
        function,
        nodes=tuple(reversed(live)),
        types={name: t for name, t in function.types.items() if name in values},
        constants={name: a for name, a in function.constants.items() if name in needed},
    )


@dataclass(slots=True)
class Simplification(Rewriting):
    """A rewriting that applies rules to a node until none has a result. Equal nodes become one, and
    so do equal constants: `alias` has the value that took the place of another.

    `uses` counts the nodes so far and the nodes to come. A node is live once something reads an
    output. So a node that a rule appends counts as a reader when the rule's result is in place, and
    no longer when a rule bypasses it:

        %s = Add(%x, %a)                               %m = Mul(%x, %b)
        %y = Mul(%s, %b)    %x is read once    ->      %y = Add(%m, ab)    %x is read once
    """

    alias: dict[str, str] = field(init=False, default_factory=dict)
    _outputs_by_key: dict[object, tuple[str, ...]] = field(init=False, default_factory=dict)
    _arrays: dict[object, str] = field(init=False, default_factory=dict)
    _count: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.types.update(self.source.types)
        self.scope = Scope(self.types, self.constants, Scope.of(self.source).values)
        self.uses = count_uses(self.source)
        for name, array in self.source.constants.items():
            equal = self._intern(name, array)
            if equal != name:
                self.uses[equal] += self.uses.pop(name, 0)

    def store(self, array: Array, source: Node, name: str) -> str:
        """Store a constant, named after `name` (the value that it derives from) or after the output
        of `source`, with a number; or find an equal one.
        """
        like = name or source.outputs[0]
        stem = _NUMBER.sub("", like)
        name = like
        while name == like or self._is_taken(name):
            self._count += 1
            name = f"{stem}/{self._count}"
        return self._intern(name, array)

    def append(self, node: Node, types: Sequence[TensorType] = ()) -> tuple[str, ...]:
        """Append a node before the present one, unless there is an equal node already. The types of
        its outputs are `types`, or else inferred.
        """
        if types:
            self.types.update(zip(filter(None, node.outputs), types, strict=True))
        if self._is_live(node):  # it computes an output of the present node
            self._add_uses(node.inputs)
        self._keep(node, self.scope.context(node))
        return tuple(self.alias.get(output, output) for output in node.outputs)

    def type_of(self, name: str) -> TensorType | None:
        """The type of a value; `None` for an unknown name."""
        return self.scope.type_of(name)

    def fresh(self, source: Node, what: str) -> str:
        """Return a name for a value that is computed on the way to the output of `source`."""
        name = ""
        while not name or self._is_taken(name):
            self._count += 1
            name = f"{source.outputs[0]}/{what}_{self._count}"
        return name

    def _is_taken(self, name: str) -> bool:
        """True if a value has this name, or had it before an equal value took its place."""
        return name in self.types or name in self.alias or name in self.constants

    def add(self, node: Node) -> None:
        """Apply the rules to one node of the function and append the result."""
        node = node.reading(self.alias)
        for _ in range(100):
            context, written = self.scope.context(node), len(self.nodes)
            result = self.result_of(node, context)
            if isinstance(result, str):
                last = self._taken_back(result, written)
                if last is None:
                    self._replace(node, (result,))
                    return
                del self._outputs_by_key[_node_key(last)], self.types[result]
                result = replace(last, outputs=node.outputs)
            if result is None:
                self._keep(node, context)
                return
            if self._is_live(node):
                self._add_uses(result.inputs)
                self._remove_uses(node.inputs)
            node = result
        raise InternalError(f"rules never settle at {node.op} ({node.name!r})")

    def product(
        self, build: Builder, factors: Sequence[str], type_: TensorType, rule: Rule
    ) -> Value:
        """Write a product of this type, to which a rule is applied."""
        name = build.fresh("scaled")
        self.types[name] = type_
        node = Node("Mul", tuple(map(str, factors)), (name,), origin=build.source.origin)
        result = rule(self, node, self.scope.context(node))
        if not isinstance(result, str):
            (result,) = self.append(result or node)
        return build.value(result)

    def _keep(self, node: Node, context: Context) -> None:
        key = _node_key(node)
        equal_outputs = self._outputs_by_key.get(key)
        if equal_outputs is not None:
            self._replace(node, equal_outputs)
            return
        self._outputs_by_key[key] = node.outputs
        if any(o and o not in self.types for o in node.outputs):
            outputs = row_of(node).types(context)
            self.types.update(zip(filter(None, node.outputs), outputs, strict=True))
        self.nodes.append(node)
        self._producers.update((output, node) for output in node.outputs if output)

    def _replace(self, node: Node, values: tuple[str, ...]) -> None:
        """Let the readers of the node's first outputs read these values, which are equal."""
        was_live = self._is_live(node)
        for output, value in zip(node.outputs, values, strict=False):
            if output:
                self.alias[output] = value
                self._add_uses([value] * self.uses.pop(output, 0))
        if was_live:
            self._remove_uses(node.inputs)

    def _is_live(self, node: Node) -> bool:
        """True if something reads an output of the node, so that the node counts as a reader."""
        return any(self.uses[output] for output in node.outputs if output)

    def _add_uses(self, values: Iterable[str]) -> None:
        """Count another reader of each value. A node that was not live reads its inputs now."""
        pending = list(values)
        while pending:
            value = pending.pop()
            producer = self._producers.get(value)
            if producer is not None and not self._is_live(producer):
                pending += producer.inputs
            self.uses[value] += 1

    def _remove_uses(self, values: Iterable[str]) -> None:
        """Count one reader less of each value. A node that is live no longer reads no inputs."""
        pending = list(values)
        while pending:
            value = pending.pop()
            self.uses[value] -= 1
            producer = self._producers.get(value)
            if producer is not None and not self._is_live(producer):
                pending += producer.inputs

    def _intern(self, name: str, array: Array) -> str:
        """Add a constant, or find an equal one."""
        key = _key(array)
        if key in self._arrays:
            self.alias[name] = self._arrays[key]
        else:
            self._arrays[key] = name
            self.constants[name] = array
        return self.alias.get(name, name)

    def finish(self) -> Function:
        """The function. A node computes each output, under the name of the output."""
        inputs, outputs = self.source.inputs, self.source.outputs
        names: dict[str, str] = {}
        copies: list[Node] = []
        for output in dict.fromkeys(outputs):
            source = self.alias.get(output, output)
            if source == output and (source in self._producers or source in inputs):
                continue
            type_ = self.scope.type_of(source)
            if type_ is not None:
                self.types.setdefault(output, type_)
            if source in self._producers and source not in (*outputs, *names):
                names[source] = output
                continue
            if source == output:  # a constant under the output's own name
                names[source] = f"{source}/value"
                self.constants[names[source]] = self.constants.pop(source)
            copies.append(Node("Identity", (source,), (output,), origin=(output,)))
        if names:
            self.nodes = [node.renamed(names) for node in self.nodes]
        self.nodes += (copy.reading(names) for copy in copies)
        return Rewriting.finish(self)


def count_uses(function: Function) -> Counter[str]:
    """The number of times that live nodes read each value. The function's outputs count as readers,
    and the symbols that a node binds count as a reader of its outputs.
    """
    uses = Counter(function.outputs)
    uses.update(o for node in function.nodes if symbols_bound_by(node) for o in node.outputs)
    for node in reversed(function.nodes):
        if any(uses[output] for output in node.outputs if output):
            uses.update(node.inputs)
    return uses


def _node_key(node: Node) -> object:
    """A hashable value that is equal for equal nodes with equal choices of optional outputs."""
    outputs = tuple(map(bool, node.outputs))
    return (node.domain, node.op, node.inputs, outputs, _key(dict(node.attributes)))


def _key(value: Attribute | dict[str, Attribute]) -> object:
    """A hashable value that is equal for equal attributes."""
    match value:
        case np.ndarray():
            if value.dtype == object or value.nbytes > COMPARED:
                return ("array", id(value))
            data: Any = np.ascontiguousarray(value)
            digest = hashlib.sha256(data.tobytes()).digest()
            return ("array", str(value.dtype), value.shape, digest)
        case dict():
            return tuple((name, _key(value[name])) for name in sorted(value))
        case Function():
            return id(value)
        case list() | tuple():
            return tuple(map(_key, value))
    return (type(value).__name__, value)
