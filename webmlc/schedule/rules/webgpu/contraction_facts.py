"""The facts of a contraction, and the tiles and workgroups that it may have.

In: a kernel that `contraction.match` has looked at. Out: `Facts`, and `Parameters` with the limits
that hold for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from webmlc.core.affine import terms
from webmlc.core.expr import Expr, as_expr, as_int
from webmlc.core.machine import MAX_WORKGROUP_BYTES
from webmlc.core.simplify import simplify
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.rules.tiling.cover import divisors, unroll_factor

MOST_STEPS = 8
"""Steps of the innermost reduction loop that may be unrolled."""
MOST_PARTS = 64
"""Threads that may divide the reduction of a tile.

From the specification of WebGPU: the default limit `maxComputeWorkgroupSizeZ`.
"""
SUM_BYTES = 4
"""Bytes of a sum in workgroup memory: contractions compute in 32 bits."""
PAIR = 2
"""Threads of a quad along each axis, if the quad computes two by two tiles."""
COLUMN_ROWS = 8
"""The rows of a quad's tile at which loading the rows takes as long as loading the columns
(derived: for four steps, a thread loads two vectors for each row and 16 for the columns)."""
SINGLE_COST = 4
"""The cost of a row that no tile of a quad has, if the loads of a row cost 1: such a row loads all
columns for itself (measured on SwiftShader: 4 for the five rows that DeiT has left, 12 for 28)."""
SECTION_PRODUCTS = 1 << 23
"""The multiply-adds that may be computed twice to save a section. Measured on SwiftShader, where a
section takes 60 ms to compile: with a quarter of this number, no model ran faster, and first
results of Inception v1 and v2 took 3 and 7 % longer."""
STAGES = (4, 8, 16, 32)
"""Steps of the reduction whose columns a workgroup may copy at once."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A contraction with its epilogue.

    - `rows`: the number of rows, `None` if there is no loop over rows; `columns`: the number of
      columns along the last axis.
    - `results`: elements of the result with each symbol as 1.
    - `depth`: steps of the innermost reduction loop; `steps`: steps of all reduction loops, 0 if
      symbolic.
    - `joined`: the number of innermost reduction loops that are fused into one.
    - `outer_depth`: steps of the outermost reduction loop if threads divide this loop; `None` if
      they divide the innermost loop.
    - `operand`: the name of the right operand.
    - `row_length`: rows along the last of several axes, `None` if there is one axis. A workgroup
      with more rows would have gaps in its memory.
    - `can_share`: whether primitives let threads divide the reduction.
    - `quad_rows`: the tiles below each other that the threads of a quad compute: 2 (of two by two
      tiles) or 4; 0 if tiles are not grouped by quads.
    - `may_overlap`: whether tiles may overlap, so that fewer sections are compiled.
    """

    function: LoopFunction
    fold: str
    rows: Expr | None
    columns: Expr
    results: int
    depth: Expr
    steps: int
    lanes: int
    operand: str
    row_length: int | None = None
    can_share: bool = True
    joined: int = 1
    outer_depth: int | None = None
    quad_rows: int = 0
    may_overlap: bool = False

    @property
    def divided_depth(self) -> int | None:
        """Steps of the reduction loop that threads divide, `None` if symbolic."""
        return as_int(self.depth) if self.outer_depth is None else self.outer_depth

    @property
    def products(self) -> int:
        """The multiply-adds with each symbol as 1; 1 if the steps are symbolic."""
        return max(1, self.results * self.steps)

    @property
    def section_rows(self) -> float | None:
        """The rows that may be computed twice to save a section; `None` if tiles do not overlap."""
        count = None if self.rows is None else as_int(self.rows)
        if count is None or not (self.may_overlap and self.steps):
            return None
        return self.section(count)

    def section(self, count: int) -> float:
        """The rows or columns, of `count`, that may be computed twice to save a section."""
        return SECTION_PRODUCTS * count / self.products

    def part_steps(self, parts: int) -> int:
        """Steps of the innermost reduction loop in each of some parts; 0 if symbolic."""
        depth = as_int(self.depth) or 0
        return depth // parts if self.outer_depth is None else depth


class Divided(Struct, frozen=True, tag="divided"):
    """Several threads divide the reduction of a tile."""

    parts: int
    """Threads that divide it."""


class Staged(Struct, frozen=True, tag="staged"):
    """Full workgroups copy columns to their memory, for some steps of the reduction at a time."""

    stage: int
    """Steps whose columns are copied at once."""


class Parameters(Struct, frozen=True):
    """The tile of a thread and the tiles of a workgroup."""

    workgroup: int
    """Invocations of a workgroup."""
    rows: int
    """Rows of a thread's tile. The last tiles overlap, or the remaining rows have smaller tiles."""
    columns: int
    """Columns of a thread's tile."""
    steps: int
    """Steps of the innermost reduction loop that are unrolled."""
    body: int
    """Steps of the reduction that are unrolled at most, over several loops."""
    across: int
    """Tiles of a row that a workgroup computes, at most."""
    reduction: Divided | Staged | None = None
    """How a workgroup runs the reduction; `None`: each thread by itself, from memory."""

    @property
    def parts(self) -> int:
        """Threads that divide the reduction of a tile."""
        return self.reduction.parts if isinstance(self.reduction, Divided) else 1


def multiple_of(extent: Expr) -> int:
    """The largest literal that divides an extent of one term: 196 for 196 · n."""
    sums = terms(simplify(extent))
    return next(iter(sums.values())) if len(sums) == 1 else 1


def cover_cost(count: int, height: int, below: int, section: float | None) -> tuple[float, int]:
    """The cost of covering `count` rows with tiles of `height` rows, in stacks of `below`. And the
    number of tiles if the last two stacks overlap, 0 if remaining rows have a separate section.
    `section`: the cost of a section, in rows of tiles; `None`: tiles never overlap.

    >>> cover_cost(64, 16, 2, section=1), cover_cost(49, 12, 2, section=1)
    ((96, 0), (85.66666666666667, 0))
    >>> cover_cost(49, 13, 2, section=1), cover_cost(49, 12, 2, section=99)
    ((84, 4), (120, 6))
    """
    tile = height + COLUMN_ROWS
    full, left = divmod(count, below * height)
    if not left:
        return full * below * tile, 0
    apart = full * below * tile + left * SINGLE_COST
    if section is None or height > count:
        return apart, 0
    apart_with_section = apart + section * tile / height
    tiles = (full + 1) * below
    overlaps = tiles * tile <= apart_with_section
    return (tiles * tile, tiles) if overlaps else (apart_with_section, 0)


def paired_columns(facts: Facts, width: int) -> int:
    """The columns that pairs of tiles beside each other compute, if pairs cover all columns, or the
    last tiles overlap at little cost; else 0. Remaining columns take twice as long, or more.
    """
    count = as_int(facts.columns)
    if count is None or count % facts.lanes:
        return 0
    left = count % (PAIR * width)
    again = -count % (PAIR * width)
    if not left:
        return count
    if facts.section_rows is None:
        return 0
    return count + again if again <= left + facts.section(count) else 0


def can_divide(facts: Facts, tile: Parameters, parts: int) -> bool:
    """True if the threads of a workgroup can divide the reduction of such tiles in these parts.
    Tiles must cover the columns, and also rows of several axes. The sums of all threads must fit
    into workgroup memory.
    """
    if parts == 1:
        return True
    workgroup, rows, columns = tile.workgroup, tile.rows, tile.columns
    row_count = 1 if facts.rows is None else multiple_of(facts.rows)
    column_count = as_int(facts.columns)
    if column_count is None or parts > workgroup or not facts.can_share:
        return False
    if facts.divided_depth == parts:
        return False  # a part of one step has no loop
    if facts.row_length is not None and rows > facts.row_length:
        return False
    sum_bytes = workgroup * rows * columns * SUM_BYTES
    has_rows = facts.row_length is None or row_count % rows == 0
    return has_rows and column_count % columns == 0 and sum_bytes <= MAX_WORKGROUP_BYTES


def stages(facts: Facts) -> tuple[int, ...]:
    """The possible numbers of steps of a stage: they divide the innermost reduction loop evenly.
    Quads share loads without stages.
    """
    depth = as_int(facts.depth)
    if depth is None or facts.rows is None or facts.quad_rows:
        return ()
    return tuple(steps for steps in STAGES if depth % steps == 0)


@dataclass(frozen=True, slots=True)
class Grid:
    """The threads of a workgroup, `down` × `across`, with a tile of `rows` × `columns` elements
    each.
    """

    down: int
    across: int
    rows: int
    columns: int


def divided_grid(facts: Facts, parameters: Parameters) -> Grid:
    """The workgroup whose threads divide the reduction: tiles beside each other, then below."""
    rows, columns = parameters.rows, parameters.columns
    tiles = parameters.workgroup // parameters.parts
    across = divisors((as_int(facts.columns) or 1) // columns, min(tiles, parameters.across))[-1]
    row_count = 1 if facts.rows is None else multiple_of(facts.rows)
    length = row_count if facts.row_length is None else facts.row_length
    down = divisors(row_count // rows, max(1, min(tiles // across, length // rows)))[-1]
    return Grid(down, across, rows, columns)


def staged_grid(facts: Facts, parameters: Parameters) -> Grid:
    """The full workgroup that copies stages: tiles beside each other, then below."""
    columns = as_int(facts.columns) or 1
    across = unroll_factor(as_expr(columns // parameters.columns), parameters.across)
    down = max(1, parameters.workgroup // across)
    return Grid(down, across, parameters.rows, parameters.columns)


def can_stage(facts: Facts, parameters: Parameters, stage: int) -> bool:
    """True if a full workgroup can copy a stage of its columns to its memory, with equal work for
    each thread. One more step for each panel separates its banks (`target.compact_buffers`).
    """
    columns = as_int(facts.columns)
    if facts.rows is None or columns is None:
        return False
    grid = staged_grid(facts, parameters)
    height, width = grid.down * grid.rows, grid.across * grid.columns
    rows = as_int(facts.rows)
    has_rows = rows >= height if rows is not None else multiple_of(facts.rows) % height == 0
    return (
        columns >= width
        and has_rows
        and stage * width % (grid.down * grid.across * facts.lanes) == 0
        and (stage + 1) * width * SUM_BYTES <= MAX_WORKGROUP_BYTES
    )
