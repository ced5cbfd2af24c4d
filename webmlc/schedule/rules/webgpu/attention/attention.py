"""Attention: scores, an online softmax and the product with the values in one dispatch.

Rows that read the same keys form tiles. A workgroup computes a tile (`plain_tile.py`), and reads
keys and values once for all its rows. On a GPU, the workgroup copies the keys, and its threads keep
results in registers (`copied_tile.py`). Each remaining or single row has a workgroup
(`single_row.py`), which shares out keys to its threads. Tiles and rows both run in steps of keys.

    m[i] = max(l[i, :]); e = exp(l - m); s[i] = sum(e[i, :]); p[i, d] = sum(e[i, :] * v[:, d])
    ->  for tile in range(m // 16) (workgroups): for step in range(ceil(n / 64)): 16 rows, 64 keys
        for row in range(m % 16) (workgroups):   for step in range(ceil(n / 64)): one row, 64 keys
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from webmlc.core.expr import as_int
from webmlc.core.machine import Gpu
from webmlc.core.simplify import simplify
from webmlc.graph.algorithms.attention.operators import FEWEST_COLUMNS, FEWEST_KEYS
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.rules.rule import Rule, accepts
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.webgpu.attention import copied_tile, plain_tile
from webmlc.schedule.rules.webgpu.attention.copied_tile import (
    STAGES,
    longest_stage,
    schedule_copied_tile,
    shape_of,
)
from webmlc.schedule.rules.webgpu.attention.facts import (
    LOGIT_ROWS,
    MAX_UNROLLED,
    RADIX,
    STEPS,
    CopiedTile,
    Facts,
    Loops,
    Parameters,
    PlainTile,
    RegisterRow,
    SharedRow,
    attention_facts,
    covers,
    final_loops,
    fits,
    row_memory,
)
from webmlc.schedule.rules.webgpu.attention.plain_tile import (
    MOST_THREADS,
    schedule_tile,
    tile_threads,
)
from webmlc.schedule.rules.webgpu.attention.single_row import (
    key_threads_of,
    schedule_register_row,
    schedule_row,
)
from webmlc.schedule.rules.webgpu.fold_tile import is_zero
from webmlc.schedule.rules.webgpu.rows import producers_of
from webmlc.schedule.rules.webgpu.threads import workgroup_sizes
from webmlc.schedule.schedule import Schedule

PROMPT_HEIGHTS = (16, 8)
"""The rows of a tile if the number of rows is known only at run time: a prompt."""
PROMPT_LOGIT_ROWS = 2
"""Rows of the logits of a thread in a prompt's tile. Prompts may be short, so each tile gets more
threads (an estimate)."""
KEYS_PER_THREAD = 2
"""Keys of a step whose logits a thread of a single row keeps, by default. Measured on an H100 with
9 heads of 64 elements: 4 keys took 4 % longer for 256 keys in all, and 5 % less for 2000."""
REGISTER_RADIX = 16
"""Results that one thread of a single row folds at each level of a tree where threads keep logits:
256 threads take two levels (measured with `KEYS_PER_THREAD`)."""
REGISTER_STEPS = 8
"""Steps of a reduction that a thread writes out in a tile that copies keys, by default (measured on
an H200 with 1500 keys of 64 elements: 4 steps took 8 % longer)."""
DEFAULT_STAGE = 4
"""The fewest vectors of each key that a tile copies at once, by default. With fewer vectors,
threads would wait for each other too often, and a lower tile is better (an estimate)."""

Tile = CopiedTile | PlainTile | None
Row = RegisterRow | SharedRow


def match(function: LoopFunction, machine: Gpu) -> Facts | None:
    """Matches a softmax along the rows of a product, and a product of its result."""
    facts = attention_facts(function, machine)
    if facts is None or 2 * facts.vectors > max(workgroup_sizes(machine)):
        return None
    if facts.columns < FEWEST_COLUMNS or (facts.keys or FEWEST_KEYS) < FEWEST_KEYS:
        return None
    heights = _plain_heights(facts)
    for count in range(len(heights), -1, -1):
        trial = replace(facts, heights=heights[:count])
        if _builds(trial, default(trial, machine)):
            return _with_copies(trial, machine)
    return None


def _builds(facts: Facts, parameters: Parameters) -> bool:
    """True if primitives build a schedule."""
    return accepts(partial(build, Schedule(facts.function), facts, parameters))


def _with_copies(facts: Facts, machine: Gpu) -> Facts:
    """The facts, which say whether tiles can copy keys."""
    trial = replace(facts, copies_keys=facts.key_vectors is not None)
    row = _default_row_and_tile(facts, machine)[0]
    for height in _copied_heights(trial):
        tile = longest_stage(trial, row, CopiedTile(height, STAGES[0]))
        if tile is not None:
            return trial if _builds(trial, Parameters(tile, row)) else facts
    return facts


def space(facts: Facts, machine: Gpu) -> Product[Parameters]:
    """Threads: enough for two parts of a step. Tiles that fit a workgroup."""
    of_tile = {"steps": (STEPS, 2, 8), "logit_rows": (LOGIT_ROWS, 2, 8)}
    plain = Space.of(PlainTile, rows=facts.heights, **of_tile).where(
        "threads share logits evenly",
        lambda rows, logit_rows: tile_threads(facts, rows, logit_rows) is not None,
    )
    copied = Space.of(CopiedTile, rows=_copied_heights(facts), stage=STAGES, **of_tile).where(
        "threads can copy keys",
        lambda rows, stage, logit_rows: (
            shape_of(facts, CopiedTile(rows, stage, logit_rows=logit_rows)) is not None
        ),
    )
    of_row = {
        "workgroup": tuple(n for n in workgroup_sizes(machine) if n >= 2 * facts.vectors),
        "radix": (RADIX, 4, 16),
        "unrolled": (MAX_UNROLLED, 8, 16, 32),
        "fold_steps": (1, 4, 16),
    }
    registers = Space.of(
        RegisterRow,
        keys=(1, 2, 4) if machine.reads_lines else (),
        key_threads=(1, 2, 4) if facts.key_vectors is not None else (1,),
        **of_row,
    ).where(
        "threads share a key evenly",
        lambda workgroup, key_threads: (
            key_threads == 1 or key_threads in key_threads_of(facts, workgroup)
        ),
    )
    tiles = Space.either(None, plain, copied)
    rows = Space.either(Space.of(SharedRow, **of_row), registers, None)
    return (
        Space.of(Parameters, tile=tiles, row=rows)
        .where(
            "a row has a schedule unless tiles cover it",
            lambda tile, row: (row is None) == covers(facts, tile),
        )
        .where(
            "tiles, and the rows left over, fit the memory of a workgroup",
            lambda tile, row: _fits(facts, tile, row),
        )
    )


def default(facts: Facts, machine: Gpu) -> Parameters:
    """The machine's workgroup, or the next larger workgroup that has enough threads; the tallest
    tiles that are numerous enough. Tiles load keys less often than rows, but are fewer.
    """
    row, tile = _default_row_and_tile(facts, machine)
    return Parameters(tile, None if covers(facts, tile) else row)


def _default_row_and_tile(facts: Facts, machine: Gpu) -> tuple[Row, Tile]:
    """The threads of a single row, and the tile, by default. If the number of rows is known only at
    run time, it is most often 1: the threads of the row are chosen first, then the tallest tile
    beside them.
    """
    needed = max(machine.workgroup_size, 2 * facts.vectors)
    workgroup = min(size for size in workgroup_sizes(machine) if size >= needed)
    if facts.rows is None and machine.attention_threads > workgroup:
        sizes = (n for n in workgroup_sizes(machine) if workgroup < n <= machine.attention_threads)
        for size in sorted(sizes, reverse=True):
            row = _single_row(facts, machine, size)
            if not facts.heights:
                return row, _prompt_tile(facts, row)
            plain = [PlainTile(n) for n in facts.heights if _fits(facts, PlainTile(n), row)]
            if plain:
                return row, _prompt_tile(facts, row) or plain[-1]
    row = _single_row(facts, machine, workgroup)
    if not machine.reads_lines or facts.rows is None:
        return row, PlainTile(facts.heights[-1]) if facts.heights else None
    result = facts.function.params[-1]
    rows = prod(as_int(size) or 1 for size in result.shape) // facts.columns
    for height in reversed(_copied_heights(facts)):
        tile = longest_stage(facts, row, CopiedTile(height, STAGES[0], REGISTER_STEPS))
        fills = _fills(machine, rows // height * machine.divided_workgroup)
        if tile is not None and tile.stage >= DEFAULT_STAGE and fills:
            return row, tile
    for height in reversed(facts.heights):
        if _fills(machine, rows // height * MOST_THREADS):
            return row, PlainTile(height)
    is_long = facts.keys is None or facts.keys > machine.row_threads
    most = max(workgroup, machine.row_threads) if is_long else workgroup
    return _single_row(facts, machine, most), None


def _fills(machine: Gpu, threads: int) -> bool:
    """True if the workgroups of all tiles have enough threads together to fill the GPU. The threads
    of a tile divide the reductions over keys, so the limit is the limit of products whose threads
    divide reductions (an assumption; it was not measured on attention).
    """
    return threads >= machine.divided_threads


def _single_row(facts: Facts, machine: Gpu, workgroup: int) -> Row:
    """A single row. On a GPU, threads keep the logits of as many keys as the memory of a workgroup
    allows, and neighbours share a key.
    """
    if machine.reads_lines:
        threads = max(key_threads_of(facts, workgroup))
        for keys in (KEYS_PER_THREAD, 1):
            row = RegisterRow(
                workgroup, keys, threads, REGISTER_RADIX, fold_steps=machine.fold_steps
            )
            if fits(facts, row_memory(facts, row)):
                return row
    return SharedRow(workgroup, fold_steps=machine.fold_steps)


def _prompt_tile(facts: Facts, row: Row) -> CopiedTile | None:
    """The tallest tile that copies keys and fits beside such a single row, if one fits."""
    tiles = (CopiedTile(n, STAGES[0], logit_rows=PROMPT_LOGIT_ROWS) for n in PROMPT_HEIGHTS)
    longest = (longest_stage(facts, row, tile) for tile in tiles)
    return next((tile for tile in longest if tile is not None), None)


def _fits(facts: Facts, tile: Tile, row: Row | None) -> bool:
    """True if the memory of a workgroup holds a tile, and also a single row if there is one.

    The heights in `facts` fit beside `SMALL_ROW`. So they fit beside any row in shared memory whose
    workgroup has no more threads, or has the fewest threads that a row may have.
    """
    match tile:
        case CopiedTile():
            return shape_of(facts, tile, row) is not None
        case PlainTile() if row is not None:
            most = max(MOST_THREADS, 2 * facts.vectors)
            if isinstance(row, SharedRow) and row.workgroup <= most:
                return True
            return tile_threads(facts, tile.rows, row=row) is not None
    return row is None or fits(facts, row_memory(facts, row))


def _plain_heights(facts: Facts) -> tuple[int, ...]:
    """The heights of tiles that fit a workgroup and are no taller than the rows."""
    fitting = (n for n in plain_tile.HEIGHTS if tile_threads(facts, n) is not None)
    return tuple(n for n in fitting if facts.rows is None or facts.rows >= n)


def _copied_heights(facts: Facts) -> tuple[int, ...]:
    """The heights of tiles that copy keys and are no taller than the rows."""
    if not facts.copies_keys:
        return ()
    return tuple(n for n in copied_tile.HEIGHTS if facts.rows is None or facts.rows >= n)


def build(schedule: Schedule, facts: Facts, parameters: Parameters) -> None:
    """Give each tile of rows, and each row left over, to a workgroup."""
    loops = final_loops(schedule.function, facts)
    unit = schedule.add_unit_loop(facts.final)
    rows = () if loops.row is None else (loops.row,)
    schedule.reorder(*rows, unit, *loops.batch, *loops.columns)
    loops = replace(loops, batch=(unit, *loops.batch))
    for block in producers_of(schedule.function, schedule.block(facts.final)):
        schedule.compute_at(block.name, loops.batch[-1])
    tile, row = parameters.tile, parameters.row
    tiles, single = _split_rows(schedule, facts, loops, tile)
    match tile:
        case CopiedTile() if tiles is not None:
            shape = shape_of(facts, tile, row)
            assert shape is not None
            schedule_copied_tile(schedule, *tiles, shape)
        case PlainTile() if tiles is not None:
            schedule_tile(schedule, *tiles, tile)
    match row:
        case RegisterRow() if single is not None:
            schedule_register_row(schedule, *single, row)
        case SharedRow() if single is not None:
            schedule_row(schedule, *single, row)


ATTENTION = Rule("attention", match, space, default, build, is_product=True, needs_proof=True)


def _split_rows(
    schedule: Schedule, facts: Facts, loops: Loops, tile: Tile
) -> tuple[tuple[Facts, Loops] | None, tuple[Facts, Loops] | None]:
    """The blocks and loops of whole tiles of rows, and of the rows left over."""
    if loops.row is None or tile is None:
        return None, (facts, loops)
    extent = simplify(schedule.extent(loops.row))
    whole = simplify(extent // tile.rows * tile.rows)
    if as_int(whole) == 0:
        return None, (facts, loops)
    if is_zero(extent - whole):
        return (facts, loops), None
    _, last = schedule.partition(loops.row, whole)
    return (facts, loops), (last.with_blocks(facts), last.with_loops(loops))
