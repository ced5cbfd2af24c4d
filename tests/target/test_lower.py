"""Test that every pass keeps the meaning: by the interpreter after each pass, and by
wasmtime at the end.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.target.programs import PROGRAMS, gemm
from webmlc.core.expr import Const, Ramp
from webmlc.core.machine import RELAXED
from webmlc.core.rewrite import evaluate
from webmlc.loops import interp
from webmlc.loops.ir import Block, For, LoopFunction, Store, loads, stores, walk_statements
from webmlc.loops.text import parse_function
from webmlc.target.common_subexpressions import common_subexpressions
from webmlc.target.compact_buffers import compact_buffers
from webmlc.target.expand_vectors import expand_vectors
from webmlc.target.flatten_buffers import flatten_buffers
from webmlc.target.hoist_invariants import hoist_invariants
from webmlc.target.legalise_types import legalise_types
from webmlc.target.lower_blocks import lower_blocks
from webmlc.target.registers import register_lanes
from webmlc.target.scalar_replacement import scalar_replacement
from webmlc.target.targets import lower
from webmlc.target.unroll_loops import unroll_loops
from webmlc.target.wasm.legalise import legalise, legalise_division
from webmlc.target.wasm.reduce_strength import StrengthReduced, reduce_strength

Pass = Callable[[LoopFunction], LoopFunction]


def pointers(function: LoopFunction) -> LoopFunction:
    """The form that the printer receives, as a function."""
    return legalise_division(reduce_strength(function)).function


PASSES: dict[str, Pass] = {
    "lower_blocks": lower_blocks,
    "compact_buffers": compact_buffers,
    "flatten_buffers": flatten_buffers,
    "expand_vectors": expand_vectors,
    "unroll_loops": unroll_loops,
    "scalar_replacement": scalar_replacement,
    "legalise_types": legalise_types,
    "legalise": legalise,
    "common_subexpressions": common_subexpressions,
    "hoist_invariants": hoist_invariants,
    "reduce_strength": pointers,
}
"""The passes of the WASM target, in order."""
SYMBOLS = {"n": 5}
"""The values of the symbols."""


def arguments(function: LoopFunction) -> dict[str, np.ndarray]:
    """Random arguments of a function."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for buffer in function.params:
        shape = tuple(int(evaluate(e, SYMBOLS)) for e in buffer.shape)
        if buffer.dtype.is_float:
            arrays[buffer.name] = rng.standard_normal(shape).astype(buffer.dtype.numpy)
        elif buffer.dtype == "bool":
            arrays[buffer.name] = rng.random(shape) < 0.5
        elif buffer.name == "I":
            arrays[buffer.name] = rng.integers(0, 9, shape).astype(buffer.dtype.numpy)
        else:
            low = -100 if buffer.dtype.is_signed else 0
            arrays[buffer.name] = rng.integers(low, 100, shape).astype(buffer.dtype.numpy)
    return arrays


def interpreted(function: LoopFunction, like: LoopFunction) -> dict[str, np.ndarray]:
    """The arguments of `like` after the interpreter has run `function` on them."""
    arrays = arguments(like)
    interp.run(function, arrays, {s.name: SYMBOLS[s.name] for s in function.symbols})
    return arrays


def assert_equal(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Assert that the arrays are equal, up to rounding."""
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_pass_keeps_the_meaning(name) -> None:
    original = PROGRAMS[name]
    expected = interpreted(original, original)
    function = original
    for title, transform in PASSES.items():
        function = transform(function)
        try:
            assert_equal(interpreted(function, original), expected)
        except Exception as error:
            raise AssertionError(f"after {title}") from error


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("features", ["relaxed", "simd128"])
def test_wasm_computes_the_same(run_wasm, name, threads, features) -> None:
    original = PROGRAMS[name]
    expected = interpreted(original, original)
    arrays = arguments(original)
    run_wasm(lower(original, RELAXED), arrays, SYMBOLS, threads=threads, features=features)
    assert_equal(arrays, expected)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_result_is_in_the_lowered_form(name) -> None:
    lowered = lower(PROGRAMS[name], RELAXED)
    registers = register_lanes(lowered)
    for stmt in walk_statements(lowered.body):
        assert not isinstance(stmt, Block)
        if isinstance(stmt, For):
            assert stmt.kind in ("serial", "parallel")
    accesses = [(a.buffer, a.indices) for a in loads(lowered.body)]
    accesses += [(a.buffer, a.indices) for a in stores(lowered.body)]
    for buffer, indices in accesses:
        assert buffer in registers or len(buffer.shape) == len(indices) == 1
        if indices:
            assert indices[0].lanes in (1, 4)


def test_a_tile_is_held_in_registers() -> None:
    lowered = lower(gemm(12, 16, 5), RELAXED)
    lanes = register_lanes(lowered)
    assert [b for b in lowered.allocations if b not in lanes] == []
    (loop,) = [s for s in walk_statements(lowered.body) if isinstance(s, For) and s.var.name == "k"]
    in_loop = [s for s in walk_statements(loop.body) if isinstance(s, Store)]
    assert sum(s.buffer.name.startswith("Y_") for s in in_loop) == 12
    assert len(in_loop) == 12 + 2 + 6  # accumulators, vectors of B, splats of A


def test_a_loop_increments_one_pointer_per_operand() -> None:
    reduced: StrengthReduced = reduce_strength(lower(gemm(12, 16, 5), RELAXED))
    (loop,) = [
        s
        for s in walk_statements(reduced.function.body)
        if isinstance(s, For) and s.var.name == "k"
    ]
    increments = [
        s
        for s in walk_statements(loop.body)
        if isinstance(s, Store) and s.buffer in reduced.pointers
    ]
    assert {s.buffer.name.split("_")[0] for s in increments} == {"A", "B"}
    assert len(increments) == 2


ROWS = """
@T.kernel
def rows(A: T.Buffer((3 * n * 7,), "float32"), B: T.Output((n,), "float32"), n: T.symbol):
    for i in range(n):
        with T.block("B"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi * 7] + A[vi * 7 + n * 7] + A[vi * 7 + n * 14]
"""


def test_a_pointer_is_set_relative_to_a_nearby_pointer() -> None:
    reduced = reduce_strength(lower(parse_function(ROWS), RELAXED))
    owners = reduced.pointers
    starts = [
        s for s in stores(reduced.function.body) if owners.get(s.buffer, s.buffer).name == "A"
    ]
    buffers_read = [{load.buffer for load in loads(s)} - {s.buffer} for s in starts]
    assert sum(bool(buffers & owners.keys()) for buffers in buffers_read) == 2


def test_a_buffer_of_carried_values_keeps_its_size() -> None:
    compact = compact_buffers(lower_blocks(PROGRAMS["carried"]))
    assert compact.allocations[0].shape == (Const(6),)


def test_a_buffer_shrinks_to_the_window_of_one_iteration() -> None:
    compact = compact_buffers(lower_blocks(PROGRAMS["padded"]))
    assert compact.allocations[0].shape == (Const(5 * 8),)


def test_the_remainder_of_a_vector_loop_is_scalar() -> None:
    lowered = lower(PROGRAMS["uneven"], RELAXED)
    widths = {s.indices[0].lanes for s in stores(lowered.body) if s.buffer.name == "Y"}
    assert widths == {1, 4}
    assert any(isinstance(s.indices[0], Ramp) for s in stores(lowered.body) if s.indices)
