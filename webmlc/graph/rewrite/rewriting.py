"""Rebuild a function in one forward walk, in which rules replace nodes.

A rule (`rewrite.patterns`) gets a node whose inputs are already rewritten. It returns an equal
value, or an equal node that is better (to which the rules are applied again), or `None`. Equal
nodes become one.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from webmlc.core.errors import InternalError
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Array, Attribute, Function, Node, TensorType
from webmlc.graph.ops.operator import Context, Scope
from webmlc.graph.rewrite.patterns import Rule, Rules
from webmlc.graph.table import OPS

COMPARED = 1 << 20
"""Constants of at most this many bytes are compared by content. Larger ones are rarely equal, and
hashing them takes time (chosen by hand).
"""

_NUMBER = re.compile(r"/\d+$")
"""The end of the name of a constant that a rule added."""


class Rewriting:
    """The function so far, to whose nodes `rules` are applied. Rules ask it about values, and it is
    the destination of their builders.

    `counts_readers` says whether a node that a rule appends counts as a reader of its inputs. The
    integer rules need this: the DequantizeLinear that they bypass may have other readers. In
    `simplify` a rule's nodes replace a node that has no reader afterwards, but whose own reads
    still count. If new nodes counted there, x · b + a · b in place of (x + a) · b would give `x`
    two readers. Then the node that computes `x` would not take the product into its weights.
    """

    def __init__(self, function: Function, rules: Rules, *, counts_readers: bool = False) -> None:
        self.function = function
        self.rules = rules
        self._counts_readers = counts_readers
        scope = Scope.of(function)
        self.types: dict[str, TensorType] = dict(function.types)
        self.constants: dict[str, Array] = {}
        self.scope = Scope(self.types, self.constants, dict(scope.values))
        self.nodes: list[Node] = []
        self.alias: dict[str, str] = {}
        self.uses = Counter(i for node in function.nodes for i in node.inputs)
        self.uses.update(function.outputs)
        self._producers: dict[str, Node] = {}
        self._outputs_by_key: dict[object, tuple[str, ...]] = {}
        self._arrays: dict[object, str] = {}
        self._count = 0
        for name, array in function.constants.items():
            self._intern(name, array)

    def producer(self, value: str) -> Node | None:
        """The node that computes a value, in its present form; `None` for inputs and constants."""
        return self._producers.get(value)

    def is_single_use(self, value: str) -> bool:
        """True where one node reads the value, and it is not an output."""
        return self.uses[value] == 1

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
        """Append a node before the present one, unless there is an equal node already."""
        self.types.update(zip(filter(None, node.outputs), types, strict=bool(types)))
        if self._counts_readers:
            self.uses.update(node.inputs)
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

    def run(self) -> Function:
        """Rewrite all nodes of the function."""
        for node in self.function.nodes:
            self.add(node)
        return self.finish()

    def add(self, node: Node) -> None:
        """Apply the rules to one node of the function and append the result."""
        node = replace(node, inputs=tuple(self.alias.get(i, i) for i in node.inputs))
        for _ in range(100):
            context, written = self.scope.context(node), len(self.nodes)
            results = (r(self, node, context) for r in self.rules.get((node.domain, node.op), ()))
            result = next((r for r in results if r is not None), None)
            if isinstance(result, str):
                last = self._taken_back(result, written)
                if last is None:
                    self._repeat(node.outputs[0], result)
                    return
                result = replace(last, outputs=node.outputs)
            if result is None:
                self._keep(node, context)
                return
            self.uses.subtract(node.inputs)
            self.uses.update(result.inputs)
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

    def _taken_back(self, value: str, written: int) -> Node | None:
        """Remove the last node, if it computes `value` and follows the first `written` nodes."""
        if len(self.nodes) <= written or self.nodes[-1].outputs != (value,):
            return None
        node = self.nodes.pop()
        if self._counts_readers:
            self.uses.subtract(node.inputs)
        del self._outputs_by_key[_node_key(node)], self._producers[value], self.types[value]
        return node

    def _keep(self, node: Node, context: Context) -> None:
        key = _node_key(node)
        equal_outputs = self._outputs_by_key.get(key)
        if equal_outputs is not None:
            for output, same in zip(node.outputs, equal_outputs, strict=True):
                self._repeat(output, same)
            return
        self._outputs_by_key[key] = node.outputs
        if any(o and o not in self.types for o in node.outputs):
            outputs = OPS[node.domain, node.op].infer(context)
            self.types.update(zip((o for o in node.outputs if o), outputs, strict=True))
        self.nodes.append(node)
        for output in node.outputs:
            self._producers[output] = node

    def _repeat(self, value: str, source: str) -> None:
        """Let the consumers of `value` read `source`, which is equal."""
        self.alias[value] = source
        self.uses[source] += self.uses[value] - 1

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
        inputs, outputs = set(self.function.inputs), set(self.function.outputs)
        names: dict[str, str] = {}
        copies: list[Node] = []
        for output in dict.fromkeys(self.function.outputs):
            source = self.alias.get(output, output)
            if source in self._producers and source == output:
                continue
            movable = source in self._producers and source not in outputs | set(names)
            if movable and source not in inputs:
                names[source] = output
                self.types.setdefault(output, self.types[source])
            else:
                copies.append(Node("Identity", (source,), (output,), origin=(output,)))
        nodes = [_rename(node, names) for node in self.nodes]
        for copy in copies:
            source = names.get(copy.inputs[0], copy.inputs[0])
            if source == copy.outputs[0]:  # a constant or an input under the output's own name
                moved = f"{source}/value"
                if source in inputs:
                    continue
                self.constants[moved] = self.constants.pop(source)
                nodes = [_rename(node, {source: moved}) for node in nodes]
                source = moved
            nodes.append(replace(copy, inputs=(source,)))
        types = dict(self.types)
        for copy in copies:
            source = names.get(copy.inputs[0], copy.inputs[0])
            type_ = self.scope.type_of(source) or self.scope.type_of(f"{source}/value")
            if type_ is not None:
                types.setdefault(copy.outputs[0], type_)
        return replace(self.function, nodes=tuple(nodes), types=types, constants=self.constants)


def _rename(node: Node, names: dict[str, str]) -> Node:
    if not names:
        return node
    return replace(
        node,
        inputs=tuple(names.get(i, i) for i in node.inputs),
        outputs=tuple(names.get(o, o) for o in node.outputs),
    )


def _node_key(node: Node) -> object:
    """A hashable value that is equal for equal nodes."""
    return (node.domain, node.op, node.inputs, len(node.outputs), _key(dict(node.attributes)))


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
