"""A right operand that comes from memory: its panels are fetched in bursts, before tiles read them.

In: the packed buffer of a contraction, and loops over its panels. Out: the same with a prefetch of
so many panels as the first-level cache holds, since each wait for memory should be for many bytes.

    for panel in range(64):                 for burst in range(16):
        for tile in range(4): ...     ->        <prefetch of 4 panels>
                                                for panel, tile in T.grid(4, 4): ...
"""

from __future__ import annotations

from dataclasses import dataclass

from webmlc.core.expr import Expr
from webmlc.core.machine import Machine
from webmlc.loops.ir import Buffer
from webmlc.schedule.rules.wasm.nests import extent_of
from webmlc.schedule.schedule import Schedule

LINES = 8
"""Cache lines that one iteration of a prefetch asks for."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A buffer in panels of `depth` rows (0 where symbolic)."""

    buffer: Buffer
    depth: int

    def panel_bytes(self, columns: int) -> int:
        """The size of a panel of so many columns."""
        return self.depth * columns * self.buffer.dtype.bytes

    def fits(self, columns: int, machine: Machine) -> bool:
        """True where the second-level cache holds a panel beside what else is read."""
        return self.panel_bytes(columns) <= machine.l2_bytes // 2

    def burst(self, panels: int, columns: int, machine: Machine) -> int:
        """How many of the panels, a number that divides theirs, the first-level cache holds."""
        size = self.panel_bytes(columns)
        counts = (n for n in range(2, panels) if panels % n == 0 and n * size <= machine.l1_bytes)
        return max(counts, default=1)

    def prefetch(self, schedule: Schedule, loop: str, times: Expr) -> None:
        """Have what an iteration of `loop` reads come from memory at once, before it begins; so
        many times, none where it does not pay.
        """
        lines = schedule.loops(schedule.prefetch(loop, self.buffer.name, times))[-1]
        if (extent_of(schedule, lines) or 1) % LINES == 0:
            _, lines = schedule.split(lines, [None, LINES])
            schedule.unroll(lines)
