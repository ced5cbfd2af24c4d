"""Updates in order: scans, scatters, histograms.

In: a nest of one block that updates elements (`analysis.is_update`). Out: the loops along which the
updates are in order stay in order; slices that lie side by side in memory are vectors inside of
them, and a last short axis is unrolled.

    for r, i, j: Y[index[r], j] = X[r, j]  ->  for r: for j0: Y[index[r], j0 * 4 + (0..3)] = ...
"""

from __future__ import annotations

from webmlc.core.machine import Machine
from webmlc.schedule.analysis import is_vectorizable
from webmlc.schedule.rules.wasm.nests import extent_of
from webmlc.schedule.rules.wasm.pointwise import schedule_pointwise
from webmlc.schedule.schedule import Schedule

SHORT = 4
"""Iterations of a last axis that are written out: each does something else, and tests which."""


def schedule_updates(schedule: Schedule, block: str, machine: Machine) -> None:
    """Schedule the loops of one block of updates."""
    ordered = schedule.reduce_loops(block)
    slices = [loop for loop in schedule.loops(block) if loop not in ordered]
    if slices and is_vectorizable(schedule.function, block, slices[-1], machine.lanes):
        *outer, last = slices
        schedule.reorder(*outer, *ordered, last)
        schedule_pointwise(schedule, block, machine, len(outer) + len(ordered), fuse=False)
    elif ordered and (extent_of(schedule, ordered[-1]) or SHORT + 1) <= SHORT:
        schedule.unroll(ordered[-1])
