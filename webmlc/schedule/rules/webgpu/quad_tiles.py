"""Workgroups whose quads share loads: the four threads of a quad compute tiles beside and below
each other.

In: the tiles of a section. Out: workgroups of quads. Where there are two tiles beside and below
each other, two threads need the same rows, and two the same columns. Of four tiles beside each
other, all threads need the same rows; of four below each other, the same columns. The threads of a
quad follow each other, so that sections of a kernel may differ in this.

    for row in 24:                       for group (workgroups):
      for column in 96: ...      ->        for thread in 64: quad, row, column = thread // 4, thread
                                             // 2 % 2, thread % 2
                                             ...
"""

from __future__ import annotations

from webmlc.core.expr import as_int
from webmlc.core.machine import QUAD
from webmlc.core.simplify import simplify
from webmlc.schedule.rules.tiling.axes import fuse_all, unroll_factor
from webmlc.schedule.rules.tiling.fold_tile import Threads, run_tile
from webmlc.schedule.rules.tiling.sections import Section, is_zero
from webmlc.schedule.rules.webgpu.contraction_facts import PAIR, Parameters
from webmlc.schedule.schedule import Schedule


def bind_quads(schedule: Schedule, nest: Section, threads: Threads, parameters: Parameters) -> None:
    """Make workgroups of the tiles of a section, as many quads beside each other as tiles allow."""
    below, beside = _shape(schedule, threads)
    groups, columns = schedule.split(threads.columns, [None, beside])
    across = unroll_factor(schedule.extent(groups), max(1, parameters.across // beside))
    groups, quad_column = schedule.split(groups, [None, across])
    outer, quads, rows = [groups], [quad_column], []
    if threads.rows is not None:
        quad_rows, row = schedule.split(threads.rows, [None, below])
        count = as_int(simplify(schedule.extent(quad_rows)))
        most = max(1, parameters.workgroup // QUAD // across)
        row_groups, quad_row = schedule.split(quad_rows, [None, min(most, count or most)])
        outer, quads, rows = [row_groups, groups], [quad_row, quad_column], [row]
    outer = [*nest.batch, *outer]
    schedule.reorder(*outer, *quads, *rows, columns)
    thread = fuse_all(schedule, [*quads, *rows, columns])
    group = fuse_all(schedule, outer)
    assert group is not None and thread is not None
    schedule.bind(group, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    run_tile(schedule, nest.fold, threads.tile, threads.reduced)


def _shape(schedule: Schedule, threads: Threads) -> tuple[int, int]:
    """The tiles of a quad below and beside each other: a shape that fills all quads, if there is
    one; else four below each other.
    """
    columns = simplify(schedule.extent(threads.columns))
    if threads.rows is None:
        return 1, QUAD
    rows = simplify(schedule.extent(threads.rows))
    shapes = ((PAIR, PAIR), (1, QUAD), (QUAD, 1))
    fits = (s for s in shapes if is_zero(rows % s[0]) and is_zero(columns % s[1]))
    return next(fits, (QUAD, 1))
