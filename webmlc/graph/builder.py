"""Write nodes: the builder that passes, rules and expansions share.

A `Builder` writes the nodes that stand for one node, its source. These nodes have the origin of the
source, and the names of their values begin with the name of the source's first output. Where the
nodes go is its `Destination`: an `Expansion` only collects them; the writers of `rewrite.rewriting`
write a new function.

    %y = Celu(%x)  ->  %y/Max = Max(%x, %zero)
                       %y/Exp = Exp(%x)          build("Exp", "x") returns "y/Exp"

A `Value` is the name of a value, and a handle: its operators write the nodes that read it.

    build("Sub", build("Add", last, one), new)   is written   last + 1 - new
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr
from webmlc.graph.element_types import TYPE_NUMBERS
from webmlc.graph.ir import Array, Attribute, Node, TensorType


class Destination(Protocol):
    """Where a builder's nodes and constants go."""

    def append(self, node: Node, types: Sequence[TensorType] = ()) -> tuple[str, ...]:
        """Append a node. `types` are the types of its outputs, if inference would give other types.

        Returns the values to read as its outputs, which an equal node may have computed before.
        """

    def store(self, array: Array, source: Node, name: str) -> str:
        """Store a constant that `source` needs and return its name.

        The name is `name`, or derived from it. If `name` is empty, the destination names the
        constant after `source`.
        """

    def fresh(self, source: Node, what: str) -> str:
        """Return a new name for a value that stands for `source`. `what` describes the value."""

    def type_of(self, name: str) -> TensorType | None:
        """The type of a value. `None` if only inference will know it."""

    @property
    def constants(self) -> Mapping[str, Array]:
        """The constants so far."""


class Value(str):
    """The name of a value, and a handle on it: `build` writes the nodes that read it.

    An operand is another value, a number, or an array. A Python number gets the element type of the
    other operand; an array and a numpy number keep their own, and lists are int64.
    """

    __slots__ = ("build",)
    __array_ufunc__ = None  # an array on the left leaves the operator to the value
    build: Builder

    def __new__(cls, name: str, build: Builder) -> Value:
        value = super().__new__(cls, name)
        value.build = build
        return value

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    def op(self, op: str, *others: Operand, domain: str = "", **attributes: Attribute) -> Value:
        """Write a node whose first input is this value."""
        return written(op, self, *others, domain=domain, **attributes)

    def __add__(self, other: Operand) -> Value:
        return written("Add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return written("Add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return written("Sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return written("Sub", other, self)

    def __mul__(self, other: Operand) -> Value:  # type: ignore[override]
        return written("Mul", self, other)

    def __rmul__(self, other: Operand) -> Value:  # type: ignore[override]
        return written("Mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return written("Div", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return written("Div", other, self)

    def __matmul__(self, other: Operand) -> Value:
        return written("MatMul", self, other)

    def __and__(self, other: Operand) -> Value:
        return written("And", self, other)

    def __or__(self, other: Operand) -> Value:
        return written("Or", self, other)

    def __invert__(self) -> Value:
        return written("Not", self)

    def __neg__(self) -> Value:
        return written("Neg", self)

    def cast(self, dtype: DType) -> Value:
        """The value's elements in another type."""
        return self.build("Cast", self, to=TYPE_NUMBERS[dtype])

    def where(self, chosen: Operand, other: Operand) -> Value:
        """Elements of `chosen` where this value is true, and of `other` elsewhere."""
        return written("Where", self, chosen, other)

    def reshape(self, *sizes: int) -> Value:
        """The value in another shape. A 0 keeps a dimension; -1 takes what is left."""
        return self.build("Reshape", self, sizes)

    def unsqueeze(self, *axes: int) -> Value:
        """The value with further dimensions of size one at these indices."""
        return self.build("Unsqueeze", self, axes)

    def transpose(self, *axes: int) -> Value:
        """The value with its dimensions in this order."""
        return self.build("Transpose", self, perm=axes)

    def slice(self, start: int, end: int, axis: int) -> Value:
        """The elements from `start` to before `end` along an axis."""
        return self.build("Slice", self, (start,), (end,), (axis,))

    def element(self, index: int, axis: int) -> Value:
        """The elements at one index of an axis. The result does not have this axis."""
        return self.build("Gather", self, np.int64(index), axis=axis)

    def size(self, axis: int) -> Value:
        """The size of a dimension, as a number."""
        return self.build("Shape", self).element(axis, 0)

    @property
    def type(self) -> TensorType:
        """The value's type. Raises `KeyError` in an expansion: only inference finds types there."""
        type_ = self.build.destination.type_of(self)
        if type_ is None:
            raise KeyError(str(self))
        return type_

    @property
    def shape(self) -> tuple[Expr, ...]:
        """The value's shape."""
        return self.type.shape

    @property
    def array(self) -> Array:
        """The array of a constant. Raises `KeyError` for other values."""
        return self.build.destination.constants[self]


def written(op: str, *inputs: Operand, domain: str = "", **attributes: Attribute) -> Value:
    """Write a node of values and numbers, in the innermost function of which it reads a value. The
    node bears the origin of the last such value: a residual's sum with a layer is the layer's.
    """
    builders = [value.build for value in inputs if isinstance(value, Value)]
    build = max(reversed(builders), key=lambda builder: builder.depth)
    return build(op, *inputs, domain=domain, **attributes)


Operand = str | int | float | Sequence[int] | np.generic | Array | None
"""An input of a node: a value's name, or numbers, which become a constant. `None` is omitted."""


@dataclass(frozen=True, slots=True)
class Builder:
    """Write the nodes that stand for `source`, all with its origin, to a destination.

    >>> build = Builder(Node("Celu", ("x",), ("y",)), Expansion())
    >>> build("Relu", "x"), build.constant(np.float32(2))
    ('y/Relu', 'y/constant')
    """

    source: Node
    destination: Destination
    depth: int = 0
    """The number of functions around the nodes: loops and branches inside an expansion."""

    @staticmethod
    def without_origin(destination: Destination) -> Builder:
        """A builder of nodes that stand for no node of the model, such as changes of layout."""
        return Builder(Node("", (), ()), destination)

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The inputs of the source. An omitted input is the empty name."""
        return tuple(Value(name, self) for name in self.source.inputs)

    def with_origin(self, node: Node) -> Builder:
        """A builder of nodes that have the origin of another node."""
        return replace(self, source=replace(self.source, origin=node.origin))

    def value(self, name: str) -> Value:
        """A handle on a value."""
        return Value(name, self)

    def optional(self, index: int) -> Value | None:
        """An input of the source. `None` if it is omitted."""
        inputs = self.source.inputs
        return Value(inputs[index], self) if index < len(inputs) and inputs[index] else None

    def __call__(
        self,
        op: str,
        *inputs: Operand,
        output: str = "",
        domain: str = "",
        type_: TensorType | None = None,
        **attributes: Attribute,
    ) -> Value:
        """Add a node of one output and return the value: `output`, or a fresh value. `type_` is its
        type, if inference would give another type.
        """
        operands = self.operands(op, inputs)
        names = (output or self.fresh(op),)
        node = Node(op, operands, names, attributes, domain, self.source.origin)
        return Value(self.append(node, () if type_ is None else (type_,))[0], self)

    def many(
        self,
        op: str,
        *inputs: Operand,
        outputs: int | Sequence[str],
        domain: str = "",
        **attributes: Attribute,
    ) -> tuple[Value, ...]:
        """Add a node of several outputs and return their values. `outputs` is the number of fresh
        values, or the names of the values.
        """
        operands = self.operands(op, inputs)
        if isinstance(outputs, int):
            outputs = [self.fresh(op) for _ in range(outputs)]
        node = Node(op, operands, tuple(outputs), attributes, domain, self.source.origin)
        return tuple(Value(name, self) for name in self.append(node))

    def operands(self, op: str, inputs: Sequence[Operand]) -> tuple[str, ...]:
        """The names of a node's inputs. Numbers become constants."""
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        names = [str(i) if isinstance(i, str) else "" for i in inputs]
        for position, number in enumerate(inputs):
            if number is None or isinstance(number, str):
                continue
            dtype: Any = np.int64 if isinstance(number, list | tuple) else None
            if isinstance(number, int | float) and not isinstance(number, np.generic):
                like = next(name for name in names[op == "Where" :] if name)
                type_ = self.destination.type_of(like)
                dtype = WEAK if type_ is None else type_.dtype.numpy
            names[position] = self.destination.store(np.asarray(number, dtype), self.source, "")
        return tuple(names)

    def constant(self, value: Any, dtype: DType | None = None, name: str = "") -> Value:
        """Add a constant of `dtype` (or of the array's own type) and return its name."""
        array = np.asarray(value, dtype=None if dtype is None else dtype.numpy)
        return Value(self.destination.store(array, self.source, name), self)

    def fresh(self, what: str) -> Value:
        """Return a name that no other value has. `what` describes the value."""
        return Value(self.destination.fresh(self.source, what), self)

    def inner(self, what: str) -> tuple[Builder, Expansion]:
        """Return the builder of a function inside an expansion, and where its nodes go.

        The function may read all values of the expansion, so its own values get other names.
        """
        assert isinstance(self.destination, Expansion)
        expansion = Expansion(self.destination.taken_names)
        source = replace(self.source, outputs=(self.fresh(what),))
        return Builder(source, expansion, self.depth + 1), expansion

    def append(self, node: Node, types: Sequence[TensorType] = ()) -> tuple[str, ...]:
        """Add a node that exists already, such as a copy, and return its values."""
        return self.destination.append(node, types)


WEAK = np.dtype(object)
"""The element type of a number until inference knows the type of another operand, which it gets."""


def type_numbers(
    node: Node, constants: dict[str, Array], type_of: Callable[[str], TensorType | None]
) -> None:
    """Give the numbers of an expansion, among a node's inputs, the element type of the first other
    input. The condition of a Where does not count.
    """
    weak = [i for i in node.inputs if i in constants and constants[i].dtype == WEAK]
    if weak:
        like = next(i for i in node.inputs[node.op == "Where" :] if i and i not in weak)
        type_ = type_of(like)
        assert type_ is not None, like
        constants.update((i, np.asarray(constants[i].item(), type_.dtype.numpy)) for i in weak)


@dataclass(slots=True)
class Expansion:
    """A destination that only collects the nodes of an operator's `expand`. Inference types them.

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

    def type_of(self, name: str) -> TensorType | None:
        return None

    def fresh(self, source: Node, what: str) -> str:
        stem = f"{next(o for o in source.outputs if o)}/{what}"
        name = stem
        while name in self.taken_names:
            self._counts[stem] = self._counts.get(stem, 0) + 1
            name = f"{stem}_{self._counts[stem]}"
        self.taken_names.add(name)
        return name
