"""Lowering: a scheduled loop function becomes the lowered form that `webmlc.target` defines.

In: a verified `LoopFunction` of blocks and the machine it was scheduled for. Out: the same
function without blocks, with flat buffers, 4-lane vectors, registers, and values bound once; it
computes the same.

    lowered = lower(function, RELAXED)
"""

from __future__ import annotations

from functools import lru_cache

from webmlc.core.dtypes import DType
from webmlc.core.machine import Machine
from webmlc.loops.ir import LoopFunction
from webmlc.target.check_scopes import check_scopes
from webmlc.target.common_subexpressions import common_subexpressions
from webmlc.target.compact_buffers import compact_buffers
from webmlc.target.expand_vectors import expand_vectors
from webmlc.target.flatten_buffers import flatten_buffers
from webmlc.target.guard_division import guard_division
from webmlc.target.hoist_invariants import hoist_invariants
from webmlc.target.insert_barriers import insert_barriers
from webmlc.target.legalise_types import legalise_types
from webmlc.target.lower_blocks import lower_blocks
from webmlc.target.merge_guards import merge_guards
from webmlc.target.scalar_replacement import scalar_replacement
from webmlc.target.unroll_loops import unroll_loops
from webmlc.target.wasm.legalise import legalise as legalise_for_wasm

GPU_TYPES = frozenset({DType.float16, DType.bfloat16})
"""Small types that the WebGPU target widens and stores itself: by one call each."""


def lower(function: LoopFunction, machine: Machine) -> LoopFunction:
    """The lowered form of `function` for `machine`; kept, for `split_kernels` asks first, and both
    WASM variants have one schedule for most kernels.

    Functions that differ by their `origin` alone are equal: the result's may be the other's.
    """
    return _lower(function, machine.name, machine.vector_registers, "dot" in machine.features)


@lru_cache(maxsize=1024)
def _lower(
    function: LoopFunction, target: str, vector_registers: int, has_dot: bool
) -> LoopFunction:
    """What of a machine lowering depends on, and no more, is its key."""
    function = lower_blocks(function)
    if target == "webgpu":
        function = merge_guards(function)
    function = compact_buffers(function)
    function = flatten_buffers(function)
    function = expand_vectors(function)
    function = unroll_loops(function)
    function = scalar_replacement(function)
    function = legalise_types(function, GPU_TYPES if target == "webgpu" else frozenset())
    function = guard_division(function)
    if target == "wasm":
        function = legalise_for_wasm(function, has_dot)
    function = common_subexpressions(function)
    function = hoist_invariants(function, vector_registers)
    if target == "webgpu":
        check_scopes(function)
        function = insert_barriers(function)
    return function
