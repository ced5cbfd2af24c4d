"""How tall a register tile should be: a cost model of the tiles that cover the rows.

In: a number of rows and a machine. Out: the height whose tiles take the fewest cycles together. A
step of the reduction multiplies `rows` numbers by a vector of each panel; two multiply-adds start
in a cycle, and 8 have to be in flight.
"""

from __future__ import annotations

from webmlc.core.expr import Expr, as_int
from webmlc.core.machine import Cpu

CYCLES = (0.0, 1.1, 2.2, 4.0, 4.75, 5.4, 6.1)
"""Cycles that a reduction step takes for a tile of 0, 1, 2, ... rows and 8 columns (an estimate:
two multiply-adds start in a cycle, and at least 8 are in flight).

Tiles of one or two rows are 32 or 16 columns wide, which keeps 8 multiply-adds in flight, and count
a fraction.
"""
LATENCY = 4.0
"""Cycles that a multiply-add takes (x86-64): the lower bound of a step of a tile that is not
widened."""

UNROLLED_STEPS = 4
"""Steps of a reduction that one iteration of its loop takes, at most, in kernels that are worth the
code. Measured in Chromium on a product of 126 x 384 x 1536 in tiles of six rows: 4 steps take 4 %
less time than 1, and 8 steps 6 % less for twice the code.
"""


def tile_height(rows: Expr, machine: Cpu, widens: bool = True) -> int:
    """The height of the tiles that cover some rows at the least cost; the tallest for a symbolic
    number. `widens`: whether tiles of one or two rows have more columns than taller tiles.
    """
    count, tallest = as_int(rows), machine.tile.rows
    if count is None:
        return tallest
    heights = range(1, tallest + 1)
    best = min(heights, key=lambda height: (_cycles(count, height, widens), -height))
    return max(1, min(best, count))


def _cycles(count: int, height: int, widens: bool) -> float:
    """Cycles of a reduction step of all tiles, and of a last tile of the remaining rows."""
    full, left = divmod(count, height)
    least = 0.0 if widens else LATENCY
    return full * max(CYCLES[height], least) + (max(CYCLES[left], least) if left else 0.0)
