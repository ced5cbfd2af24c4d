"""Local arrays with constant indices become registers.

Needs: vectors and unrolled loops expanded, rank-1 buffers. Guarantees: a private allocation
(`local`, or of one thread all the same: `private_buffers`) of which every index is a literal is
replaced by registers, one for each element or aligned group of lanes it is accessed by
(`webmlc.target` defines them). An allocation with another index, or one element accessed both alone
and as a lane, stays an array.

before                                             after
    Y: local (8,)                                      Y_0: local (4,);  Y_4: local (4,)
    Y[T.ramp(0, 1, 4)] = ...                           Y_0[T.ramp(0, 1, 4)] = ...
    Y[T.ramp(4, 1, 4)] = ...                           Y_4[T.ramp(0, 1, 4)] = ...
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from webmlc.core.expr import Const, Expr, Ramp, as_int
from webmlc.core.rewrite import rewrite
from webmlc.loops.ir import (
    Buffer,
    Load,
    LoopFunction,
    Stmt,
    Store,
    loads,
    map_expressions,
    map_statements,
    stores,
)
from webmlc.target import VECTOR_LANES
from webmlc.target.private_buffers import private_buffers
from webmlc.target.registers import read_register, register_index
from webmlc.target.scoped import Names


def scalar_replacement(function: LoopFunction) -> LoopFunction:
    """Replace what can be replaced of the `local` allocations of `function`."""
    accessed: dict[Buffer, dict[Expr, None]] = {}
    body = function.body
    private = private_buffers(function)
    accesses = [(a.buffer, a.indices) for a in loads(body)]
    accesses += [(a.buffer, a.indices) for a in stores(body)]
    for buffer, indices in accesses:
        if buffer in private and buffer.shape:
            accessed.setdefault(buffer, {})[indices[0]] = None
    names = Names.of(function)
    registers: dict[tuple[Buffer, Expr], Buffer] = {}
    kept: list[Buffer] = []
    for buffer in function.allocations:
        found = accessed.get(buffer, {})
        if buffer in private and buffer.shape and _is_replaceable(found):
            for index in sorted(found, key=_first):
                registers[buffer, index] = _register(buffer, index, len(found), names)
        else:
            kept.append(buffer)
    if not registers:
        return function
    body = _use(body, registers)
    return replace(function, body=body, allocations=(*kept, *registers.values()))


def _first(index: Expr) -> int:
    base = index.base if isinstance(index, Ramp) else index
    value = as_int(base)
    assert value is not None
    return value


def _is_replaceable(indices: dict[Expr, None]) -> bool:
    """True where all indices are literal, contiguous, and equal or disjoint."""
    spans: dict[int, int] = {}
    for index in indices:
        match index:
            case Const():
                spans[_first(index)] = 1
            case Ramp(base=Const(), stride=Const(value=1), width=width) if width == VECTOR_LANES:
                if spans.get(_first(index)) == 1:
                    return False
                spans[_first(index)] = width
            case _:
                return False
    starts = sorted(spans)
    disjoint = all(a + spans[a] <= b for a, b in pairwise(starts))
    return disjoint and len(spans) == len(indices)


def _register(buffer: Buffer, index: Expr, count: int, names: Names) -> Buffer:
    name = buffer.name if count == 1 else names.fresh(f"{buffer.name}_{_first(index)}")
    shape = (Const(VECTOR_LANES),) if isinstance(index, Ramp) else ()
    return Buffer(name, shape, buffer.dtype, "local")


def _use(body: Stmt, registers: dict[tuple[Buffer, Expr], Buffer]) -> Stmt:
    def load(node: Expr) -> Expr | None:
        match node:
            case Load(buffer=buffer, indices=(index,)) if (buffer, index) in registers:
                return read_register(registers[buffer, index])
        return None

    def store(stmt: Stmt) -> Stmt | None:
        match stmt:
            case Store(buffer=buffer, indices=(index,), value=value) if (
                buffer,
                index,
            ) in registers:
                register = registers[buffer, index]
                return Store(register, register_index(register), value)
        return None

    return map_statements(map_expressions(body, lambda e: rewrite(e, load)), store)
