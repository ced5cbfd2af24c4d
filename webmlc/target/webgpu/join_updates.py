"""Add several products to a register at once.

Needs: a lowered kernel. Guarantees the same sums in another order: updates of a register that
follow each other, with no statement between them that reads it, become one update.

    C_0 = C_0 + a0 * b0
    C_1 = C_1 + d0 * b0                ->    C_0 = C_0 + (a0 * b0 + a1 * b1)
    C_0 = C_0 + a1 * b1                      C_1 = C_1 + (d0 * b0 + d1 * b1)
    C_1 = C_1 + d1 * b1

Such a sum is often the product of a matrix and a vector, which `matrix_product` recognises.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from webmlc.core.dtypes import DType
from webmlc.core.expr import Broadcast, Call, Const, Expr, call
from webmlc.loops.ir import (
    Buffer,
    Load,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    loads,
    loads_in,
    map_statements,
    seq,
)
from webmlc.target import VECTOR_LANES
from webmlc.target.registers import LANES, added_value, read_register, register_lanes

MOST_TERMS = 4
"""Products that one update adds, at most: their operands are in registers until then (chosen by
hand: a vector of the left operand)."""


def join_updates(function: LoopFunction) -> LoopFunction:
    """Return `function` with fewer updates of registers, each of several products."""
    registers = frozenset(register_lanes(function))

    def joined(root: Stmt) -> Stmt | None:
        if not isinstance(root, Seq):
            return None
        line = _StraightLine(registers)
        for stmt in root.statements:
            line.add(stmt)
        line.flush()
        return seq(*line.statements)

    return replace(function, body=map_statements(function.body, joined))


@dataclass(slots=True)
class _Update:
    """The update of a register by the sum of some terms, which reads `buffers`."""

    store: Store
    sum: Expr
    terms: int
    buffers: frozenset[Buffer]


@dataclass(slots=True)
class _StraightLine:
    """The statements of a sequence so far, and the updates that may still grow."""

    registers: frozenset[Buffer]
    statements: list[Stmt] = field(default_factory=list)
    waiting: dict[Buffer, _Update] = field(default_factory=dict)

    def add(self, stmt: Stmt) -> None:
        """Append a statement, after the updates that must come before it."""
        if not isinstance(stmt, Store):
            self.flush()
            self.statements.append(stmt)
            return
        buffers = frozenset(load.buffer for load in loads(stmt))
        register = stmt.buffer
        term = _term(stmt) if register in self.registers else None
        self.flush_before(register, buffers, is_update=term is not None)
        if term is None:
            self.statements.append(stmt)
            return
        update = self.waiting.pop(register, None)
        if update is None:
            update = _Update(stmt, term, 1, buffers)
        else:
            total = call("add", update.sum, term)
            joined = replace(stmt, value=call("add", read_register(register), total))
            update = _Update(joined, total, update.terms + 1, update.buffers | buffers)
        if update.terms == MOST_TERMS:
            self.statements.append(update.store)
        else:
            self.waiting[register] = update

    def flush_before(self, written: Buffer, read: frozenset[Buffer], *, is_update: bool) -> None:
        """Append the waiting updates that must come before a store: updates of a register that the
        store reads, and updates that read the `written` buffer. The update that the store continues
        stays waiting.
        """
        for register, update in list(self.waiting.items()):
            is_continued = is_update and register == written
            if not is_continued and (register in read or written in update.buffers):
                self.statements.append(self.waiting.pop(register).store)

    def flush(self) -> None:
        """Append all updates."""
        self.statements += [update.store for update in self.waiting.values()]
        self.waiting.clear()


def _term(store: Store) -> Expr | None:
    """The term that an update adds to its register; `None` for other stores."""
    term = added_value(store)
    if term is None or store.buffer.dtype.bytes != 4:
        return None
    return term if all(load.buffer != store.buffer for load in loads_in(term)) else None


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """The product of a matrix, whose `columns` are registers, and the register `vector`."""

    columns: tuple[Buffer, ...]
    vector: Buffer


def matrix_product(value: Expr) -> MatrixProduct | None:
    """The matrix and the vector whose product a sum is, as WGSL spells it; None for other values.

        a[0] * b0 + a[1] * b1 + a[2] * b2 + a[3] * b3    ->    mat4x4f(b0, b1, b2, b3) * a

    A software adapter keeps the result of each operation in memory, so one operation is faster than
    seven operations: on SwiftShader, a product of 128×384×1536 took 14 % less time, and 11 % less
    to compile.
    """
    terms: list[Expr] = []
    while isinstance(value, Call) and value.op == "add" and len(terms) < VECTOR_LANES - 1:
        value, term = value.args
        terms.append(term)
    terms.append(value)
    if len(terms) != VECTOR_LANES:
        return None
    columns: list[Buffer] = []
    vectors: set[Buffer] = set()
    for lane, term in enumerate(reversed(terms)):
        match term:
            case Call(
                op="mul",
                args=(
                    Broadcast(value=Load(buffer=vector, indices=(Const(value=component),))),
                    Load(buffer=column, indices=indices),
                ),
                dtype=DType.float32,
            ) if component == lane and indices == (LANES,):
                columns.append(column)
                vectors.add(vector)
            case _:
                return None
    return MatrixProduct(tuple(columns), vectors.pop()) if len(vectors) == 1 else None
