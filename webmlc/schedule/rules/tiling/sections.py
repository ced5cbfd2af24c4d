"""Sections of a fold: whole tiles, and the remainders at the end of its rows and columns.

In: the loops of a fold with its epilogue. Out: a copy of the nest for each part of the rows and of
the columns that has tiles of its own:

    for o in range(45), m in range(13): ...   ->   for o in range(40), m in range(12): ...
                                                   for o in range(40), m in range(1): ...
                                                   for o in range(5), m in range(12): ...
                                                   for o in range(5), m in range(1): ...
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from webmlc.core.expr import Expr, as_int
from webmlc.core.simplify import simplify
from webmlc.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Section:
    """The loops of one section: shared outer loops, rows, columns, reductions."""

    fold: str
    batch: tuple[str, ...]
    rows: str | None
    columns: str
    reduced: tuple[str, ...]


def is_zero(expr: Expr) -> bool:
    return as_int(simplify(expr)) == 0


def partition_section(
    schedule: Schedule, section: Section, loop: str, at: Expr
) -> tuple[Section, Section]:
    """Cut an outermost loop of a section; returns the section of the loop's first iterations, and
    the section of its last.
    """
    _, last = schedule.partition(loop, at)
    fold = last.blocks[section.fold]
    return section, replace(last.with_loops(section), fold=fold)


def split_columns(schedule: Schedule, section: Section, width: int) -> list[Section]:
    """Whole panels of columns, then the remaining columns."""
    extent = simplify(schedule.extent(section.columns))
    whole = simplify(extent // width * width)
    if is_zero(extent - whole) or as_int(whole) == 0:
        return [section]
    return list(partition_section(schedule, section, section.columns, whole))


def split_rows(schedule: Schedule, section: Section, height: int) -> list[Section]:
    """Whole tiles of rows, then the remaining rows."""
    if section.rows is None:
        return [section]
    schedule.reorder(section.rows, *section.batch, section.columns)
    extent = simplify(schedule.extent(section.rows))
    whole = simplify(extent // height * height)
    if height == 1 or as_int(whole) == 0 or is_zero(extent - whole):
        return [section]
    return list(partition_section(schedule, section, section.rows, whole))
