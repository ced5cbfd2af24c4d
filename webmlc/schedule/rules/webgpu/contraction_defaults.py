"""The default tiles and workgroups of contractions on a GPU.

Measured on an H200: a GPU is full with about 25,000 threads of a product. With fewer tiles than
threads, several threads divide the reduction of smaller tiles: the GPU is then full with twice as
many threads. Where barriers are slow, no threads divide a reduction.
"""

from __future__ import annotations

from msgspec.structs import replace

from webmlc.core.expr import Const, Expr, as_expr, as_int
from webmlc.core.machine import QUAD, Gpu
from webmlc.core.simplify import simplify
from webmlc.schedule.analysis import multiplies_bytes
from webmlc.schedule.rules.tiling.cover import divisors, unroll_factor
from webmlc.schedule.rules.webgpu.contraction_facts import (
    MOST_PARTS,
    PAIR,
    Divided,
    Facts,
    Parameters,
    Staged,
    can_divide,
    can_stage,
    cover_cost,
    multiple_of,
    paired_columns,
    stages,
)

STEPS = 4
"""Steps of the innermost reduction loop that are unrolled by default: a vec4 of the left
operand."""
BODY = 8
"""Steps of the reduction that are unrolled over several loops by default: shaders of small layers
stay short (an estimate, as old as the rule)."""
ACROSS = 8
"""Tiles of a row that a workgroup computes by default: 64 columns, and 8 rows of tiles below each
other, share lines of both operands (an estimate, as old as the rule)."""
STAGE_PRODUCTS = 1024
"""Multiply-adds of a thread that are written out between two copies, at most (measured on an H200:
loops instead cost 7 %; a longer stage of 8 by 8 elements lost a third)."""
SHORT_TILE = 8
"""Rows of the tile of a small product, at most."""
DEEP = 64
"""Steps of the reduction of a large product, at least. With fewer steps, its stores take as long as
its loads, and tiles of 16 rows gain nothing (measured on SwiftShader: 16 steps of MobileNetV2)."""
LARGE = 1 << 24
"""The fewest multiply-adds of a large product. Where threads share loads, tiles of 16 rows take a
fifth less time than tiles of 8 rows, but 90 ms longer to compile (measured on SwiftShader: 16
million multiply-adds take about 15 ms)."""
SMALL = 1 << 24
"""The most multiply-adds of a small product, whose tiles have 4 columns where threads share loads.
Small products take 30 to 60 ms less to compile then, and run up to a tenth longer (measured on
SwiftShader: with 1 << 23, MobileNetV2 and YOLOX-nano took 3 % less, and 14 and 18 % longer for the
first result)."""
HUGE = 1 << 26
"""The fewest multiply-adds of a product whose tiles have 16 columns where threads share loads. Such
products take a sixth less time then, but 130 ms longer to compile (measured on SwiftShader: 75
million take 42 and 34 ms)."""
PAIRED_TILES = 8
"""From this many tiles beside each other, quads take pairs of tiles even if a tile is left over:
the shader needs another section for that tile (chosen by hand)."""
SHORTEST_PART = 24
"""The fewest steps of the reduction in a part, by default. Measured on an H200, where a loop of
loads waits for each load: DeiT-tiny took 1.08 ms with parts of 64 steps, 0.73 with 32, and 0.66
with 24. A single row needs half the steps, because each step loads more than it computes."""


def default(facts: Facts, machine: Gpu) -> Parameters:
    """The first choice that fills a GPU, else the choice with the most threads. Large tiles come
    first, because they load each element less often; then few parts of the reduction. On a software
    adapter, a prompt gets the largest tile: a load takes as long as several multiply-adds of
    vectors.
    """
    choices = _default_choices(facts, machine)
    if machine.has_slow_barriers and _is_prompt(facts):
        return choices[0]
    threads = [facts.results // (c.rows * c.columns) * c.parts for c in choices]
    if not any(threads):
        return _staged(facts, choices[-1], machine)  # the row count is known only at run time
    for choice, count in zip(choices, threads, strict=True):
        staged = _staged(facts, choice, machine)
        if count >= _filling_threads(staged, machine):
            return staged
    return _staged(facts, choices[threads.index(max(threads))], machine)


def _is_prompt(facts: Facts) -> bool:
    """True if the number of rows is known only at run time, and the number of columns is constant.
    Symbolic columns are stored one by one, so that the text of tall tiles would be long.
    """
    if facts.rows is None or as_int(facts.rows) is not None or as_int(facts.columns) is None:
        return False
    return multiple_of(facts.rows) == 1


def _is_large(facts: Facts) -> bool:
    """True if a product takes long beside the compilation of a taller tile. Prompts do."""
    return facts.steps >= DEEP and (facts.products >= LARGE or _is_prompt(facts))


def _filling_threads(choice: Parameters, machine: Gpu) -> int:
    """The threads that fill a GPU."""
    if choice.parts > 1:
        return machine.divided_threads
    is_unstaged = machine.shared_bytes > 0 and choice.reduction is None
    return machine.product_threads // 2 if is_unstaged else machine.product_threads


def _staged(facts: Facts, tile: Parameters, machine: Gpu) -> Parameters:
    """The tile with the longest stage whose products are written out, if there is one."""
    if not machine.shared_bytes:
        return tile
    for steps in reversed(stages(facts)):
        is_short = steps * tile.rows * tile.columns <= STAGE_PRODUCTS
        if is_short and tile.reduction is None and can_stage(facts, tile, steps):
            return replace(tile, reduction=Staged(steps))
    return tile


def _default_choices(facts: Facts, machine: Gpu) -> list[Parameters]:
    """The tiles to choose from, large tiles first: two heights that cover the rows at little cost,
    and divisors of the rows where threads can divide the reduction. The tile of a single row may
    have half the columns.
    """
    tallest = machine.tile.rows if _is_large(facts) else min(machine.tile.rows, SHORT_TILE)
    most_steps, body = STEPS, BODY
    if multiplies_bytes(facts.function) and not machine.multiplies_words:
        most_steps, body = 1, STEPS  # the four bytes of a word are written out
    steps = unroll_factor(facts.depth, most_steps)
    width, across = _columns(facts, machine)
    whole = Parameters(machine.workgroup_size, 1, width, steps, body, across)
    if facts.rows is None:
        narrow = replace(whole, columns=facts.lanes)
        shared = [_divided(narrow, n) for n in _default_parts(facts, narrow, machine)[1:]]
        return [*(_divided(whole, n) for n in _default_parts(facts, whole, machine)), *shared]
    if facts.quad_rows == QUAD:
        tallest = min(tallest, SHORT_TILE)
    count = multiple_of(facts.rows)
    rows = facts.rows if machine.shared_bytes or count == 1 else Const(count)
    covering = {_default_rows(rows, most) for most in (tallest, tallest // 2)}
    exact = divisors(count, tallest)[-1]
    if not machine.shared_bytes and exact > tallest // 2:
        # Each tile loads its columns by itself, so few rows left over load as much as a full tile.
        covering = {exact, _default_rows(rows, tallest // 2)}
    if facts.quad_rows and count > 1:
        covering = {_quad_height(facts, count, most) for most in (tallest, tallest // 2)}
    divisors_of_rows = {n for n in range(3, tallest + 1) if count % n == 0}
    heights = sorted(covering | divisors_of_rows, reverse=True)
    divided_columns = machine.divided_tile.columns
    divided = replace(whole, workgroup=machine.divided_workgroup)
    return [
        _divided(replace(whole if parts == 1 else divided, rows=rows, columns=columns), parts)
        for columns in dict.fromkeys((width, divided_columns))
        for rows in heights
        for parts in _default_parts(facts, replace(divided, rows=rows, columns=columns), machine)
        if (columns == divided_columns or parts == 1) and (parts > 1 or rows in covering)
    ]


def _columns(facts: Facts, machine: Gpu) -> tuple[int, int]:
    """The columns of a tile, and the tiles of a row that a workgroup computes. If quads share
    loads, both are chosen so that the threads of each quad have the same rows.
    """
    width, count = machine.tile.columns, as_int(facts.columns)
    if "quads" in machine.features and count is not None:
        if facts.products >= HUGE and paired_columns(facts, 2 * width):
            return 2 * width, ACROSS // 2
        if (
            facts.products <= SMALL
            and facts.section_rows is not None
            and paired_columns(facts, width // 2)
        ):
            return width // 2, ACROSS
        for columns in (width, width // 2):
            for across in (ACROSS, ACROSS // 2):
                if count % (columns * across) == 0:
                    return columns, across
    return width, ACROSS


def quad_rows(facts: Facts, machine: Gpu) -> int:
    """The tiles below each other that the threads of a quad compute; 0 if the threads share no
    loads, or if there are too few rows. Two, if tiles beside each other make pairs and vectors of
    the left operand lie along the reduction. Else four, unless four tiles beside each other have
    the same rows anyway.
    """
    if "quads" not in machine.features or facts.rows is None:
        return 0
    row_count, count = multiple_of(facts.rows), as_int(facts.columns)
    has_unknown_rows = as_int(facts.rows) is None and row_count == 1
    if count is not None and count % machine.lanes:
        return 0
    width, across = _columns(facts, machine)
    tiles = 0 if count is None else count // width
    has_pairs = tiles >= PAIRED_TILES or (tiles > 0 and tiles % 2 == 0)
    below = QUAD
    if has_pairs and multiple_of(facts.depth) % machine.lanes == 0:
        below = PAIR
    elif tiles > 0 and unroll_factor(as_expr(tiles), across) % QUAD == 0:
        return 0
    return below if has_unknown_rows or row_count >= below * SHORT_TILE else 0


def _quad_height(facts: Facts, count: int, tallest: int) -> int:
    """The rows of a tile in quads, up to `tallest`, that cover `count` rows at the least cost."""

    def cost(height: int) -> float:
        return cover_cost(count, height, facts.quad_rows, facts.section_rows)[0]

    return min(range(1, tallest + 1), key=cost)


def _default_rows(extent: Expr, tallest: int) -> int:
    """The rows of a tile, up to `tallest`, that cover the rows at the least cost."""
    height = row_tile(extent, tallest)
    return row_tile(simplify(extent // height * height), tallest)


def _default_parts(facts: Facts, tile: Parameters, machine: Gpu) -> list[int]:
    """The numbers of parts that are long enough and leave no thread of a workgroup idle."""
    depth = facts.divided_depth
    if depth is None or not facts.can_share or machine.has_slow_barriers:
        return [1]
    shortest = SHORTEST_PART if tile.rows > 1 else SHORTEST_PART // 2
    return [
        parts
        for parts in divisors(depth, MOST_PARTS)
        if can_divide(facts, tile, parts)
        and facts.part_steps(parts) % tile.steps == 0
        and tile.workgroup % parts == 0
        and (parts == 1 or facts.steps // parts >= shortest)
    ]


def _divided(tile: Parameters, parts: int) -> Parameters:
    """The tile whose reduction some threads divide."""
    return tile if parts == 1 else replace(tile, reduction=Divided(parts))


def row_tile(extent: Expr, largest: int) -> int:
    """Rows of a thread's tile: the number that covers `extent` at the least cost."""
    count = as_int(extent)
    if count is None:
        return largest
    if count < largest:
        return count
    heights: list[int] = list(range(1, largest + 1))
    if largest == 4 and count % 5 == 0:
        heights.append(5)
    costs = [(_cost(count, height), height) for height in heights]
    return min(costs)[1]


def _cost(count: int, rows: int) -> tuple[int, int]:
    """The work for `count` rows: 1 for each row of a tile, 2 for the loads of its columns."""
    return (count // rows * (rows + 2) + count % rows * 3, -rows)
