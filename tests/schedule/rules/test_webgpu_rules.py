"""Every GPU rule: the scheduled function, its lowered form and its shader compute what the naive
one does.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from tests.schedule.rules import kernels as k
from tests.schedule.test_spaces import GPU
from tests.target.webgpu import gpu
from webmlc.core.machine import (
    MAX_WORKGROUP_BYTES,
    SOFTWARE,
    SOFTWARE_SUBGROUPS,
    WEBGPU,
    Machine,
)
from webmlc.graph.algorithms.winograd.operators import Form
from webmlc.loops.interp import run
from webmlc.loops.ir import LoopFunction
from webmlc.loops.verify import verify
from webmlc.schedule.rules import choose_rule, find_match, match_kernel
from webmlc.schedule.rules.webgpu.contraction_facts import Divided, Staged
from webmlc.schedule.schedule import Schedule, replay
from webmlc.target.share_memory import shared_bytes
from webmlc.target.targets import lower, machine_of
from webmlc.target.webgpu.emit_shaders import emit_shaders

HERE = Path(__file__).parent

S = k.S
Case = tuple[str, LoopFunction, dict[str, int]]
CASES: dict[str, Case] = {
    **{
        f"matmul {m}x{n}": ("contraction", k.matmul(m, n, 12), {})
        for m, n in [(1, 45), (5, 8), (7, 12), (8, 16), (9, 3), (13, 10), (64, 40), (77, 24)]
    },
    "matmul, odd depth": ("contraction", k.matmul(16, 16, 7), {}),
    "matmul, no epilogue": ("contraction", k.matmul(13, 20, 4, epilogue=False), {}),
    "matmul, divided": ("contraction", k.matmul(8, 64, 256), {}),
    "matmul, divided, no epilogue": ("contraction", k.matmul(12, 40, 128, epilogue=False), {}),
    "matmul, one row, divided": ("contraction", k.matmul(1, 40, 320), {}),
    "matmul, divided, odd parts": ("contraction", k.matmul(6, 8, 105), {}),
    "conv 3x3, divided": ("contraction", k.convolution(7, 7, 24, 16, 3), {}),
    "conv 3x3, divided, few channels": ("contraction", k.convolution(16, 16, 32, 16, 3), {}),
    "conv 1x1 stride 2, batch, divided": ("contraction", k.convolution(5, 6, 96, 16, 1, 2, 2), {}),
    "conv 3x3, divided, symbolic batch": (
        "contraction",
        k.convolution(7, 7, 32, 16, 3, batch=S),
        {"s": 2},
    ),
    "conv of patches, divided": (
        "contraction",
        k.convolution(4, 4, 3, 16, 8, 8, batch=S),
        {"s": 2},
    ),
    "matmul, divided, rows left over": ("contraction", k.matmul(21, 64, 256), {}),
    "matmul, divided, symbolic rows": ("contraction", k.matmul(S, 48, 256), {"s": 6}),
    "matmul, divided, one of the symbolic rows": ("contraction", k.matmul(S, 48, 256), {"s": 1}),
    "matmul, symbolic rows": ("contraction", k.matmul(S, 40, 4), {"s": 21}),
    "matmul, one symbolic row": ("contraction", k.matmul(S, 40, 4), {"s": 1}),
    "attention": ("contraction", k.attention_scores(2, 7, 16, 8), {}),
    "attention, symbolic": ("contraction", k.packed_scores(2, S, S, 8), {"s": 11}),
    "attention in steps": ("attention", k.masked_attention(2, S, 8), {"s": 70}),
    "attention in steps, odd width": ("attention", k.masked_attention(S, S, 7), {"s": 3}),
    "attention in tiles": ("attention", k.attention_of_heads(2, 3, 32, 70, 16), {}),
    "attention in tiles and rows": ("attention", k.attention_of_heads(1, 2, 37, 37, 12), {}),
    "attention of few rows": ("attention", k.attention_of_heads(2, 3, 5, 33, 8), {}),
    "attention of heads, symbolic": ("attention", k.attention_of_heads(S, 2, S, S, 8), {"s": 19}),
    "transposed matmul": ("window", k.transposed_matmul(5, 3, 40), {}),
    "conv 3x3": ("contraction", k.convolution(7, 7, 3, 16, 3), {}),
    "conv 3x3, odd channels": ("contraction", k.convolution(7, 14, 3, 13, 3), {}),
    "conv 3x3 stride 2, batch": ("contraction", k.convolution(5, 5, 8, 8, 3, 2, 2), {}),
    "conv 1x1": ("contraction", k.convolution(14, 3, 4, 40, 1), {}),
    "conv 1x1, symbolic batch": ("contraction", k.convolution(3, 3, 4, 8, 1, batch=S), {"s": 2}),
    "conv 3x3, symbolic size": ("contraction", k.convolution(S, S, 3, 8, 3), {"s": 9}),
    "conv 3x3 in a border": ("slabs", k.bordered(k.convolution(7, 7, 3, 16, 3), 7, 7, 16), {}),
    "conv 3x3 in a border, symbolic size": (
        "slabs",
        k.bordered(k.convolution(S, S, 3, 8, 3), S, S, 8),
        {"s": 8},
    ),
    "conv 3x3, divided, in a border": (
        "slabs",
        k.bordered(k.convolution(7, 7, 24, 16, 3), 7, 7, 16),
        {},
    ),
    "depthwise in a border": ("slabs", k.bordered(k.depthwise(7, 7, 20, 3), 7, 7, 20), {}),
    "odd channels in a border": (
        "slabs",
        k.bordered(k.convolution(7, 14, 3, 13, 3), 7, 14, 13),
        {},
    ),
    "depthwise": ("window", k.depthwise(7, 7, 20, 3), {}),
    "depthwise stride 2": ("window", k.depthwise(6, 8, 8, 3, 2), {}),
    "depthwise 5x5": ("columns", k.depthwise(8, 8, 13, 5, epilogue=False), {}),
    "depthwise, symbolic size": ("window", k.depthwise(S, S, 8, 3), {"s": 6}),
    "max pool": ("window", k.pool(5, 12, 3, "relaxed_max"), {}),
    "average pool": ("window", k.pool(6, 12, 2, "add"), {}),
    "global average": ("columns", k.global_average(7, 40), {}),
    "global average, small": ("window", k.global_average(3, 40), {}),
    "global average, odd channels": ("columns", k.global_average(9, 21), {}),
    "global average, symbolic": ("columns", k.global_average(S, 5), {"s": 3}),
    "softmax": ("rows", k.softmax(5, 40), {}),
    "softmax, odd": ("reduction", k.softmax(4, 129), {}),
    "softmax over channels": ("rows", k.softmax(2, 5, 3, 8, axis=1), {}),
    "softmax, symbolic": ("reduction", k.softmax(S, S), {"s": 37}),
    "softmax over channels, symbolic": ("rows", k.softmax(2, 5, S, S, axis=1), {"s": 4}),
    "layer norm": ("reduction", k.layer_norm(2, 3, 70), {}),
    "layer norm, symbolic": ("rows", k.layer_norm(S, 3, 9), {"s": 2}),
    "row sums": ("reduction", k.total(4, 100, keep=1), {}),
    "row sums, symbolic": ("reduction", k.total(3, S, keep=1), {"s": 50}),
    "sum": ("reduction", k.total(8, 16), {}),
    "long sum": ("reduction", k.total(20, 30), {}),
    "long sum, symbolic": ("reduction", k.total(S, S), {"s": 23}),
    "long row sums": ("reduction", k.total(3, 1000, keep=1), {}),
    "long row sums, no remainder": ("reduction", k.total(3, 1024, keep=1), {}),
    "long row sums, two symbols": ("reduction", k.total(3, S, S, keep=1), {"s": 21}),
    "long row sums, symbolic rows": ("reduction", k.total(S, 300, keep=1), {"s": 2}),
    **{
        f"long row {c}": ("reduction", k.total(2, 300, keep=1, combine=c), {})
        for c in ("max", "min", "mul")
    },
    "column sums": ("columns", k.column_sums(700, 8), {}),
    "column sums, symbolic rows": ("columns", k.column_sums(S, 12), {"s": 301}),
    "column sums, symbolic columns": ("columns", k.column_sums(70, S), {"s": 19}),
    "column sums, symbolic": ("columns", k.column_sums(S, S), {"s": 23}),
    "column sums, symbolic batch": ("columns", k.batch_sums(S, 200, 20), {"s": 3}),
    **{
        f"columns {c}": ("columns", k.column_sums(90, 20, combine=c), {})
        for c in ("max", "min", "mul")
    },
    "columns that fill the GPU": ("window", k.column_sums(20, 33_000), {}),
    "long softmax": ("reduction", k.softmax(3, 1000), {}),
    "long layer norm": ("reduction", k.layer_norm(2, 3, 384), {}),
    "long layer norm, symbolic": ("reduction", k.layer_norm(S, 3, 300), {"s": 2}),
    "long transposed matmul": ("reduction", k.transposed_matmul(2, 3, 300), {}),
    **{f"transform of {c} channels": ("transform", k.winograd_input(3, c), {}) for c in (4, 20)},
    "transform, windows of one column": ("transform", k.winograd_rows(7, 8), {}),
    "transform to outputs": ("transform", k.winograd_output(Form(3, 1, 4, 3), 8, 8), {}),
    "transform to outputs, no whole tiles, symbolic batch": (
        "transform",
        k.winograd_output(Form(3, 1, 3, 3), 7, 8, S),
        {"s": 2},
    ),
    "transform to outputs in a border": (
        "slabs",
        k.bordered(k.winograd_output(Form(3, 1, 2, 3), 7, 8), 7, 7, 8),
        {},
    ),
    "add": ("pointwise", k.add(2, 3, 5, 7), {}),
    "add, symbolic": ("pointwise", k.add(S, 4, 3), {"s": 5}),
    "add scalars": ("pointwise", k.add(), {}),
    "add bias": ("pointwise", k.add_bias(2, 3, 4, 10), {}),
    "add bias, symbolic": ("pointwise", k.add_bias(S, S), {"s": 9}),
    "transpose to NHWC": ("pointwise", k.transpose((0, 2, 3, 1), 1, 3, 8, 8), {}),
    "transpose blocks": ("transpose", k.transpose((1, 0), 32, 48), {}),
    "transpose heads": ("pointwise", k.transpose((0, 2, 1, 3), 2, 3, 4, 16), {}),
    "transpose, symbolic": ("pointwise", k.transpose((1, 0), S, 8), {"s": 5}),
}


STAGED: dict[str, tuple[LoopFunction, dict[str, int]]] = {
    "matmul": (k.matmul(64, 128, 32), {}),
    "matmul, rows left over": (k.matmul(85, 64, 16, epilogue=False), {}),
    "matmul, columns left over": (k.matmul(64, 100, 32), {}),
    "conv 3x3": (k.convolution(8, 12, 16, 32, 3), {}),
    "conv 3x3, a stage for each tap": (k.convolution(8, 8, 8, 64, 3), {}),
    "conv 1x1, symbolic batch": (k.convolution(8, 8, 16, 64, 1, batch=S), {"s": 2}),
}
"""Products that are too small to be staged by default."""
SOFTWARE_CASES: dict[str, Case] = {
    "matmul": ("contraction", k.matmul(77, 24, 12), {}),
    "softmax, odd": ("rows", k.softmax(4, 129), {}),
    "layer norm": ("rows", k.layer_norm(2, 3, 70), {}),
    "long softmax": ("rows", k.softmax(8, 300), {}),
    "long softmax of few rows": ("reduction", k.softmax(7, 300), {}),
    "long layer norm, symbolic": ("rows", k.layer_norm(S, 3, 300), {"s": 2}),
    "scores of a symbolic number of keys": (
        "contraction",
        k.packed_scores(2, S, S, 8),
        {"s": 21},
    ),
    "row sums": ("window", k.total(4, 100, keep=1), {}),
    "column sums": ("window", k.column_sums(700, 8), {}),
    "sum": ("rows", k.total(8, 16), {}),
    "conv in groups": ("window", k.grouped_convolution(8, 4, 16, 16, 1), {}),
    "conv in groups of 9": ("window", k.grouped_convolution(8, 4, 16, 9, 1), {}),
    "transpose blocks": ("pointwise", k.transpose((1, 0), 32, 48), {}),
    "transform": ("transform", k.winograd_input(3, 20), {}),
    "transform, windows of one column": ("transform", k.winograd_rows(7, 8), {}),
    "transform to outputs in a border": (
        "slabs",
        k.bordered(k.winograd_output(Form(3, 1, 4, 3), 10, 8), 10, 10, 8),
        {},
    ),
}
"""Kernels that software adapters compute in another way than GPUs."""


TESTED = {rule for rule, _, _ in CASES.values()}
SMALL_CASES = {f"small {name}": case for name, case in GPU.items() if case[0] not in TESTED}
"""The cases of the tests of spaces for rules without cases here: each rule has one there."""


@pytest.mark.parametrize(
    "case", [*CASES.values(), *SMALL_CASES.values()], ids=[*CASES, *SMALL_CASES]
)
def test_schedule_and_shader_keep_the_meaning(case: Case) -> None:
    rule, function, symbols = case
    chosen, schedule = choose_rule(function, WEBGPU)
    assert chosen == rule
    _keeps_the_meaning(function, schedule, symbols)


@pytest.mark.parametrize("case", SOFTWARE_CASES.values(), ids=SOFTWARE_CASES)
def test_software_adapters_have_schedules_of_their_own(case: Case) -> None:
    rule, function, symbols = case
    chosen, schedule = choose_rule(function, SOFTWARE)
    assert chosen == rule
    _keeps_the_meaning(function, schedule, symbols)


def test_threads_divide_no_product_where_barriers_are_slow() -> None:
    function = k.matmul(49, 64, 2048)
    for machine, divides in ((WEBGPU, True), (SOFTWARE, False)):
        match = find_match(function, machine)
        assert (match.default().parts > 1) == divides
        assert ("workgroupBarrier" in _shader(function, machine)) == divides


def test_four_bytes_are_written_out_where_words_are_unpacked() -> None:
    """And not four words of them: the text of the shader would be three times as long."""
    function = k.matmul_of_words(784, 128, 288)
    for machine, steps in ((WEBGPU, 4), (SOFTWARE, 1)):
        assert find_match(function, machine).default().steps == steps


@pytest.mark.parametrize("function", [k.depthwise(4, 6, 12, 3), k.pool(6, 12, 2, "relaxed_max")])
def test_threads_that_run_four_at_once_compute_single_results_of_windows(
    function: LoopFunction,
) -> None:
    assert "array<f32>" in _shader(function, machine_of(function, SOFTWARE_SUBGROUPS))
    for machine, is_vectorized in ((SOFTWARE, True), (SOFTWARE_SUBGROUPS, False)):
        match = find_match(function, machine)
        assert match.default().is_vectorized == is_vectorized
        assert match.default().neighbours == 3
        _keeps_the_meaning(function, match.build(match.default()), {})


def test_a_thread_of_a_depthwise_convolution_of_bytes_stores_whole_words() -> None:
    function = k.depthwise_of_bytes(4, 6, 12)
    assert "atomic" not in _shader(function, SOFTWARE_SUBGROUPS)
    match = find_match(function, SOFTWARE_SUBGROUPS)
    assert match.default().is_vectorized and match.default().neighbours == 3
    _keeps_the_meaning(function, match.build(match.default()), {})


def test_threads_that_share_loads_have_taller_tiles_of_large_products() -> None:
    for rows, machine, height in (
        (3136, SOFTWARE, 8),
        (3136, SOFTWARE_SUBGROUPS, 16),
        (784, SOFTWARE_SUBGROUPS, 8),  # a small product
        (3136 * S, SOFTWARE_SUBGROUPS, 16),
        (S, SOFTWARE_SUBGROUPS, 16),
    ):
        match = find_match(k.matmul(rows, 64, 128), machine)
        assert match.default().rows == height, (rows, machine)


def test_no_tile_is_taller_than_the_rows_of_one_batch() -> None:
    match = find_match(k.matmul(8 * S, 1024, 4096), SOFTWARE_SUBGROUPS)
    assert match.default().rows == 8


@pytest.mark.parametrize(
    ("function", "loaded", "swapped"),
    [
        (k.matmul(64, 64, 8), "quad_swaps_2_f32(a_0[", "quadSwapY("),
        (k.matmul(8, 64, 8), "quad_swaps_0_f32(a_0[", "+ quad_offset3]"),
        (k.matmul(64 * S, 24, 8), "vec4f(a_0[", "quadSwapDiagonal("),
        (k.packed_scores(1, 64, S, 8), "vec4f(a_0[", "quadSwapDiagonal("),
    ],
    ids=["squares", "few rows", "few columns", "symbolic columns"],
)
def test_quads_share_the_loads_of_rows_or_of_columns(
    function: LoopFunction, loaded: str, swapped: str
) -> None:
    text = _shader(function, SOFTWARE_SUBGROUPS)
    assert loaded in text and swapped in text


def test_quads_take_pairs_of_an_odd_number_of_tiles() -> None:
    """Of 15 tiles beside each other, the last one is shared by four threads below each other, if
    nobody knows how many rows would be computed twice otherwise.
    """
    text = _shader(k.matmul(64 * S, 120, 8), SOFTWARE_SUBGROUPS)
    pairs, last = text[text.index("@compute") :].split("if (group >= ")
    assert "quadSwapY(r" in pairs and "quadSwapDiagonal(" not in pairs
    assert "quadSwapDiagonal(r" in last


@pytest.mark.parametrize(
    "machine", [SOFTWARE, SOFTWARE_SUBGROUPS], ids=lambda m: sorted(m.features)
)
@pytest.mark.parametrize(("rows", "columns"), [(79, 332), (79, 64), (64, 332)])
def test_the_last_tiles_overlap_instead_of_a_section(
    machine: Machine, rows: int, columns: int
) -> None:
    function = k.matmul(rows, columns, 8)
    text = _shader(function, machine)
    has_rest = columns % 8 and "quads" not in machine.features
    assert text.count("if (group") == (2 if has_rest else 0)
    match = find_match(function, machine)
    _keeps_the_meaning(function, match.build(match.default()), {})


def test_huge_products_have_wide_tiles_where_quads_share_loads() -> None:
    for rows, columns in {512: 16, 256: 8}.items():
        match = find_match(k.matmul(rows, 512, 256), SOFTWARE_SUBGROUPS)
        assert match.default().columns == columns


def test_pairs_share_the_loads_of_long_windows_on_software_adapters() -> None:
    function = k.grouped_convolution(16, 4, 4, 6, 2)
    match = find_match(function, SOFTWARE)
    assert match.rule.name == "window"
    _keeps_the_meaning(function, match.build(match.default()), {})
    sums = {
        (machine, channels): _shader(k.grouped_convolution(16, 4, 4, channels, 2), machine).count(
            "= 0.0f;"
        )
        for machine in (SOFTWARE, WEBGPU)
        for channels in (6, 9)
    }
    rows = match.default().neighbours
    assert sums == {(SOFTWARE, 6): 2 * rows, (SOFTWARE, 9): rows, (WEBGPU, 6): 1, (WEBGPU, 9): 1}


@pytest.mark.parametrize("machine", [SOFTWARE, WEBGPU], ids=["software", "gpu"])
def test_a_thread_transforms_one_channel(machine: Machine) -> None:
    assert "vec4f" not in _shader(k.winograd_input(3, 20), machine)


@pytest.mark.parametrize("case", STAGED.values(), ids=STAGED)
def test_staged_products_keep_the_meaning(case: tuple[LoopFunction, dict[str, int]]) -> None:
    function, symbols = case
    match = find_match(function, WEBGPU)
    staged = structs.replace(
        match.default(), rows=4, columns=8, workgroup=32, across=4, reduction=Staged(8)
    )
    assert staged in match.space()
    schedule = match.build(staged)
    lowered = lower(schedule.function, WEBGPU)
    assert any(buffer.scope == "shared" for buffer in lowered.allocations)
    _keeps_the_meaning(function, schedule, symbols)


def test_each_part_of_a_reduction_has_a_loop() -> None:
    match = find_match(k.matmul(7, 12, 12), WEBGPU)
    tile = structs.replace(match.default(), rows=5, columns=4, steps=1, across=1, workgroup=128)
    assert structs.replace(tile, reduction=Divided(6)) in match.space()
    assert structs.replace(tile, reduction=Divided(12)) not in match.space()


def _keeps_the_meaning(function: LoopFunction, schedule: Schedule, symbols: dict[str, int]) -> None:
    """The schedule, its lowered form and its shader compute what the function does."""
    verify(schedule.function)
    assert replay(function, schedule.trace) == schedule.function
    want = k.outputs_of(function, symbols)
    lowered = lower(schedule.function, WEBGPU)
    for stage in (schedule.function, lowered):
        data = k.arguments(function, symbols)
        run(stage, data, symbols)
        _equal([data[b.name] for b in function.params[-function.outputs :]], want)
    _equal(list(gpu.run_on_gpu(lowered, k.arguments(function, symbols), symbols).values()), want)


def _equal(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    """Compare results. Large terms may cancel, so the least tolerance grows with the results."""
    for result, expected in zip(got, want, strict=True):
        least = max(2e-5, 1e-6 * float(np.abs(expected).max(initial=0)))
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=least)


def test_attention_to_no_keys_is_zero() -> None:
    """A sum over nothing, not a quotient of zeros."""
    function = k.attention_of_heads(1, 2, 3, S, 8)
    lowered = lower(choose_rule(function, WEBGPU)[1].function, WEBGPU)
    data = k.arguments(function, {"s": 0})
    run(lowered, data, {"s": 0})
    result = data[function.params[-1].name]
    assert result.shape == (1, 3, 2, 8)
    np.testing.assert_array_equal(result, 0)


def _shader(function: LoopFunction, machine: Machine = WEBGPU) -> str:
    lowered = lower(choose_rule(function, machine)[1].function, machine)
    constants = {"kernel": frozenset({"a", "b", "c"})}
    return emit_shaders({"kernel": lowered}, constants, machine.features).text


@pytest.mark.parametrize(("size", "rows"), [(64, 4), (1024, 8)])
def test_the_tile_is_in_registers(size: int, rows: int) -> None:
    """Per 4 steps of the reduction: a vec4 a row, 8 of the columns, which are two matrices, and two
    products with matrices a row.
    """
    text = _shader(k.matmul(size, size, 64), SOFTWARE)
    start = text.index("for (var k")
    inner = text[start : text.index("at_least_", start)]
    assert inner.count("= mat4x4f(") == 2
    assert inner.count("+= ") == 2 * rows
    assert inner.count("= a_0[") == rows
    assert inner.count("= b_0[") == 8
    assert "array<f32>" not in text  # every access is a vec4
    assert "fma(" not in text  # a function call on software adapters


@pytest.mark.parametrize(("size", "rows"), [(49, 7), (196, 7), (25, 5), (64, 8), (50, 5), (52, 8)])
def test_tiles_of_registers_leave_no_rows_over(size: int, rows: int) -> None:
    """Unless the rows have no divisor of more than half a tile."""
    assert find_match(k.matmul(size, 512, 64), SOFTWARE).default().rows == rows


@pytest.mark.parametrize(
    ("function", "rows"), [(k.matmul(S, 512, 64), 8), (k.packed_scores(2, S, S, 8), 4)]
)
def test_tiles_of_symbolic_rows_are_tall_where_columns_are_constant(
    function: LoopFunction, rows: int
) -> None:
    assert find_match(function, SOFTWARE).default().rows == rows


def test_a_symbolic_number_of_columns_has_vectors() -> None:
    """Per four steps of the reduction: two vec4 of a panel each, for the four rows of a tile."""
    text = _shader(k.packed_scores(2, S, S, 8), SOFTWARE)
    inner = text[text.index("for (var k") :].partition("}")[0]
    assert inner.count("= b_0[") == 8
    assert inner.count("= a_0[") == 4
    assert inner.count("+= ") == 8


@pytest.mark.parametrize(("outputs", "neighbours"), [(16, 4), (9, 8)])
def test_neighbours_share_the_weights_of_their_group(outputs: int, neighbours: int) -> None:
    """Per step of the reduction: the weights of a vector or a result, and a load a neighbour."""
    text = _shader(k.grouped_convolution(8, 4, 16, outputs, 1), SOFTWARE)
    inner = text[text.index("for (var k") : text.index("out0_0[", text.index("for (var k"))]
    assert inner.count("= w_0[") == 1
    assert inner.count("x_0[") == inner.count("+= ") == neighbours


def test_a_stage_is_copied_once_and_written_out() -> None:
    """16 steps: 4 vec4 of the columns to workgroup memory a thread, and 2 from there a step."""
    text = _shader(k.matmul(2048, 2048, 64), WEBGPU)
    start = text.index("for (var k")
    inner = text[start : text.index("at_least_", start)]
    assert inner.count("+= ") == 16 * 16
    assert inner.count("= a_0[") == 4 * 8
    assert inner.count("= b_0[") == 4
    assert inner.count("= b_shared_0[") == 16 * 2
    assert inner.count("workgroupBarrier()") == 2
    assert "array<f32>" not in text


def test_patches_of_few_channels_are_read_as_vectors() -> None:
    """Eight threads divide the rows of a patch; its columns and channels are one loop."""
    text = _shader(k.convolution(14, 14, 3, 192, 16, 16, skip=False), WEBGPU)
    assert "@workgroup_size(8, 1, 8)" in text
    assert "array<f32>" not in text
    assert text.count("= x_0[") == 4  # a vec4 of each of four rows
    software = _shader(k.convolution(14, 14, 3, 192, 16, 16, skip=False), SOFTWARE)
    assert "workgroupBarrier" not in software


def test_threads_of_attention_keep_their_logits_in_registers() -> None:
    """Keys come from workgroup memory as vectors; logits and sums of values are no arrays."""
    text = _shader(k.attention_of_heads(1, 6, 1500, 1500, 64), WEBGPU)
    memory = re.findall(r"var<workgroup> (\w+): array<(\w+), (\d+)>", text)
    assert not any(name.startswith(("logits_", "product_")) for name, _, _ in memory)  # of tiles
    assert "array<vec4f>" in text and "var a: array" not in text
    keys, size = next((name, size) for name, kind, size in memory if kind == "vec4f")
    assert keys.startswith("k_shared_or_") and size == "300"  # 60 keys of four vectors and a gap
    start = text.index(f"= {keys}[")
    product = text[start : text.index("max(", start)]
    assert product.count(f"= {keys}[") == 16  # four vectors of four keys
    assert product.count(" += ") == 16 * 16


def test_tiles_of_software_adapters_keep_their_logits_in_workgroup_memory() -> None:
    """A thread's tile is a part of a buffer, at a quotient and a remainder of its number."""
    text = _shader(k.attention_of_heads(1, 12, 1500, 1500, 64), SOFTWARE)
    memory = "logits_or_exponential_tail_0"  # of tiles, or of rows
    assert f"{memory}: array" in text
    assert "var a: array" not in text
    logits = text[text.index("for (var k1") : text.index(f"{memory}[")]
    assert "& 3]" not in logits  # queries and keys are read as vec4


def test_sums_of_two_products_of_a_row_wait_together() -> None:
    """A barrier follows the sums of threads, and another one those of each tree's first level."""
    text = _shader(k.float_block_product(1, 24, 18, False), WEBGPU)
    assert text.count("workgroupBarrier()") == 2
    first, tree, last = text.split("workgroupBarrier()")
    assert "product_rf_0[" in first and "product2_rf_0[" in first
    assert "product_rf_1_0[" in tree and "product2_rf_1_0[" in tree
    assert "for (" not in first + tree + last  # written out


def test_threads_do_not_share_a_row_where_barriers_are_slow() -> None:
    """Each of 24 threads has a panel of eight columns, of 15 rows or of one."""
    for rows in (1, 15):
        text = _shader(k.float_block_product(rows, 960, 18), SOFTWARE)
        assert "workgroupBarrier" not in text
        assert "@workgroup_size(24)" in text


def test_a_long_row_has_more_threads_that_read_ahead() -> None:
    assert "@workgroup_size(128)" in _shader(k.softmax(3, 8192), WEBGPU)
    text = _shader(k.softmax(3, 1 << 16), WEBGPU)
    assert "@workgroup_size(256)" in text
    assert text.count("= max(") >= 16


@pytest.mark.parametrize(("width", "threads"), [(32, 256), (64, 256), (128, 256)])
def test_a_row_of_decode_has_the_threads_that_fit_beside_a_tile(width: int, threads: int) -> None:
    function = k.attention_of_heads(1, 4, S, S, width)
    match = match_kernel(function, WEBGPU)
    assert match is not None
    default = match.default()
    assert default.row.workgroup == threads and default.tile.rows >= 8
    assert default in match.space()


def test_neighbours_read_the_vectors_of_a_key_side_by_side() -> None:
    """Four threads a key, and two keys a thread in a step: each reads four vectors of eight keys.
    Logits stay in registers, and threads fold their maxima in two levels.
    """
    text = _shader(k.attention_of_heads(1, 4, S, S, 64), WEBGPU)
    row = text[text.index("group >= ") :]
    assert row.count("= k_0[") == 2 * 4 * 4
    assert "p30 + (tx18 & 3)" in row[: row.index("= k_0[")]  # the query's vector
    assert "logits" not in row
    assert row.count("workgroupBarrier()") == 2 * 2 + 2 + 3  # of keys, of a step, of the result


def test_what_is_aligned_moves_as_vectors() -> None:
    text = _shader(k.add(4, 16))
    assert "array<vec4f>" in text
    assert "array<f32>" not in text


LARGE: dict[str, LoopFunction] = {
    "attention of 64 columns": k.attention_of_heads(1, 12, 1500, 1500, 64),
    "attention of 64 columns, symbolic": k.attention_of_heads(S, 4, S, S, 64),
    "attention of 32 columns, symbolic": k.attention_of_heads(S, 4, S, S, 32),
    "matmul": k.matmul(2048, 2048, 64),
    "softmax": k.softmax(1024, 1024),
    "transpose": k.transpose((1, 0), 512, 512),
    "matmul in one stage": k.matmul(4096, 384, 16),
}
"""Kernels whose workgroups have much memory; too large for the interpreter."""


@pytest.mark.parametrize(
    "function",
    [*(function for _, function, _ in CASES.values()), *LARGE.values()],
    ids=[*CASES, *(f"large {name}" for name in LARGE)],
)
def test_workgroups_fit_the_default_limits(function: LoopFunction) -> None:
    lowered = lower(choose_rule(function, WEBGPU)[1].function, WEBGPU)
    shader = emit_shaders({"kernel": lowered})
    size = shader.text.split("@workgroup_size(")[1].split(")")[0]
    assert np.prod([int(s) for s in size.split(",")]) <= 256
    assert shared_bytes(lowered) <= MAX_WORKGROUP_BYTES
