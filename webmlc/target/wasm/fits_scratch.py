"""Can a CPU kernel's intermediates live in its scratch memory, whose size is fixed at build?

In: a naive kernel. Out: False where an intermediate of symbolic size is left when it is scheduled
and lowered: where no rule brings its producer to its reader, which leaves a tile of it; and where a
block updates what others write or read, for no rule brings it anywhere.
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
    """True where every allocation that is left has a known size."""
    if updates_others(function):
        return False
    if _has_known_sizes(function):
        return True
    named = name_dimensions(function).function
    return _has_known_sizes(lower(schedule_kernel(named, machine).function, machine, lowering))


def _has_known_sizes(function: LoopFunction) -> bool:
    return all(as_int(size) is not None for b in function.allocations for size in b.shape)
