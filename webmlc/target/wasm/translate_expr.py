"""Translate expressions to folded instructions.

In: a legalised expression of the lowered form, over pointers. Out: an instruction that leaves the
value on the stack:

    >>> translator.value(c + a * b).text()                        # f32 registers
    '(f32.add (local.get $c) (f32.mul (local.get $a) (local.get $b)))'
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from webmlc.core.affine import from_terms, terms
from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError
from webmlc.core.expr import Bitcast, Broadcast, Call, Cast, Const, Expr, Ramp, Var, as_int
from webmlc.core.instruction import InstructionCall
from webmlc.core.machine import Cpu
from webmlc.core.rewrite import postorder
from webmlc.loops.ir import Buffer, Load
from webmlc.target import VECTOR_LANES
from webmlc.target.byte_words import adjacent_bytes, word_of_bytes
from webmlc.target.common_subexpressions import is_guarded
from webmlc.target.wasm.instructions import Instruction, from_text, get_local, integer
from webmlc.target.wasm.table import (
    HALVES,
    INTERLEAVED,
    LANE_LOADS,
    LANE_SHIFTS,
    LANE_STORES,
    LOWEST_BYTES,
    class_of,
    conversion,
    instruction,
    load_instruction,
    value_type,
)

Address = tuple[str, Instruction]
"""The place of a load or store: the text ` offset=n` or nothing, which follows the instruction's
name, and a pointer.
"""
_ZEROS = Instruction("v128.const i32x4 0 0 0 0")


@dataclass(frozen=True, slots=True)
class ExprTranslator:
    """The translator of one kernel's expressions. `registers` are WASM locals, and `pointers` are
    the registers that hold byte addresses.
    """

    kernel: str
    registers: Mapping[Buffer, int]
    pointers: Mapping[Buffer, Buffer]
    relaxed: bool
    values: dict[Expr, Instruction] = field(default_factory=dict)

    def value(self, expr: Expr) -> Instruction:
        """One value. Operands are translated first, so the expression may be deep."""
        if expr not in self.values:
            for node in postorder(expr, _separate_operands, self.values):
                self.values[node] = self.node(node)
        return self.values[expr]

    def apply(self, name: str, *operands: Expr) -> Instruction:
        """An instruction on these operands."""
        return Instruction(name, tuple(map(self.value, operands)))

    def node(self, expr: Expr) -> Instruction:
        """One node, given the instructions of its operands."""
        match expr:
            case Const():
                return Instruction(f"{value_type(expr.dtype, 1)}.const {spell(expr)}")
            case Var(name=name):
                return get_local(name)
            case Load():
                return self.load(expr)
            case Broadcast(value=value):
                return self.broadcast(value)
            case Ramp(base=base, stride=stride):
                steps = Instruction(f"v128.const i32x4 {' '.join(self.steps(stride))}")
                if base == Const(0):
                    return steps
                return Instruction("i32x4.add", (self.apply("i32x4.splat", base), steps))
            case Cast(value=value, dtype=dtype):
                return self.cast(value, dtype)
            case Bitcast(value=value, dtype=dtype):
                return self.bitcast(value, dtype)
            case Call():
                return self.call(expr)
            case InstructionCall():
                return self.instruction(expr)
        raise self.unsayable(expr)

    def unsayable(self, expr: Expr) -> InternalError:
        """The error for an expression that WASM has no instruction for."""
        return InternalError(
            f"wasm: kernel {self.kernel}: no instruction for {expr} "
            f"({expr.dtype}, {expr.lanes} lanes)"
        )

    def steps(self, stride: Expr) -> list[str]:
        """The offsets of a ramp's lanes from its base."""
        step = as_int(stride)
        if step is None:
            raise InternalError(f"wasm: kernel {self.kernel}: a vector of symbolic stride {stride}")
        return [str(step * lane) for lane in range(VECTOR_LANES)]

    # -- literals and conversions ----------------------------------------------------------------

    def broadcast(self, value: Expr) -> Instruction:
        if value.dtype is DType.bool:
            if isinstance(value, Const):
                return Instruction(f"v128.const i32x4{' -1' * 4 if value.value else ' 0' * 4}")
            mask = Instruction("i32.sub", (integer(0), self.value(value)))
            return Instruction("i32x4.splat", (mask,))
        shape = "f32x4" if value.dtype is DType.float32 else "i32x4"
        match value:
            case Const():
                return Instruction(f"v128.const {shape}{f' {spell(value)}' * VECTOR_LANES}")
            case Load(buffer=buffer, indices=(index,)) if (
                buffer not in self.registers and buffer.dtype.bytes == 4
            ):
                return _load("v128.load32_splat", self.address(buffer, index))
            case Load(buffer=buffer, indices=(Const(value=int() as element),)) if (
                buffer in self.registers
            ):
                lanes = " ".join(str(4 * element + byte) for byte in (0, 1, 2, 3) * 4)
                return Instruction(f"i8x16.shuffle {lanes}", (get_local(buffer.name),) * 2)
        return self.apply(f"{shape}.splat", value)

    def cast(self, value: Expr, dtype: DType) -> Instruction:
        names = conversion(value.dtype, dtype, value.lanes)
        if names is None:
            raise self.unsayable(Cast(value, dtype))
        return _converted(names, self.value(value))

    def bitcast(self, value: Expr, dtype: DType) -> Instruction:
        source, target = value_type(value.dtype, value.lanes), value_type(dtype, value.lanes)
        if source == target:
            return self.value(value)
        return self.apply(f"{target}.reinterpret_{source}", value)

    # -- operators -------------------------------------------------------------------------------

    def call(self, expr: Call) -> Instruction:
        lanes = expr.lanes
        kind = class_of(expr.args[-1].dtype, lanes)
        match expr:
            case Call(op="select"):
                return self.select(expr)
            case Call(op="fma", args=(a, b, c)):
                if kind == "f32x4" and self.relaxed:
                    return self.apply("f32x4.relaxed_madd", a, b, c)
                return Instruction(f"{kind}.add", (self.value(c), self.apply(f"{kind}.mul", a, b)))
            case Call(op="shift_left" | "shift_right" as op, args=(a, Broadcast(value=amount))):
                return self.apply(LANE_SHIFTS[op, kind], a, amount)
            case Call(
                op="add",
                args=(InstructionCall() as term, c) | (c, InstructionCall() as term),
            ) if term.instruction.accumulates(Cpu.device):
                return self.instruction(term, self.value(c))
            case Call(op="word_u8", args=args) if (start := adjacent_bytes(args)) is not None:
                return self.word(start)
            case Call(op="word_u8", args=args) if lanes == 1:
                return self.value(word_of_bytes(args))
            case Call(op="word_u8", args=args):
                first, second, *upper = map(self.lowest_bytes, args)
                lower = Instruction(INTERLEAVED[1], (first, second))
                return Instruction(INTERLEAVED[2], (lower, Instruction(INTERLEAVED[1], (*upper,))))
            case Call(op="even_i8" | "odd_i8" | "odd_u8" as op, args=(a,)) if lanes > 1:
                return _converted(HALVES[op], self.value(a))
            case Call(op="bit_not", args=(a,)) if lanes > 1:
                return self.apply("v128.not", a)
            case Call(op="bit_not", args=(a,), dtype=DType.bool):
                return self.apply("i32.eqz", a)
            case Call(op="eq", args=(a, Const(value=0))) if not a.dtype.is_float:
                return self.apply(f"{value_type(a.dtype, 1)}.eqz", a)
            case Call(op="eq", args=(a, b)) if kind == "mask":
                return Instruction("v128.not", (self.apply("v128.xor", a, b),))
            case Call(op="mul", args=(a, Const(value=int() as factor))) if kind == "i32":
                if factor > 1 and factor & (factor - 1) == 0:
                    return Instruction("i32.shl", (self.value(a), integer(factor.bit_length() - 1)))
        name = instruction(expr.op, kind)
        if name is None:
            raise self.unsayable(expr)
        return self.apply(name, *expr.args)

    def instruction(self, expr: InstructionCall, total: Instruction | None = None) -> Instruction:
        """A call of an instruction, which adds its result to `total` if it accumulates."""
        row = expr.instruction
        text = row.text(Cpu.device)
        if text is None:
            raise self.unsayable(expr)
        names = (parameter.name for parameter in row.parameters)
        operands = dict(zip(names, map(self.value, expr.args), strict=True))
        if row.sum is not None:
            zero = Instruction(f"{value_type(expr.dtype, 1)}.const 0")
            if expr.lanes > 1:
                zero = Instruction(f"{class_of(expr.dtype, expr.lanes)}.splat", (zero,))
            operands[row.sum] = zero if total is None else total
        return from_text(text.text, operands)

    def word(self, first: Load) -> Instruction:
        """The words of four adjacent bytes each, of which `first` is the first byte."""
        buffer, (index,) = first.buffer, first.indices
        match index:
            case Ramp(base=base, stride=Const(value=4)):
                return _load("v128.load", self.address(buffer, base))
            case Ramp():
                return self.gathered(buffer, index)
        return _load("i32.load", self.address(buffer, index))

    def lowest_bytes(self, value: Expr) -> Instruction:
        """A vector whose first four bytes are the lowest bytes of the lanes of `value`. They are
        loaded directly where they are adjacent in memory.
        """
        match value:
            case Cast(value=Load(buffer=buffer, indices=(Ramp(base=base, stride=Const(value=1)),))):
                if buffer.dtype in (DType.int8, DType.uint8):
                    return _load("v128.load32_zero", self.address(buffer, base))
            case _ if _is_zero(value):
                return self.value(value)
        return _converted(LOWEST_BYTES, self.value(value))

    def select(self, expr: Call) -> Instruction:
        condition, then, otherwise = expr.args
        a, b, c = self.value(then), self.value(otherwise), self.value(condition)
        if a.name.startswith("call "):  # a function that is right for every lane
            return self.choice(Instruction("v128.any_true", (c,)) if expr.lanes > 1 else c, expr)
        match condition:
            case Call(op="lt", args=(x, y)) if condition.lanes > 1 and x.dtype is DType.float32:
                if (then, otherwise) == (y, x):  # pmin and pmax compare alike: a NaN in x stays
                    return Instruction("f32x4.pmax", (b, a))
                if (then, otherwise) == (x, y):
                    return Instruction("f32x4.pmin", (b, a))
        if condition.lanes > 1 and _is_zero(then):
            return Instruction("v128.andnot", (b, c))
        if condition.lanes > 1:  # equal for masks, whose lanes are all ones or all zeros
            name = "i32x4.relaxed_laneselect" if self.relaxed else "v128.bitselect"
            return Instruction(name, (a, b, c))
        if is_guarded(then, condition) or is_guarded(otherwise, condition):
            return self.choice(c, expr)
        return Instruction("select", (a, b, c))

    def choice(self, condition: Instruction, expr: Call) -> Instruction:
        """A branch that computes only the operand of a `select` that the condition chooses."""
        _, then, otherwise = expr.args
        branches = (self.apply("then", then), self.apply("else", otherwise))
        kind = value_type(expr.dtype, expr.lanes)
        return Instruction(f"if (result {kind})", (condition, *branches))

    # -- memory ----------------------------------------------------------------------------------

    def load(self, expr: Load) -> Instruction:
        buffer = expr.buffer
        if buffer in self.registers:
            return get_local(buffer.name)
        (index,) = expr.indices
        match index:
            case Ramp(base=base, stride=Const(value=1), width=2):
                return _load("v128.load64_zero", self.address(buffer, base))
            case Ramp(base=base, stride=Const(value=1)):
                name, *conversions = LANE_LOADS.get(buffer.dtype, ("v128.load",))
                return _converted(conversions, _load(name, self.address(buffer, base)))
            case Ramp(base=base, stride=stride) if buffer.dtype in LANE_LOADS:
                lanes = [self.load(buffer[base + stride * lane]) for lane in range(VECTOR_LANES)]
                vector = Instruction("i32x4.splat", (lanes[0],))
                for lane, element in enumerate(lanes[1:], start=1):
                    vector = Instruction(f"i32x4.replace_lane {lane}", (vector, element))
                return Instruction("i32x4.neg", (vector,)) if buffer.dtype is DType.bool else vector
            case Ramp():
                return self.gathered(buffer, index)
        return _load(load_instruction(buffer.dtype), self.address(buffer, index))

    def gathered(self, buffer: Buffer, ramp: Ramp) -> Instruction:
        """The 32 bits at each index of a ramp."""
        vector = _load("v128.load32_zero", self.address(buffer, ramp.base))
        for lane in range(1, VECTOR_LANES):
            address = self.address(buffer, ramp.base + ramp.stride * lane)
            vector = self.lane("load", lane, address, vector)
        return vector

    def lane(self, verb: str, lane: int, address: Address, vector: Instruction) -> Instruction:
        """A one-lane access. WAT puts the offset before the lane, and the lane before the
        operands.
        """
        offset, pointer = address
        return Instruction(f"v128.{verb}32_lane{offset} {lane}", (pointer, vector))

    def store_small(self, buffer: Buffer, base: Expr, value: Instruction) -> Instruction:
        """Store lanes as adjacent small integers: narrow them, then store one number. A mask
        is stored as 0 or 1.
        """
        store, narrow = LANE_STORES[buffer.dtype]
        offset, pointer = self.address(buffer, base)
        if buffer.dtype is DType.bool:
            value = Instruction("i32x4.neg", (value,))
        if buffer.dtype.bytes == 1:
            value = Instruction("i16x8.narrow_i32x4_s", (value, _ZEROS))
        return Instruction(f"{store}{offset} 0", (pointer, Instruction(narrow, (value, _ZEROS))))

    def address(self, buffer: Buffer, index: Expr) -> Address:
        """The operands of a load or store of an element."""
        parts = terms(index)
        constant = parts.get((), 0) * buffer.dtype.bytes
        match [(term, factor) for term, factor in parts.items() if term]:
            case [] if constant >= 0:
                pointer = get_local(buffer.name)
            case [((Load(buffer=register),), 1)] if (
                constant >= 0 and self.pointers.get(register) == buffer
            ):
                pointer = get_local(register.name)
            case _:
                pointer = self.byte_address(buffer, index)
                constant = 0
        return (f" offset={constant}" if constant else "", pointer)

    def byte_address(self, buffer: Buffer, index: Expr) -> Instruction:
        """The address of an element, as a value."""
        parts = dict(terms(index))
        pointer = get_local(buffer.name)
        for term, factor in terms(index).items():
            match term:
                case (Load(buffer=register),) if (
                    factor == 1 and self.pointers.get(register) == buffer
                ):
                    pointer = get_local(register.name)
                    del parts[term]
        scaled = from_terms({term: factor * buffer.dtype.bytes for term, factor in parts.items()})
        if scaled == Const(0):
            return pointer
        return Instruction("i32.add", (pointer, self.value(scaled)))


def _load(name: str, address: Address) -> Instruction:
    """The load of an element or a vector."""
    offset, pointer = address
    return Instruction(f"{name}{offset}", (pointer,))


def _converted(names: Iterable[str], value: Instruction) -> Instruction:
    """A value after these instructions, in order. The text of a second operand follows a name."""
    for name in names:
        head, _, operand = name.partition(" ")
        second = (Instruction(operand[1:-1]),) if operand else ()
        value = Instruction(head, (value, *second))
    return value


def _is_joined_with_consumer(node: Expr) -> bool:
    """True if a node becomes part of its consumer's instruction, or its operands of its own."""
    match node:
        case Call(op="word_u8"):
            return True
        case InstructionCall(instruction=row):
            return row.accumulates(Cpu.device)
    return False


def _separate_operands(node: Expr) -> tuple[Expr, ...]:
    """The operands that have instructions of their own in a node's instruction."""
    match node:
        case Cast(value=value):
            return (value,)
        case Call(args=args) | InstructionCall(args=args) if not _is_joined_with_consumer(node):
            return tuple(a for a in args if not _is_joined_with_consumer(a))
    return ()


def _is_zero(expr: Expr) -> bool:
    """True for a vector whose bits are all zero."""
    match expr:
        case Broadcast(value=Const(value=value)):
            return value == 0 and math.copysign(1, value) > 0
    return False


def spell(expr: Const) -> str:
    """A literal in WAT. Floats have the shortest text that reads back as the same bits."""
    value = expr.value
    if not expr.dtype.is_float:
        return str(int(value))
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if expr.dtype is DType.float32:
        exact = struct.unpack("f", struct.pack("f", value))[0]
        for digits in range(1, 10):
            text = f"{exact:.{digits}g}"
            if struct.pack("f", float(text)) == struct.pack("f", exact):
                return text
    return repr(float(value))
