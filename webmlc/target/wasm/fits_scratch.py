"""Tell whether a CPU kernel's intermediates fit in scratch memory, whose size is fixed at build
time.

In: a naive kernel. Out: False where scheduling and lowering leave an intermediate of symbolic size.
That happens where no rule computes the producer at its consumer, which would leave only a tile. It
also happens where a block updates elements that others write or read, because no rule moves such a
block.
"""

from __future__ import annotations

from webmlc.core.expr import as_int
from webmlc.core.machine import Machine
from webmlc.loops.ir import LoopFunction
from webmlc.loops.name_dimensions import name_dimensions
from webmlc.schedule.analysis import updates_others
from webmlc.schedule.rules import schedule_kernel
from webmlc.target.lower import lower
from webmlc.target.wasm.lowering import lowering


def fits_scratch(function: LoopFunction, machine: Machine) -> bool:
    """True where every allocation of the lowered kernel has a constant size."""
    if updates_others(function):
        return False
    if _has_constant_sizes(function):
        return True
    named = name_dimensions(function).function
    return _has_constant_sizes(lower(schedule_kernel(named, machine).function, machine, lowering))


def _has_constant_sizes(function: LoopFunction) -> bool:
    return all(as_int(size) is not None for b in function.allocations for size in b.shape)
