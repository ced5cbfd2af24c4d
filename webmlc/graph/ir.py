"""The graph IR: immutable SSA dataflow of tensor operators, in topological order.

A `Module` names functions; a graph `Function` holds `Node(op, inputs, attributes) -> outputs`. A
value is a name with a `TensorType(dtype, shape)` whose dimensions are expressions (`3`, `batch`,
`2*n + 1`). Before inference a value's type may be unknown (absent from `types`). After fusion and
lowering a node's op is `call_kernel`, and its `kernel` attribute names a loop function of the same
module.

    %y: float32[batch, 64] = Relu(%x)

A value may be a region of a larger value. Then its producer writes it there, and its consumers read
it there. Nodes that read the larger value come after those that write its parts:

    %a: float32[n, 64] in %z[0, 0] = Relu(%x); %b: float32[n, 8] in %z[0, 64] = Sin(%y)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_int, const
from webmlc.core.simplify import simplify
from webmlc.core.sizes import Rule, holds
from webmlc.core.text_steps import TextStep

if TYPE_CHECKING:
    from webmlc.loops.ir import LoopFunction

Array = NDArray[Any]
Attribute = Any
"""The value of an attribute: ONNX's kinds as Python's (tuples for lists), tensors as arrays,
sub-graphs as `Function`. The row of the operator says what kind an attribute has.
"""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape; each dimension is an index expression."""

    dtype: DType
    shape: tuple[Expr, ...]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape as integers, or `None` where a dimension is symbolic."""
        sizes = tuple(as_int(d) for d in self.shape)
        return None if any(s is None for s in sizes) else sizes  # type: ignore[return-value]

    @property
    def is_empty(self) -> bool:
        """True if the tensor has no elements, whatever its symbolic dimensions are."""
        return any(as_int(d) == 0 for d in self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the value `whole`. The part has the rank and the strides of the whole. Its first
    element is at `offsets`, which may hold symbols that only a run knows.
    """

    whole: str
    offsets: tuple[Expr, ...]

    @staticmethod
    def along(axis: int, start: Expr, whole: str, rank: int) -> Region:
        """The part of a value that begins at `start` on one axis, and at 0 on the others."""
        return Region(whole, tuple(start if d == axis else const(0) for d in range(rank)))

    def index(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """The position in the whole of an element of the part."""
        return tuple(simplify(i + o) for i, o in zip(indices, self.offsets, strict=True))

    def start(self, shape: Sequence[Expr]) -> Expr:
        """The elements of a whole of this shape that are before the first element of the part."""
        position: Expr = const(0)
        for offset, size in zip(self.offsets, shape, strict=True):
            position = position * size + offset
        return simplify(position)

    def within(self, outer: Region) -> Region:
        """The same part, if the whole is itself a part: a region of the whole of `outer`."""
        return Region(outer.whole, outer.index(self.offsets))

    def __str__(self) -> str:
        return f"%{self.whole}[{', '.join(map(str, self.offsets))}]"


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One application of an operator. An empty input name is an omitted optional input; an empty
    output name is an output that nothing reads.

    `origin` names the ONNX nodes that it came from. Every rewrite keeps it. `stages` are the parts
    of `origin` that each stage of a called kernel computes (`loops.from_graph`). `version` is the
    version of the operator's domain in the model. It is None before `normalise` if it is the
    module's version, and for a node that a pass adds.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    domain: str = ""
    origin: tuple[str, ...] = ()
    stages: tuple[tuple[str, ...], ...] = ()
    version: int | None = None

    @property
    def name(self) -> str:
        """The first ONNX node it came from, else its first output."""
        return self.origin[0] if self.origin else self.outputs[0]

    @property
    def operator(self) -> tuple[str, str]:
        """The domain and the name of the operator: the key of its row."""
        return self.domain, self.op

    def input(self, index: int) -> str:
        """An input; the empty name if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def renamed(self, names: Mapping[str, str]) -> Node:
        """The node over values that have other names."""
        inputs, outputs = (
            tuple(names.get(v, v) for v in values) for values in (self.inputs, self.outputs)
        )
        return replace(self, inputs=inputs, outputs=outputs)

    def reading(self, names: Mapping[str, str]) -> Node:
        """The node that reads other values in place of some of its inputs."""
        return replace(self, inputs=tuple(names.get(i, i) for i in self.inputs))


@dataclass(frozen=True, slots=True)
class Stacked:
    """A sequence of a length that only a run knows: the slices of a tensor along its first axis.
    All elements have one shape.
    """

    value: str


@dataclass(frozen=True, slots=True)
class Ragged:
    """A sequence of a length that only a run knows, whose elements have one rank and any sizes.

    `elements` has the numbers of all elements along one axis. `sizes` has the shape of an element
    in each row.
    """

    elements: str
    sizes: str


@dataclass(frozen=True, slots=True)
class Shaped:
    """A tensor whose rank only a run knows: its `elements`, a tensor of rank 1, and its `sizes`."""

    elements: str
    sizes: str


Elements = tuple[str, ...] | Stacked | Ragged | Shaped | None
"""The values that stand for one that is no tensor of a rank known at build time: a sequence, an
optional, or a tensor of another rank in each run. `None` is an empty optional.
"""


@dataclass(frozen=True, slots=True)
class Requirement:
    """An assumption of shape inference about two sizes, one of them symbolic: a run checks it.

    `left` is equal to `right`, differs from it, or is at most as large; or they are equal unless
    one of the two (broadcast) or `left` (stretch) is 1. `node` is the ONNX node that needs this.
    """

    rule: Rule
    left: Expr
    right: Expr
    node: str

    def allows(self, left: int, right: int) -> bool:
        """True if the two sizes may have these values."""
        return holds(self.rule, left, right)


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A dataflow block. `types` maps the names of values to their types, as far as these are
    inferred. `constants` maps names to arrays. `sequences` names the outputs that together are one
    sequence, and the inputs and outputs that hold one sequence. `requirements` are the function's
    assumptions about symbols. `regions` maps each value that is a part of another value to its
    place.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, Array]
    sequences: Mapping[str, Elements] = field(default_factory=dict)
    requirements: tuple[Requirement, ...] = ()
    regions: Mapping[str, Region] = field(default_factory=dict)

    def type(self, value: str) -> TensorType:
        """The type of a value; raises `KeyError` before inference."""
        return self.types[value]


@dataclass(frozen=True, slots=True)
class Check:
    """An output of `main` that hosts read, and callers do not see. For each of `nodes` it holds the
    number of indices that are out of range.
    """

    value: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StatePort:
    """The input `past` and the output `present` that the model had in place of a state. `type` is
    the type of the past.

    A state grows by rows, or each run replaces it. If it grows, the symbol of the length is the
    size of one axis. If it is replaced, `state` is the input itself.

    A replaced state may be a buffer. One of its axes has the capacity of the session as its size. A
    run writes at most `rows` new rows. Without a session, the present has `size` rows.
    """

    past: str
    present: str
    state: str
    type: TensorType
    rows: Expr | None = None
    size: Expr | None = None

    @property
    def is_replaced(self) -> bool:
        """True if the present replaces the past."""
        return self.state == self.past


@dataclass(frozen=True, slots=True)
class TextPort:
    """An input or output of the model that holds texts. `position` is its place among all inputs or
    outputs of the model.
    """

    name: str
    shape: tuple[Expr, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a model (`core.text_steps`).

    The texts `words` are the numbers 0, 1, ... in `main`. `before` and `after` are the steps of the
    hosts; `constants` holds the words that steps read, as tensors of numbers. `feeds` are the
    inputs of `main` that hosts compute, and `reads` the outputs of `main` that only hosts read.
    """

    words: tuple[str, ...]
    inputs: tuple[TextPort, ...]
    outputs: tuple[TextPort, ...]
    before: tuple[TextStep, ...] = ()
    after: tuple[TextStep, ...] = ()
    constants: Mapping[str, Array] = field(default_factory=dict)
    feeds: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """Functions side by side: graph functions (one is `main`) and, after lowering, loop functions.

    `opsets` gives each imported domain's version; `name` is the model's, and becomes the package's.
    `checks` are the last outputs of `main`. `algorithms` names the algorithm of some layers, where
    a search chose it; the cost models choose for the other layers (`Target.alternatives`).

    `length` is the symbol of a model with states: the number of rows that a session holds before a
    run. `states` are these values of `main`, once their rows are written in place
    (`fuse/write_in_place.py`). `state_ports` are the inputs and outputs that states replace.
    `capacity` is the symbol of the rows of states that are buffers, which a session chooses.
    `carried` maps inputs to the outputs that a session passes to them in its next run.
    `equal_symbols` maps each symbol that only such an input has to an equal symbol of another
    input.

    `assets` are files that the package holds beside the model, such as a tokeniser. `typed` says
    which inputs and outputs are values of the page (`typed/connect_values.py`). `texts` is there if
    the model computes with texts. `halves` are the float32 values of `main` that are float16 in the
    model (`layout/widen_halves.py`).
    """

    name: str
    functions: Mapping[str, Function]
    kernels: Mapping[str, LoopFunction] = field(default_factory=dict)
    opsets: Mapping[str, int] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    algorithms: Mapping[str, str] = field(default_factory=dict)
    length: str = ""
    states: tuple[str, ...] = ()
    state_ports: tuple[StatePort, ...] = ()
    capacity: str = ""
    carried: Mapping[str, str] = field(default_factory=dict)
    equal_symbols: Mapping[str, str] = field(default_factory=dict)
    assets: Mapping[str, bytes] = field(default_factory=dict)
    typed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    texts: Texts | None = None
    halves: frozenset[str] = frozenset()

    @property
    def main(self) -> Function:
        """The graph function that is the model."""
        return self.functions["main"]

    def map_functions(self, transform: Callable[[Function], Function]) -> Module:
        """The module whose functions are all transformed."""
        functions = {name: transform(function) for name, function in self.functions.items()}
        return replace(self, functions=functions)

    def with_main(self, main: Function, **changes: Any) -> Module:
        """The module with another `main`, and with changes of further fields."""
        return replace(self, functions={**self.functions, "main": main}, **changes)


def joined_origin(*nodes: Node) -> tuple[str, ...]:
    """The origin of one node that stands for several nodes."""
    return tuple(dict.fromkeys(name for node in nodes for name in node.origin))


def producers(function: Function) -> dict[str, Node]:
    """The node that computes each value. Inputs and constants have none."""
    return {output: node for node in function.nodes for output in node.outputs if output}


def consumers(function: Function) -> dict[str, list[Node]]:
    """The nodes that read each value, in order. Values that no node reads are missing."""
    users: dict[str, list[Node]] = {}
    for node in function.nodes:
        for value in dict.fromkeys(node.inputs):
            if value:
                users.setdefault(value, []).append(node)
    return users


def print_function(function: Function) -> str:
    """The function as text, one node a line, as `inspect` and the dumps show it."""

    def typed(value: str) -> str:
        type_, region = function.types.get(value), function.regions.get(value)
        text = f"%{value}" if type_ is None else f"%{value}: {type_}"
        return text if region is None else f"{text} in {region}"

    lines = [f"func {function.name}({', '.join(map(typed, function.inputs))}) {{"]
    for name, array in function.constants.items():
        small = f" = {array.tolist()}" if array.size <= 8 else ""
        lines.append(f"  const %{name}: {array.dtype}{list(array.shape)}{small}")
    for node in function.nodes:
        outputs = ", ".join(typed(o) for o in node.outputs if o)
        arguments = ", ".join(f"%{i}" if i else "_" for i in node.inputs)
        attributes = ", ".join(
            f"{k}={_print_attribute(v)}" for k, v in sorted(node.attributes.items())
        )
        prefix = f"{node.domain}." if node.domain else ""
        lines.append(
            f"  {outputs} = {prefix}{node.op}({arguments})"
            + (f" {{{attributes}}}" if attributes else "")
        )
    lines.append(f"  return {', '.join(f'%{o}' for o in function.outputs)}")
    return "\n".join([*lines, "}"])


def _print_attribute(value: Attribute) -> str:
    match value:
        case np.ndarray():
            return f"{value.dtype}{list(value.shape)}"
        case Function():
            return f"@{value.name}"
        case Expr():
            return str(value)
        case tuple():
            return f"({', '.join(map(_print_attribute, value))})"
        case _ if is_dataclass(value) and not isinstance(value, type):
            members = ((f.name, _print_attribute(getattr(value, f.name))) for f in fields(value))
            return f"{type(value).__name__}({', '.join(f'{n}={text}' for n, text in members)})"
    return repr(value)
