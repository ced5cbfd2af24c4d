"""Define a row of the operator table: all that webmlc knows about one ONNX operator.

A row holds the operator's type inference (`infer`) and its meaning: either `compute` (tensor
expressions) or `expand` (other operators). Both see the node through a `Context`, which holds input
types, attributes, and the *values* of the inputs that are known at build time. Values may contain
symbols. After `infer_shapes`, a known value is a constant or a `webmlc.SymbolicConstant` node. So
the function itself holds all values, and a later pass needs only its scope:

    scope = Scope.of(function)
    context = scope.context(node)
    row = OPS[node.domain, node.op]
    (y,) = row.tensors(context, (placeholder("x", *context.type(0)...),))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from math import prod
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.errors import WebmlcError
from webmlc.core.expr import Const, Expr, as_int
from webmlc.core.machine import ADDRESSABLE_BYTES, Device
from webmlc.graph.builder import Builder
from webmlc.graph.compute import Tensor, placeholder
from webmlc.graph.ir import (
    Array,
    Attribute,
    Elements,
    Function,
    Node,
    Ragged,
    Requirement,
    Stacked,
    TensorType,
)

if TYPE_CHECKING:
    from webmlc.loops.ir import LoopFunction

FusionKind = Literal["elementwise", "broadcast", "injective", "reduction", "contraction", "opaque"]
Trait = Literal["pool", "row norm"]
"""A property of some operators that fusion asks for. A pool folds the elements of windows over a
feature map in NHWC, and reads each element at little cost. A row norm may be in the kernel that
quantises rows.
"""
KnownValue = NDArray[np.object_]
"""A tensor known at build time. Its elements are Python ints, bools, floats, or index expressions
of symbols.
"""


Inputs = tuple[Tensor | None, ...]
"""The input tensors of a node. None stands for an input that the node leaves out."""


class Missing(Enum):
    """The result of an expansion for an output that is not supported, and that no node may read."""

    RESULT = auto()


Result = str | Missing | Elements
"""The result of an expansion for one output: a tensor, a sequence of tensors, or an empty optional.

A sequence is a tuple of the names of its values, or if only a run knows its length, the name of one
tensor.
"""

SYMBOLIC_CONSTANT = ("webmlc", "SymbolicConstant")
BIND = ("webmlc", "Bind")
VALUE_LIMIT = 1024
"""The most elements of a tensor whose value inference computes. Larger tensors are data, not
shapes. Chosen by hand: shapes and tables of positions are far smaller.
"""


class NotSupportedError(WebmlcError):
    """A node cannot be compiled. `infer_shapes` collects all of them into one
    `UnsupportedError`.
    """


class UnknownValueError(NotSupportedError):
    """An output shape depends on the value `name`, which is known only at run time."""

    def __init__(self, name: str, description: str) -> None:
        self.name = name
        super().__init__(
            f"{description} is computed at run time (value {name!r}); make it a constant"
        )


@dataclass(frozen=True, slots=True)
class Context:
    """A node, and the facts known about its inputs. In `compute`, `outputs` holds the inferred
    types.

    `requirements` collects the requirements of inference on symbols (`shapes.require`).
    """

    node: Node
    types: tuple[TensorType | None, ...]
    constants: tuple[Array | None, ...] = ()
    values: tuple[KnownValue | None, ...] = ()
    outputs: tuple[TensorType, ...] = ()
    sequences: Mapping[str, Elements] = field(default_factory=dict)
    requirements: list[Requirement] = field(default_factory=list, compare=False)

    @property
    def output_count(self) -> int:
        """The number of the node's outputs."""
        return len(self.node.outputs)

    def attribute(self, name: str, default: Any = None) -> Any:
        """The attribute, or `default` if it is not set. Floats are float32, as in ONNX."""
        if isinstance(default, float):
            default = float(np.float32(default))
        return self.node.attributes.get(name, default)

    def factor(self, name: str, dtype: DType) -> float:
        """The attribute that multiplies elements of `dtype`; 1 if it is absent.

        Raises `NotSupportedError` for a factor of integers that is no whole number.
        """
        factor = float(self.attribute(name, 1.0))
        if not dtype.is_float and not factor.is_integer():
            raise NotSupportedError(f"{name} is {factor:g}, and it multiplies {dtype.name} numbers")
        return factor

    def count(self, name: str, default: int | None = None) -> int:
        """An attribute that is a count. Raises `NotSupportedError` if it is less than 1, or if no
        size may be as large.
        """
        value = self.attribute(name, default)
        if value is None or not 1 <= int(value) <= INDEX.limits[1]:
            limits = f"it is 1 at least, and {INDEX.limits[1]} at most"
            problem = "missing" if value is None else f"{value}: {limits}"
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
        """True if the input is a sequence or an optional, not a tensor."""
        return self.has(index) and self.node.inputs[index] in self.sequences

    def sequence(self, index: int) -> tuple[str, ...]:
        """The names of the values in a sequence input."""
        values = self.sequences.get(self.node.inputs[index]) if self.has(index) else None
        if not isinstance(values, tuple):
            raise NotSupportedError(f"input {index} is no sequence of a length known at build time")
        return values

    def is_stacked(self, index: int) -> bool:
        """True if the input is a sequence whose elements have one shape, and whose length only a
        run knows.
        """
        return self.has(index) and isinstance(self.sequences.get(self.node.inputs[index]), Stacked)

    def ragged(self, index: int) -> Ragged | None:
        """The input as a sequence whose elements differ in size. `None` for any other input."""
        value = self.sequences.get(self.node.inputs[index]) if self.has(index) else None
        return value if isinstance(value, Ragged) else None

    @property
    def placeholders(self) -> Inputs:
        """A tensor for each input."""
        return tuple(
            None if t is None else placeholder(f"x{i}", t.shape, t.dtype)
            for i, t in enumerate(self.types)
        )

    def constant(self, index: int) -> Array | None:
        """The input's array if it is a constant, else None."""
        return self.constants[index] if self.has(index) else None

    def value(self, index: int) -> KnownValue | None:
        """The input's value if it is known at build time, else None. Elements may be symbolic."""
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

    def known_value(self, index: int, description: str) -> KnownValue:
        """The input's value. Raises `UnknownValueError`, with the description, if it is unknown."""
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
        """The integers of attribute `name` in older opsets, of input `index` in newer opsets."""
        if name in self.node.attributes:
            attribute: Any = self.node.attributes[name]
            return (
                (int(attribute),)
                if isinstance(attribute, int)
                else tuple(int(v) for v in attribute)
            )
        if index is None or not self.has(index):
            return None
        elements = self.known_value(index, name).reshape(-1).tolist()
        if any(isinstance(e, Expr) for e in elements):
            raise UnknownValueError(self.node.inputs[index], name)
        return tuple(int(e) for e in elements)

    def scalar(self, name: str, index: int, default: Any = None) -> Any:
        """The number of attribute `name` in older opsets, and of input `index` in newer opsets."""
        if name in self.node.attributes:
            return self.node.attributes[name]
        return self.known_value(index, name).reshape(-1)[0] if self.has(index) else default


@dataclass(frozen=True, slots=True)
class Case:
    """One test of a row.

    An input is an array, or a text such as `"float32[2, 3]"` or `"float32[4] in 1..2"`. None means
    that the input is omitted.
    """

    inputs: tuple[str | Array | None, ...]
    attributes: Mapping[str, Attribute]
    outputs: int = 1
    opset: int | None = None


def case(*inputs: Any, outputs: int = 1, opset: int | None = None, **attributes: Attribute) -> Case:
    """Make a `Case`. Lists and numbers become int64 or float32 arrays."""

    def array(value: Any) -> Any:
        if value is None or isinstance(value, str | np.ndarray):
            return value
        numbers = np.asarray(value)
        return numbers.astype(np.float32) if numbers.dtype.kind == "f" else numbers

    return Case(tuple(array(i) for i in inputs), attributes, outputs, opset)


def given_types(context: Context) -> tuple[TensorType, ...]:
    """The `infer` of rows whose nodes hold their output types in the attribute `types`."""
    types: tuple[TensorType, ...] = context.attribute("types")
    return types


def same_type(context: Context) -> TensorType:
    """The `infer` of rows whose output has the type of input 0."""
    return context.type(0)


Operand = Literal["map", "broadcast", "vector", "any", "none", "pads", "sizes", "axes"]
"""The role of an operator's input.

- map: a feature map of the output's rank, which is read in its NHWC form;
- broadcast: a map, or a scalar, or a constant that is stretched to the output's shape, whose
  dimensions are permuted;
- vector: values of at most one dimension, which permuting would not change;
- any: values of any rank that are not permuted;
- none: an input that must be missing. In ONNX a constant without elements also means that;
- pads: a constant of the numbers of elements added before each dimension, then after each;
- sizes: a constant of one number for each dimension, or a missing input, as for none;
- axes: a constant that lists dimensions by their indices.
"""

Form = Literal[
    "convolution",
    "transposed convolution",
    "pool",
    "global pool",
    "matrix product",
    "integer matrix product",
]
"""The kinds of operators that become another operator, of domain `webmlc`, over NHWC. Each has a
rule in `layout/`.
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """How an operator follows its inputs into feature maps whose channels come last, `[N, *, C]`
    instead of ONNX's `[N, C, *]`. `layout.choose_layouts` permutes inputs and attributes by it:

        Layout(("map",), axis=0)     %y = Concat(%a, %b) {axis=1}
                                     ->  %y.nhwc = Concat(%a.nhwc, %b.nhwc) {axis=3}

    - `inputs` holds the role of each input. A single entry holds for all inputs. If there are
      several entries, a node with more inputs stays as it is.
    - `axis` is the default of the attribute `axis`, which is the index of a dimension; `None` if
      the operator has no such attribute.
    - `per_dimension` names the attribute that has one element for each dimension.
    - `unless` names an attribute with which a node stays as it is, because its meaning depends on
      the order of dimensions.
    - `form` is the kind of operator that replaces this operator, if its rule accepts the node.
    - `is_view` says that the output has the bytes of the first input under another shape. Then
      `inputs` is not used.
    """

    inputs: tuple[Operand, ...] = ()
    axis: int | None = None
    per_dimension: str = ""
    unless: str = ""
    form: Form | None = None
    is_view: bool = False

    def operands(self, count: int) -> tuple[Operand, ...] | None:
        """The roles of at least `count` inputs: several entries also say what the missing inputs at
        the end are. None if there are too many inputs.
        """
        if len(self.inputs) == 1:
            return self.inputs * max(count, 1)
        return self.inputs if count <= len(self.inputs) else None


BROADCAST = Layout(("broadcast",))
"""The layout of elementwise operators."""

QUANTISED = Layout(("map", "vector", "vector"), axis=1)
"""The layout of QuantizeLinear and DequantizeLinear. Scales and zero points are single numbers, or
have a number for each element along `axis`, such as each channel.
"""

REDUCED = Layout(("map", "axes"))
"""The layout of reductions whose axes are a constant input, and which keep the rank."""

VIEW = Layout(is_view=True)
"""The layout of operators that only change the shape."""


@dataclass(frozen=True, slots=True)
class IndexInput:
    """A value that holds indices into axes of these sizes.

    One size holds for all elements; several sizes hold for the elements along the last axis. If
    `from_end`, negative indices count from the end.
    """

    value: str
    sizes: tuple[Expr, ...]
    from_end: bool = True


@dataclass(frozen=True, slots=True)
class Signature:
    """The number of inputs of an operator, at most, and the names of its attributes. None stands
    for any number of inputs.
    """

    inputs: int | None
    attributes: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Custom:
    """The facts about an operator that people define (`programs.operators`).

    - `origin`: where the operator comes from: an installed package and its version, or the module
      and the name of a function.
    - `inputs`: the names of the inputs.
    - `defaults`: the attributes with their defaults; the default of an attribute that a node needs
      is None.
    - `program`: the kernel that computes a node. Its parameters are the inputs that the node has,
      and then all outputs. Raises `NotSupportedError` for a node that it cannot compute.
    - `schedules`: by device, the function that schedules this kernel.
    """

    origin: str
    inputs: tuple[str, ...]
    defaults: Mapping[str, Any]
    program: Callable[[Context], LoopFunction]
    schedules: Mapping[Device, Callable[[LoopFunction], LoopFunction]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operator:
    """One row of the table.

    The meaning is `expand`, if that exists and does not return None; otherwise it is `compute`.
    `compute` takes the input tensors one by one after the context. All three functions return the
    result for the only output, or a tuple of results. Results for outputs that the node does not
    have are not used. Without `infer`, the types are those of the tensors that `compute` returns;
    it then reads no `Context.outputs`.

    `normalise` rewrites a node of an older opset into the newest form. `indices` tells which inputs
    hold indices. `kind` tells fusion how an output element depends on the inputs:

    - elementwise: on the elements at the same position;
    - broadcast: on the elements at the same position, but inputs may be stretched;
    - injective: on one element at any position;
    - reduction: on a fold of elements;
    - contraction: on a sum of products.

    `choices` holds the texts that each text attribute may be, the default first. `signature`
    is None for operators that have a schema in ONNX.

    `trait` is a further property of some operators that fusion asks for. `custom` holds the facts
    about an operator that people define.

    `layout` says how the operator is written over feature maps in NHWC. If it is None, an operator
    of kind elementwise or broadcast follows its inputs; any other operator reads and writes NCHW.
    """

    name: str
    infer: Callable[[Context], TensorType | tuple[TensorType, ...]] | None = None
    compute: Callable[..., Tensor | tuple[Tensor, ...]] | None = None
    expand: Callable[[Context, Builder], Result | tuple[Result, ...]] | None = None
    kind: FusionKind = "opaque"
    domain: str = ""
    normalise: Callable[[Node, int], Node] | None = None
    cases: tuple[Case, ...] = ()
    indices: Callable[[Context], tuple[IndexInput, ...]] | None = None
    layout: Layout | None = None
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)
    signature: Signature | None = None
    trait: Trait | None = None
    custom: Custom | None = None

    @property
    def is_apart(self) -> bool:
        """True if each node of the operator is a kernel of its own, which is never fused: its
        meaning is a kernel, or a schedule is for its kernel.
        """
        return self.custom is not None and (self.compute is None or bool(self.custom.schedules))

    @property
    def fusion_kind(self) -> FusionKind:
        """The kind by which fusion uses the operator."""
        return "opaque" if self.is_apart else self.kind

    def types(self, context: Context) -> tuple[TensorType, ...]:
        """The types of the node's outputs."""
        if self.infer is None:
            tensors = self.tensors(context, context.placeholders)
            return tuple(TensorType(t.dtype, t.shape) for t in tensors)
        types = self.infer(context)
        return types[: context.output_count] if isinstance(types, tuple) else (types,)

    def tensors(self, context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
        """The tensors of the node's outputs, computed from the tensors of its inputs."""
        if self.compute is None:
            raise NotSupportedError("this operator is always written out")
        tensors = self.compute(context, *inputs)
        return tensors[: context.output_count] if isinstance(tensors, tuple) else (tensors,)

    def expansion(self, context: Context, build: Builder) -> tuple[Result, ...] | None:
        """Write the nodes that the node expands to, and return the results for its outputs. None
        if the node stays.
        """
        results = None if self.expand is None else self.expand(context, build)
        if results is None or isinstance(results, tuple):
            return results and results[: context.output_count]
        return (results,)


@dataclass(frozen=True, slots=True)
class Scope:
    """The facts known about each value of a function, by the value's name. `facts` are conditions
    on symbols that hold, or do not hold, in a branch.
    """

    types: Mapping[str, TensorType]
    constants: Mapping[str, Array]
    values: Mapping[str, KnownValue]
    sequences: Mapping[str, Elements] = field(default_factory=dict)
    facts: Mapping[Expr, bool] = field(default_factory=dict)

    @staticmethod
    def of(function: Function) -> Scope:
        """The scope of a function after `infer_shapes`."""
        values = {
            node.outputs[0]: symbolic_value(node) for node in function.nodes if is_symbolic(node)
        }
        return Scope(function.types, function.constants, values)

    def type_of(self, name: str) -> TensorType | None:
        """The type of a value. A constant has the type of its array."""
        if name in self.constants:
            return array_type(self.constants[name])
        return self.types.get(name)

    def context(self, node: Node) -> Context:
        """The node's context. `outputs` holds the types of the outputs that are known."""
        outputs = tuple(self.types.get(o) for o in node.outputs if o)
        return Context(
            node,
            tuple(self.type_of(i) if i else None for i in node.inputs),
            tuple(self.constants.get(i) for i in node.inputs),
            tuple(self.values.get(i) for i in node.inputs),
            tuple(o for o in outputs if o is not None),
            self.sequences,
        )


def is_addressable(type_: TensorType) -> bool:
    """True if 32-bit memory may hold a tensor of this type. Symbols count as 1."""
    elements = prod(max(as_int(d) or 1, 1) for d in type_.shape)
    return elements * type_.dtype.bytes <= ADDRESSABLE_BYTES


def check_size(type_: TensorType) -> None:
    """Raise `NotSupportedError` if 32-bit memory cannot hold a result of this type. So nothing is
    allocated for it.
    """
    if not is_addressable(type_):
        raise NotSupportedError(f"its result, {type_}, is larger than 32-bit memory")


def array_type(array: Array) -> TensorType:
    """The type of a constant."""
    return TensorType(DType.of(array.dtype), tuple(Const(d) for d in array.shape))


def symbolic_constant(
    value: KnownValue, dtype: DType, output: str, origin: tuple[str, ...]
) -> Node:
    """The node that holds a symbolic value. It has no inputs; `elements` is in row-major order."""
    domain, op = SYMBOLIC_CONSTANT
    attributes: dict[str, Attribute] = {
        "elements": tuple(value.reshape(-1).tolist()),
        "shape": value.shape,
        "dtype": dtype,
    }
    return Node(op, (), (output,), attributes, domain, origin)


def bind(
    value: KnownValue,
    symbols: Mapping[int, str],
    dtype: DType,
    source: str,
    output: str,
    origin: str,
) -> Node:
    """The node that reads integers from memory during a run.

    The element of `source` at the row-major position `p` becomes the symbol `symbols[p]`. `value`
    is the whole value, with these symbols in it. Nodes whose types or attributes contain these
    symbols must come after this node.
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
    """True if the node is a `Bind`."""
    return (node.domain, node.op) == BIND


def symbols_bound_by(node: Node) -> tuple[str, ...]:
    """The symbols that a run binds at a node: a `Bind`, or control flow of the host."""
    symbols: tuple[str, ...] = node.attributes.get("symbols", ())
    return symbols if node.domain == BIND[0] else ()


def is_symbolic(node: Node) -> bool:
    """True if the node's output consists of expressions of symbols and has no buffer."""
    return (node.domain, node.op) in (SYMBOLIC_CONSTANT, BIND)


def symbolic_value(node: Node) -> KnownValue:
    """The value of a symbolic node."""
    elements: Any = node.attributes["elements"]
    shape: Any = node.attributes["shape"]
    return object_array(elements, shape)


def numbers_of(value: KnownValue, dtype: DType) -> Array | None:
    """The array of a known value; `None` if an element has symbols."""
    if any(isinstance(element, Expr) for element in value.reshape(-1)):
        return None
    array: Array = np.asarray(value.tolist(), dtype.numpy)
    return array.reshape(value.shape)


def object_array(elements: Sequence[Any], shape: Sequence[int]) -> KnownValue:
    """Make an object array of these elements. (numpy itself would unpack elements that are
    sequences.)
    """
    value: Any = np.empty(len(elements), dtype=object)
    value[:] = elements
    return cast(KnownValue, value.reshape(tuple(shape)))
