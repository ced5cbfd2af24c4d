"""Replace local arrays with constant indices by registers.

Needs: vectors and unrolled loops are expanded, buffers have rank 1. Guarantees: a private
allocation (`private_buffers`) whose indices are all literals is replaced by registers
(`webmlc.target` defines them). Each element, or aligned group of lanes, that is accessed becomes
one register. An allocation stays an array where it has any other index, or where one element is
accessed both alone and as a lane.

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
    """Replace the private allocations of `function` that registers can hold."""
    indices_of: dict[Buffer, dict[Expr, None]] = {}
    body = function.body
    private = private_buffers(function)
    accesses = [(a.buffer, a.indices) for a in loads(body)]
    accesses += [(a.buffer, a.indices) for a in stores(body)]
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
    body = _use(body, registers)
    return replace(function, body=body, allocations=(*arrays, *registers.values()))


def _first_element(index: Expr) -> int:
    """The first element that an index accesses."""
    base = index.base if isinstance(index, Ramp) else index
    value = as_int(base)
    assert value is not None
    return value


def _is_replaceable(indices: dict[Expr, None]) -> bool:
    """True where all indices are literal and contiguous, and any two are equal or disjoint."""
    spans: dict[int, int] = {}
    for index in indices:
        match index:
            case Const():
                spans[_first_element(index)] = 1
            case Ramp(base=Const(), stride=Const(value=1), width=width) if width == VECTOR_LANES:
                if spans.get(_first_element(index)) == 1:
                    return False
                spans[_first_element(index)] = width
            case _:
                return False
    starts = sorted(spans)
    are_disjoint = all(a + spans[a] <= b for a, b in pairwise(starts))
    return are_disjoint and len(spans) == len(indices)


def _register(buffer: Buffer, index: Expr, count: int, names: Names) -> Buffer:
    """The register that holds the elements at `index`, one of `count` registers of the buffer."""
    name = buffer.name if count == 1 else names.fresh(f"{buffer.name}_{_first_element(index)}")
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
