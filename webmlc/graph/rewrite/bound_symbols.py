"""Find the nodes that depend on symbols that other nodes bind during a run.

In: a function in which `Bind` nodes, and control flow of the host, bind sizes. Out: for each node
the binds whose symbols occur in the types of its values, in the symbolic values of its inputs, or
in its attributes. No value carries these dependences.

    %k/bound = webmlc.Bind(%k) {k}                      %y depends on the Bind, though it does not
    %y: float32[k, 4] = Add(%a, %b)                     read its output
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from webmlc.core.expr import Expr
from webmlc.core.rewrite import variables
from webmlc.graph.ir import Function, Node, Requirement
from webmlc.graph.ops.control import CONTROL, RUNS_ON_HOST
from webmlc.graph.ops.operator import Scope, is_bind, symbols_bound_by


class BoundSymbols:
    """The nodes of a function that bind symbols, and the binds that each node needs."""

    def __init__(self, function: Function) -> None:
        self.binders: Mapping[str, Node] = {
            symbol: node for node in function.nodes for symbol in symbols_bound_by(node)
        }
        self.scope = Scope.of(function) if self.binders else None
        # The functions that a control node runs may need any symbol that is bound before it.
        self._before: dict[Node, tuple[Node, ...]] = {}
        binds: list[Node] = []
        for node in function.nodes:
            if binds and node.operator in CONTROL:
                self._before[node] = tuple(binds)
            if symbols_bound_by(node):
                binds.append(node)
        self._of_value: dict[str, frozenset[str]] = {}

    def needed_by(self, node: Node) -> tuple[Node, ...]:
        """The binds that must come before `node`, in their symbols' order."""
        if self.scope is None or node in self._before:
            return self._before.get(node, ())
        values = (*node.inputs, *node.outputs) if not is_bind(node) else node.inputs
        symbols = {symbol for value in values if value for symbol in self._symbols(value)}
        symbols |= _names(node.attributes.values())
        binders = (self.binders[symbol] for symbol in sorted(symbols & self.binders.keys()))
        return tuple(dict.fromkeys(binder for binder in binders if binder is not node))

    def checked_by(self, requirements: Iterable[Requirement]) -> tuple[Node, ...]:
        """The binds whose symbols a run checks, whether or not a size depends on them."""
        names = _names(side for r in requirements for side in (r.left, r.right))
        return tuple(node for symbol, node in self.binders.items() if symbol in names)

    def _symbols(self, value: str) -> frozenset[str]:
        """The symbols in the type of a value, and in its elements if the elements are symbolic."""
        assert self.scope is not None
        if value not in self._of_value:
            type_ = self.scope.types.get(value)
            value_elements = self.scope.values.get(value)
            parts: list[Any] = [] if type_ is None else list(type_.shape)
            parts += [] if value_elements is None else value_elements.reshape(-1).tolist()
            self._of_value[value] = frozenset(_names(parts))
        return self._of_value[value]


def _names(parts: Iterable[Any]) -> set[str]:
    return {variable.name for part in _expressions(parts) for variable in variables(part)}


def _expressions(parts: Iterable[Any]) -> Iterator[Expr]:
    for part in parts:
        if isinstance(part, Expr):
            yield part
        elif isinstance(part, tuple):
            yield from _expressions(part)


def in_order_of_binds(nodes: list[Node], bound: BoundSymbols) -> tuple[Node, ...]:
    """Order the nodes so that a run reads memory as rarely as possible: all nodes that can run
    before a bind come before it.
    """
    waits: dict[str, int] = {}
    rank: dict[Node, tuple[int, bool]] = {}
    for node in nodes:
        body = node.attributes.get("body")
        members = body.nodes if isinstance(body, Function) else (node,)
        binders = {b for member in members for b in bound.needed_by(member)}
        before = max(
            (waits.get(v, 0) for v in (*node.inputs, *(b.outputs[0] for b in binders))), default=0
        )
        ends_segment = is_bind(node) or RUNS_ON_HOST in node.attributes
        rank[node] = (before, ends_segment)
        waits.update(dict.fromkeys(node.outputs, before + ends_segment))
    return tuple(sorted(nodes, key=rank.__getitem__))
