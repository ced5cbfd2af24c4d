"""A function being written: the destination of a pass that writes a function node by node.

In: the nodes and constants that a `Builder` appends. Out: the function. The type of each node is
inferred at once, so that the next step can ask for it. Values have the names that the pass gives
them.

    >>> Builder(node, writer)("Relu", "x", output="y")      # appends %y = Relu(%x)
    'y'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from webmlc.graph.builder import Builder
from webmlc.graph.ir import Array, Attribute, Function, Node, TensorType, producers
from webmlc.graph.ops.operator import array_type
from webmlc.graph.rewrite.meaning import infer_node


@dataclass(slots=True)
class FunctionWriter:
    """The nodes, types and constants so far of the function that replaces `source`."""

    source: Function
    nodes: list[Node] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)

    def written(self) -> Function:
        """The function that was written, under the signature of its source."""
        return replace(
            self.source, nodes=tuple(self.nodes), types=self.types, constants=self.constants
        )

    def rank(self, value: str) -> int:
        """The number of a value's dimensions."""
        return self.types[value].rank if value in self.types else np.ndim(self.constants[value])

    def append(self, node: Node, types: Sequence[TensorType] = ()) -> tuple[str, ...]:
        """Append a node; the types of its outputs are `types`, or else inferred."""
        inferred = types or infer_node(node, self.types, self.constants)
        self.types.update(zip(filter(None, node.outputs), inferred, strict=True))
        self.nodes.append(node)
        return node.outputs

    def keep(self, node: Node) -> None:
        """Append a node of the source, whose outputs have their types already."""
        self.nodes.append(node)

    def store(self, array: Array, source: Node, name: str) -> str:
        """Store a constant under its name, in row-major order."""
        name = name or self.fresh(source, "constant")
        self.constants[name] = np.asarray(array, order="C")
        self.types[name] = array_type(array)
        return name

    def type_of(self, name: str) -> TensorType | None:
        """The type of a value; `None` for an unknown name."""
        return self.types.get(name)

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


@dataclass(slots=True)
class FunctionRewriter(FunctionWriter):
    """A writer that knows the types and constants of its source from the start. `makers` has the
    node that computes each value of the source.
    """

    makers: dict[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        self.constants.update(self.source.constants)
        self.types.update({name: array_type(array) for name, array in self.constants.items()})
        self.types.update(self.source.types)
        self.makers = producers(self.source)

    def is_new(self, value: str) -> bool:
        """True for a value that is yet to be written. All values of the source count as such."""
        return value not in self.types or value in self.source.types
