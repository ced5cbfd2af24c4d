"""Write the rows that are appended to a state directly to their place in it.

In: a fused module. Out: the same results. The rows of each `Append` become a region of the state.

    %r = fused(%x) {mul, add}; %k = Append(%r) {length=past}
    ->  %r in %k[past, 0, 0] = fused(%x) {mul, add}            %k is a state of the module

Rows that no kernel can write to their place are copied there by a separate kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from webmlc.graph.fuse.concat_in_place import can_move, constant_values
from webmlc.graph.ir import Function, Module, Node, Region, TensorType, consumers, producers
from webmlc.graph.ops.operator import Scope
from webmlc.graph.ops.state import APPEND


def append_in_place(module: Module) -> Module:
    """Append in place in `main`, the only function with states.

    needs: a fused module. guarantees: no `Append`; `Module.states` names every state.
    """
    if not module.length:
        return module
    appending = _InPlace(module.main)
    main = appending.run()
    functions = {**module.functions, main.name: main}
    return replace(module, functions=functions, states=tuple(appending.states))


@dataclass(slots=True)
class _InPlace:
    """The states so far, and the regions of their new rows."""

    function: Function
    users: dict[str, list[Node]] = field(init=False)
    makers: dict[str, Node] = field(init=False)
    constants: set[str] = field(init=False)
    states: list[str] = field(default_factory=list)
    regions: dict[str, Region] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)

    def run(self) -> Function:
        function = self.function
        self.users = consumers(function)
        self.makers = producers(function)
        self.constants = constant_values(function)
        self.regions = dict(function.regions)
        self.types = dict(function.types)
        nodes = tuple(new for node in function.nodes for new in self.rewritten(node))
        return replace(function, nodes=nodes, types=self.types, regions=self.regions)

    def rewritten(self, node: Node) -> Iterator[Node]:
        """The nodes that replace a node: none or a copy for an `Append`, else the node."""
        if (node.domain, node.op) != APPEND:
            yield node
            return
        (rows,), (state,) = node.inputs, node.outputs
        self.states.append(state)
        region = Region.along(0, node.attributes["length"], state, self.types[state].rank)
        if self.fits(rows, node):
            self.regions[rows] = region
            return
        copy = _copy(node, rows, f"{state}.rows", self.function)
        self.types[copy.outputs[0]] = copy.attributes["body"].type(copy.outputs[0])
        self.regions[copy.outputs[0]] = region
        yield copy

    def fits(self, rows: str, append: Node) -> bool:
        """True if a kernel computes the rows in every run, and other kernels can read them in
        their place.
        """
        if rows in self.constants or rows in self.regions or rows in self.function.outputs:
            return False
        return can_move(self.makers.get(rows), self.users[rows], append)


def _copy(append: Node, rows: str, output: str, function: Function) -> Node:
    """A kernel that copies the rows to `output`."""
    type_ = Scope.of(function).type_of(rows)
    assert type_ is not None
    inner = Node("Identity", (rows,), (output,))
    types = {rows: type_, output: type_}
    body = Function("append", (rows,), (output,), (inner,), types, {})
    return Node("fused", (rows,), (output,), {"body": body}, "webmlc", append.origin)
