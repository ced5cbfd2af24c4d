"""Which kernels have a form that a GPU runs.

In: a loop function, in any form. Out: why no shader computes it, or `None`. What has an obstacle
runs on the CPU of the same package, and `webmlc build` prints why.

    >>> gpu_obstacle(kernel)           # of float64 buffers
    'a shader has no values of float64'
"""

from __future__ import annotations

from webmlc.core.dtypes import DType
from webmlc.core.rewrite import walk
from webmlc.loops.ir import LoopFunction, expressions, walk_statements

MOST_BINDINGS = 8
"""Storage buffers of one kernel that every WebGPU device binds at once."""


def gpu_obstacle(function: LoopFunction) -> str | None:
    """Why a kernel cannot run on the GPU; `None` where it can."""
    if len(function.params) > MOST_BINDINGS:
        return f"{len(function.params)} buffers, of which a kernel can bind {MOST_BINDINGS}"
    types = {b.dtype for b in (*function.params, *function.allocations)}
    for stmt in walk_statements(function.body):
        types |= {value.dtype for root in expressions(stmt) for value in walk(root)}
    if DType.float64 in types:
        return "a shader has no values of float64"
    return None
