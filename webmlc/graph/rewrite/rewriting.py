"""One forward walk that rebuilds a function while rules replace its nodes.

A rule sees a node over inputs that are already simplified and answers with the value that the node
repeats (a name), with a node that says the same better (tried again), or with None.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from webmlc.core.errors import InternalError
from webmlc.graph.ir import Array, Attribute, Function, Node, TensorType
from webmlc.graph.ops.operator import Context, Scope
from webmlc.graph.table import OPS

COMPARED = 1 << 20
"""Bytes up to which constants are compared by content: equal weights larger than that are rare."""

_NUMBER = re.compile(r"/\d+$")
"""What names of constants that were made here end in."""

Rule = Callable[["Rewriting", Node, Context], "Node | str | None"]


class Rewriting:
    """The function so far, and what rules ask about it: the destination of their builders.

    `counts_readers` says whether what a rule appends counts as a reader of its inputs. The integer
    rules need that: the DequantizeLinear that they bypass may have other readers. In `simplify` a
    rule's nodes take over from a node that has no reader afterwards, but whose own reads still
    count: with (x + a) · b as x · b + a · b, `x` would seem to have two readers, and would not take
    the product into its weights.
    """

    def __init__(self, function: Function, *, counts_readers: bool = False) -> None:
        self.function = function
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
        self._known: dict[object, tuple[str, ...]] = {}
        self._arrays: dict[object, str] = {}
        self._count = 0
        for name, array in function.constants.items():
            self._intern(name, array)

    def producer(self, value: str) -> Node | None:
        """The node that makes a value, in its present form; None of inputs and constants."""
        return self._producers.get(value)

    def is_single_use(self, value: str) -> bool:
        """True where one node reads the value, and it is not an output."""
        return self.uses[value] == 1

    def store(self, array: Array, source: Node, name: str) -> str:
        """Store a constant, named after `name` (the value that it derives from) or after the output
        of `source`, with a number; or find the equal one that is there.
        """
        like = name or source.outputs[0]
        stem = _NUMBER.sub("", like)
        name = like
        while name == like or name in self.constants or name in self.types or name in self.alias:
            self._count += 1
            name = f"{stem}/{self._count}"
        return self._intern(name, array)

    def append(self, node: Node, types: Sequence[TensorType] = ()) -> tuple[str, ...]:
        """Append a node before the present one, unless an equal one is there."""
        self.types.update(zip(filter(None, node.outputs), types, strict=bool(types)))
        if self._counts_readers:
            self.uses.update(node.inputs)
        self._keep(node, self.scope.context(node))
        return tuple(self.alias.get(output, output) for output in node.outputs)

    def fresh(self, source: Node, what: str) -> str:
        """Return a name for a value that is computed on the way to the output of `source`."""
        self._count += 1
        return f"{source.outputs[0]}/{what}_{self._count}"

    def add(self, node: Node, rules: Sequence[Rule]) -> None:
        """Simplify one node of the function and keep what remains."""
        node = replace(node, inputs=tuple(self.alias.get(i, i) for i in node.inputs))
        for _ in range(100):
            context = self.scope.context(node)
            result: Node | str | None = None
            for rule in rules:
                result = rule(self, node, context)
                if result is not None:
                    break
            match result:
                case None:
                    self._keep(node, context)
                    return
                case str():
                    self._repeat(node.outputs[0], result)
                    return
            self.uses.subtract(node.inputs)
            self.uses.update(result.inputs)
            node = result
        raise InternalError(f"simplify_graph: rules never settle at {node.op} ({node.name!r})")

    def _keep(self, node: Node, context: Context) -> None:
        key = (node.domain, node.op, node.inputs, len(node.outputs), _key(dict(node.attributes)))
        known = self._known.get(key)
        if known is not None:
            for output, same in zip(node.outputs, known, strict=True):
                self._repeat(output, same)
            return
        self._known[key] = node.outputs
        if any(o and o not in self.types for o in node.outputs):
            outputs = OPS[node.domain, node.op].infer(context)
            self.types.update(zip((o for o in node.outputs if o), outputs, strict=True))
        self.nodes.append(node)
        for output in node.outputs:
            self._producers[output] = node

    def _repeat(self, value: str, known: str) -> None:
        """`value` is `known`: whoever reads the one reads the other."""
        self.alias[value] = known
        self.uses[known] += self.uses[value] - 1

    def _intern(self, name: str, array: Array) -> str:
        """Add a constant, or find the equal one that is there."""
        key = _key(array)
        if key in self._arrays:
            self.alias[name] = self._arrays[key]
        else:
            self._arrays[key] = name
            self.constants[name] = array
        return self.alias.get(name, name)

    def finish(self) -> Function:
        """The function; each output is made by a node under its own name."""
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
            known = self.scope.type_of(source) or self.scope.type_of(f"{source}/value")
            if known is not None:
                types.setdefault(copy.outputs[0], known)
        return replace(self.function, nodes=tuple(nodes), types=types, constants=self.constants)


def _rename(node: Node, names: dict[str, str]) -> Node:
    if not names:
        return node
    return replace(
        node,
        inputs=tuple(names.get(i, i) for i in node.inputs),
        outputs=tuple(names.get(o, o) for o in node.outputs),
    )


def _key(value: Attribute | dict[str, Attribute]) -> object:
    """Something hashable that is equal where attributes are."""
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
