"""Tell which local allocations are registers, as the lowered form in `webmlc.target` defines them.

>>> register_lanes(function)
{C_0: 4, C_1: 4, total: 1}
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from webmlc.core.expr import Call, Const, Expr, Ramp
from webmlc.loops.distinct_loads import distinct_loads
from webmlc.loops.ir import Buffer, Load, LoopFunction, Store, stores
from webmlc.target import VECTOR_LANES

LANES: Expr = Ramp(Const(0), Const(1), VECTOR_LANES)
"""The only index of a vector register."""


def register_lanes(function: LoopFunction) -> dict[Buffer, int]:
    """Every register of a lowered function, with its lanes: 1 or `VECTOR_LANES`."""
    vector_shape = (Const(VECTOR_LANES),)
    result = {
        b: VECTOR_LANES if b.shape else 1
        for b in function.allocations
        if b.scope == "local" and b.shape in ((), vector_shape)
    }
    body = function.body
    accesses: Iterable[Load | Store] = chain(distinct_loads(body), stores(body))
    for access in accesses:
        if access.indices != (LANES,) and access.buffer.shape == vector_shape:
            result.pop(access.buffer, None)
    return result


def read_register(register: Buffer) -> Load:
    """The value of a register."""
    return Load(register, register_index(register))


def added_value(store: Store) -> Expr | None:
    """What an update adds to the elements it stores to; None for another store."""
    match store.value:
        case Call(op="add", args=(Load(buffer=buffer, indices=indices), addend)):
            return addend if (buffer, indices) == (store.buffer, store.indices) else None
    return None


def register_index(register: Buffer) -> tuple[Expr, ...]:
    """The index that reads or writes a whole register."""
    return (LANES,) if register.shape else ()
