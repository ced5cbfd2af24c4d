"""Choose the memory buffers that a shader sees as `array<vec4<...>>` instead of scalars.

In: a lowered function. Out: the names of the buffers that are accessed as aligned vectors. Single
elements of them may also be read, as components. Every access is then one load or store of 16
bytes.

    a[T.ramp(i * 4, 1, 4)]  ->  vec4 view        a[T.ramp(i * 4 + 1, 1, 4)]  ->  scalars
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from webmlc.core.bounds import Ranges, bounds
from webmlc.core.errors import InternalError
from webmlc.core.expr import Call, Const, Expr, Ramp
from webmlc.core.simplify import divides
from webmlc.loops.ir import (
    Buffer,
    For,
    If,
    Let,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    own_loads,
)
from webmlc.target import VECTOR_LANES
from webmlc.target.scoped import Scope, loop_range, symbol_ranges


@dataclass(frozen=True, slots=True)
class ScopedAccess:
    """One load or store, with the intervals of the variables in scope."""

    buffer: Buffer
    index: Expr
    is_store: bool
    ranges: Ranges


def scoped_accesses(function: LoopFunction) -> Iterator[ScopedAccess]:
    """Every access to a buffer with exactly one index."""
    stack: list[tuple[Stmt, Scope]] = [(function.body, symbol_ranges(function))]
    while stack:
        stmt, scope = stack.pop()
        match stmt:
            case Seq(statements=statements):
                stack.extend((s, scope) for s in statements)
            case For(var=var, extent=extent, body=body):
                stack.append((body, {**scope, var: loop_range(extent, scope)}))
            case Let(var=var, value=value, body=body):
                inner = {**scope, var: bounds(value, scope)} if var.dtype.is_integer else scope
                stack.append((body, inner))
            case If(then=then, otherwise=otherwise):
                stack.extend((s, scope) for s in (then, otherwise) if s is not None)
            case Store(buffer=buffer, indices=(index,)):
                yield ScopedAccess(buffer, index, True, scope)
        for load in own_loads(stmt):
            if len(load.indices) == 1:
                yield ScopedAccess(load.buffer, load.indices[0], False, scope)


def vector_views(function: LoopFunction, registers: frozenset[str]) -> frozenset[str]:
    """The names of the memory buffers to view as vectors. `registers` are the buffers that
    are not memory.
    """
    is_aligned: dict[str, bool] = {}
    accessed_as_vectors: set[str] = set()
    for buffer in (*function.params, *function.allocations):
        if not divides(VECTOR_LANES, buffer.shape[0] if buffer.shape else Const(1)):
            is_aligned[buffer.name] = False  # no vector holds the last elements
    for access in scoped_accesses(function):
        name = access.buffer.name
        match access.index:
            case Ramp(base=base, stride=Const(value=1)):
                accessed_as_vectors.add(name)
                access_is_aligned = divides(VECTOR_LANES, base, access.ranges)
            case _:
                access_is_aligned = not access.is_store
        is_aligned[name] = is_aligned.get(name, True) and access_is_aligned
    return frozenset(n for n in accessed_as_vectors if is_aligned[n] and n not in registers)


def vector_index(base: Expr) -> Expr:
    """The index into a vector view for elements that start at `base`."""
    match base:
        case Call(op="mul", args=(unit, Const(value=value))) if value == VECTOR_LANES:
            return unit
        case Const(value=int() as value) if value % VECTOR_LANES == 0:
            return Const(value // VECTOR_LANES)
    raise InternalError(f"webgpu: {base} is no aligned base; legalise should have made it one")
