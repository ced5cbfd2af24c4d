"""Decide whether a CPU kernel's intermediates fit in scratch memory, whose size is fixed at build
time.

In: a naive kernel. Out: False where scheduling and lowering leave an intermediate of symbolic size.
That happens where no rule computes the producer at its consumer, which would leave only a tile. It
also happens where a block updates elements that others write or read, because no rule moves such a
block. The cache of builds keeps the answer: to schedule and lower a kernel takes long.
"""

from __future__ import annotations

from webmlc.core.disk_cache import active_cache
from webmlc.core.expr import as_int
from webmlc.core.machine import Cpu
from webmlc.loops.content import kernel_key
from webmlc.loops.ir import LoopFunction
from webmlc.loops.name_dimensions import name_dimensions
from webmlc.schedule.analysis import updates_others
from webmlc.schedule.rules import schedule_kernel
from webmlc.target.lower import lower
from webmlc.target.wasm.lowering import lowering


def fits_scratch(function: LoopFunction, machine: Cpu) -> bool:
    """True where every allocation of the lowered kernel has a constant size."""
    if updates_others(function):
        return False
    if _has_constant_sizes(function):
        return True
    cache = active_cache()
    if cache is None:
        return _is_lowered_to_constant_sizes(function, machine)
    key = kernel_key("fits scratch", function, machine)
    answer = cache.get(key)
    if answer is not None:
        return bytes(answer) == b"yes"
    fits = _is_lowered_to_constant_sizes(function, machine)
    cache.put(key, b"yes" if fits else b"no")
    return fits


def _is_lowered_to_constant_sizes(function: LoopFunction, machine: Cpu) -> bool:
    """True where every allocation has a constant size after scheduling and lowering."""
    named = name_dimensions(function).function
    return _has_constant_sizes(lower(schedule_kernel(named, machine).function, machine, lowering))


def _has_constant_sizes(function: LoopFunction) -> bool:
    return all(as_int(size) is not None for b in function.allocations for size in b.shape)
