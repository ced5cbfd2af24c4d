"""Replace arrays whose indices are all literals by registers: targets keep these in variables.

Needs: vectors and unrolled loops are expanded, buffers have rank 1. Guarantees: an allocation that
only one thread sees (`private_buffers`) is replaced by registers. A register is a local buffer of
rank 0 or of one vector (`webmlc.target`). Each index must be a literal, or a ramp of `VECTOR_LANES`
elements that begins at a literal. Each element or ramp becomes one register. An allocation
stays an array if it has any other index, or if two ramps, or a ramp and an element, overlap in
part.

before                                             after
    Y: local (8,)                                      Y_0: local (4,);  Y_4: local (4,)
    Y[T.ramp(0, 1, 4)] = ...                           Y_0[T.ramp(0, 1, 4)] = ...
    Y[T.ramp(4, 1, 4)] = ...                           Y_4[T.ramp(0, 1, 4)] = ...
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from webmlc.core.expr import Const, Expr, Ramp, as_int
from webmlc.loops.ir import (
    Buffer,
    For,
    Load,
    LoopFunction,
    Stmt,
    child_statements,
    distinct_loads,
    map_accesses,
    own_accesses,
    stores,
    walk_statements,
)
from webmlc.target import VECTOR_LANES
from webmlc.target.registers import read_register
from webmlc.target.scoped import Names

_OUTSIDE = 0
"""The place of an access outside all parallel loops; other places are identities of loops."""


def private_buffers(function: LoopFunction) -> frozenset[Buffer]:
    """The allocations that may exist once for each thread, in a function without blocks.

    They are the `local` allocations, and the `global` allocations that a single parallel loop
    accesses, because one thread runs a whole iteration. Without parallel loops, all allocations are
    private. On a GPU (thread loops), only `local` allocations are private.
    """
    local = frozenset(b for b in function.allocations if b.scope == "local")
    kinds = {s.kind for s in walk_statements(function.body) if isinstance(s, For)}
    if "thread_binding" in kinds:
        return local
    if "parallel" not in kinds:
        return frozenset(function.allocations)
    loops_of: dict[Buffer, set[int]] = {b: set() for b in function.allocations}

    def visit(stmt: Stmt, loop: int) -> None:
        if isinstance(stmt, For) and stmt.kind == "parallel" and loop == _OUTSIDE:
            loop = id(stmt)
        accessed = {access.buffer for access in own_accesses(stmt)}
        for buffer in accessed & loops_of.keys():
            loops_of[buffer].add(loop)
        for child in child_statements(stmt):
            visit(child, loop)

    visit(function.body, _OUTSIDE)
    return local | {b for b, loops in loops_of.items() if len(loops) == 1 and _OUTSIDE not in loops}


def scalar_replacement(function: LoopFunction) -> LoopFunction:
    """Replace the private allocations of `function` that registers can hold."""
    indices_of: dict[Buffer, dict[Expr, None]] = {}  # the distinct indices of each buffer
    body = function.body
    private = private_buffers(function)
    accesses = [(load.buffer, load.indices) for load in distinct_loads(body)]
    accesses += [(store.buffer, store.indices) for store in stores(body)]
    for buffer, indices in accesses:
        if buffer in private and buffer.shape:
            indices_of.setdefault(buffer, {})[indices[0]] = None
    names = Names.of(function)
    registers: dict[tuple[Buffer, Expr], Buffer] = {}
    arrays: list[Buffer] = []
    for buffer in function.allocations:
        accessed = indices_of.get(buffer, {})
        if buffer in private and buffer.shape and _is_replaceable(accessed):
            for index in sorted(accessed, key=_first_element):
                registers[buffer, index] = _register(buffer, index, len(accessed), names)
        else:
            arrays.append(buffer)
    if not registers:
        return function

    def rule(buffer: Buffer, indices: tuple[Expr, ...]) -> Load | None:
        register = registers.get((buffer, indices[0])) if indices else None
        return None if register is None else read_register(register)

    body = map_accesses(body, rule)
    return replace(function, body=body, allocations=(*arrays, *registers.values()))


def _first_element(index: Expr) -> int:
    """The first element that a literal index, or a ramp that begins at one, accesses."""
    base = index.base if isinstance(index, Ramp) else index
    value = as_int(base)
    assert value is not None
    return value


def _is_replaceable(indices: dict[Expr, None]) -> bool:
    """True if each index is a literal, or a ramp of adjacent elements that begins at a literal, and
    no two distinct indices share an element.
    """
    spans: dict[int, int] = {}  # the number of elements, by the first element
    for index in indices:
        match index:
            case Const():
                spans[_first_element(index)] = 1
            case Ramp(base=Const(), stride=Const(value=1), width=width) if width == VECTOR_LANES:
                spans[_first_element(index)] = width
            case _:
                return False
    starts = sorted(spans)
    are_apart = all(start + spans[start] <= after for start, after in pairwise(starts))
    have_own_starts = len(spans) == len(indices)
    return are_apart and have_own_starts


def _register(buffer: Buffer, index: Expr, count: int, names: Names) -> Buffer:
    """The register for an index; the only one of a buffer keeps the buffer's name."""
    name = buffer.name if count == 1 else names.fresh(f"{buffer.name}_{_first_element(index)}")
    shape = (Const(VECTOR_LANES),) if isinstance(index, Ramp) else ()
    return Buffer(name, shape, buffer.dtype, "local")
