"""The blocks of a softmax whose exponentials weigh other values, as attention has them.

In: the blocks of a kernel by name. Out: the names of the blocks that the schedules of both targets
distinguish:

    softmax_blocks(every)    # SoftmaxBlocks("logits", "max", "exponential", "sum_exp", "product")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from webmlc.loops.ir import Block, Load, stores
from webmlc.schedule.analysis import contraction_of, fold_of
from webmlc.schedule.primitives.roll_maximum import exponential_of
from webmlc.schedule.rules.tiling.axes import reads


class SoftmaxBlocks(NamedTuple):
    """The names of the blocks of logits, of the maximum, of exponentials relative to the maximum,
    of the sum of exponentials, and of the sums of their products with other values.
    """

    logits: str
    maximum: str
    exponentials: str
    total: str
    product: str


def softmax_blocks(every: Mapping[str, Block]) -> SoftmaxBlocks | None:
    """The blocks of the only softmax in a kernel; `None` if there is no softmax, if a buffer has
    several writers, or if other blocks read the exponentials.
    """
    exponentials = [name for name, block in every.items() if exponential_of(block) is not None]
    writers = {store.buffer.name: name for name, b in every.items() for store in stores(b.body)}
    if len(exponentials) != 1 or len(writers) != len(every):
        return None
    operands = exponential_of(every[exponentials[0]])
    if operands is None or not isinstance(operands[0], Load):
        return None
    logits, maximum = (writers.get(load.buffer.name) for load in (operands[0], operands[1]))
    readers = [b for b in every.values() if exponentials[0] in {writers.get(n) for n in reads(b)}]
    products = [b.name for b in readers if contraction_of(b) is not None]
    folds = {b.name: fold_of(b) for b in readers}
    totals = [name for name, fold in folds.items() if fold and isinstance(fold.value, Load)]
    if logits is None or maximum is None or (len(readers), len(products), len(totals)) != (2, 1, 1):
        return None
    return SoftmaxBlocks(logits, maximum, exponentials[0], totals[0], products[0])
