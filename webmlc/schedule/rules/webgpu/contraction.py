"""Matrix products and convolutions over channels-last maps: register tiles of rows by columns.

Rows are all axes of the left operand (for a convolution: image, y, x, as one index), columns the
last axis of the right operand. Each thread owns a tile, 8 rows by 8 columns, in vec4 registers. The
weights of a panel of 8 columns are two vec4 loads for each step of the reduction, shared by the
rows. Rows and columns that do not fill a tile are separate sections. Or the last tiles overlap,
because each section takes time to compile. On a GPU, workgroups that are full copy the weights to
their own memory first. Where there are too few tiles for a GPU, several threads of a workgroup
divide the reduction of a tile (`contraction_workgroups.py`).

    Y[m, o] += A[m, k] * B[o // 8, k, o % 8]   ->   for k: b0, b1 = B[...]; for r in 8: Y_r += A[m +
    r, k] * (b0, b1)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod

from msgspec import structs

from webmlc.core.expr import Expr, as_int
from webmlc.core.machine import QUAD, Gpu
from webmlc.core.simplify import prove_equal, simplify
from webmlc.loops.ir import Block, LoopFunction, Store
from webmlc.schedule.analysis import (
    Contraction,
    axis_ranges,
    contraction_of,
    flat_index,
    has_vector_types,
    lane_stride,
    stride,
)
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.rules.rule import Rule
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.cover import divisors, unroll_factor
from webmlc.schedule.rules.tiling.nests import (
    axes_of_kind,
    extent_of,
    fuse_all,
    loops_along,
    size_of,
)
from webmlc.schedule.rules.webgpu.contraction_defaults import (
    ACROSS,
    BODY,
    STEPS,
    default,
    quad_rows,
)
from webmlc.schedule.rules.webgpu.contraction_facts import (
    MOST_PARTS,
    MOST_STEPS,
    PAIR,
    Divided,
    Facts,
    Parameters,
    Staged,
    can_divide,
    can_stage,
    cover_cost,
    divided_grid,
    multiple_of,
    paired_columns,
    staged_grid,
    stages,
)
from webmlc.schedule.rules.webgpu.contraction_workgroups import (
    bind_blocks,
    bind_quads,
    divide_reduction,
    stage_columns,
)
from webmlc.schedule.rules.webgpu.fold_tile import (
    Section,
    Threads,
    attach_epilogue,
    fold_with_followers,
    is_zero,
    split_columns,
    split_rows,
    unroll_reduction,
)
from webmlc.schedule.rules.webgpu.threads import workgroup_sizes
from webmlc.schedule.schedule import Schedule

SHORT_AXIS = 16
"""A reduction axis of fewer steps is joined with the axis around it: four vectors of the left
operand (chosen by hand for convolutions of a few channels)."""
LEFT_ROWS = 5
"""The most rows of a tile outside of quads, if this number divides the rows (chosen by hand: a
software adapter compiles each row of a tile)."""
LITTLE = 100
"""If at most one row or column in `LITTLE` is left over, the tiles that cover it have one row
(chosen by hand: single rows take ten times as long)."""
IMAGE_ROWS = 32
"""Rows of an image, at least, for tiles not to reach into the next image (derived: four tiles)."""


def match(function: LoopFunction, machine: Gpu) -> Facts | None:
    """Matches one contraction with a pointwise epilogue and columns adjacent in memory."""
    fold = fold_with_followers(function)
    if fold is None or not has_vector_types(fold):
        return None
    roles = contraction_of(fold)
    if roles is None or not roles.columns or not _columns_adjacent(fold, roles):
        return None
    if not loops_along(fold, roles.columns[-1:]) or not loops_along(fold, roles.reduced):
        return None
    schedule = Schedule(function)
    joined = _joined(fold, roles) if machine.reads_lines else 1
    try:
        nest = _prepare(schedule, fold.name, joined)
    except ScheduleError:  # the epilogue reads another element than the finished one
        return None
    facts = Facts(
        function,
        fold.name,
        None if nest.rows is None else simplify(schedule.extent(nest.rows)),
        simplify(schedule.extent(nest.columns)),
        prod(multiple_of(axis.extent) for axis in axes_of_kind(fold, "spatial")),
        simplify(schedule.extent(nest.reduced[-1])),
        size_of([schedule.extent(loop) for loop in nest.reduced]) or 0,
        machine.lanes,
        roles.right.buffer.name,
        _row_length(roles),
        joined=joined,
        outer_depth=_outer_depth(schedule, nest) if machine.reads_lines else None,
        may_overlap=machine.compiles_slowly,
    )
    return replace(facts, quad_rows=quad_rows(facts, machine))


def weaker(facts: Facts) -> Facts | None:
    """The facts without quads, else without threads that divide a reduction."""
    if facts.quad_rows:
        return replace(facts, quad_rows=0)
    if facts.function.symbols and facts.can_share:
        return replace(facts, can_share=False)
    return None


def space(facts: Facts, machine: Gpu) -> Product[Parameters]:
    """Tiles that fit the registers, and how workgroups are made of them."""
    rows = 1 if facts.rows is None else as_int(facts.rows)
    tallest = machine.tile.rows if rows is None else min(rows, machine.tile.rows)
    depth, divided = as_int(facts.depth), facts.divided_depth
    tile = partial(Parameters, steps=1, body=1, across=1)
    tiles = Space.of(
        Parameters,
        workgroup=workgroup_sizes(machine),
        rows=tuple(range(1, tallest + 1)),
        columns=tuple(machine.tile.columns * n // 2 for n in (1, 2, 4)),
        steps=(1,) if depth is None else divisors(depth, MOST_STEPS),
        body=(STEPS, BODY, 2 * BODY),
        across=(1, 2, 4, ACROSS, 2 * ACROSS),
        reduction=Space.either(
            None,
            Space.of(Divided, parts=divisors(divided or 1, MOST_PARTS)[1:]),
            Space.of(Staged, stage=stages(facts)),
        ),
    )
    return (
        tiles.where(
            "half of the registers hold the tile",
            lambda rows, columns: 2 * rows * columns <= machine.vector_registers * machine.lanes,
        )
        .where(
            "threads divide the reduction of whole tiles, in workgroup memory",
            lambda workgroup, rows, columns, reduction: (
                not isinstance(reduction, Divided)
                or can_divide(facts, tile(workgroup, rows, columns), reduction.parts)
            ),
        )
        .where(
            "each part is a multiple of the steps that are unrolled",
            lambda steps, reduction: (
                not isinstance(reduction, Divided) or facts.part_steps(reduction.parts) % steps == 0
            ),
        )
        .where(
            "the threads of a full workgroup copy a stage to its memory",
            lambda workgroup, rows, columns, across, reduction: (
                not isinstance(reduction, Staged)
                or can_stage(facts, tile(workgroup, rows, columns, across=across), reduction.stage)
            ),
        )
    )


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Tile each section, and make workgroups of its tiles."""
    nest = _prepare(schedule, facts.fold, facts.joined)
    if parameters.parts > 1:
        sections = split_rows(schedule, nest, parameters.rows)
        for section in sections:
            grid = divided_grid(facts, parameters)
            if len(sections) > 1:
                grid = replace(grid, down=1, rows=_tile_rows(schedule, section, parameters))
            divide_reduction(schedule, section, facts, parameters, grid)
        return
    panels = [nest]
    if not _paired_tiles(schedule, nest, facts, parameters):
        panels = split_columns(schedule, nest, parameters.columns)
    if facts.quad_rows:
        for part in panels:
            for rows, height, tiles in _quad_sections(schedule, part, facts, parameters):
                of_height = structs.replace(parameters, rows=height)
                tile = _tile(schedule, rows, facts, of_height, tiles)
                bind_quads(schedule, rows, tile, parameters)
        return
    tiled = []
    for part in panels:
        if tiles := _overlapping(schedule, part, facts, parameters.rows, 1):
            tiled.append((part, _tile(schedule, part, facts, parameters, tiles)))
            continue
        for rows in split_rows(schedule, part, parameters.rows):
            left = _unstaged(schedule, rows, facts, parameters)
            tiled += [(nest, _tile(schedule, nest, facts, parameters)) for nest in left]
    if not tiled:
        return
    # The sections share their workgroups: tiles that fit beside the widest section fit beside all.
    across = [unroll_factor(schedule.extent(t.columns), parameters.across) for _, t in tiled]
    widest = max(across)
    if isinstance(parameters.reduction, Staged):
        widest = max(widest, staged_grid(facts, parameters).across)
    down = max(1, parameters.workgroup // widest)
    for (section, threads), width in zip(tiled, across, strict=True):
        bind_blocks(schedule, section, threads, width, down)


def _quad_sections(
    schedule: Schedule, nest: Section, facts: Facts, parameters: Parameters
) -> Iterator[tuple[Section, int, int]]:
    """Yield the sections of pairs of tiles beside each other, then of the tile that is left. A
    section comes with the height of its tiles, and with their number if the last two overlap (else
    0). Symbolic rows fill tiles of quads, then other tiles, then single rows. Few rows are left
    over, so low tiles keep the shader short.
    """
    pair = PAIR * parameters.columns
    columns = [nest]
    if facts.quad_rows == PAIR and not _paired_tiles(schedule, nest, facts, parameters):
        columns = split_columns(schedule, nest, pair)
    for part in columns:
        height, below = parameters.rows, facts.quad_rows
        if part is not columns[0]:
            width = extent_of(schedule, part.columns) or 1
            height, below = _left_rows(QUAD, width, as_int(facts.columns)), QUAD
        if tiles := _overlapping(schedule, part, facts, height, below):
            yield part, height, tiles
            continue
        whole, *left = split_rows(schedule, part, height * below)
        yield whole, height, 0
        for rest in left:
            for section in split_rows(schedule, rest, height) if below == PAIR else [rest]:
                assert section.rows is not None and facts.rows is not None
                count = extent_of(schedule, section.rows) or 1
                few = divisors(count, LEFT_ROWS)[-1]
                rows = few if 2 * few > LEFT_ROWS else min(count, height)
                yield section, _left_rows(rows, count, as_int(facts.rows)), 0


def _overlapping(schedule: Schedule, nest: Section, facts: Facts, height: int, below: int) -> int:
    """How many tiles of `height` rows cover this section if the last two overlap, so that no
    remainder section is needed; 0 if they do not. Tiles come in stacks of `below`.
    """
    count = None if nest.rows is None else extent_of(schedule, nest.rows)
    return 0 if count is None else cover_cost(count, height, below, facts.section_rows)[1]


def _paired_tiles(schedule: Schedule, nest: Section, facts: Facts, parameters: Parameters) -> int:
    """How many tiles cover the columns in pairs if the last pairs overlap; 0 if they do not, or if
    quads need no pairs.
    """
    columns = as_int(facts.columns)
    is_whole = extent_of(schedule, nest.columns) == columns
    if facts.quad_rows != PAIR or columns is None or not is_whole:
        return 0
    covered = paired_columns(facts, parameters.columns)
    return covered // parameters.columns if covered > columns else 0


def _left_rows(rows: int, count: int, whole: int | None) -> int:
    """The rows of tiles for remaining rows or columns: 1 if few rows or columns remain in all."""
    return 1 if whole is not None and count * LITTLE <= whole else rows


def _unstaged(
    schedule: Schedule, nest: Section, facts: Facts, parameters: Parameters
) -> list[Section]:
    """Schedule the rows that fill whole workgroups with stages; returns the sections left."""
    rows = None if nest.rows is None else simplify(schedule.extent(nest.rows))
    if not isinstance(parameters.reduction, Staged) or rows is None:
        return [nest]
    grid = staged_grid(facts, parameters)
    height = grid.down * grid.rows
    if as_int(simplify(rows // height)) == 0:
        return [nest]
    whole, *left = split_rows(schedule, nest, height)
    if not is_zero(schedule.extent(whole.columns) % (grid.across * grid.columns)):
        return [whole, *left]
    stage_columns(schedule, whole, facts, grid, parameters.reduction.stage)
    return left


def _row_length(roles: Contraction) -> int | None:
    """The rows along the last of several axes of rows; `None` if one axis alone has the rows."""
    live = [axis.extent for axis in roles.rows if as_int(axis.extent) != 1]
    live = live[_images(live) :]
    return as_int(live[-1]) if len(live) > 1 else None


def _images(extents: Sequence[Expr]) -> int:
    """The number of leading row axes that count as images: the axes of symbolic size, if the
    remaining axes have enough rows for some tiles.
    """
    count = next((n for n, e in enumerate(extents) if as_int(e) is not None), 0)
    return count if prod(as_int(e) or 1 for e in extents[count:]) >= IMAGE_ROWS else 0


def _tile_rows(schedule: Schedule, section: Section, parameters: Parameters) -> int:
    """The rows of a tile of a section. In a section of remaining rows, the tile has all of them, or
    one row if their number is known only at run time.
    """
    assert section.rows is not None
    extent = simplify(schedule.extent(section.rows))
    if as_int(simplify(extent % parameters.rows)) == 0:
        return parameters.rows
    return as_int(extent) or 1


def _prepare(schedule: Schedule, name: str, joined: int) -> Section:
    """Put the epilogue under the fold, columns outermost, all rows into one loop, and the innermost
    `joined` reduction loops into one.

    Raises `ScheduleError` if the epilogue reads another element than the finished element.
    """
    roles = contraction_of(schedule.block(name))
    assert roles is not None
    attach_epilogue(schedule, name)
    block = schedule.block(name)
    (column,) = loops_along(block, roles.columns[-1:])
    rows = loops_along(block, roles.rows)
    batch = loops_along(block, (*roles.batch, *roles.columns[:-1]))
    batch += [loop for loop in rows if extent_of(schedule, loop) == 1]
    rows = [loop for loop in rows if loop not in batch]
    images = _images([simplify(schedule.extent(loop)) for loop in rows])
    batch, rows = [*batch, *rows[:images]], rows[images:]
    if any(extent_of(schedule, loop) is None for loop in rows[1:]):
        batch, rows = [*batch, *rows[:-1]], rows[-1:]  # quotients by a symbol hide disjointness
    schedule.reorder(column, *batch, *rows)
    reduced = loops_along(block, roles.reduced)
    if joined > 1:
        reduced = [*reduced[:-joined], schedule.fuse(*reduced[-joined:])]
    row = fuse_all(schedule, rows) if rows else None
    return Section(name, tuple(batch), row, column, tuple(reduced))


def _joined(fold: Block, roles: Contraction) -> int:
    """The number of innermost reduction axes to join. Axes are joined if they are too short for
    vectors of the left operand, and contiguous in the memory of both operands. An example is the
    columns and channels of a patch of an image.
    """
    ranges = axis_ranges(fold)
    operands = [flat_index(o.buffer, o.indices) for o in (roles.left, roles.right)]
    axes = tuple(reversed(roles.reduced))
    length, count = as_int(axes[0].extent) or SHORT_AXIS, 1
    for inner, outer in pairwise(axes):
        pairs = [[stride(index, a.var, ranges) for a in (inner, outer)] for index in operands]
        if length >= SHORT_AXIS or not all(
            near is not None and far is not None and prove_equal(far, near * inner.extent, ranges)
            for near, far in pairs
        ):
            break
        length *= as_int(outer.extent) or SHORT_AXIS
        count += 1
    return count if length % STEPS == 0 else 1


def _outer_depth(schedule: Schedule, nest: Section) -> int | None:
    """The steps of the outermost reduction loop, if more threads can divide it; else `None`."""
    outer, inner = (extent_of(schedule, nest.reduced[n]) for n in (0, -1))
    if len(nest.reduced) == 1 or outer is None or inner is None:
        return None
    return outer if _power_of_two(outer) > max(1, _power_of_two(inner) // STEPS) else None


def _power_of_two(count: int) -> int:
    """The largest power of two that divides a number."""
    return count & -count


def _columns_adjacent(fold: Block, roles: Contraction) -> bool:
    """True if groups of 4 columns are adjacent in the result and in the right operand."""
    assert isinstance(fold.body, Store)
    ranges = axis_ranges(fold)
    column = roles.columns[-1].var
    right = flat_index(roles.right.buffer, roles.right.indices)
    result = flat_index(fold.body.buffer, fold.body.indices)
    return all(lane_stride(index, column, 4, ranges) == 1 for index in (right, result))


def _tile(
    schedule: Schedule, nest: Section, facts: Facts, parameters: Parameters, tiles: int = 0
) -> Threads:
    """Split the rows and columns of one section into tiles. If there are more `tiles` than fit
    below each other, the last tiles overlap. The last tiles beside each other also overlap if quads
    need pairs.
    """
    lanes, rows, columns = facts.lanes, nest.rows, nest.columns
    unrolled, vectors = list[str](), list[str]()
    if rows is not None:
        extent = simplify(schedule.extent(rows))
        height = min(parameters.rows, as_int(extent) or parameters.rows)
        if tiles:
            rows, *unrolled = schedule.overlap(rows, tiles, height)
        elif height > 1 and is_zero(extent % height):
            rows, *unrolled = schedule.split(rows, [None, height])
    pairs = _paired_tiles(schedule, nest, facts, parameters)
    extent = simplify(schedule.extent(columns))
    has_tiles = is_zero(extent % parameters.columns)  # also of a symbolic number of columns
    width = parameters.columns if has_tiles else unroll_factor(extent, parameters.columns)
    if pairs:
        columns, *vectors = schedule.split(columns, [None, lanes])
        columns, vector = schedule.overlap(columns, pairs, parameters.columns // lanes)
        unrolled.append(vector)
    elif width == lanes:
        columns, *vectors = schedule.split(columns, [None, width])
    elif width % lanes == 0:
        columns, vector, *vectors = schedule.split(columns, [None, width // lanes, lanes])
        unrolled.append(vector)
    outer = [*nest.batch, *([] if rows is None else [rows]), columns]
    schedule.reorder(*outer, *unrolled, *vectors)
    reduced = unroll_reduction(schedule, nest.reduced, parameters.steps, parameters.body)
    return Threads(rows, columns, unrolled, vectors, reduced)


CONTRACTION = Rule(
    "contraction", match, space, default, build, is_product=True, needs_proof=True, weaker=weaker
)
