"""Sum dot products of bytes in pairs of 16 bits, and widen the sums at the end.

In: a lowered function whose registers add up dot products of bytes: results of an instruction that
means `dot_u7_i8`, or `dot_u8_i8`. Out: the same sums. A run of products of one register, in one
sequence of statements, is added in 16-bit halves while these cannot overflow. Then each half is
added to the register as 32 bits. Here `dot` and `pairs` stand for calls of the two instructions:

    C = C + dot(a, x)            P = pairs(a, x)
    C = C + dot(b, y)     →      P = T.add_i16(P, pairs(b, y))
                                 C = C + T.dot_i16(P, 0x00010001)

Without an instruction for the whole dot product, an engine for x86 computes `dot_u7_i8` and its sum
in three instructions and a load, and `pairs` and its sum in two. The products of values of
four bits leave room for eight steps: 8 · 2 · 15 · 128 = 30,720 is less than 2^15. A block of 32
such values has eight steps.

Bytes of eight bits are multiplied as two numbers of four bits, x = x & 15 + 16 · (x >> 4). Each of
these has a sum of its own. So a step takes four instructions. In halves of words (`legalise`), it
takes seven: three of these widen the right operand, which the rows of a tile share. So this pays
for single rows. No sum overflows, whatever the bytes: parts are 0 to 15 and right operands -128 to
127, so one step adds -3,840 to 3,810 to a half, and eight steps -30,720 to 30,480. The total of a
word, 17 · 2 · 30,720 at most, fits in 32 bits.

    C = C + T.dot_u8_i8(a, x)      P = pairs(a & 15, x); Q = pairs(a >> 4 & 15, x)
    C = C + T.dot_u8_i8(b, y)  →   P = T.add_i16(P, pairs(b & 15, y)); Q = T.add_i16(Q, ...)
                                   C = C + T.dot_i16(P, 0x00010001) + T.dot_i16(Q, 0x00100010)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from webmlc.core.dtypes import DType
from webmlc.core.expr import Broadcast, Call, Const, Expr, call, literal
from webmlc.core.instruction import INSTRUCTIONS, Instruction, InstructionCall
from webmlc.loops.ir import (
    Buffer,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    accessed_buffers,
    map_statements,
    seq,
)
from webmlc.target import VECTOR_LANES
from webmlc.target.registers import LANES, read_register
from webmlc.target.scoped import Names

_PAIRS = "i16x8.relaxed_dot_i8x16_i7x16_s.words"
"""The instruction that multiplies bytes and adds the products of two neighbours each to a half."""
_LARGEST_HALF = (1 << 15) - 1
_LARGEST_ACTIVATION = 128
"""The largest magnitude of a signed byte."""
_LANE_SHAPE = (Const(VECTOR_LANES),)
_ONES = 0x00010001
"""The number one in both halves of a word."""
_NIBBLE = 4
"""The bits of a part of a byte that is multiplied in two parts."""
_MOST_SPLIT = 4
"""The most registers whose bytes are multiplied in two parts. Derived: each has three registers,
the sums of both parts and their total, and a machine has fifteen registers."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A statement that adds the dot product of bytes to a vector register, and its stage. `parts`
    are the left operands, whose bytes have at most seven bits, the lowest bits first.
    """

    register: Buffer
    parts: tuple[Expr, ...]
    b: Expr
    stage: int


def sum_in_pairs(function: LoopFunction) -> LoopFunction:
    """Rewrite the runs of every sequence of statements.

    needs: loops unrolled, registers. guarantees: the same sums, as no half overflows.
    """
    names = Names.of(function)
    added: list[Buffer] = []

    def rule(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, Seq):
            return None
        statements: list[Stmt | None] = list(stmt.statements)
        for run in _runs(stmt.statements):
            sums = [
                Buffer(names.fresh("pairs"), _LANE_SHAPE, DType.int32, "local")
                for _ in run[min(run)].parts
            ]
            added.extend(sums)
            _rewrite(statements, run, sums)
        return seq(*(statement for statement in statements if statement is not None))

    body = map_statements(function.body, rule)
    if not added:
        return function
    return replace(function, body=body, allocations=(*function.allocations, *added))


def _runs(statements: Sequence[Stmt]) -> list[dict[int, _Step]]:
    """The runs of at least two products: the steps by their positions."""
    runs: list[dict[int, _Step]] = []
    open_runs: dict[Buffer, tuple[dict[int, _Step], int]] = {}
    for position, stmt in enumerate(statements):
        step = _step(stmt)
        for register in accessed_buffers(stmt):
            if step is None or register != step.register:
                open_runs.pop(register, None)
        if step is None:
            continue
        largest = 2 * max(map(_largest_byte, step.parts)) * _LARGEST_ACTIVATION
        run, total = open_runs.get(step.register, ({}, _LARGEST_HALF))
        if total + largest > _LARGEST_HALF:
            run, total = {}, 0
            runs.append(run)
        run[position] = step
        open_runs[step.register] = run, total + largest
    runs = [run for run in runs if len(run) > 1]
    split = {run[min(run)].register for run in runs if len(run[min(run)].parts) > 1}
    return [run for run in runs if len(split) <= _MOST_SPLIT or len(run[min(run)].parts) == 1]


def _step(stmt: Stmt) -> _Step | None:
    """The product that a statement adds to a vector register; `None` for other statements."""
    match stmt:
        case Store(
            buffer=Buffer(shape=shape, scope="local") as register,
            indices=(index,),
            value=Call(op="add", args=terms),
            stage=stage,
        ) if (shape, index) == (_LANE_SHAPE, LANES) and read_register(register) in terms:
            for term in terms:
                match term:
                    case InstructionCall(instruction=Instruction(meaning=Call(op="dot_u7_i8"))):
                        a, b = term.args
                        return _Step(register, (a,), b, stage)
                    case Call(op="dot_u8_i8", args=(a, b)):
                        return _Step(register, _nibbles(a), b, stage)
    return None


def _nibbles(word: Expr) -> tuple[Expr, ...]:
    """The lower and the upper four bits of the bytes of a word."""
    mask = literal(0x0F0F0F0F, word)
    return word & mask, call("shift_right", word, _NIBBLE) & mask


def _largest_byte(word: Expr) -> int:
    """The largest byte of a word, as far as a mask tells."""
    match word:
        case (
            Call(op="bit_and", args=(_, Broadcast(value=Const(value=mask))))
            | Broadcast(value=Const(value=mask))
        ):
            return min(127, max(int(mask) >> shift & 255 for shift in range(0, 32, 8)))
    return 127


def _rewrite(
    statements: list[Stmt | None], run: Mapping[int, _Step], sums: Sequence[Buffer]
) -> None:
    """Rewrite the statements of a run. A register that is cleared first gets the first sum."""
    first, last = min(run), max(run)
    register, stage = run[first].register, run[first].stage
    for position, step in run.items():
        stores: list[Stmt] = []
        for part, pairs in zip(step.parts, sums, strict=True):
            value: Expr = InstructionCall(INSTRUCTIONS[_PAIRS], (part, step.b))
            if position != first:
                value = call("add_i16", read_register(pairs), value)
            stores.append(Store(pairs, (LANES,), value, stage))
        statements[position] = seq(*stores)
    total: Expr | None = None
    for number, pairs in enumerate(sums):
        weight = Broadcast(Const(_ONES << _NIBBLE * number, DType.int32), VECTOR_LANES)
        term = call("dot_i16", read_register(pairs), weight)
        total = term if total is None else total + term
    assert total is not None
    if not _remove_clearing(statements, first, register):
        total = call("add", read_register(register), total)
    statements[last] = seq(*stores, Store(register, (LANES,), total, stage))


def _remove_clearing(statements: list[Stmt | None], before: int, register: Buffer) -> bool:
    """Remove the store of zero to a register, if it is the last access until `before`."""
    for position in reversed(range(before)):
        stmt = statements[position]
        match stmt:
            case None:
                continue
            case Store(buffer=buffer, value=Broadcast(value=Const(value=0))) if buffer == register:
                statements[position] = None
                return True
        if register in accessed_buffers(stmt):
            return False
    return False
