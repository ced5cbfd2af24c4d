"""Lowering: a scheduled loop function becomes the lowered form that `webmlc.target` defines.

In: a verified `LoopFunction` of blocks, the machine it was scheduled for, and the passes of the
machine's target. Out: the same function without blocks, with flat buffers, 4-lane vectors,
registers, and values bound once; it computes the same.

    lowered = lower(function, RELAXED, WASM.lowering)     # or targets.lower(function, RELAXED)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from webmlc.core.machine import Machine
from webmlc.loops.ir import LoopFunction

Pass = Callable[[LoopFunction], LoopFunction]
Lowering = Callable[[Machine], tuple[Pass, ...]]
"""The passes of a machine, in order. Machines that need the same passes get the same tuple."""


def lower(function: LoopFunction, machine: Machine, lowering: Lowering) -> LoopFunction:
    """The lowered form of `function` for `machine`.

    Functions that differ by their `origin` alone are equal: the result's may be the other's.
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
