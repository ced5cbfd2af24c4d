"""List the passes from a scheduled kernel to the form that the WGSL printer prints."""

from __future__ import annotations

from functools import lru_cache, partial

from webmlc.core.dtypes import DType
from webmlc.core.machine import Gpu
from webmlc.loops.write_out_combinations import write_out_combinations
from webmlc.target.byte_words import unpack_bytes
from webmlc.target.check_scopes import check_scopes
from webmlc.target.common_subexpressions import common_subexpressions
from webmlc.target.compact_buffers import compact_buffers
from webmlc.target.expand_vectors import expand_vectors
from webmlc.target.flatten_buffers import flatten_buffers
from webmlc.target.guard_division import guard_division
from webmlc.target.hoist_invariants import hoist_invariants
from webmlc.target.insert_barriers import insert_barriers
from webmlc.target.legalise_types import legalise_types
from webmlc.target.lower_blocks import clear_empty_reductions, lower_blocks
from webmlc.target.merge_guards import merge_guards
from webmlc.target.quarter_powers import expand_unsigned_powers
from webmlc.target.scalar_replacement import scalar_replacement
from webmlc.target.select_instructions import (
    instruction_features,
    match_lanes,
    select_instructions,
)
from webmlc.target.share_memory import share_memory
from webmlc.target.sum_in_blocks import sum_in_blocks
from webmlc.target.target import Pass
from webmlc.target.unroll_loops import unroll_loops
from webmlc.target.webgpu.choose_storage import choose_storage
from webmlc.target.webgpu.hoist_indices import hoist_indices
from webmlc.target.webgpu.join_updates import join_updates
from webmlc.target.webgpu.legalise import legalise
from webmlc.target.webgpu.names import shorten_names
from webmlc.target.webgpu.read_ahead import read_ahead
from webmlc.target.webgpu.read_late import read_late
from webmlc.target.webgpu.read_once import read_once
from webmlc.target.webgpu.roll_epilogues import roll_epilogues
from webmlc.target.webgpu.share_indices import share_indices
from webmlc.target.webgpu.widen_loads import widen_loads

SMALL_TYPES = frozenset({DType.float16, DType.bfloat16})
"""The small types that the printer widens and stores itself, by one call each."""


def lowering(machine: Gpu) -> tuple[Pass, ...]:
    """The passes for `machine`, in order."""
    passes = _passes(
        machine.vector_registers, instruction_features(machine), machine.compiles_slowly
    )
    return (*passes, read_once, read_ahead) if machine.reads_lines else (*passes, join_updates)


@lru_cache
def _passes(
    vector_registers: int, features: frozenset[str], compiles_slowly: bool
) -> tuple[Pass, ...]:
    rolling = (roll_epilogues,) if compiles_slowly else ()
    return (
        partial(select_instructions, device=Gpu.device, features=features),
        write_out_combinations,
        clear_empty_reductions,
        lower_blocks,
        merge_guards,
        compact_buffers,
        flatten_buffers,
        partial(expand_vectors, widens_instructions=True),
        *rolling,
        unroll_loops,
        scalar_replacement,
        sum_in_blocks,
        match_lanes,
        partial(legalise_types, printed=SMALL_TYPES),
        guard_division,
        expand_unsigned_powers,
        unpack_bytes,
        common_subexpressions,
        partial(hoist_invariants, vector_registers=vector_registers),
        check_scopes,
        insert_barriers,
    )


@lru_cache
def passes_to_print(features: frozenset[str], is_software: bool) -> tuple[Pass, ...]:
    """The passes from the lowered form to the form that the printer prints, in order. The text for
    a software adapter computes indices once, and reads late.
    """
    return (
        partial(share_memory, stays_apart=is_software),
        widen_loads,
        partial(choose_storage, features=features),
        *((read_late,) if is_software else ()),
        legalise,
        hoist_indices,
        *((share_indices,) if is_software else ()),
        shorten_names,
    )
