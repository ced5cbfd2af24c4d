"""Load two neighbouring numbers at once, where each is copied to all lanes.

Needs: the lowered form, with common values in registers. Guarantees: the same values. If an
innermost loop reads two such numbers, one load of 64 bits brings both into a pair: a register of
two elements (`registers.PAIR`). Shuffles copy the numbers from there. Without pairs, an engine
takes three instructions if it has none for a number from memory in all lanes. A loop is unchanged
where registers would run short: a pair occupies a register from the first use to the second.

before                                     after
    s[r] = T.broadcast(A[k * 2], 4)            A_pair[T.ramp(0, 1, 2)] = A[T.ramp(k * 2, 1, 2)]
    C[r] = C[r] + s[r] * ...                   s[r] = T.broadcast(A_pair[0], 4)
    t[r] = T.broadcast(A[k * 2 + 1], 4)        C[r] = C[r] + s[r] * ...
    C[r] = C[r] + t[r] * ...                   t[r] = T.broadcast(A_pair[1], 4)
                                               C[r] = C[r] + t[r] * ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from webmlc.core.affine import constant_part
from webmlc.core.expr import Broadcast, Const, Expr, Ramp
from webmlc.loops.ir import (
    Buffer,
    For,
    Load,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    map_statements,
    seq,
    stores,
)
from webmlc.target import VECTOR_LANES
from webmlc.target.common_subexpressions import buffers_read
from webmlc.target.registers import (
    LANES,
    PAIR,
    register_lanes,
    register_pressure,
    registers_stored_once,
)
from webmlc.target.scoped import Names

_BYTES = 4
"""The size in bytes of a number in a pair, which fills a 32-bit lane."""

Place = tuple[Buffer, Expr, int]
"""An element of a buffer. Its index is the sum of a variable part and a literal."""


def pair_loads(function: LoopFunction, vector_registers: int) -> LoopFunction:
    """Rewrite the innermost loops of `function` whose pairs fit in the vector registers, too."""
    names = Names.of(function)
    lanes = register_lanes(function)
    vectors = {buffer for buffer, count in lanes.items() if count > 1}
    once = registers_stored_once(function, vectors)
    created: list[Buffer] = []

    def rule(stmt: Stmt) -> Stmt | None:
        match stmt:
            case For(body=Seq(statements=body)) if all(isinstance(s, Store) for s in body):
                statements = list(body)
                positions = _neighbours(statements)
                pairs = dict.fromkeys(_pair(statements, *both, names) for both in positions)
                new = seq(*statements)
                assert isinstance(new, Seq)
                pressure = register_pressure(
                    new.statements, vectors | pairs.keys(), once | pairs.keys()
                )
                if pairs and pressure <= vector_registers:
                    created.extend(pairs)
                    return replace(stmt, body=new)
        return None

    body = map_statements(function.body, rule)
    if not created:
        return function
    return replace(function, body=body, allocations=(*function.allocations, *created))


def _neighbours(statements: Sequence[Stmt]) -> list[tuple[int, int]]:
    """The positions of pairs of stores that copy neighbouring elements of a buffer. The first
    element is copied first. Between them, nothing stores to the buffer or changes the index.
    """
    waiting: dict[Place, int] = {}
    pairs: list[tuple[int, int]] = []
    for position, stmt in enumerate(statements):
        place = _copied(stmt)
        if place is not None:
            buffer, moving, constant = place
            first = waiting.pop((buffer, moving, constant - 1), None)
            if first is None:
                waiting[place] = position
            else:
                pairs.append((first, position))
            continue
        changed = {store.buffer for store in stores(stmt)}
        waiting = {
            place: at
            for place, at in waiting.items()
            if changed.isdisjoint((place[0], *buffers_read(place[1])))
        }
    return pairs


def _copied(stmt: Stmt) -> Place | None:
    """The element of memory that a statement copies to all lanes of a register."""
    match stmt:
        case Store(
            indices=(index,), value=Broadcast(value=Load(buffer=buffer, indices=(source,)))
        ) if index == LANES and buffer.scope != "local" and buffer.dtype.bytes == _BYTES:
            return (buffer, *constant_part(source))
    return None


def _pair(statements: list[Stmt], first: int, second: int, names: Names) -> Buffer:
    """Let the statements `first` and `second` copy from a new register, which is returned."""
    place = _copied(statements[first])
    assert place is not None
    buffer, moving, constant = place
    pair = Buffer(names.fresh(f"{buffer.name}_pair"), (Const(2),), buffer.dtype, "local")
    for position, element in ((first, 0), (second, 1)):
        store = statements[position]
        assert isinstance(store, Store)
        copied = Broadcast(Load(pair, (Const(element),)), VECTOR_LANES)
        statements[position] = replace(store, value=copied)
    load = Load(buffer, (Ramp(moving + constant, Const(1), 2),))
    statements[first] = seq(Store(pair, (PAIR,), load), statements[first])
    return pair
