"""Print expressions as folded WAT.

In: a legalised expression of the lowered form, over pointers. Out: text that leaves the value on
the stack:

    >>> printer.value(c + a * b)                                  # f32 registers
    '(f32.add (local.get $c) (f32.mul (local.get $a) (local.get $b)))'
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from webmlc.core.affine import from_terms, terms
from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError
from webmlc.core.expr import Bitcast, Broadcast, Call, Cast, Const, Expr, Ramp, Var, as_int
from webmlc.core.rewrite import postorder
from webmlc.loops.ir import Buffer, Load
from webmlc.target import VECTOR_LANES
from webmlc.target.common_subexpressions import is_guarded
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


@dataclass(frozen=True, slots=True)
class ExprPrinter:
    """The printer of one kernel's expressions. `registers` are WASM locals, and `pointers` are the
    registers that hold byte addresses.
    """

    kernel: str
    registers: Mapping[Buffer, int]
    pointers: Mapping[Buffer, Buffer]
    relaxed: bool
    texts: dict[Expr, str] = field(default_factory=dict)

    def value(self, expr: Expr) -> str:
        """The text of one value. Operands are printed first, so the expression may be deep."""
        if expr not in self.texts:
            for node in postorder(expr, _printed_operands, self.texts):
                self.texts[node] = self.node(node)
        return self.texts[expr]

    def node(self, expr: Expr) -> str:
        """The text of one node, given the texts of its operands."""
        match expr:
            case Const():
                return f"({value_type(expr.dtype, 1)}.const {spell(expr)})"
            case Var(name=name):
                return f"(local.get ${name})"
            case Load():
                return self.load(expr)
            case Broadcast(value=value):
                return self.broadcast(value)
            case Ramp(base=base, stride=stride):
                steps = f"(v128.const i32x4 {' '.join(self.steps(stride))})"
                if base == Const(0):
                    return steps
                return f"(i32x4.add (i32x4.splat {self.value(base)}) {steps})"
            case Cast(value=value, dtype=dtype):
                return self.cast(value, dtype)
            case Bitcast(value=value, dtype=dtype):
                return self.bitcast(value, dtype)
            case Call():
                return self.call(expr)
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

    def broadcast(self, value: Expr) -> str:
        if value.dtype is DType.bool:
            if isinstance(value, Const):
                return f"(v128.const i32x4{' -1' * 4 if value.value else ' 0' * 4})"
            return f"(i32x4.splat (i32.sub (i32.const 0) {self.value(value)}))"
        shape = "f32x4" if value.dtype is DType.float32 else "i32x4"
        match value:
            case Const():
                return f"(v128.const {shape}{f' {spell(value)}' * VECTOR_LANES})"
            case Load(buffer=buffer, indices=(index,)) if (
                buffer not in self.registers and buffer.dtype.bytes == 4
            ):
                return f"(v128.load32_splat{self.address(buffer, index)})"
            case Load(buffer=buffer, indices=(Const(value=int() as element),)) if (
                buffer in self.registers
            ):
                lanes = " ".join(str(4 * element + byte) for byte in (0, 1, 2, 3) * 4)
                pair = f"(local.get ${buffer.name})"
                return f"(i8x16.shuffle {lanes} {pair} {pair})"
        return f"({shape}.splat {self.value(value)})"

    def cast(self, value: Expr, dtype: DType) -> str:
        names = conversion(value.dtype, dtype, value.lanes)
        if names is None:
            raise self.unsayable(Cast(value, dtype))
        text = self.value(value)
        for name in names:
            head, _, operand = name.partition(" ")
            text = f"({head} {text} {operand})" if operand else f"({head} {text})"
        return text

    def bitcast(self, value: Expr, dtype: DType) -> str:
        source, target = value_type(value.dtype, value.lanes), value_type(dtype, value.lanes)
        text = self.value(value)
        return text if source == target else f"({target}.reinterpret_{source} {text})"

    # -- operators -------------------------------------------------------------------------------

    def call(self, expr: Call) -> str:
        lanes = expr.lanes
        kind = class_of(expr.args[-1].dtype, lanes)
        match expr:
            case Call(op="select"):
                return self.select(expr)
            case Call(op="fma", args=(a, b, c)):
                x, y, z = self.value(a), self.value(b), self.value(c)
                if kind == "f32x4" and self.relaxed:
                    return f"(f32x4.relaxed_madd {x} {y} {z})"
                return f"({kind}.add {z} ({kind}.mul {x} {y}))"
            case Call(op="shift_left" | "shift_right" as op, args=(a, Broadcast(value=amount))):
                return f"({LANE_SHIFTS[op, kind]} {self.value(a)} {self.value(amount)})"
            case Call(
                op="add",
                args=(Call(op="dot_u8_i8" | "dot_u7_i8", args=(a, b)), c)
                | (c, Call(op="dot_u8_i8" | "dot_u7_i8", args=(a, b))),
            ):
                x, y, z = self.value(a), self.value(b), self.value(c)
                return f"(i32x4.relaxed_dot_i8x16_i7x16_add_s {y} {x} {z})"
            case Call(op="dot_u8_i8" | "dot_u7_i8", args=(a, b)) if lanes > 1:
                x, y, zero = self.value(a), self.value(b), "(i32x4.splat (i32.const 0))"
                return f"(i32x4.relaxed_dot_i8x16_i7x16_add_s {y} {x} {zero})"
            case Call(op="pairs_u7_i8", args=(a, b)):
                return f"(i16x8.relaxed_dot_i8x16_i7x16_s {self.value(b)} {self.value(a)})"
            case Call(op="word_u8", args=args):
                first, second, *upper = map(self.lowest_bytes, args)
                pairs = (INTERLEAVED[1].format(first, second), INTERLEAVED[1].format(*upper))
                return INTERLEAVED[2].format(*pairs)
            case Call(op="even_i8" | "odd_i8" as op, args=(a,)) if lanes > 1:
                return HALVES[op].format(self.value(a))
            case Call(op="bit_not", args=(a,)) if lanes > 1:
                return f"(v128.not {self.value(a)})"
            case Call(op="bit_not", args=(a,), dtype=DType.bool):
                return f"(i32.eqz {self.value(a)})"
            case Call(op="eq", args=(a, Const(value=0))) if not a.dtype.is_float:
                return f"({value_type(a.dtype, 1)}.eqz {self.value(a)})"
            case Call(op="eq", args=(a, b)) if kind == "mask":
                return f"(v128.not (v128.xor {self.value(a)} {self.value(b)}))"
            case Call(op="mul", args=(a, Const(value=int() as factor))) if kind == "i32":
                if factor > 1 and factor & (factor - 1) == 0:
                    return f"(i32.shl {self.value(a)} (i32.const {factor.bit_length() - 1}))"
        name = instruction(expr.op, kind)
        if name is None:
            raise self.unsayable(expr)
        return f"({name} {' '.join(self.value(a) for a in expr.args)})"

    def lowest_bytes(self, value: Expr) -> str:
        """A vector whose first four bytes are the lowest bytes of the lanes of `value`. They are
        loaded directly where they are adjacent in memory.
        """
        match value:
            case Cast(value=Load(buffer=buffer, indices=(Ramp(base=base, stride=Const(value=1)),))):
                if buffer.dtype in (DType.int8, DType.uint8):
                    return f"(v128.load32_zero{self.address(buffer, base)})"
            case _ if _is_zero(value):
                return self.value(value)
        return LOWEST_BYTES.format(self.value(value))

    def select(self, expr: Call) -> str:
        condition, then, otherwise = expr.args
        a, b, c = self.value(then), self.value(otherwise), self.value(condition)
        if a.startswith("(call "):  # a function that is right for every lane
            kind = value_type(expr.dtype, expr.lanes)
            test = f"(v128.any_true {c})" if expr.lanes > 1 else c
            return f"(if (result {kind}) {test} (then {a}) (else {b}))"
        match condition:
            case Call(op="lt", args=(x, y)) if condition.lanes > 1 and x.dtype is DType.float32:
                if (then, otherwise) == (y, x):  # pmin and pmax compare alike: a NaN in x stays
                    return f"(f32x4.pmax {b} {a})"
                if (then, otherwise) == (x, y):
                    return f"(f32x4.pmin {b} {a})"
        if condition.lanes > 1 and _is_zero(then):
            return f"(v128.andnot {b} {c})"
        if condition.lanes > 1:  # equal for masks, whose lanes are all ones or all zeros
            name = "i32x4.relaxed_laneselect" if self.relaxed else "v128.bitselect"
            return f"({name} {a} {b} {c})"
        if is_guarded(then, condition) or is_guarded(otherwise, condition):
            kind = value_type(expr.dtype, expr.lanes)
            return f"(if (result {kind}) {c} (then {a}) (else {b}))"
        return f"(select {a} {b} {c})"

    # -- memory ----------------------------------------------------------------------------------

    def load(self, expr: Load) -> str:
        buffer = expr.buffer
        if buffer in self.registers:
            return f"(local.get ${buffer.name})"
        (index,) = expr.indices
        match index:
            case Ramp(base=base, stride=Const(value=1), width=2):
                return f"(v128.load64_zero{self.address(buffer, base)})"
            case Ramp(base=base, stride=Const(value=1)):
                name = LANE_LOADS.get(buffer.dtype, "v128.load{}")
                return f"({name.format(self.address(buffer, base))})"
            case Ramp(base=base, stride=stride) if buffer.dtype in LANE_LOADS:
                load = load_instruction(buffer.dtype)
                text = f"(i32x4.splat ({load}{self.address(buffer, base)}))"
                for lane in range(1, VECTOR_LANES):
                    address = self.address(buffer, base + stride * lane)
                    text = f"(i32x4.replace_lane {lane} {text} ({load}{address}))"
                return f"(i32x4.neg {text})" if buffer.dtype is DType.bool else text
            case Ramp(base=base, stride=stride):
                text = f"(v128.load32_zero{self.address(buffer, base)})"
                for lane in range(1, VECTOR_LANES):
                    address = self.address(buffer, base + stride * lane)
                    text = self.lane("load", lane, address, text)
                return text
        return f"({load_instruction(buffer.dtype)}{self.address(buffer, index)})"

    def lane(self, verb: str, lane: int, address: str, vector: str) -> str:
        """A one-lane access. WAT puts the offset before the lane, and the lane before the
        operands.
        """
        offset, pointer = _split_address(address)
        return f"(v128.{verb}32_lane{offset} {lane} {pointer} {vector})"

    def store_small(self, buffer: Buffer, base: Expr, value: str) -> str:
        """Store lanes as adjacent small integers: narrow them, then store one number. A mask
        is stored as 0 or 1.
        """
        store, narrow = LANE_STORES[buffer.dtype]
        offset, pointer = _split_address(self.address(buffer, base))
        zero = "(v128.const i32x4 0 0 0 0)"
        if buffer.dtype is DType.bool:
            value = f"(i32x4.neg {value})"
        if buffer.dtype.bytes == 1:
            value = f"(i16x8.narrow_i32x4_s {value} {zero})"
        return f"({store}{offset} 0 {pointer} ({narrow} {value} {zero}))"

    def address(self, buffer: Buffer, index: Expr) -> str:
        """` offset=n (pointer)`: the operands of a load or store, with a leading space."""
        parts = terms(index)
        constant = parts.get((), 0) * buffer.dtype.bytes
        match [(term, factor) for term, factor in parts.items() if term]:
            case [] if constant >= 0:
                pointer = f"(local.get ${buffer.name})"
            case [((Load(buffer=register),), 1)] if (
                constant >= 0 and self.pointers.get(register) == buffer
            ):
                pointer = f"(local.get ${register.name})"
            case _:
                pointer = self.byte_address(buffer, index)
                constant = 0
        return f" offset={constant} {pointer}" if constant else f" {pointer}"

    def byte_address(self, buffer: Buffer, index: Expr) -> str:
        """The address of an element, as a value."""
        parts = dict(terms(index))
        pointer = f"(local.get ${buffer.name})"
        for term, factor in terms(index).items():
            match term:
                case (Load(buffer=register),) if (
                    factor == 1 and self.pointers.get(register) == buffer
                ):
                    pointer = f"(local.get ${register.name})"
                    del parts[term]
        scaled = from_terms({term: factor * buffer.dtype.bytes for term, factor in parts.items()})
        return pointer if scaled == Const(0) else f"(i32.add {pointer} {self.value(scaled)})"


_PRINTED_WITH_CONSUMER = frozenset({"dot_u8_i8", "dot_u7_i8", "word_u8"})
"""The operators that are printed as part of their consumer, or whose operands are printed
with them.
"""


def _printed_operands(node: Expr) -> tuple[Expr, ...]:
    """The operands whose own text is part of a node's text."""
    match node:
        case Cast(value=value):
            return (value,)
        case Call(op=op, args=args) if op not in _PRINTED_WITH_CONSUMER:
            return tuple(
                a for a in args if not (isinstance(a, Call) and a.op in _PRINTED_WITH_CONSUMER)
            )
    return ()


def _split_address(where: str) -> tuple[str, str]:
    """` offset=n (pointer)` -> (` offset=n`, `(pointer)`)."""
    position = where.index("(")
    return where[:position].rstrip(), where[position:]


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
