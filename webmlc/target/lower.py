"""Lower a scheduled loop function to the form that `webmlc.target` defines.

In: a verified `LoopFunction` of blocks, the machine it was scheduled for, and the passes of the
machine's target. Out: an equivalent function without blocks, with flat buffers, 4-lane vectors and
registers, in which each value is computed once.

    lowered = lower(function, RELAXED, WASM.lowering)     # or targets.lower(function, RELAXED)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from webmlc.core.machine import Machine
from webmlc.loops.ir import LoopFunction

M = TypeVar("M", bound=Machine)
Pass = Callable[[LoopFunction], LoopFunction]
Lowering = Callable[[M], tuple[Pass, ...]]
"""The passes of a machine, in order. Machines that need the same passes return the same tuple."""


def lower(function: LoopFunction, machine: M, lowering: Lowering[M]) -> LoopFunction:
    """Return the lowered form of `function` for `machine`.

    Functions that differ only in their `origin` are equal, so the result may have another's origin.
    """
    return _run(function, lowering(machine))


@lru_cache(maxsize=1024)
def _run(function: LoopFunction, passes: tuple[Pass, ...]) -> LoopFunction:
    """Run the passes. Cached: `split_kernels` has usually lowered this kernel already, and both
    WASM variants have one schedule for most kernels.
    """
    for step in passes:
        function = step(function)
    return function
