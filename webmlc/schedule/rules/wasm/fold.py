"""Folds along the contiguous axis, in vectors that are added at the end.

In: a reduction whose innermost loop reads adjacent elements. Out: several vectors of sums in
registers, enough to be in flight, then one sum:

    for k in range(100):                  for k in range(6): v[0:16] += a[k * 16 + (0..15)]
        s += a[k]                 ->      for k in range(96, 100): ...
                                          s = v[0] + ... + v[15]

Neighbouring results that share loads are reduced together. A few short runs have separate sums.

If the epilogue of such a fold is expensive (a polynomial), it is best computed in vectors. The
results of a row are then folded one after the other, before the epilogue runs along the row:

    for i, j:                      for i:
        for k: s += ...       ->       for j, k: t[j] += ...
        y[i, j] = sigmoid(s)           for j0: y[i, j0 * 8 + (0..7)] = sigmoid(t[j0 * 8 + (0..7)])
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from msgspec import Struct

from webmlc.core.machine import Cpu
from webmlc.core.rewrite import variables
from webmlc.loops.ir import Load, LoopFunction
from webmlc.schedule.analysis import (
    fold_of,
    is_vectorizable,
    reads_evenly,
    takes_polynomial,
    value_nodes,
)
from webmlc.schedule.rules.rule import rule_of
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.nests import (
    accumulate_locally,
    epilogue_of,
    extent_of,
    innermost,
)
from webmlc.schedule.rules.tiling.tile import vectorize_columns
from webmlc.schedule.rules.wasm.pointwise import Pointwise, PointwiseParameters, fuse_even
from webmlc.schedule.schedule import Schedule

SUMS = 8
"""Vectors of sums of all neighbours together, by default: enough to keep additions in flight
(measured on basic_pitch, whose convolutions into one channel went from 2.5 to 1.5 ms)."""
SHORT_ROW = 64
"""Elements below which a row is reduced in two vectors, by default: adding up four vectors takes as
long as they save (an estimate, as old as the rule)."""
LEAST_VECTORS = 4
"""Vectors of the shortest row that is reduced in vectors: two turns of two."""


class FoldParameters(Struct, frozen=True):
    """The parameters of one fold along the contiguous axis."""

    vectors: int
    """Vectors of sums of one result."""
    together: int
    """Neighbouring results that are reduced together."""
    is_apart: bool
    """Whether each run has sums of its own, so that runs are walked side by side."""


@dataclass(frozen=True, slots=True)
class FoldFacts:
    """The fold `update` along the contiguous axis. `size`: elements of a run, `None` if symbolic;
    `runs`: the number of runs along the other reduce axes, 1 if there are none, 0 if runs cannot be
    walked side by side; `neighbours`: the number of results that share loads and may be reduced
    together in part, 1 if they share nothing.
    """

    update: str
    size: int | None
    runs: int
    neighbours: int
    lanes: int

    def space(self, machine: Cpu) -> Product[FoldParameters]:
        """Vectors of sums that the registers hold."""
        lanes, registers = machine.lanes, machine.vector_registers
        size, runs = self.size, self.runs
        fitting = tuple(n for n in (1, 2, 4, 8) if size is None or 2 * n * lanes <= size)
        together = tuple(n for n in (1, 2, 4) if self.neighbours % n == 0)
        can_be_apart = size is not None and runs > 1 and size % lanes == 0
        return (
            Space.of(
                FoldParameters,
                vectors=fitting,
                together=together,
                is_apart=(False, True) if can_be_apart else (False,),
            )
            .where("sums fit the registers", lambda vectors, together: vectors * together <= SUMS)
            .where(
                "runs that are walked side by side fit the registers, and leave nothing over",
                lambda vectors, together, is_apart: (
                    not is_apart
                    or (
                        together == 1
                        and vectors * runs < registers
                        and (size or 0) % (vectors * lanes) == 0
                    )
                ),
            )
        )

    def default(self, machine: Cpu) -> FoldParameters:
        """As many neighbours as have `SUMS` vectors together; else four vectors, or two in each run
        of a few, or two in a short row.
        """
        size, lanes = self.size, machine.lanes
        if size is not None and self.neighbours > 1:
            for together in (4, 2):
                vectors = SUMS // together
                if self.neighbours % together == 0 and 2 * vectors * lanes <= size:
                    return FoldParameters(vectors, together, False)
        is_apart = size is not None and self.runs > 1 and size % (2 * lanes) == 0
        is_apart = is_apart and 2 * self.runs < machine.vector_registers
        is_short = size is not None and size < SHORT_ROW
        return FoldParameters(2 if is_apart or is_short else 4, 1, is_apart)

    def build(
        self, schedule: Schedule, parameters: FoldParameters, around: str | None = None
    ) -> None:
        """Reduce along the contiguous axis in vectors. `around` is the loop right around the fold;
        some neighbours along it may be reduced together.
        """
        update, lanes = self.update, self.lanes
        last = contiguous_loop(schedule, update)
        assert last is not None
        size = extent_of(schedule, last)
        outer = [loop for loop in schedule.reduce_loops(update) if loop != last]
        if size is None and outer:
            partial = _factor_runs(schedule, update, outer)
            replace(self, update=partial).build(schedule, parameters)
            return
        width, together = lanes * parameters.vectors, parameters.together
        neighbour = schedule.split(around, [None, together])[1] if around and together > 1 else None
        if size is None or size % width:
            # The rests of all runs together, or one would be added before the total is initialised.
            if outer:
                schedule.reorder(last, *outer)
            schedule.partition(last, schedule.extent(last) // width * width)
            if outer:
                schedule.reorder(*outer, last)
        if extent_of(schedule, last) == width:
            lane = last
        else:
            _, lane = schedule.split(last, [None, width])
        partial = schedule.rfactor(lane, -1)
        schedule.set_scope(partial, "local")
        runs = _runs_apart(schedule, partial) if parameters.is_apart else []
        vectors, lane = schedule.split(schedule.reduce_loops(update)[-1], [None, lanes])
        vector = schedule.rfactor(lane, -1)
        blocks = [*runs, partial, vector, schedule.cache_write(vector, "local")]
        each = () if neighbour is None else schedule.fission(neighbour)
        if each:
            at = schedule.loops(partial).index(
                next(n for n in schedule.loops(partial) if n in each)
            )
            own, *steps = schedule.loops(partial)[at:-1]
            schedule.reorder(*steps, own, schedule.loops(partial)[-1])
        for sums, loops in ((partial, schedule.reduce_loops(partial)), (vector, [vectors])):
            blocks += [schedule.decompose_reduction(sums, loops[0])] if loops else []
        if each:
            each = (*each, schedule.loops(blocks[-2])[at])
        for block in blocks:
            vectorize_columns(schedule, block, schedule.loops(block)[-1], lanes)
        schedule.unroll(vectors)
        final = schedule.reduce_loops(update)[-1]
        schedule.decompose_reduction(update, final)
        for loop in (final, *each):
            schedule.unroll(loop)


def fold_facts(schedule: Schedule, update: str, around: str | None, lanes: int) -> FoldFacts | None:
    """The facts of the fold `update`, under the loop `around`. `None` if it reduces nothing
    contiguous, or is too short for vectors.
    """
    trial = schedule.copy()
    last = contiguous_loop(trial, update)
    if last is None:
        return None
    size = extent_of(trial, last)
    if size is not None and size < LEAST_VECTORS * lanes:
        return None
    outer = [loop for loop in trial.reduce_loops(update) if loop != last]
    runs = 1
    if outer:
        is_one = len(outer) == 1 and size is not None
        runs = (extent_of(trial, outer[0]) or 0) if is_one else 0
    has_shared = size is not None and _shares_loads(trial, update, around)
    neighbours = (extent_of(trial, around) or 1) if around is not None and has_shared else 1
    return FoldFacts(update, size, runs, neighbours, lanes)


def contiguous_loop(schedule: Schedule, update: str) -> str | None:
    """Fuse the reduction loops that step evenly through memory. Returns the innermost loop, along
    which memory is read in order, or `None` if there is no such loop.
    """
    reduced = schedule.reduce_loops(update)
    inner = schedule.loops(update)[-len(reduced) :] if reduced else []
    if not reduced or inner != reduced or not reads_evenly(schedule.function, update, reduced[-1]):
        return None
    return fuse_even(schedule, update, reduced)[-1] if len(reduced) > 1 else reduced[-1]


def _factor_runs(schedule: Schedule, update: str, outer: list[str]) -> str:
    """Reduce every run of symbolic length by itself, then add up the results of the runs: no sum
    has more terms than a run has elements, or than there are runs. Returns the block of a run.
    """
    run = schedule.fuse(*outer) if len(outer) > 1 else outer[0]
    partial = schedule.rfactor(run, -1)
    (total,) = schedule.reduce_loops(update)
    schedule.compute_at(partial, total)
    schedule.set_scope(partial, "local")
    schedule.decompose_reduction(update, total)
    return partial


def _shares_loads(schedule: Schedule, update: str, around: str | None) -> bool:
    """True if neighbours along the loop `around` share some loads, but not all."""
    block = schedule.block(update)
    axes = block.bound_axes()
    along = {axis.var for axis, b in axes if around in {v.name for v in variables(b)}}
    fold = fold_of(block)
    read = [] if fold is None else [n for n in value_nodes(fold.value) if isinstance(n, Load)]
    shared = [n for n in read if not any(along & variables(i) for i in n.indices)]
    return bool(along) and 0 < len(shared) < len(read)


def _runs_apart(schedule: Schedule, partial: str) -> list[str]:
    """Give each run its own sums, so that more additions are in flight, and make the loop over runs
    the inner loop. Returns the blocks that fill the sums.
    """
    outer, run = schedule.reduce_loops(partial)
    lane = schedule.loops(partial)[-1]
    sums = schedule.rfactor(outer, 0)
    schedule.set_scope(sums, "local")
    schedule.reorder(run, outer, lane)
    start = schedule.decompose_reduction(sums, run)
    for block in (start, sums):
        schedule.unroll(schedule.loops(block)[-2])
    return [start, sums]


class EpilogueParameters(Struct, frozen=True):
    """The parameters of the fold and of its epilogue."""

    fold: FoldParameters
    pointwise: PointwiseParameters


@dataclass(frozen=True, slots=True)
class RowEpilogue:
    """A fold and its epilogue, whose loop `row` walks whole rows."""

    row: str
    fold: FoldFacts
    epilogue: Pointwise

    def space(self, machine: Cpu) -> Product[EpilogueParameters]:
        """The parameters to choose from for the fold and its epilogue."""
        pointwise = self.epilogue.space(machine)
        return Space.of(EpilogueParameters, fold=self.fold.space(machine), pointwise=pointwise)

    def default(self, machine: Cpu) -> EpilogueParameters:
        """The default parameters of the fold and its epilogue."""
        return EpilogueParameters(self.fold.default(machine), self.epilogue.default(machine))

    def build(self, schedule: Schedule, parameters: EpilogueParameters) -> None:
        """Fold the results of a row, then run the epilogue along it."""
        around = _fold_rows(schedule, self.fold.update, self.row)
        fixed = schedule.loops(self.epilogue.block).index(self.row) + 1
        self.fold.build(schedule, parameters.fold, around)
        self.epilogue.build(schedule, parameters.pointwise, fixed)


def match_row_epilogue(function: LoopFunction, machine: Cpu) -> RowEpilogue | None:
    """Matches a fold with such an epilogue."""
    schedule = Schedule(function)
    update, *others = schedule.blocks()
    epilogue = epilogue_of(schedule.function, schedule.block(update))
    if fold_of(schedule.block(update)) is None or epilogue is None:
        return None
    if others != [epilogue.name] or not takes_polynomial(epilogue):
        return None
    loops = [loop for loop in schedule.loops(others[0]) if extent_of(schedule, loop) != 1]
    if len(loops) < 2:
        return None
    *_, row, column = loops
    size = extent_of(schedule, column)
    if size is None or size < machine.lanes:
        return None
    if not is_vectorizable(schedule.function, others[0], column, machine.lanes):
        return None
    trial = schedule.copy()
    fold = fold_facts(trial, update, _fold_rows(trial, update, row), machine.lanes)
    return None if fold is None else RowEpilogue(row, fold, Pointwise(others[0], machine.lanes))


ROW_EPILOGUE = rule_of("row epilogue", match_row_epilogue)


def _fold_rows(schedule: Schedule, update: str, row: str) -> str:
    """Put a fold and a copy of its results under `row`; returns the loop around the fold."""
    nest = accumulate_locally(schedule, update)
    assert nest.copy is not None
    schedule.compute_at(nest.copy, row)
    schedule.compute_at(update, innermost(schedule, nest.copy))
    return innermost(schedule, nest.copy)
