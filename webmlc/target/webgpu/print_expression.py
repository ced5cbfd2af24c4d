"""Print expressions as WGSL.

In: a legalised expression. Out: its text, and the helper functions and literals that the shader
must declare for it.

    C_0[T.ramp(0, 1, 4)] + T.broadcast(A[base + k], 4) * b0[T.ramp(0, 1, 4)]
        ->   C_0 + vec4f(A[base + k]) * b0
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError
from webmlc.core.expr import Bitcast, Broadcast, Call, Cast, Const, Expr, Ramp, Var, call
from webmlc.core.instruction import Instruction, InstructionCall
from webmlc.core.machine import Gpu
from webmlc.core.rewrite import postorder
from webmlc.loops.ir import Buffer, Load
from webmlc.target import VECTOR_LANES
from webmlc.target.webgpu.choose_storage import vector_index
from webmlc.target.webgpu.legalise import is_literal
from webmlc.target.webgpu.names import memory_name, wgsl_name
from webmlc.target.webgpu.quad_loads import (
    OFFSET,
    Exchanges,
    Place,
    Swap,
    lane_of,
    loaded_components,
)
from webmlc.target.webgpu.spelling import ATOM, LOOSE, PRODUCT, SUM, Spelling
from webmlc.target.webgpu.storage import FROM_BITS, PARTS, ROUNDINGS, WORDS, word_of
from webmlc.target.webgpu.table import (
    BY_A_LITERAL,
    OPERATORS,
    cast_spelling,
    definitions,
    half_type,
    kind_of,
    literal,
    suffix,
    type_fields,
    type_name,
)

Printed = tuple[str, int]
"""The text of an expression, and its precedence."""

_MIXED = frozenset({"add", "sub", "mul", "div", "fma"})
"""The operators that accept a scalar operand together with a vector."""

_EXACT = frozenset(
    {"min", "max", "select", "sign", "neg", "abs", "floor", "ceil", "trunc", "round"}
)
"""The operators whose result needs no rounding to a 16-bit float."""

_COMPONENTS = "xyzw"
"""The names of a vector's components, by lane."""
_COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
"""The spellings of the comparisons."""


@dataclass(slots=True)
class ExpressionPrinter:
    """The printer of one kernel's expressions. `quads` are the loads that quads run at once.
    `offsets` names the offsets of the places of `exchanges`, by component and step. `has_halves`:
    some memory holds `f16`; the values are float32, as for all small types.
    """

    kernel: str
    quads: Mapping[Load, int] = field(default_factory=dict)
    exchanges: Exchanges = field(default_factory=Exchanges)
    has_halves: bool = False
    offsets: dict[tuple[int, int], str] = field(default_factory=dict)
    helpers: dict[str, None] = field(default_factory=dict)
    features: dict[str, None] = field(default_factory=dict)

    def text(self, root: Expr) -> str:
        """The text of a whole expression."""
        return self.printed(root)[0]

    def operand(self, root: Expr) -> str:
        """The text as an operand, where `a < b >> c` would look like a template."""
        return _enclosed(*self.printed(root))

    def printed(self, root: Expr) -> Printed:
        """The text and the precedence of an expression, which may be deep."""
        results: dict[Expr, Printed] = {}
        for node in postorder(root, _printed_children, results):
            parts = [results[child] for child in _printed_children(node)]
            results[node] = self.node(node, parts)
        return results[root]

    def node(self, node: Expr, parts: list[Printed]) -> Printed:
        """The text and the precedence of a node, given its printed children."""
        match node:
            case Const(value=value, dtype=dtype):
                return literal(value, dtype), ATOM
            case Var(name=name):
                return wgsl_name(name), ATOM
            case Load():
                return self.load(node), ATOM
            case Call(op=op) if op in ROUNDINGS:
                return self.spelled(ROUNDINGS[op], *parts, lanes=node.lanes)
            case Call(
                op="add",
                args=(InstructionCall() as term, c) | (c, InstructionCall() as term),
            ) if term.instruction.accumulates(Gpu.device):
                operands = [self.text(operand) for operand in term.args]
                return self.instruction(term, operands, self.text(c)), ATOM
            case Call(op=op, dtype=dtype):
                result = self.operation(node, parts)
                if dtype not in FROM_BITS or op in _EXACT:
                    return result
                return self.rounded(result, dtype, node.lanes)
            case InstructionCall(instruction=Instruction(folds=True)):
                return parts[0]  # a thread of a loop that a subgroup does not share
            case InstructionCall():
                return self.instruction(node, [text for text, _ in parts]), ATOM
            case Cast(value=value, dtype=dtype):
                return self.cast(value.dtype, dtype, node.lanes, parts[0])
            case Bitcast(value=value, dtype=dtype):
                return self.bitcast(value.dtype, dtype, node.lanes, parts[0])
            case Broadcast(value=Const(value=0), dtype=dtype, width=width):
                return f"{type_name(dtype, width)}()", ATOM
            case Broadcast(dtype=dtype, width=width):
                return f"{type_name(dtype, width)}({parts[0][0]})", ATOM
            case Ramp():
                steps = ", ".join(map(self.text, lane_indices(node)))
                return f"{type_name(node.dtype, node.width)}({steps})", ATOM
        raise self.unsayable(f"{type_name(node.dtype)} expression {type(node).__name__}")

    def spelled(self, spelling: Spelling, *parts: Printed, lanes: int = 1) -> Printed:
        """A spelling that belongs to no operator (a conversion), applied to its operands."""
        if spelling.helper is not None:
            self.declare(spelling.helper, DType.uint32, lanes)
        operands = parts
        if spelling.level == LOOSE:
            operands = tuple((_enclosed(*part), ATOM) for part in parts)
        fields = type_fields(DType.uint32, lanes)
        return spelling.text.format(*(text for text, _ in operands), **fields), spelling.level

    def declare(self, helper: str, dtype: DType, lanes: int) -> None:
        """Record that the shader calls a helper."""
        self.helpers |= dict.fromkeys(definitions(helper, dtype, lanes))

    def rounded(self, printed: Printed, dtype: DType, lanes: int) -> Printed:
        """32-bit values, rounded to the small type that they stand for."""
        if dtype is DType.float16 and self.has_halves:
            return f"{type_name(DType.float32, lanes)}({half_type(lanes)}({printed[0]}))", ATOM
        return self.spelled(PARTS[dtype].narrowed, printed, lanes=lanes)

    def cast(self, source: DType, dtype: DType, lanes: int, value: Printed) -> Printed:
        """The conversion of a value."""
        if kind_of(source) == kind_of(dtype) and dtype not in PARTS:
            return value
        converted = self.spelled(cast_spelling(source, dtype, lanes), value, lanes=lanes)
        if dtype not in PARTS or DType.bool in (source, dtype):
            return converted
        return self.rounded(converted, dtype, lanes)

    def bitcast(self, source: DType, dtype: DType, lanes: int, value: Printed) -> Printed:
        """The value of another type with the same bits."""
        if dtype.bytes == 8:
            return value
        if source is DType.bool:
            return self.cast(source, dtype, lanes, value)
        if source in FROM_BITS:
            value = self.spelled(PARTS[source].bits, value, lanes=lanes)
        if dtype in FROM_BITS:
            unsigned = value
            if source not in FROM_BITS:
                unsigned = self.spelled(PARTS[source].bits, value, lanes=lanes)
            return self.spelled(FROM_BITS[dtype], unsigned, lanes=lanes)
        reinterpreted = f"bitcast<{type_name(dtype, lanes)}>({value[0]})", ATOM
        return self.rounded(reinterpreted, dtype, lanes) if dtype in PARTS else reinterpreted

    def operation(self, node: Call, parts: list[Printed]) -> Printed:
        """The text and the precedence of an operator applied to its operands."""
        row = OPERATORS.get(node.op, {}).get(kind_of(node.args[-1].dtype))
        if row is None:
            raise self.unsayable(f"{node.op} of {node.args[-1].dtype}")
        if node.op in BY_A_LITERAL and node.dtype.is_float and is_literal(node.args[1]):
            row = BY_A_LITERAL[node.op]
        lanes = node.lanes
        if row.helper is not None:
            self.declare(row.helper, node.dtype, lanes)
        match node:
            case Call(op="shift_left" | "shift_right", args=(_, Const(value=value))) if (
                node.dtype.bytes < 8
            ):
                return (
                    f"{_enclosed(*parts[0])} {'<<' if node.op == 'shift_left' else '>>'} {value}u",
                    LOOSE,
                )
        if node.op in _MIXED and any(not isinstance(a, Broadcast) for a in node.args):
            parts = [
                self.printed(arg.value) if isinstance(arg, Broadcast) else part
                for arg, part in zip(node.args, parts, strict=True)
            ]
        operands = _operands(row.text, row.level, parts)
        text = row.text.format(
            *operands,
            suffix=suffix(node.dtype, lanes),
            unsigned=type_name(DType.uint32, lanes),
        )
        return text, row.level

    def instruction(
        self, node: InstructionCall, operands: list[str], total: str | None = None
    ) -> str:
        """A call of an instruction, which adds its result to `total` if it accumulates. If the
        instruction takes scalars, a helper applies it to vectors.
        """
        instruction = node.instruction
        text = instruction.text(Gpu.device)
        if text is None:
            raise self.unsayable(f"instruction {instruction.name}")
        if text.feature is not None:
            self.features[text.feature] = None
        names = [parameter.name for parameter in instruction.parameters]
        if instruction.sum is not None and instruction.accumulates(Gpu.device):
            names.append(instruction.sum)
            operands = [*operands, total or f"{type_name(node.dtype, node.lanes)}()"]
        if node.lanes == instruction.lanes:
            return text.text.format(**dict(zip(names, operands, strict=True)))
        helper = _of_vectors(instruction, text.text, names, node.lanes)
        self.helpers[helper] = None
        return f"{_vector_name(instruction)}({', '.join(operands)})"

    def load(self, node: Load) -> str:
        """A load. The threads of a quad may load some elements of a vector each."""
        if (mask := self.exchanges.vectors.get(node)) is not None:
            return self.exchanged_vector(node, mask)
        match self.exchanges.columns.get(node):
            case Place() as place:
                return self.access(node.buffer, self.at(place))
            case Swap(function=function, register=register):
                return f"{function}({wgsl_name(register.name)})"
        if self.quads.get(node) == 0:
            self.declare("quad_vector", node.dtype, 1)
            return f"quad_vector_{suffix(node.dtype, 1)}({self.lane(node, 0)})"
        return self.access(node.buffer, node.indices)

    def exchanged_vector(self, node: Load, mask: int) -> str:
        """The text of a vector whose components the threads of a quad load and exchange."""
        loaded = loaded_components(mask)
        lanes = ", ".join(self.lane(node, component) for component in loaded)
        if len(loaded) == VECTOR_LANES:
            return f"{type_name(node.dtype, VECTOR_LANES)}({lanes})"
        helper = f"quad_swaps_{mask}"
        self.declare(helper, node.dtype, 1)
        return f"{helper}_{suffix(node.dtype, 1)}({lanes})"

    def lane(self, node: Load, component: int) -> str:
        """The element of a vector that a thread of a quad has as a component."""
        return f"{self.reference(node.buffer, node.indices)}[{lane_of(component)}]"

    def at(self, place: Place) -> tuple[Expr, ...]:
        """The index of the elements that a thread of a quad loads at a place."""
        offset = (place.component, place.step)
        name = self.offsets.setdefault(offset, f"{OFFSET}{len(self.offsets) or ''}")
        unit = call("add", place.first, Var(name))
        return (Ramp(call("mul", unit, Const(VECTOR_LANES)), Const(1), VECTOR_LANES),)

    def access(self, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
        """Elements of a buffer, as 32-bit values."""
        if buffer.storage != "halves":
            return self.reference(buffer, indices)
        match indices:
            case (Ramp(stride=Const(value=1), width=width),) if buffer.in_vectors:
                wide = type_name(DType.float32, width)
                return f"{wide}({self.reference(buffer, indices)})"
            case (Ramp(),):
                return self.reference(buffer, indices)  # which widens element by element
        return f"f32({self.reference(buffer, indices)})"

    def reference(self, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
        """The elements of a buffer as they are stored; widened where a vector joins several."""
        if buffer.storage == "register":
            match indices:
                case (Const(value=int() as lane),):
                    return f"{wgsl_name(buffer.name)}.{_COMPONENTS[lane]}"
            return wgsl_name(buffer.name)
        name = memory_name(buffer)
        match indices:
            case (Ramp(base=base, stride=Const(value=1)),) if buffer.in_vectors:
                words = f"{name}[{self.text(vector_index(base))}]"
                if buffer.storage not in WORDS:
                    return words
                return _enclosed(*self.spelled(PARTS[buffer.dtype].vector, (words, ATOM)))
            case (Ramp() as ramp,):
                elements = [self.element(buffer, index) for index in lane_indices(ramp)]
                if buffer.storage == "halves":
                    elements = [f"f32({element})" for element in elements]
                return f"{type_name(buffer.dtype, ramp.width)}({', '.join(elements)})"
            case (index,) if index.lanes == 1:
                return self.element(buffer, index)
            case (index,):
                raise self.unsayable(f"the vector index {index}")
        raise self.unsayable(f"buffer {buffer.name} of rank {len(indices)}")

    def element(self, buffer: Buffer, index: Expr) -> str:
        """One scalar of a memory buffer."""
        name = memory_name(buffer)
        if buffer.storage in WORDS:
            return self.part(buffer, index)
        if not buffer.in_vectors:
            return f"{name}[{self.text(index)}]"
        match index:
            case Const(value=int() as value):
                return f"{name}[{value // VECTOR_LANES}].{_COMPONENTS[value % VECTOR_LANES]}"
        inner = self.operand(index)
        return f"{name}[{inner} >> 2u][{inner} & 3]"

    def part(self, buffer: Buffer, index: Expr) -> str:
        """The value of an element that is part of a word."""
        position = self.operand(index)
        is_vector = buffer.in_vectors
        word = f"{memory_name(buffer)}[{word_of(buffer.dtype, position, is_vector)}]"
        if is_vector and buffer.dtype.bytes == 2:
            word = f"{word}[({position} >> 1u) & 1]"
        if buffer.storage == "atomic words":
            word = f"atomicLoad(&{word})"
        parts = (word, ATOM), (position, ATOM)
        return _enclosed(*self.spelled(PARTS[buffer.dtype].scalar, *parts))

    def unsayable(self, construct: str) -> InternalError:
        """The error for a construct that WGSL does not have."""
        return InternalError(f"webgpu: kernel {self.kernel}: WGSL has no {construct}")


def _vector_name(instruction: Instruction) -> str:
    """The name of the function that applies an instruction of scalars to vectors."""
    return re.sub(r"\W", "_", instruction.name) + "_lanes"


def _of_vectors(instruction: Instruction, text: str, names: list[str], lanes: int) -> str:
    """The function that applies an instruction of scalars to each lane of vectors."""
    dtypes = {parameter.name: parameter.dtype for parameter in instruction.parameters}
    result = instruction.meaning.dtype
    head = ", ".join(f"{n}: {type_name(dtypes.get(n, result), lanes)}" for n in names)
    wide = type_name(result, lanes)
    calls = (text.format(**{n: f"{n}.{c}" for n in names}) for c in _COMPONENTS[:lanes])
    body = "".join(f"        {call},\n" for call in calls)
    name = _vector_name(instruction)
    return f"fn {name}({head}) -> {wide} {{\n    return {wide}(\n{body}    );\n}}\n"


def _enclosed(text: str, level: int) -> str:
    """A text in the parentheses that it needs as an operand of any operator."""
    return text if level == ATOM else f"({text})"


def _printed_children(node: Expr) -> tuple[Expr, ...]:
    """The children whose own text is part of a node's text."""
    return () if isinstance(node, Load) else node.children


def lane_indices(ramp: Ramp) -> list[Expr]:
    """The index of each lane of a ramp."""
    return [
        call("add", ramp.base, call("mul", ramp.stride, Const(lane))) for lane in range(ramp.width)
    ]


def _operands(template: str, level: int, parts: list[Printed]) -> list[str]:
    """The operands, in the parentheses that they need inside an operator of this precedence."""
    if level == ATOM:
        is_prefix = template[0] in "-~!"
        is_minus = template[0] == "-"  # WGSL has no `--`
        return [
            f"({text})"
            if is_prefix and (precedence < ATOM or (is_minus and text[0] == "-"))
            else text
            for text, precedence in parts
        ]
    if level == LOOSE:  # comparisons accept sums, other operators only atoms
        required = SUM if template[4:6].strip() in _COMPARISONS else ATOM
        return [text if precedence >= required else f"({text})" for text, precedence in parts]
    is_fma = template == OPERATORS["fma"]["float"].text
    minimums = (PRODUCT, ATOM, PRODUCT) if is_fma else (level, level + 1, ATOM)
    return [
        text if precedence >= minimum else f"({text})"
        for (text, precedence), minimum in zip(parts, minimums, strict=False)
    ]


assert LOOSE < SUM < PRODUCT < ATOM
