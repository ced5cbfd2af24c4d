"""Load a register right before its first use.

In: a kernel whose loads were widened. Out: an equal kernel. Registers that are loaded once, from a
buffer that the kernel only reads, are loaded before the first statement that reads them.

    a0 = A[p]                          a0 = A[p]
    a1 = A[p + 48]                     C0 = C0 + M * a0
    C0 = C0 + M * a0           ->      a1 = A[p + 48]
    C1 = C1 + M * a1                   C1 = C1 + M * a1

A software adapter keeps values in memory and in few registers: a value that is read early is
stored, and takes room in the cache. On SwiftShader, a product of 192×192×768 by tiles of 24 rows
took 14 % less time. On a GPU, early reads are faster (`read_ahead`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from webmlc.loops.ir import (
    Load,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    loads,
    loads_in,
    map_statements,
    seq,
    stores,
)


def read_late(function: LoopFunction) -> LoopFunction:
    """Needs the storage of buffers. Guarantees the same results."""
    counts = Counter(store.buffer.name for store in stores(function.body))
    registers = (b.name for b in function.allocations if b.storage == "register")
    once = frozenset(name for name in registers if counts[name] == 1)
    inputs = frozenset(b.name for b in function.params if not counts[b.name])

    def is_load(stmt: Stmt) -> bool:
        match stmt:
            case Store(buffer=buffer, value=Load(buffer=source, indices=indices)):
                has_constant_place = not any(loads_in(index) for index in indices)
                return buffer.name in once and source.name in inputs and has_constant_place
        return False

    def sunk(root: Stmt) -> Stmt | None:
        if not isinstance(root, Seq):
            return None
        statements: list[Stmt] = []
        waiting: dict[str, Stmt] = {}
        for stmt in root.statements:
            if isinstance(stmt, Store) and is_load(stmt):
                waiting[stmt.buffer.name] = stmt
                continue
            names = [load.buffer.name for load in loads(stmt)]
            statements += [waiting.pop(name) for name in names if name in waiting]
            statements.append(stmt)
        return seq(*statements, *waiting.values())

    return replace(function, body=map_statements(function.body, sunk))
