"""The one way to write nodes: what passes, rules and expansions use.

A `Builder` writes the nodes that stand for one node, its source: they share its origin, and their
values have names under its own. Where the nodes go is its `Destination`: an `Expansion` only
collects them; `rewrite.function_writer` writes a new function; `rewrite.rewriting` walks one.

    %y = Celu(%x)  ->  %y/Max = Max(%x, %zero)
                       %y/Exp = Exp(%x)          build("Exp", "x") returns "y/Exp"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.ir import Array, Attribute, Node, TensorType


class Destination(Protocol):
    """Where a builder's nodes and constants go."""

    def append(self, node: Node, types: Sequence[TensorType] = ()) -> tuple[str, ...]:
        """Append a node. `types` are those of its outputs, where inference would give others.

        Returns the values to read as its outputs, which an equal node may have computed before.
        """

    def store(self, array: Array, source: Node, name: str) -> str:
        """Store a constant that `source` needs and return its name.

        The name is `name`, or derived from it. If it is empty, the destination names the constant
        after `source`.
        """

    def fresh(self, source: Node, what: str) -> str:
        """Return a new name for a value that stands for `source`. `what` says what it holds."""


@dataclass(frozen=True, slots=True)
class Builder:
    """Write the nodes that stand for `source`, all of its origin, to a destination.

    >>> build = Builder(Node("Celu", ("x",), ("y",)), Expansion())
    >>> build("Relu", "x"), build.constant(np.float32(2))
    ('y/Relu', 'y/constant')
    """

    source: Node
    destination: Destination

    @staticmethod
    def without_origin(destination: Destination) -> Builder:
        """A builder of nodes that stand for no node of the model, such as changes of layout."""
        return Builder(Node("", (), ()), destination)

    def __call__(
        self, op: str, *inputs: str, output: str = "", domain: str = "", **attributes: Attribute
    ) -> str:
        """Add a node of one output and return the value: `output`, or a fresh one."""
        names = (output or self.fresh(op),)
        return self.append(Node(op, inputs, names, attributes, domain, self.source.origin))[0]

    def many(
        self,
        op: str,
        *inputs: str,
        outputs: int | Sequence[str],
        domain: str = "",
        **attributes: Attribute,
    ) -> tuple[str, ...]:
        """Add a node of several outputs and return their values: so many fresh ones, or these."""
        if isinstance(outputs, int):
            outputs = [self.fresh(op) for _ in range(outputs)]
        return self.append(Node(op, inputs, tuple(outputs), attributes, domain, self.source.origin))

    def typed(
        self,
        type_: TensorType,
        op: str,
        *inputs: str,
        output: str = "",
        domain: str = "",
        **attributes: Attribute,
    ) -> str:
        """Add a node of one output whose type is `type_`, which inference would not give it."""
        names = (output or self.fresh(op),)
        node = Node(op, inputs, names, attributes, domain, self.source.origin)
        return self.append(node, (type_,))[0]

    def constant(self, value: Any, dtype: DType | None = None, name: str = "") -> str:
        """Add a constant of `dtype` (or of the array's own type) and return its name."""
        array = np.asarray(value, dtype=None if dtype is None else dtype.numpy)
        return self.destination.store(array, self.source, name)

    def fresh(self, what: str) -> str:
        """Return a name that no other value has. `what` says what the value holds."""
        return self.destination.fresh(self.source, what)

    def inner(self, what: str) -> tuple[Builder, Expansion]:
        """Return the builder of a function inside an expansion, and where its nodes go.

        The function may read all values of the expansion, so none of its own has a name of theirs.
        """
        assert isinstance(self.destination, Expansion)
        expansion = Expansion(self.destination.taken_names)
        return Builder(replace(self.source, outputs=(self.fresh(what),)), expansion), expansion

    def append(self, node: Node, types: Sequence[TensorType] = ()) -> tuple[str, ...]:
        """Add a node that exists already, such as a copy, and return its values."""
        return self.destination.append(node, types)


@dataclass(slots=True)
class Expansion:
    """A destination that only collects: what an operator's `expand` writes. Inference types it.

    Values get names under the source's first output, and none of `taken_names`.
    """

    taken_names: set[str] = field(default_factory=set)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def append(self, node: Node, types: Sequence[TensorType] = ()) -> tuple[str, ...]:
        assert not types, "inference types what an expansion writes"
        self.nodes.append(node)
        return node.outputs

    def store(self, array: Array, source: Node, name: str) -> str:
        name = name or self.fresh(source, "constant")
        self.constants[name] = array
        return name

    def fresh(self, source: Node, what: str) -> str:
        stem = f"{next(o for o in source.outputs if o)}/{what}"
        name = stem
        while name in self.taken_names:
            self._counts[stem] = self._counts.get(stem, 0) + 1
            name = f"{stem}_{self._counts[stem]}"
        self.taken_names.add(name)
        return name
