"""Derive an instruction, and the loop nest that calls it, from the description of an intrinsic.

In: the description of an intrinsic as a loop function, and its texts. Out: the meaning of one lane
as an expression of the operands, and an implementation of the description that calls the
instruction. The output has one element of 32 bits, or a vector of four, its lanes. An operand is an
element for each lane, or a word of small integers that a reduction adds up:

    for j, k in T.grid(4, 4):                                        lanes: j, parts of a word: k
        C[j] = C[j] + T.cast(A[j, k], "int32") * T.cast(B[j, k], "int32")
    ->  meaning   (A << 24 >> 24) * (B << 24 >> 24) + ...            A and B are int32 words
        for j in T.vectorized(4):
            C[j] = C[j] + T.call_intrin(name, T.word_u8(A[j, 0], ...), T.word_u8(B[j, 0], ...))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from webmlc.core.dtypes import DType
from webmlc.core.errors import UserError
from webmlc.core.expr import Call, Cast, Const, Expr, Var, as_int, call
from webmlc.core.instruction import Instruction, InstructionCall, Text, fields_of, part_of_word
from webmlc.core.rewrite import rewrite, substitute
from webmlc.loops.ir import (
    Block,
    Buffer,
    For,
    If,
    Load,
    LoopFunction,
    Stmt,
    Store,
    loads_in,
    map_statements,
    substitute_statement,
)

LANES = 4
"""The lanes of a vector operand: 32-bit elements of a `v128`, components of a `vec4`."""
WORD_BYTES = 4
"""The bytes of a word, of which an operand of small integers has one for each lane."""
_PARTS = frozenset({DType.int8, DType.uint8, DType.int16, DType.uint16})
"""The element types that words hold several of."""


def update_of(function: LoopFunction) -> LoopFunction:
    """A function without blocks and their inits: it adds to the elements that its outputs hold."""

    def rule(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, Block):
            return None
        body = substitute_statement(stmt.body, stmt.axis_values())
        return body if stmt.predicate is None else If(stmt.predicate, body)

    return replace(function, body=map_statements(function.body, rule))


def nest_of(description: LoopFunction) -> LoopFunction:
    """A description without blocks: loops around one store. Raises `UserError` if it is no such
    nest.
    """
    body = update_of(description).body
    loops, inner = nest(body)
    if not isinstance(inner, Store):
        raise _error(description, "it is not one nest of loops around one store")
    if any(as_int(loop.extent) is None for loop in loops):
        raise _error(description, "the extent of a loop is not a number")
    used = {loop.var for loop in loops}
    for access in [*loads_in(inner.value), Load(inner.buffer, inner.indices)]:
        if not all(index in used for index in access.indices):
            raise _error(description, f"an index of {access} is not a loop variable")
    return replace(description, body=body)


def nest(stmt: Stmt) -> tuple[list[For], Stmt]:
    """The loops from a statement inwards, and the first statement that is no loop."""
    loops: list[For] = []
    while isinstance(stmt, For):
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


def added_term(store: Store) -> Expr | None:
    """The value that a store adds to its element; `None` if it sets the element otherwise."""
    result = Load(store.buffer, store.indices)
    match store.value:
        case Call(op="add", args=(first, second)) if result in (first, second):
            return second if first == result else first
    return None


def describe_instruction(
    name: str, description: LoopFunction, texts: Sequence[Text]
) -> tuple[Instruction, LoopFunction]:
    """The instruction of a description without blocks, and the implementation that calls it.

    Raises `UserError` if no instruction has such operands, or if a text names other operands.
    """
    derivation = _Derivation.of(description)
    instruction = derivation.instruction(name, texts)
    operands = {parameter.name for parameter in instruction.parameters}
    fields = operands | ({instruction.sum} if instruction.sum else set())
    for text in texts:
        if unknown := fields_of(text.text) - fields:
            names = ", ".join(sorted(fields))
            field = min(unknown)
            raise UserError(f"the text of {name} has no operand {{{field}}}: it has {names}")
    return instruction, derivation.implementation(instruction)


@dataclass(frozen=True, slots=True)
class _Derivation:
    """A description in parts: the store, the term that it adds (`None`: it adds nothing), the
    variable of its lanes (`None`: one element), and the other loops.
    """

    description: LoopFunction
    store: Store
    term: Expr | None
    lane: Var | None
    reduced: tuple[For, ...]

    @classmethod
    def of(cls, description: LoopFunction) -> _Derivation:
        loops, store = nest(description.body)
        assert isinstance(store, Store)  # `nest_of` ensures it
        if store.buffer.dtype.bytes != WORD_BYTES:
            dtype = store.buffer.dtype
            raise _error(description, f"{store.buffer.name} is {dtype}, not a type of 32 bits")
        extents = tuple(map(as_int, store.buffer.shape))
        if extents not in ((), (LANES,)):
            shape = f"({', '.join(map(str, store.buffer.shape))})"
            raise _error(
                description, f"{store.buffer.name} has the shape {shape}, not () or ({LANES},)"
            )
        lane = store.indices[0] if store.indices else None
        assert lane is None or isinstance(lane, Var)  # `nest_of` ensures it
        reduced = tuple(loop for loop in loops if loop.var != lane)
        term = added_term(store)
        if term is not None and store.buffer in {load.buffer for load in loads_in(term)}:
            term = None
        if term is None and reduced:
            raise _error(description, f"{reduced[0].var.name} adds nothing up")
        return cls(description, store, term, lane, reduced)

    def instruction(self, name: str, texts: Sequence[Text]) -> Instruction:
        """The instruction: its meaning adds the terms of all iterations up."""
        value = self.store.value if self.term is None else self.term
        total: Expr | None = None
        ranges = [range(as_int(loop.extent) or 0) for loop in self.reduced]
        for point in product(*ranges):
            at = {loop.var: Const(n) for loop, n in zip(self.reduced, point, strict=True)}
            term = rewrite(substitute(value, at), self._operand)
            total = term if total is None else total + term
        assert total is not None  # loops have iterations
        result = self.store.buffer.name
        read_buffers = {load.buffer for load in loads_in(value)}
        is_read = self.term is None and self.store.buffer in read_buffers
        buffers = [b for b in self.description.params if b.name != result or is_read]
        parameters = tuple(Var(b.name, _operand_type(b)) for b in buffers)
        lanes = 1 if self.lane is None else LANES
        adds = None if self.term is None else result
        return Instruction(name, parameters, total, lanes, tuple(texts), adds)

    def _operand(self, node: Expr) -> Expr | None:
        """The operand, or the part of a word, that a load reads."""
        match node:
            case Load(buffer=buffer, indices=indices):
                inner = indices[1:] if indices[:1] == (self.lane,) else indices
                word = Var(buffer.name, _operand_type(buffer))
                if not inner and buffer.dtype.bytes == WORD_BYTES:
                    return word
                if len(inner) == 1 and buffer.dtype in _PARTS and isinstance(inner[0], Const):
                    return Cast(part_of_word(word, int(inner[0].value), buffer.dtype), buffer.dtype)
                raise _error(
                    self.description,
                    f"{buffer.name} is no operand: an operand has one element of 32 bits for each "
                    "lane, or the small integers of a word",
                )
            case Cast(value=Cast(value=value, dtype=small), dtype=DType.int32) if small in _PARTS:
                return value  # a part of a word is an int32 already
        return None

    def implementation(self, instruction: Instruction) -> LoopFunction:
        """The nest that calls the instruction, for each lane of a vector."""
        buffers = {buffer.name: buffer for buffer in self.description.params}
        args = tuple(self._argument(buffers[p.name]) for p in instruction.parameters)
        value: Expr = InstructionCall(instruction, args)
        if self.term is not None:
            value = Load(self.store.buffer, self.store.indices) + value
        body: Stmt = replace(self.store, value=value)
        if self.lane is not None:
            body = For(self.lane, Const(LANES), body, "vectorized")
        return replace(self.description, body=body)

    def _argument(self, buffer: Buffer) -> Expr:
        """The operand of a buffer: an element, or a word of its small integers."""
        has_lanes = self.lane is not None and as_int(buffer.shape[0]) == LANES
        has_lanes = has_lanes and len(buffer.shape) == (2 if buffer.dtype in _PARTS else 1)
        lane: tuple[Expr, ...] = (self.lane,) if has_lanes and self.lane is not None else ()
        if buffer.dtype not in _PARTS:
            return Load(buffer, lane)
        numbers = [
            Load(buffer, (*lane, Const(n))).astype(DType.int32)
            for n in range(WORD_BYTES // buffer.dtype.bytes)
        ]
        if buffer.dtype.bytes == 1:
            return call("word_u8", *numbers)
        low, high = numbers
        return (low & 0xFFFF) | call("shift_left", high, 16)


def _operand_type(buffer: Buffer) -> DType:
    """The type of an operand: words of small integers are int32."""
    return DType.int32 if buffer.dtype in _PARTS else buffer.dtype


def _error(description: LoopFunction, reason: str) -> UserError:
    return UserError(f"{description.name} does not describe an intrinsic: {reason}")
