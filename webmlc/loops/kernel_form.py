"""The forms that the kernels of a device may have before they are scheduled.

A kernel that no shader can compute runs on the CPU of the same package, and `webmlc build` prints
the reason:

    >>> gpu_obstacle(kernel)           # of float64 buffers
    'a shader has no values of float64'
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from webmlc.core.bounds import SYMBOL, bounds
from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_int
from webmlc.core.machine import MAX_BINDING_BYTES, MAX_BINDINGS, Device
from webmlc.core.rewrite import bottom_up, variables
from webmlc.loops.ir import Block, Buffer, LoopFunction, blocks, expressions, walk_statements


def _no_obstacle(function: LoopFunction) -> str | None:
    """The answer of a device that runs every kernel."""
    return None


@dataclass(frozen=True, slots=True)
class KernelForm:
    """The form of a device's kernels.

    - `runs_blocks_in_order`: a block starts when all threads have finished the block before it, and
      the updates of a scatter run in order.
    - `binds_constants_apart`: a kernel that reads a constant differs from a kernel that reads an
      activation.
    - `displaces_buffers`: an argument may begin anywhere in a buffer. Otherwise it begins where the
      buffer does, because a binding must begin at a multiple of 256 bytes.
    - `obstacle`: the reason why a kernel cannot run on the device, or `None`.
    - `fallback`: the form of the kernels that have an obstacle.
    """

    device: Device
    runs_blocks_in_order: bool
    binds_constants_apart: bool = False
    displaces_buffers: bool = False
    obstacle: Callable[[LoopFunction], str | None] = _no_obstacle
    fallback: KernelForm | None = None


MAX_UPDATES_IN_ORDER = 1024
"""The largest number of updates that one GPU thread may execute in order.

A kernel with more runs on the CPU: the GPU would wait for that one thread. Chosen by hand.
"""


def gpu_obstacle(function: LoopFunction) -> str | None:
    """The reason why a kernel cannot run on the GPU, or `None` if it can."""
    if len(function.params) > MAX_BINDINGS:
        return f"{len(function.params)} buffers, of which a kernel can bind {MAX_BINDINGS}"
    largest = max((static_bytes(buffer) for buffer in function.params), default=0)
    if largest > MAX_BINDING_BYTES:
        return f"a buffer of {largest} bytes, of which a kernel can bind {MAX_BINDING_BYTES}"
    buffers = (*function.params, *function.allocations)
    roots = (root for stmt in walk_statements(function.body) for root in expressions(stmt))
    if any(b.dtype is DType.float64 for b in buffers) or any(map(_has_float64, roots)):
        return "a shader has no values of float64"
    if any(map(_has_long_order, blocks(function.body))):
        return "updates that depend on each other, of which one thread would do all"
    return None


@bottom_up()
def _has_float64(root: Expr) -> bool:
    """True if some part of an expression is of float64."""
    return root.dtype is DType.float64 or any(map(_has_float64, root.children))


def _has_long_order(block: Block) -> bool:
    """True if one thread would execute too many, or an unknown number of, updates in order.

    Updates run in order along their reduce axes, unlike reductions, so threads cannot share them.
    """
    if block.init is not None:
        return False
    extents = [axis.extent for axis in block.axes if axis.kind == "reduce"]
    largest = (bounds(n, dict.fromkeys(variables(n), SYMBOL)).high for n in extents)
    return math.prod(largest) > MAX_UPDATES_IN_ORDER


def static_bytes(buffer: Buffer) -> int:
    """The bytes of a buffer, or 0 if its size is symbolic."""
    return buffer.dtype.bytes * math.prod(as_int(size) or 0 for size in buffer.shape)


CPU_FORM = KernelForm("wasm", runs_blocks_in_order=True, displaces_buffers=True)
"""The form of kernels for WebAssembly, which runs every kernel."""
GPU_FORM = KernelForm(
    "webgpu",
    runs_blocks_in_order=False,
    binds_constants_apart=True,
    obstacle=gpu_obstacle,
    fallback=CPU_FORM,
)
"""The form of kernels for WebGPU."""
