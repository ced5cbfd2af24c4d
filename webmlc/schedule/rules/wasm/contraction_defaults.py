"""The parameters of a contraction: the space and the default choice.

In: the facts of a contraction and a machine. Out: its space and its default parameters. The default
follows the fastest hand-written kernels: a register tile of pixels (or rows) times channels (or
columns), the packed panel `[K][8]` of the right operand in the first-level cache, and blocks of the
left operand in the second-level cache.
"""

from __future__ import annotations

from msgspec import Struct

from webmlc.core.expr import Const, Expr, as_int
from webmlc.core.machine import PAGE_BYTES, Cpu
from webmlc.schedule.primitives.prefetch import LINE_BYTES
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.cover import divisors
from webmlc.schedule.rules.tiling.nests import product
from webmlc.schedule.rules.wasm.contraction_facts import ContractionFacts, RowAxis
from webmlc.schedule.rules.wasm.tile_costs import UNROLLED_STEPS, tile_columns, tile_height

STRIPS = 6
"""The most strips of a panel that are read side by side: more strips gain nothing (measured on
ResNet-18 and ZFNet, which took 7 % and 3 % less with strips)."""
REUSED_ROWS = 64
"""Rows whose products take as long as a panel takes to arrive from memory. With more rows, a panel
is fetched beforehand and read from end to end. Measured in Chromium on ResNet-50: with this fetch,
18 rows take 23 % longer, 25 rows 3 %, 49 rows 1 %, and 196 rows 4 % less time."""
FETCHED_LINES = 8
"""Cache lines that one iteration of a prefetch asks for, by default (an estimate)."""


class Blocks(Struct, frozen=True, tag="blocks"):
    """Blocks of rows. Each block is multiplied by all columns before the next block starts."""

    rows: int
    """Rows of a block: as many as a cache holds."""
    tail_rows: int
    """Rows of a register tile behind the last whole block."""
    has_groups: bool
    """Whether a block is multiplied by all groups before the next block starts."""


class Prefetch(Struct, frozen=True, tag="prefetch"):
    """Panels that come from memory before tiles read them."""

    largest_bytes: int
    """Bytes of the largest panel that is fetched."""
    burst_bytes: int
    """Bytes of panels that are fetched together, at most."""
    lines: int
    """Cache lines that one iteration of the prefetch asks for."""


class ContractionParameters(Struct, frozen=True):
    """The loops of a contraction, its register tiles, and how its right operand is read."""

    joined: int
    """Axes of rows, from the innermost, that one loop of tiles walks."""
    walks_batch: bool
    """Whether the axis of rows around the joined axes is walked under the loop over panels, so that
    a panel is read for the whole axis; else the axis is an outer loop."""
    walks_outside: bool
    """Whether the other axes of rows are walked outside of the panels, so that threads share them;
    else under the panels."""
    blocks: Blocks | None
    """The blocks of rows; `None`: one block has all rows."""
    rows: int
    """Rows of a register tile."""
    single_columns: int
    """Columns of a register tile of one row."""
    pair_columns: int
    """Columns of a register tile of two rows."""
    takes_turns: bool
    """Whether the accumulators of a wide tile take turns along the reduction of one panel, rather
    than read several panels side by side: a third faster for panels that come from memory."""
    has_halves: bool
    """Whether one row, if it takes turns, reads two panels, the first of either half: a core asks
    memory for more lines along two streams."""
    strips: int
    """Strips of a panel that are read side by side, at most; by single rows only where the run
    decides how many rows there are."""
    steps: int
    """Steps that one iteration of the reduction takes, at most, where it reads no strips."""
    prefetch: Prefetch | None
    """How panels come from memory before tiles read them; `None`: tiles read them from there."""


def contraction_space(facts: ContractionFacts, machine: Cpu) -> Product[ContractionParameters]:
    """The parameters to choose from for a contraction."""
    panel, widest = facts.panel, machine.narrow_tile.columns
    both = (False, True)
    is_packed = facts.panel_bytes > 0
    heights = tuple(range(1, machine.tile.rows + 1))
    block_rows: dict[int, None] = {}
    if facts.owns_rows and facts.rows:
        block_rows = dict.fromkeys(machine.tile.rows * n for n in (1, 2, 4, 8, 16))
        chosen = default_contraction(facts, machine).blocks
        block_rows |= {} if chosen is None else {chosen.rows: None}
    blocks = Space.of(
        Blocks,
        rows=tuple(block_rows),
        tail_rows=heights,
        has_groups=both if facts.group is not None else (False,),
    )
    prefetch = Space.of(
        Prefetch,
        largest_bytes=(machine.l2_bytes // 2,) if is_packed else (),
        burst_bytes=(0, machine.l1_bytes // 2, machine.l1_bytes),
        lines=(4, FETCHED_LINES, 16),
    )
    return Space.of(
        ContractionParameters,
        joined=tuple(range(min(1, facts.joinable), facts.joinable + 1)),
        walks_batch=both if facts.joinable > 1 else (False,),
        walks_outside=both if len(facts.rows) > 1 else (False,),
        blocks=Space.either(None, blocks),
        rows=heights,
        single_columns=(panel, 2 * panel, widest),
        pair_columns=(panel, 2 * panel),
        takes_turns=both if facts.depth else (False,),
        has_halves=both,
        strips=tuple(range(1, STRIPS + 1)) if is_packed else (1,),
        steps=(1, 2, UNROLLED_STEPS),
        prefetch=Space.either(None, prefetch),
    ).where(
        "strips have several steps of all turns",
        lambda takes_turns, strips, single_columns: (
            not takes_turns
            or strips == 1
            or facts.depth >= 2 * strips * (single_columns // facts.panel)
        ),
    )


def default_contraction(facts: ContractionFacts, machine: Cpu) -> ContractionParameters:
    """Blocks for the caches, tiles for the registers; panels that come from memory are read in
    order.
    """
    joined = _default_joined(facts, machine)
    rows, others = facts.rows[len(facts.rows) - joined :], facts.rows[: len(facts.rows) - joined]
    has_batch = 0 < joined < facts.joinable
    walk = others[:-1] if has_batch else others
    is_small = _has_small_right(facts, machine)
    block = _cache_block(facts, rows, machine) if rows and not walk else None
    is_streamed = facts.is_streamed
    # A panel that comes from memory is read for every image at once.
    walks_batch = has_batch and is_streamed and not is_small and block is None
    group = None if walk or walks_batch else _group_block(facts, rows, machine)
    block = block if group is None else group
    block = block if facts.owns_rows else None
    enough = machine.parallel_iterations
    has_enough = any((as_int(axis.extent) or enough) >= enough for axis in walk)
    steps = _product([axis.steps for axis in rows])
    blocks = None
    if block is not None:
        blocks = Blocks(block, tile_height(steps % block, machine), group is not None)
    prefetch = Prefetch(machine.l2_bytes // 2, machine.l1_bytes, FETCHED_LINES)
    is_reused = (as_int(steps) or 0) >= REUSED_ROWS
    return ContractionParameters(
        joined=joined,
        walks_batch=walks_batch,
        walks_outside=bool(walk) and is_small and has_enough,
        blocks=blocks,
        rows=tile_height(steps if block is None else Const(block), machine),
        single_columns=tile_columns(1, machine),
        pair_columns=tile_columns(2, machine),
        takes_turns=facts.panel_bytes > machine.l2_bytes // 4,
        has_halves=True,
        strips=max(1, _strips(facts)) if is_streamed and not is_reused else 1,
        steps=UNROLLED_STEPS if is_streamed else 1,
        prefetch=prefetch if is_streamed else None,
    )


def _default_joined(facts: ContractionFacts, machine: Cpu) -> int:
    """The number of row axes to join: all that can be joined, up to a symbolic axis (a batch)
    around rows that fill tiles without it. With a symbolic axis, the tile count would be known only
    at run time.
    """
    size: int | None = 1
    for count in range(facts.joinable):
        extent = as_int(facts.rows[-count - 1].extent)
        if extent is None and count and size is not None and size >= machine.tile.rows:
            return count
        size = None if size is None or extent is None else size * extent
    return facts.joinable


def _has_small_right(facts: ContractionFacts, machine: Cpu) -> bool:
    """True if half of the second-level cache holds the right operand."""
    columns = as_int(facts.column_extent)
    if columns is None or not facts.depth:
        return False
    return facts.depth * columns * 4 <= machine.l2_bytes // 2


def _cache_block(facts: ContractionFacts, rows: tuple[RowAxis, ...], machine: Cpu) -> int | None:
    """Rows of a block. If the first-level cache holds the right operand, a block is one tile, which
    then writes whole cache lines. Else a block has as many rows as the second-level cache holds;
    `None` if it holds all rows.
    """
    extents = [axis.extent for axis in rows]
    if 0 < facts.panel_bytes <= machine.l1_bytes // 2:
        return tile_height(_product(extents), machine)
    size = product(extents)
    if size is None or not facts.depth:
        return None
    row_bytes = facts.depth * 4 + LINE_BYTES  # a line of the result, half of which a panel writes
    available = machine.l2_bytes - machine.tile.columns * facts.depth * 4
    return _whole_tiles(size, row_bytes, available, machine)


def _group_block(facts: ContractionFacts, rows: tuple[RowAxis, ...], machine: Cpu) -> int | None:
    """Rows of a block that is multiplied by all groups. The cache holds the block, with all
    channels of both feature maps, beside the weights. `None` if there would be too few blocks for
    threads.
    """
    size = product([axis.extent for axis in rows])
    if facts.group is None or size is None or not facts.depth:
        return None
    channels = product([facts.group[1], Const(facts.depth) + facts.column_extent])
    if channels is None:
        return None
    block = _whole_tiles(size, channels * 4, machine.l2_bytes // 8, machine)
    return block if block is not None and size // block >= machine.parallel_iterations else None


def _whole_tiles(size: int, row_bytes: int, available: int, machine: Cpu) -> int | None:
    """Rows of equal blocks of whole tiles that fit into `available` bytes; `None` if all rows fit,
    or if equal blocks would be much smaller.
    """
    if size * row_bytes <= available:
        return None
    height = tile_height(Const(size), machine)
    tiles = size // height
    room = max(1, available // (row_bytes * height))
    block = divisors(tiles, min(room, tiles))[-1]
    return block * height if block < tiles and block * 4 >= room else None


def _strips(facts: ContractionFacts) -> int:
    """Strips of a page at least: a processor fetches ahead to the end of a page."""
    return min(STRIPS, facts.panel_size(facts.panel_width) // PAGE_BYTES)


def _product(extents: list[Expr]) -> Expr:
    """The product of extents, which may be symbolic."""
    total: Expr = Const(1)
    for extent in extents:
        total = total * extent
    return total
