"""Count the vector registers that a loop occupies at once.

>>> register_pressure(body, vectors, stored_once)      # a tile of 6 x 8, two vectors of a panel,
15                                                     # and one number that is copied to all lanes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from webmlc.loops.ir import Buffer, LoopFunction, Stmt, loads, stores


def registers_stored_once(
    function: LoopFunction, registers: AbstractSet[Buffer]
) -> frozenset[Buffer]:
    """The registers that have one store in a function."""
    counts = Counter(store.buffer for store in stores(function.body))
    return frozenset(buffer for buffer in registers if counts[buffer] == 1)


def register_pressure(
    body: Sequence[Stmt],
    vectors: AbstractSet[Buffer],
    stored_once: AbstractSet[Buffer],
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
