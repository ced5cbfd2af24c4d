"""The row type of the operator table: all that webmlc knows about one ONNX operator, in one place.

A row holds the operator's type inference (`infer`) and its meaning, either `compute` (tensor
expressions) or `expand` (other operators). Both see the node through a `Context`: input types,
attributes, and the *values* of those inputs that are known at build time. Values may be symbolic:
after `infer_shapes` a known value is a constant or a `webmlc.SymbolicConstant` node, so that the
function itself carries them, and `Scope.of(function).context(node)` is all a later pass needs:

    scope = Scope.of(function)
    context = scope.context(node)
    row = OPS[node.domain, node.op]
    (y,) = row.compute(context, (placeholder("x", *context.type(0)...),))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from webmlc.core.dtypes import DType
from webmlc.core.errors import WebmlcError
from webmlc.core.expr import Const, Expr, as_int
from webmlc.core.machine import ADDRESSABLE_BYTES
from webmlc.graph.builder import Builder
from webmlc.graph.compute import Tensor
from webmlc.graph.ir import Array, Attribute, Function, Node, Requirement, TensorType
from webmlc.graph.ops.nhwc import Layout

FusionKind = Literal["elementwise", "broadcast", "injective", "reduction", "contraction", "opaque"]
Value = NDArray[np.object_]
"""A tensor known at build time: Python ints, bools or floats, and index expressions of symbols."""

Result = str | tuple[str, ...] | None
"""What an expansion makes of an output: a tensor, a sequence of tensors, or an empty optional.

Sequences and optionals exist at build time only: tuples of the values in them.
"""

SYMBOLIC_CONSTANT = ("webmlc", "SymbolicConstant")
BIND = ("webmlc", "Bind")
VALUE_LIMIT = 1024
"""Tensors of more elements are data, not shapes: their values are not followed."""

ELEMENT_TYPES: dict[int, DType] = {
    1: DType.float32,
    2: DType.uint8,
    3: DType.int8,
    4: DType.uint16,
    5: DType.int16,
    6: DType.int32,
    7: DType.int64,
    9: DType.bool,
    10: DType.float16,
    11: DType.float64,
    12: DType.uint32,
    13: DType.uint64,
    16: DType.bfloat16,
    17: DType.float8_e4m3fn,
    18: DType.float8_e4m3fnuz,
    19: DType.float8_e5m2,
    20: DType.float8_e5m2fnuz,
    21: DType.uint4,
    22: DType.int4,
    23: DType.float4_e2m1fn,
    24: DType.float8_e8m0fnu,
    25: DType.uint2,
    26: DType.int2,
    27: DType.float6_e2m3fn,
    28: DType.float6_e3m2fn,
}
"""ONNX's `TensorProto.DataType` numbers, as they stand in attributes (`Cast.to`)."""


class NotSupportedError(WebmlcError):
    """This node cannot be compiled; `infer_shapes` gathers them all into one `UnsupportedError`."""


class UnknownValueError(NotSupportedError):
    """An output shape depends on the value of `name`, which is known only at run time."""

    def __init__(self, name: str, description: str) -> None:
        self.name = name
        super().__init__(
            f"{description} is computed at run time (value {name!r}); make it a constant"
        )


@dataclass(frozen=True, slots=True)
class Context:
    """A node, and what is known of its inputs. In `compute`, `outputs` are the inferred types.

    `requirements` collects what inference assumes of symbols (`shapes.require`).
    """

    node: Node
    types: tuple[TensorType | None, ...]
    constants: tuple[Array | None, ...] = ()
    values: tuple[Value | None, ...] = ()
    outputs: tuple[TensorType, ...] = ()
    sequences: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    requirements: list[Requirement] = field(default_factory=list, compare=False)

    def attribute(self, name: str, default: Any = None) -> Any:
        """The attribute, or `default` where it is not set; float32, as ONNX has all floats."""
        if isinstance(default, float):
            default = float(np.float32(default))
        return self.node.attributes.get(name, default)

    def count(self, name: str, default: int | None = None) -> int:
        """The attribute, of how many things there are; `NotSupportedError` where it is below 1."""
        value = self.attribute(name, default)
        if value is None or int(value) < 1:
            problem = "missing" if value is None else f"{value}: it is 1 at least"
            raise NotSupportedError(f"{name} is {problem}")
        return int(value)

    def has(self, index: int) -> bool:
        """True if the input is present."""
        return index < len(self.node.inputs) and self.node.inputs[index] != ""

    def type(self, index: int) -> TensorType:
        """The type of a present input."""
        type_ = self.types[index] if index < len(self.types) else None
        if type_ is None:
            raise NotSupportedError(f"input {index} is missing or of a type that is not supported")
        return type_

    def shape(self, index: int) -> tuple[Expr, ...]:
        """The shape of a present input."""
        return self.type(index).shape

    def dtype(self, index: int) -> DType:
        """The element type of a present input."""
        return self.type(index).dtype

    def rank(self, index: int) -> int:
        """The rank of a present input."""
        return self.type(index).rank

    def holds_values(self, index: int) -> bool:
        """True if the input is a sequence or an optional, and no tensor."""
        return self.has(index) and self.node.inputs[index] in self.sequences

    def sequence(self, index: int) -> tuple[str, ...]:
        """The values in an input that is a sequence."""
        values = self.sequences.get(self.node.inputs[index]) if self.has(index) else None
        if values is None:
            raise NotSupportedError(f"input {index} is no sequence of a length known at build time")
        return values

    def constant(self, index: int) -> Array | None:
        """The input's array where it is a constant."""
        return self.constants[index] if self.has(index) else None

    def value(self, index: int) -> Value | None:
        """The input's value where it is known at build time; its elements may be symbolic."""
        if not self.has(index):
            return None
        if index < len(self.values) and self.values[index] is not None:
            return self.values[index]
        array = self.constants[index] if index < len(self.constants) else None
        if array is not None:
            return array.astype(object) if array.size <= VALUE_LIMIT else None
        type_ = self.types[index] if index < len(self.types) else None
        shape = None if type_ is None else type_.static_shape
        return object_array((), shape) if shape is not None and 0 in shape else None

    def is_decided_by_run(self, index: int) -> bool:
        """True if the input is present and its value is known only at run time."""
        return self.has(index) and self.value(index) is None

    def known(self, index: int, description: str) -> Value:
        """The input's value; raises `UnknownValueError`, which says `what` it is, where unknown."""
        value = self.value(index)
        if value is None:
            raise UnknownValueError(self.node.inputs[index], description)
        return value

    def axis(self, default: int, rank: int | None = None, name: str = "axis") -> int:
        """An axis attribute, counted from the front."""
        limit = self.rank(0) if rank is None else rank
        axis = int(self.attribute(name, default))
        if not -limit <= axis < max(limit, 1):
            raise NotSupportedError(f"{name} {axis} is outside a tensor of rank {limit}")
        return axis + limit if axis < 0 else axis

    def integers(self, name: str, index: int | None = None) -> tuple[int, ...] | None:
        """Integers that older opsets give as attribute `name` and newer ones as input `index`."""
        if name in self.node.attributes:
            attribute: Any = self.node.attributes[name]
            return (
                (int(attribute),)
                if isinstance(attribute, int)
                else tuple(int(v) for v in attribute)
            )
        if index is None or not self.has(index):
            return None
        elements = self.known(index, name).reshape(-1).tolist()
        if any(isinstance(e, Expr) for e in elements):
            raise UnknownValueError(self.node.inputs[index], name)
        return tuple(int(e) for e in elements)

    def scalar(self, name: str, index: int, default: Any = None) -> Any:
        """A number that older opsets give as attribute `name` and newer ones as constant input."""
        if name in self.node.attributes:
            return self.node.attributes[name]
        return self.known(index, name).reshape(-1)[0] if self.has(index) else default


@dataclass(frozen=True, slots=True)
class Case:
    """One test of a row.

    An input is an array, or text (`"float32[2, 3]"`, `"float32[4] in 1..2"`), or None: omitted.
    """

    inputs: tuple[str | Array | None, ...]
    attributes: Mapping[str, Attribute]
    outputs: int = 1
    opset: int | None = None


def case(*inputs: Any, outputs: int = 1, opset: int | None = None, **attributes: Attribute) -> Case:
    """A `Case`; lists and numbers become int64 or float32 arrays."""

    def array(value: Any) -> Any:
        if value is None or isinstance(value, str | np.ndarray):
            return value
        numbers = np.asarray(value)
        return numbers.astype(np.float32) if numbers.dtype.kind == "f" else numbers

    return Case(tuple(array(i) for i in inputs), attributes, outputs, opset)


@dataclass(frozen=True, slots=True)
class IndexInput:
    """A value that holds indices into axes of these sizes: one of all its elements, or one for each
    element of its last axis. Negative indices count from the end, if they may (`from_end`).
    """

    value: str
    sizes: tuple[Expr, ...]
    from_end: bool = True


@dataclass(frozen=True, slots=True)
class Operator:
    """One row: its meaning is `compute`, or `expand` where that is given and does not return None.

    `normalise` turns a node of an older opset (given) into the newest form. `kind` tells fusion how
    outputs depend on inputs: one element of equal position (elementwise; broadcast: or stretched),
    one element anywhere (injective), a fold (reduction), a folded product (contraction).
    `indices` tells which inputs hold indices. `layout` says how the operator is written over
    feature maps in NHWC; None of one that reads and writes NCHW, or (of kind elementwise and
    broadcast) follows its inputs.
    """

    name: str
    infer: Callable[[Context], tuple[TensorType, ...]]
    compute: Callable[[Context, tuple[Tensor | None, ...]], tuple[Tensor, ...]] | None = None
    expand: Callable[[Context, Builder], tuple[Result, ...] | None] | None = None
    kind: FusionKind = "opaque"
    domain: str = ""
    normalise: Callable[[Node, int], Node] | None = None
    cases: tuple[Case, ...] = ()
    indices: Callable[[Context], tuple[IndexInput, ...]] | None = None
    layout: Layout | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """What is known of every value of a function, by name."""

    types: Mapping[str, TensorType]
    constants: Mapping[str, Array]
    values: Mapping[str, Value]
    sequences: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)

    @staticmethod
    def of(function: Function) -> Scope:
        """The scope of a function after `infer_shapes`."""
        values = {
            node.outputs[0]: symbolic_value(node) for node in function.nodes if is_symbolic(node)
        }
        return Scope(function.types, function.constants, values)

    def type_of(self, name: str) -> TensorType | None:
        """The type of a value; that of a constant is its array's."""
        if name in self.constants:
            return array_type(self.constants[name])
        return self.types.get(name)

    def context(self, node: Node) -> Context:
        """The node's context; its `outputs` are given where every output's type is known."""
        outputs = tuple(self.types.get(o) for o in node.outputs if o)
        return Context(
            node,
            tuple(self.type_of(i) if i else None for i in node.inputs),
            tuple(self.constants.get(i) for i in node.inputs),
            tuple(self.values.get(i) for i in node.inputs),
            tuple(o for o in outputs if o is not None),
            self.sequences,
        )


def given_types(context: Context) -> tuple[TensorType, ...]:
    """The `infer` of rows whose nodes say the types themselves."""
    types: tuple[TensorType, ...] = context.attribute("types")
    return types


def is_addressable(type_: TensorType) -> bool:
    """True if 32-bit memory may hold a tensor: its bytes, symbols at 1, are not too many."""
    elements = prod(max(as_int(d) or 1, 1) for d in type_.shape)
    return elements * type_.dtype.bytes <= ADDRESSABLE_BYTES


def check_size(type_: TensorType) -> None:
    """Raise `NotSupportedError` where 32-bit memory cannot hold a result of this type: before
    anything is allocated for it.
    """
    if not is_addressable(type_):
        raise NotSupportedError(f"its result, {type_}, is larger than 32-bit memory")


def always_expands(context: Context) -> tuple[TensorType, ...]:
    """The `infer` of rows that are always written out."""
    raise NotSupportedError("this operator is always written out")


def array_type(array: Array) -> TensorType:
    """The type of a constant."""
    return TensorType(DType.of(array.dtype), tuple(Const(d) for d in array.shape))


def symbolic_constant(value: Value, dtype: DType, output: str, origin: tuple[str, ...]) -> Node:
    """The node that holds a symbolic value: no inputs, `elements` in row-major order."""
    domain, op = SYMBOLIC_CONSTANT
    attributes: dict[str, Attribute] = {
        "elements": tuple(value.reshape(-1).tolist()),
        "shape": value.shape,
        "dtype": dtype,
    }
    return Node(op, (), (output,), attributes, domain, origin)


def bind(
    value: Value, symbols: Mapping[int, str], dtype: DType, source: str, output: str, origin: str
) -> Node:
    """The node that reads integers from memory during a run: the element of `source` at position
    `p` (row-major) becomes the symbol `symbols[p]`. `value` is the whole, those symbols in it.

    Whatever uses these symbols, in a type or an attribute, comes after it.
    """
    domain, op = BIND
    attributes: dict[str, Attribute] = {
        "symbols": tuple(symbols.values()),
        "positions": tuple(symbols),
        "elements": tuple(value.reshape(-1).tolist()),
        "shape": value.shape,
        "dtype": dtype,
    }
    return Node(op, (source,), (output,), attributes, domain, (origin,))


def is_bind(node: Node) -> bool:
    """True of a `Bind` node."""
    return (node.domain, node.op) == BIND


def is_symbolic(node: Node) -> bool:
    """True of the nodes whose output is an array of expressions of symbols, and has no bytes."""
    return (node.domain, node.op) in (SYMBOLIC_CONSTANT, BIND)


def symbolic_value(node: Node) -> Value:
    """The value of a symbolic node."""
    elements: Any = node.attributes["elements"]
    shape: Any = node.attributes["shape"]
    return object_array(elements, shape)


def object_array(elements: Sequence[Any], shape: Sequence[int]) -> Value:
    """An object array of these elements, whatever they are (numpy would unpack sequences)."""
    value: Any = np.empty(len(elements), dtype=object)
    value[:] = elements
    return cast(Value, value.reshape(tuple(shape)))
