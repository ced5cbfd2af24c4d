"""Compute half-precision models in float32, because WebAssembly has no instructions for halves.

needs: inferred types, constants packed. guarantees: operators that calculate have no float16 or
bfloat16 operands. A value is rounded to half precision where the model casts it, where an operator
with steps reads it (`STEPS`), and where a caller or control flow reads it. Between all other
operators a value stays unrounded. Large constants stay in half precision: a Cast widens them, once
at load if the target can (`package/program.py`). Nodes that only move elements of inputs and
constants still move halves, and nodes that widen constants or states themselves still read halves.
before → after (x, w, y: float16; b: bool):

    %c = Conv(%x, %w)              %x.wide = Cast(%x)
    %y = Relu(%c)           →      %w.wide = Cast(%w)
    %b = Greater(%c, %x)           %c.wide = Conv(%x.wide, %w.wide)
                                   %y.wide = Relu(%c.wide)
                                   %c.rounded = RoundToHalf(%c.wide)
                                   %b = Greater(%c.rounded, %x.wide)
                                   %y = Cast(%y.wide)

onnxruntime's CPU provider computes in float32, too. The sums of a reduction need float32: 11 bits
are too few.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from webmlc.core.dtypes import DType
from webmlc.core.expr import Call
from webmlc.core.rewrite import walk
from webmlc.graph.builder import Builder
from webmlc.graph.compute import Read, Reduction, Scatter, Tensor
from webmlc.graph.element_types import TYPE_NUMBERS
from webmlc.graph.ir import Function, Module, Node, TensorType
from webmlc.graph.ops.control import CONTROL
from webmlc.graph.ops.decoder import APPEND
from webmlc.graph.ops.operator import NotSupportedError, Scope, array_type
from webmlc.graph.rewrite.meaning import compute_node, kind_of, row_of
from webmlc.graph.rewrite.rewriting import Rewriting, remove_dead_code

HALVES = frozenset({DType.float16, DType.bfloat16})
SMALL = 4096
"""The most bytes of a constant that is stored in float32. Larger constants are widened at load
(chosen by hand).
"""
_MOVES = frozenset({"select", "finite"})
"""The scalar operators whose results are operands."""
STEPS = frozenset(
    [
        *(
            ("", op)
            for op in ("Floor", "Ceil", "Round", "Sign", "Mod", "IsInf", "IsNaN", "Hardmax")
        ),
        *(("", op) for op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")),
        *(("", op) for op in ("ArgMax", "ArgMin", "TopK", "ThresholdedRelu", "Shrink")),
        *(("", op) for op in ("Cast", "CastLike", "QuantizeLinear", "Range")),
        *(("webmlc", op) for op in ("RangeCount", "Order")),
    ]
)
"""Operators whose results jump, by domain and name: the rounding of an operand decides on which
side of a step it lies.
"""
_CASTS = frozenset({("", "Cast"), ("", "CastLike")})
_CHOICES = frozenset(
    {"Relu", "Max", "Min", "Neg", "Abs", "Floor", "Ceil", "Round", "Sign", "Where"}
)
"""Operators of halves whose results are halves."""


def widen_halves(module: Module) -> Module:
    """Rewrite every function. A function without halves is returned unchanged. The module names
    the float32 form of each float16 value of `main`: storage may hold it as float16.
    """
    functions = {}
    halves: frozenset[str] = frozenset()
    for name, function in module.functions.items():
        functions[name] = function
        if _has_halves(function):
            rewriting = _Widening(function, widens_at_load=function is module.main)
            functions[name] = remove_dead_code(rewriting.run())
            if function is module.main:
                halves = rewriting.float16_values()
    return replace(module, functions=functions, halves=halves)


def _has_halves(function: Function) -> bool:
    constants = map(array_type, function.constants.values())
    return any(type_.dtype in HALVES for type_ in (*function.types.values(), *constants))


@dataclass(slots=True)
class _Widening(Rewriting):
    """The function so far, and the float32 forms of its halves. `wide` has the forms that may be
    unrounded, `rounded` the rounded forms. `unrounded` holds the float32 values that the model
    casts to halves.
    """

    widens_at_load: bool = True
    wide: dict[str, str] = field(default_factory=dict)
    rounded: dict[str, str] = field(default_factory=dict)
    unrounded: dict[str, str] = field(default_factory=dict)
    states: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        Rewriting.__post_init__(self)
        appends = (node for node in self.source.nodes if node.operator == APPEND)
        self.states = frozenset(output for node in appends for output in node.outputs)

    def add(self, node: Node) -> None:
        """Write a node over float32, or as it is, over values of the model's types."""
        if self.casts_to_half(node):
            self.round_operand(node)
        elif not self.calculates(node) or not self.widened(node):
            build = Builder(node, self)
            for value in filter(None, node.inputs):
                self.narrow(build, value)
            self.keep(node)

    def finish(self) -> Function:
        for value in self.source.outputs:
            self.narrow(Builder.without_origin(self), value)
        return Rewriting.finish(self)

    def has_half(self, value: str) -> bool:
        """True if a value exists in the model's type, not only in its float32 form."""
        is_stored = value in self.constants or value in self.source.inputs
        return is_stored or self.producer(value) is not None

    def float16_values(self) -> frozenset[str]:
        """The float32 forms of values that are float16 in the model."""
        return frozenset(
            wide
            for value, wide in self.wide.items()
            if (type_ := self.types.get(value)) is not None and type_.dtype is DType.float16
        )

    def is_half(self, value: str) -> bool:
        type_ = self.types.get(value)
        return type_ is not None and type_.dtype in HALVES

    def casts_to_half(self, node: Node) -> bool:
        """True for a Cast of a float32 value, or of a half, to a half."""
        if node.operator not in _CASTS or not self.is_half(node.outputs[0]):
            return False
        type_ = self.types.get(node.inputs[0])
        return type_ is not None and type_.dtype in {DType.float32, *HALVES}

    def round_operand(self, node: Node) -> None:
        """Write a Cast to a half. Its result exists only in float32 until a node reads the half."""
        build = Builder(node, self)
        source, (result,) = node.inputs[0], node.outputs
        value = self.round(build, source) if self.is_half(source) else source
        self.unrounded[result] = value
        wide = self.round_value(build, value, self.source.types[result].dtype, f"{result}.wide")
        self.wide[result] = self.rounded[result] = wide

    def calculates(self, node: Node) -> bool:
        """True for a node to widen: it calculates with halves, or one of its halves exists only in
        its float32 form. A state keeps its name and its type, which a port has, too. A kernel of
        people's own keeps the types of its parameters.
        """
        halves = [value for value in node.inputs if self.is_half(value)]
        if not halves or node.operator in (*CONTROL, APPEND):
            return False
        if not all(map(self.has_half, halves)):
            return True
        if node.operator == ("", "View") or row_of(node).compute is None:
            return False
        may_read_halves = kind_of(node) == "injective" or all(map(self.is_stored, halves))
        return not (may_read_halves and self.leaves_halves(node))

    def is_stored(self, value: str) -> bool:
        """True for a value that lies in memory between runs: a constant or a state."""
        return value in self.constants or value in self.states

    def leaves_halves(self, node: Node) -> bool:
        """True if a node only moves halves, or widens them itself before it computes."""
        results = compute_node(node, self.scope, self.scope.context(node).placeholders)
        return not any(map(_calculates, results))

    def widened(self, node: Node) -> bool:
        """Write the node over float32; False if its meaning depends on the bits of its operand."""
        build = Builder(node, self)
        read = self.round if node.operator in STEPS else self.widen
        inputs = tuple(read(build, v) if self.is_half(v) else v for v in node.inputs)
        types = {v: self.types[v] for v in inputs if v in self.types}
        scope = Scope(types, self.constants, self.scope.values)
        names = {v: f"{v}.wide" for v in node.outputs if self.is_half(v)}
        try:
            inferred = row_of(node).types(scope.context(replace(node, inputs=inputs)))
        except NotSupportedError:
            return False
        output_types: list[TensorType] = []
        outputs: dict[str, str] = {}
        for value, type_ in zip(filter(None, node.outputs), inferred, strict=True):
            output_types.append(TensorType(type_.dtype, self.source.types[value].shape))
            outputs[value] = value
            if value in names and type_.dtype is DType.float32:
                outputs[value] = self.wide[value] = names[value]
                if self.chooses(node):
                    self.rounded[value] = names[value]
        renamed = tuple(outputs.get(v, v) for v in node.outputs)
        build.append(replace(node, inputs=inputs, outputs=renamed), output_types)
        return True

    def chooses(self, node: Node) -> bool:
        """True if each element of a node's results is one of its rounded operands' elements."""
        is_choice = kind_of(node) == "injective" or (not node.domain and node.op in _CHOICES)
        return is_choice and all(v in self.rounded for v in node.inputs if self.is_half(v))

    def narrow(self, build: Builder, value: str) -> None:
        """Write a value in the model's type, if only its float32 form is written so far."""
        if value in self.wide and not self.has_half(value):
            source = self.unrounded.get(value, self.wide[value])
            self.cast(build, source, self.source.types[value].dtype, value)

    def round(self, build: Builder, value: str) -> str:
        """The float32 form of a value, rounded to the half that the model has."""
        wide = self.widen(build, value)
        if value not in self.rounded:
            dtype = self.source.types[value].dtype
            self.rounded[value] = self.round_value(build, wide, dtype, f"{value}.rounded")
        return self.rounded[value]

    def round_value(self, build: Builder, value: str, dtype: DType, output: str) -> str:
        """Write the halves of type `dtype` nearest to float32 numbers, as float32."""
        name, to = "RoundToHalf", TYPE_NUMBERS[dtype]
        return build(name, value, domain="webmlc", output=output, to=to)

    def widen(self, build: Builder, value: str) -> str:
        """The float32 form of a value."""
        if value not in self.wide:
            array = self.constants.get(value)
            name = f"{value}.wide"
            if array is not None and (array.nbytes <= SMALL or not self.widens_at_load):
                build.constant(array, DType.float32, name)
            else:
                self.cast(build, value, DType.float32, name)
            self.wide[value] = self.rounded[value] = name
        return self.wide[value]

    def cast(self, build: Builder, value: str, dtype: DType, output: str) -> None:
        type_ = TensorType(dtype, self.types[value].shape)
        build("Cast", value, output=output, type_=type_, to=TYPE_NUMBERS[dtype])


def _calculates(root: Tensor) -> bool:
    """True if a tensor is computed by arithmetic on halves."""
    stack, visited = [root], {root}
    while stack:
        tensor = stack.pop()
        is_combined = isinstance(tensor.body, Reduction | Scatter) and tensor.body.combine
        if is_combined and tensor.dtype in HALVES:
            return True
        for node in (node for root in tensor.expressions for node in walk(root)):
            match node:
                case Call(op=op, args=args) if op not in _MOVES and args[-1].dtype in HALVES:
                    return True
                case Read(tensor=source) if source not in visited:
                    visited.add(source)
                    stack.append(source)
    return False
