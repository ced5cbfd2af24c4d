"""A right operand that comes from memory: each wait for it should be for many bytes.

In: the packed buffer of a contraction, and loops over its panels. Out, for panels of several pages:
tiles that walk so many strips of a panel side by side, as a processor fetches ahead along each of
them, but no further than to the end of a page:

    for k in range(512): ...          ->    for k in range(128):
                                                for strip in T.unrolled(4): ...

for smaller ones: a prefetch of as many as the first-level cache holds, before tiles read them:

    for panel in range(64):                 for burst in range(16):
        for tile in range(4): ...     ->        <prefetch of 4 panels>
                                                for panel, tile in T.grid(4, 4): ...

A strip of less than a page would wait too often; a burst computes nothing meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from webmlc.core.expr import Expr, as_int
from webmlc.core.machine import PAGE_BYTES, Machine
from webmlc.loops.ir import Buffer
from webmlc.schedule.rules.wasm.nests import extent_of
from webmlc.schedule.schedule import Schedule

LINES = 8
"""Cache lines that one iteration of a prefetch asks for."""
STRIPS = 6
"""Strips of a panel that are read side by side, at most; more gain nothing."""


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

    def strips(self, schedule: Schedule, update: str) -> list[int]:
        """Into how many strips, each of a page at least, to divide the outermost loops of a
        reduction, inside ones where those around them are strips altogether.
        """
        room = min(STRIPS, self.panel_bytes(as_int(self.buffer.shape[-1]) or 0) // PAGE_BYTES)
        counts: list[int] = []
        for loop in schedule.reduce_loops(update):
            steps = extent_of(schedule, loop) or 1
            counts.append(max((n for n in range(1, room + 1) if steps % n == 0), default=1))
            room //= counts[-1]
            if counts[-1] != steps:
                break
        return counts

    def split_strips(self, schedule: Schedule, update: str) -> None:
        """Have the reduction `update` walk its strips, if there are several, a step of each in
        turn.
        """
        counts = self.strips(schedule, update)
        loops = schedule.reduce_loops(update)
        strips: list[str] = []
        steps: list[str] = []
        for loop, count in zip(loops, counts, strict=False):
            if count == 1:
                steps.append(loop)
            elif count == extent_of(schedule, loop):
                strips.append(loop)
            else:
                strip, step = schedule.split(loop, [count, None])
                strips.append(strip)
                steps.append(step)
        if strips:
            schedule.reorder(*steps, *loops[len(counts) :], *strips)
        for strip in strips:
            schedule.unroll(strip)

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
