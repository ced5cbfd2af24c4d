"""Tell which local allocations are registers, as the lowered form in `webmlc.target` defines them,
and count the vector registers that a loop occupies at once.

    >>> register_lanes(function)
    {C_0: 4, C_1: 4, total: 1}
    >>> register_pressure(body, vectors, stored_once)  # a tile of 6 x 8, two vectors of a panel,
    15                                                 # and one number that is copied to all lanes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

from webmlc.core.expr import Call, Const, Expr, Ramp
from webmlc.loops.ir import Buffer, Load, LoopFunction, Stmt, Store, distinct_loads, loads, stores
from webmlc.target import VECTOR_LANES

LANES: Expr = Ramp(Const(0), Const(1), VECTOR_LANES)
"""The only index of a vector register."""
PAIR: Expr = Ramp(Const(0), Const(1), 2)
"""The only index by which a pair is set. Its elements are read one by one."""
_READS = {VECTOR_LANES: frozenset({LANES}), 2: frozenset({Const(0), Const(1)})}
_WRITES = {VECTOR_LANES: LANES, 2: PAIR}


def register_lanes(function: LoopFunction) -> dict[Buffer, int]:
    """Every register of a lowered function, with its lanes: 1, `VECTOR_LANES`, or 2 of a pair."""
    lanes_of = {(): 1} | {(Const(lanes),): lanes for lanes in _WRITES}
    result = {
        b: lanes_of[b.shape]
        for b in function.allocations
        if b.scope == "local" and b.shape in lanes_of
    }
    for load in distinct_loads(function.body):
        if load.indices and load.indices[0] not in _READS.get(result.get(load.buffer, 1), ()):
            result.pop(load.buffer, None)
    for store in stores(function.body):
        if store.indices and store.indices[0] != _WRITES.get(result.get(store.buffer, 1)):
            result.pop(store.buffer, None)
    return result


def read_register(register: Buffer) -> Load:
    """The value of a register."""
    return Load(register, register_index(register))


def added_value(store: Store) -> Expr | None:
    """The value that an update adds to the elements it stores to; None for other stores."""
    match store.value:
        case Call(op="add", args=(Load(buffer=buffer, indices=indices), addend)):
            return addend if (buffer, indices) == (store.buffer, store.indices) else None
    return None


def register_index(register: Buffer) -> tuple[Expr, ...]:
    """The index that reads or writes a whole register."""
    return (LANES,) if register.shape else ()


def registers_stored_once(function: LoopFunction, registers: Set[Buffer]) -> frozenset[Buffer]:
    """The registers that have one store in a function."""
    counts = Counter(store.buffer for store in stores(function.body))
    return frozenset(buffer for buffer in registers if counts[buffer] == 1)


def register_pressure(
    body: Sequence[Stmt],
    vectors: Set[Buffer],
    stored_once: Set[Buffer],
    before: Sequence[Stmt] = (),
) -> int:
    """The registers among `vectors` that a loop occupies at once. The loop repeats the statements
    `body`, after the statements `before`. The result counts the registers that are live throughout
    the loop, plus the largest number of other registers at any point.
    """
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    live_throughout: set[Buffer] = set()
    for position, stmt in enumerate((*before, *body)):
        for load in loads(stmt):
            if load.buffer not in first:
                live_throughout.add(load.buffer)
            last[load.buffer] = position
        for store in stores(stmt):
            if position < len(before) or store.buffer not in stored_once:
                live_throughout.add(store.buffer)
            first.setdefault(store.buffer, position)
    live_ranges = [
        (first[b], last[b]) for b in first if b in vectors - live_throughout and b in last
    ]
    peak = max(
        (sum(a < p <= b for a, b in live_ranges) for p in {b for _, b in live_ranges}),
        default=0,
    )
    return len(live_throughout & vectors) + peak
