"""A function being written: nodes in order, with the types and constants of their values.

In: what a pass emits, one node after the other. Out: the function. The type of what is emitted is
inferred at once, so that the next step can ask for it.

    >>> writer.emit("Relu", ("x",), "y", ("relu1",))      # appends %y = Relu(%x)
    'y'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from webmlc.graph.ir import Array, Function, Node, TensorType, producers
from webmlc.graph.ops.operator import array_type
from webmlc.graph.rewrite.meaning import infer_node


@dataclass(slots=True)
class FunctionWriter:
    """The nodes, types and constants so far of what replaces `source`."""

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
        return self.types[value].rank if value in self.types else np.ndim(self.constants[value])

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        output: str,
        origin: tuple[str, ...],
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Append a node whose output type is inferred."""
        node = Node(op, tuple(inputs), (output,), attributes, domain, origin)
        (self.types[output],) = infer_node(node, self.types, self.constants)
        self.nodes.append(node)
        return output

    def constant(self, name: str, array: Array) -> str:
        self.constants[name] = np.asarray(array, order="C")
        self.types[name] = array_type(array)
        return name

    def view(self, value: str, known: TensorType, output: str, origin: tuple[str, ...]) -> str:
        """The bytes of `value` under another shape, perhaps of another type."""
        shape = known.static_shape
        if value in self.constants and shape is not None:
            return self.constant(
                output, self.constants[value].view(known.dtype.numpy).reshape(shape)
            )
        attributes: dict[str, Any] = {"shape": known.shape}
        if known.dtype != self.types[value].dtype:
            attributes["dtype"] = known.dtype
        self.types[output] = known
        self.nodes.append(Node("View", (value,), (output,), attributes, "webmlc", origin))
        return output


@dataclass(slots=True)
class FunctionRewriter(FunctionWriter):
    """A writer that knows its source's types and constants from the start, and `makers`: the node
    that makes each value there.
    """

    makers: dict[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        self.constants.update(self.source.constants)
        self.types.update({name: array_type(array) for name, array in self.constants.items()})
        self.types.update(self.source.types)
        self.makers = producers(self.source)

    def is_new(self, value: str) -> bool:
        """True for what is yet to be written, the source's own values included."""
        return value not in self.types or value in self.source.types
