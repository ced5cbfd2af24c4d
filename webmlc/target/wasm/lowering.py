"""List the passes that lower WASM kernels."""

from __future__ import annotations

from functools import lru_cache, partial

from webmlc.core.machine import Cpu
from webmlc.loops.write_out_combinations import write_out_combinations
from webmlc.target.common_subexpressions import common_subexpressions
from webmlc.target.compact_buffers import compact_buffers
from webmlc.target.expand_vectors import expand_vectors
from webmlc.target.flatten_buffers import flatten_buffers
from webmlc.target.guard_division import guard_division
from webmlc.target.hoist_clamps import hoist_clamps
from webmlc.target.hoist_invariants import hoist_invariants
from webmlc.target.legalise_types import legalise_types
from webmlc.target.lower_blocks import clear_empty_reductions, lower_blocks
from webmlc.target.quarter_powers import expand_unsigned_powers
from webmlc.target.scalar_replacement import scalar_replacement
from webmlc.target.select_instructions import (
    instruction_features,
    match_lanes,
    select_instructions,
)
from webmlc.target.sum_in_blocks import sum_in_blocks
from webmlc.target.target import Pass
from webmlc.target.unroll_loops import unroll_loops
from webmlc.target.wasm.legalise import legalise
from webmlc.target.wasm.pair_loads import pair_loads
from webmlc.target.wasm.sum_in_pairs import sum_in_pairs


def lowering(machine: Cpu) -> tuple[Pass, ...]:
    """The passes for `machine`, in order."""
    sums_in_pairs = "pairs" in machine.features
    return _passes(machine.vector_registers, instruction_features(machine), sums_in_pairs)


@lru_cache
def _passes(
    vector_registers: int, features: frozenset[str], sums_in_pairs: bool
) -> tuple[Pass, ...]:
    return (
        partial(select_instructions, device=Cpu.device, features=features),
        write_out_combinations,
        clear_empty_reductions,
        lower_blocks,
        compact_buffers,
        flatten_buffers,
        hoist_clamps,
        expand_vectors,
        unroll_loops,
        scalar_replacement,
        sum_in_blocks,
        *((sum_in_pairs,) if sums_in_pairs else ()),
        match_lanes,
        legalise_types,
        guard_division,
        expand_unsigned_powers,
        legalise,
        common_subexpressions,
        partial(hoist_invariants, vector_registers=vector_registers),
        partial(pair_loads, vector_registers=vector_registers),
    )
