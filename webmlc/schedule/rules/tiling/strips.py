"""Strips: a panel that comes from memory is read in several places at once.

In: a reduction that reads a panel of several pages from one end to the other. Out: the same
reduction, which takes a step of each strip in turn. A processor fetches ahead along each strip, but
no further than to the end of a page:

    for k in range(512): ...          ->    for k in range(128):
                                                for strip in T.unrolled(4): ...
"""

from __future__ import annotations

from webmlc.schedule.rules.tiling.nests import extent_of
from webmlc.schedule.schedule import Schedule


def strip_counts(schedule: Schedule, update: str, strips: int) -> list[int]:
    """The strips of each outermost loop of a reduction, at most `strips` together. An inner loop
    has strips only if each iteration of the loops around it is a strip.
    """
    counts: list[int] = []
    for loop in schedule.reduce_loops(update):
        steps = extent_of(schedule, loop) or 1
        counts.append(max((n for n in range(1, strips + 1) if steps % n == 0), default=1))
        strips //= counts[-1]
        if counts[-1] != steps:
            break
    return counts


def split_strips(schedule: Schedule, update: str, strips: int) -> None:
    """Let the reduction `update` take a step of each strip in turn, if there are several."""
    counts = strip_counts(schedule, update, strips)
    loops = schedule.reduce_loops(update)
    across: list[str] = []
    along: list[str] = []
    for loop, count in zip(loops, counts, strict=False):
        if count == 1:
            along.append(loop)
        elif count == extent_of(schedule, loop):
            across.append(loop)
        else:
            strip, step = schedule.split(loop, [count, None])
            across.append(strip)
            along.append(step)
    if across:
        schedule.reorder(*along, *loops[len(counts) :], *across)
    for strip in across:
        schedule.unroll(strip)
