"""Attention: scores, softmax and the product with the values, a block of rows at a time.

In: a contraction, stages that keep its shape or reduce its columns, and a contraction of what they
make, whose result the last block writes. Out: one loop over blocks of rows with all stages under
it, so that the scores of a block stay in the second-level cache and no others exist:

    scores[1500, 1500] = q · k                    for block in T.parallel(125):
    p[1500, 1500] = softmax(scores)          ->       scores[12, 1500] = q[block] · k
    out[1500, 64] = p · v                             p[12, 1500] = softmax(scores)
                                                      out[block] = p · v
"""

from __future__ import annotations

from webmlc.core.expr import as_int
from webmlc.core.machine import Machine
from webmlc.schedule.analysis import contraction_of
from webmlc.schedule.rules.wasm.contraction import schedule_contraction
from webmlc.schedule.rules.wasm.nests import axis_loops, epilogue_of, extent_of
from webmlc.schedule.rules.wasm.rows import schedule_stage
from webmlc.schedule.schedule import Schedule


def schedule_attention(schedule: Schedule, machine: Machine) -> bool:
    """Schedule such a kernel; False where it is something else."""
    *producers, last = schedule.blocks()
    products = [name for name in producers if contraction_of(schedule.block(name)) is not None]
    if len(products) != 2 or products[0] != producers[0]:
        return False
    product = contraction_of(schedule.block(products[1]))
    logits, result = (epilogue_of(schedule.function, schedule.block(name)) for name in products)
    if product is None or result is None or result.name != last:
        return False
    spatial = [axis for axis in schedule.block(products[1]).axes if axis.kind == "spatial"]
    rows = [axis for axis in product.rows if as_int(axis.extent) != 1]
    columns = as_int(product.reduced[-1].extent)
    if len(rows) != 1 or columns is None:
        return False
    row = axis_loops(schedule, last)[spatial.index(rows[0])]
    size = None if row is None else extent_of(schedule, row)
    height = None if size is None else _block_rows(size, columns, machine)
    if row is None or height is None:
        return False
    block, _ = schedule.split(row, [None, height])
    fixed = schedule.loops(last).index(block) + 1
    for name in reversed(producers):
        schedule.compute_at(name, block)
    for name in producers:
        if name not in products and (logits is None or name != logits.name):
            schedule_stage(schedule, name, machine, fixed)
    return all(schedule_contraction(schedule, name, machine, fixed) for name in products)


def _block_rows(rows: int, columns: int, machine: Machine) -> int | None:
    """The height of a block: the largest that divides the rows, of whole tiles if there is one,
    whose scores and exponentials take half of the second-level cache at most.
    """
    tile, most = machine.tile.rows, machine.l2_bytes // 2 // (2 * 4 * columns)
    heights = [height for height in range(tile, most + 1) if rows % height == 0]
    return max(heights, key=lambda height: (height % tile == 0, height), default=None)
