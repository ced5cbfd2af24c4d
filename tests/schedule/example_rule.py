"""A made-up rule, whole, as docs/contributing/schedule_rule.md explains it: pointwise kernels.

In: a kernel of one pointwise block over rows and columns. Out: tiles of a few rows and vectors:

    for i, j: y[i, j] = x[i, j] + b[j]   ->   for i0, j0:
                                                  for r in T.unrolled(2), v in T.unrolled(4):
                                                      y[i0 * 2 + r, j0 * 16 + v * 4 + (0..3)] = ...
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from webmlc.core.expr import as_int
from webmlc.core.machine import Cpu
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.analysis import is_vectorizable
from webmlc.schedule.rules.rule import Rule
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.cover import divisors
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Facts:
    """The kernel: its only block, and the sizes of the matrix."""

    block: str
    rows: int
    vectors: int
    lanes: int


class Parameters(Struct, frozen=True):
    """The choices: the rows and the vectors of a tile."""

    rows: int
    vectors: int


def match(function: LoopFunction, machine: Cpu) -> Facts | None:
    schedule, lanes = Schedule(function), machine.lanes
    block, *others = schedule.blocks()
    loops = schedule.loops(block)
    if others or len(loops) != 2 or not is_vectorizable(function, block, loops[1], lanes):
        return None
    rows, columns = (as_int(schedule.extent(loop)) for loop in loops)
    is_whole = rows is not None and columns is not None and columns % lanes == 0
    return Facts(block, rows or 0, (columns or 0) // lanes, lanes) if is_whole else None


def space(facts: Facts, machine: Cpu) -> Product[Parameters]:
    rows, vectors = divisors(facts.rows, 4), divisors(facts.vectors, 8)
    return Space.of(Parameters, rows=rows, vectors=vectors).where(
        "a tile fits the registers", lambda rows, vectors: rows * vectors < machine.vector_registers
    )


def default(facts: Facts, _machine: Cpu) -> Parameters:
    return Parameters(rows=1, vectors=divisors(facts.vectors, 2)[-1])


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    row, column = schedule.loops(facts.block)
    rows, row = schedule.split(row, [None, parameters.rows])
    columns, vector, lane = schedule.split(column, [None, parameters.vectors, facts.lanes])
    schedule.reorder(rows, columns, row, vector, lane)
    schedule.vectorize(lane)
    for loop in (row, vector):
        schedule.unroll(loop)


TILES = Rule("tiles", match, space, default, build)
