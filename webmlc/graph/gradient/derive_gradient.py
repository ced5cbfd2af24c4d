"""Expand a `Gradient` node by reverse-mode differentiation of the nodes that compute `y` from `xs`.

In: a Gradient node of ai.onnx.preview.training and the nodes before it, all typed. Out: the nodes
that compute the derivative of the sum of `y`'s elements by each of `xs`.

    %c = Mul(%a, %a)                             %c = Mul(%a, %a)
    %d = Gradient(%a) {xs=(a), y=c}       →      %1 = Expand(1, Shape(%c))
                                                 %2 = webmlc.Derivative(%1, %a, %a) {Mul, 0}
                                                 %3 = webmlc.Derivative(%1, %a, %a) {Mul, 1}
                                                 %d = Add(%2, %3)

Elementwise operators are differentiated by their own expression (`ops/derivative.py`), the others
by `gradient_rules`, which use operators that have derivatives themselves. An operator without a
derivative on a path from `xs` to `y` is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

from webmlc.core.errors import Unsupported, UnsupportedError
from webmlc.graph.builder import Builder
from webmlc.graph.gradient.gradient_rules import Backward, rule_of
from webmlc.graph.ir import Node, TensorType
from webmlc.graph.ops.control import reads
from webmlc.graph.ops.operator import NotSupportedError, Scope

GRADIENT = ("ai.onnx.preview.training", "Gradient")


def targets_first(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes in an order in which each Gradient, too, follows the node that makes its `y`."""
    if not any((node.domain, node.op) == GRADIENT for node in nodes):
        return tuple(nodes)
    makers = {o: k for k, node in enumerate(nodes) for o in node.outputs if o}
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for k, node in enumerate(nodes):
        target = node.attributes.get("y") if (node.domain, node.op) == GRADIENT else None
        sorter.add(k, *(m for v, m in makers.items() if v == target or reads(node, v)))
    try:
        return tuple(nodes[k] for k in sorter.static_order())
    except CycleError:
        return tuple(nodes)  # the Gradient whose y depends on itself is refused later


def derive_gradient(node: Node, nodes: Sequence[Node], scope: Scope, build: Builder) -> list[str]:
    """The names of the derivatives, one for each of `xs`; their nodes are in `build`.

    Raises `NotSupportedError`, and `UnsupportedError` for the nodes that have no derivative here.
    """
    xs = tuple(node.attributes.get("xs", ()))
    leaves = (*xs, *node.attributes.get("zs", ()))
    y = str(node.attributes.get("y", ""))
    if len(node.inputs) != len(leaves):
        raise NotSupportedError(f"{len(node.inputs)} inputs for the {len(leaves)} of xs and zs")
    for name in (*leaves, y):
        if scope.type_of(name) is None:
            raise NotSupportedError(f"{name!r} is no value that this graph computes before it")
    values = dict(zip(leaves, node.inputs, strict=True))
    types = dict(scope.types)
    derivation = _Derivation(replace(scope, types=types), types, build)
    path = _path(nodes, xs, frozenset(leaves), y)
    if any(name != value for name, value in values.items()):
        needed = _path(nodes, leaves, frozenset(leaves), y)
        names = derivation.copy(needed, values)
        path = [_renamed(n, names) for n in path]
        y = names.get(y, y)
    adjoints = derivation.backward(path, y, [values[x] for x in xs], frozenset(values.values()))
    return [adjoints.get(values[x]) or derivation.filled(0, values[x]) for x in xs]


def _path(
    nodes: Sequence[Node], sources: Sequence[str], leaves: frozenset[str], y: str
) -> list[Node]:
    """The nodes between the sources and `y`. The nodes that compute a leaf are not followed."""
    reached, forward = set(sources), []
    for node in nodes:
        outputs = set(node.outputs) - leaves
        if outputs and not reached.isdisjoint(node.inputs):
            reached |= outputs
            forward.append(node)
    needed, path = {y}, []
    for node in reversed(forward):
        if not (needed - leaves).isdisjoint(node.outputs):
            needed.update(node.inputs)
            path.append(node)
    return path[::-1]


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    inputs, outputs = (tuple(names.get(v, v) for v in vs) for vs in (node.inputs, node.outputs))
    return replace(node, inputs=inputs, outputs=outputs)


@dataclass(frozen=True, slots=True)
class _Derivation:
    """The types of the values (`types` belongs to the scope, and grows), and the nodes so far."""

    scope: Scope
    types: dict[str, TensorType]
    build: Builder

    def filled(self, number: int, name: str) -> str:
        """A tensor of the type and shape of `name` that is filled with one number."""
        like = self.scope.type_of(name)
        assert like is not None
        one = self.build.constant(number, like.dtype)
        return self.build("Expand", one, self.build("Shape", name))

    def copy(self, nodes: Sequence[Node], values: Mapping[str, str]) -> dict[str, str]:
        """Repeat the nodes for other values of the leaves; returns the new names of all values."""
        for name, value in values.items():
            if self.scope.type_of(name) != self.scope.type_of(value):
                raise NotSupportedError(f"{value!r} stands for {name!r}, but has another type")
        names = dict(values)
        for node in nodes:
            for output in filter(None, node.outputs):
                if output not in self.types:
                    raise NotSupportedError(f"{output!r} is no tensor")
                if output not in names:
                    names[output] = self.build.fresh(node.op)
                    self.types[names[output]] = self.types[output]
            self.build.append(_renamed(node, names))
        return names

    def backward(
        self, path: Sequence[Node], y: str, xs: Sequence[str], leaves: frozenset[str]
    ) -> dict[str, str]:
        """The derivative of `y` by the values on the path, in reverse order of its nodes."""
        adjoints = {y: self.filled(1, y)}
        active = {*xs, *(o for node in path for o in node.outputs)}
        unknown: list[Unsupported] = []
        for node in reversed(path):
            if not any(o in adjoints and o not in leaves for o in node.outputs):
                continue
            context = self.scope.context(node)
            if not all(t.dtype.is_float for t in context.outputs):
                continue  # comparisons, indices, shapes: constant wherever they have a derivative
            rule = rule_of(node.domain, node.op)
            if rule is None:
                reason = "webmlc does not know its derivative, which a Gradient needs"
                unknown.append(Unsupported(node.name, node.op, reason))
                continue
            node_backward = Backward(context, adjoints, self.build)
            for position, name in enumerate(node.inputs):
                kind = context.types[position] if name else None
                if name not in active or kind is None or not kind.dtype.is_float:
                    continue
                derivative = rule(node_backward, position)
                present = adjoints.get(name)
                adjoints[name] = derivative if present is None else present + derivative
        if unknown:
            raise UnsupportedError(tuple(unknown))
        return adjoints
