"""Every WASM rule: the scheduled function computes what the naive one does, and its trace
replays.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from tests.graph.graphs import module, zeros
from tests.schedule.rules import kernels as k
from webmlc.core.expr import as_int, const
from webmlc.core.machine import RELAXED, SIMD128, Machine
from webmlc.core.simplify import simplify
from webmlc.graph.algorithms.winograd.operators import Form
from webmlc.graph.fuse.fuse import fuse
from webmlc.graph.layout.choose_layouts import choose_layouts
from webmlc.loops.ir import For, LoopFunction, Seq, blocks, loads, stores, walk_statements
from webmlc.loops.kernel_form import CPU_FORM
from webmlc.loops.lower_module import lower_module
from webmlc.loops.print_text import print_function
from webmlc.loops.verify import verify
from webmlc.schedule.primitives.prefetch import LINE_BYTES
from webmlc.schedule.rules import choose_rule
from webmlc.schedule.schedule import Schedule, replay
from webmlc.target.targets import lower
from webmlc.target.wasm.emit_module import Step, emit_module

S = k.S
CASES: dict[str, tuple[str, LoopFunction, dict[str, int]]] = {
    **{
        f"matmul {m}x{n}": ("contraction", k.matmul(m, n, 5), {})
        for m in (2, 5, 6, 7, 8, 13)
        for n in (3, 8, 12, 32, 45)
    },
    "matmul, streamed": ("contraction", k.matmul(8, 128, 1026), {}),
    "matmul, streamed, four strips": ("contraction", k.matmul(8, 264, 516), {}),
    "matmul, streamed in bursts": ("contraction", k.matmul(8, 1104, 121), {}),
    "matvec, cold": ("contraction", k.matmul(1, 141, 256), {}),
    "matvec, cold, odd": ("contraction", k.matmul(1, 136, 258), {}),
    "matvec, cold, sigmoid": ("contraction", k.matmul_sigmoid(1, 136, 256), {}),
    "matvec, cold, halves": ("contraction", k.matmul(1, 144, 256), {}),
    "matmul, cold, halves, symbolic rows": ("contraction", k.matmul(S, 544, 256), {"s": 7}),
    "matmul, cold, halves, one symbolic row": (
        "contraction",
        k.matmul_sigmoid(S, 144, 256),
        {"s": 1},
    ),
    "matmul, cold, two rows": ("contraction", k.matmul(2, 136, 256), {}),
    "matmul, cold, symbolic rows": ("contraction", k.matmul(S, 136, 256), {"s": 8}),
    "matmul, cold, one symbolic row": ("contraction", k.matmul_sigmoid(S, 136, 256), {"s": 1}),
    "conv 3x3, streamed": ("contraction", k.convolution(7, 3, 129, 128, 3), {}),
    "matvec": ("contraction", k.matmul(1, 45, 7), {}),
    "matmul, no epilogue": ("contraction", k.matmul(13, 20, 4, epilogue=False), {}),
    "matmul, symbolic rows": ("contraction", k.matmul(S, 40, 4), {"s": 7}),
    "matmul, one symbolic row": ("contraction", k.matmul(S, 40, 4), {"s": 1}),
    **{
        f"matmul {m}x{n}, sigmoid": ("contraction", k.matmul_sigmoid(m, n, 5), {})
        for m, n in ((1, 45), (2, 32), (13, 27), (7, 8))
    },
    "matmul, symbolic rows, sigmoid": ("contraction", k.matmul_sigmoid(S, 40, 4), {"s": 7}),
    "scores": ("contraction", k.attention_scores(2, 7, 16, 8), {}),
    "scores, symbolic": ("contraction", k.attention_scores(2, S, S, 8), {"s": 11}),
    "attention": ("attention", k.attention(2, 24, 40, 8), {}),
    "attention, odd keys": ("attention", k.attention(2, 14, 43, 12), {}),
    "attention, masked": ("attention", k.attention(2, 18, 37, 20, masked=True), {}),
    "attention, few rows": ("rows", k.attention(2, 3, 37, 8), {}),
    "transposed matmul": ("rows", k.transposed_matmul(5, 3, 40), {}),
    "conv 3x3": ("contraction", k.convolution(7, 7, 3, 16, 3), {}),
    "conv 3x3, odd channels": ("contraction", k.convolution(7, 14, 3, 13, 3), {}),
    "conv 3x3 stride 2, batch": ("contraction", k.convolution(5, 5, 3, 8, 3, 2, 2), {}),
    "conv 1x1": ("contraction", k.convolution(14, 3, 4, 40, 1), {}),
    "conv 1x1, symbolic batch": ("contraction", k.convolution(3, 3, 4, 8, 1, batch=S), {"s": 2}),
    "conv 1x1, streamed, symbolic batch": (
        "contraction",
        k.convolution(3, 2, 512, 264, 1, batch=S),
        {"s": 3},
    ),
    "conv 3x3, symbolic size": ("contraction", k.convolution(S, S, 3, 8, 3), {"s": 8}),
    "conv 3x3, one output": ("rows", k.convolution(5, 4, 8, 1, 3), {}),
    "conv 5x5, one output": ("rows", k.convolution(5, 4, 8, 1, 5), {}),
    "conv 3x3, one output, odd channels": ("rows", k.convolution(5, 4, 11, 1, 3), {}),
    "conv in groups": ("contraction", k.grouped_convolution(5, 3, 4, 16), {}),
    "conv in groups, odd channels": ("contraction", k.grouped_convolution(5, 2, 3, 10), {}),
    "conv in groups of few channels": ("contraction", k.grouped_convolution(5, 2, 3, 3), {}),
    **{
        f"transform of {c} channels": ("transform", k.winograd_input(3, c), {})
        for c in (4, 8, 12, 24, 32)
    },
    "transform, planes 4 KiB apart": ("transform", k.winograd_input(16, 64), {}),
    "winograd": ("bands", k.winograd(Form(3, 1, 4, 3), 12, 8, 16), {}),
    "winograd, no whole tiles": ("bands", k.winograd(Form(3, 1, 6, 3), 15, 4, 8), {}),
    "winograd, stride 2, symbolic batch": (
        "bands",
        k.winograd(Form(3, 2, 2, 3), 5, 4, 8, S),
        {"s": 2},
    ),
    "winograd, parts of rows": ("bands", k.winograd(Form(3, 1, 2, 3), 48, 4, 8), {}),
    "winograd, windows of one column": ("transform", k.winograd_rows(7, 8), {}),
    "strassen, input": ("transform", k.strassen_input(5, 32), {}),
    "strassen, input, symbolic batch": ("transform", k.strassen_input(4, 8, S), {"s": 2}),
    **{
        f"strassen, {m} rows": ("strassen", k.strassen(m, 32, 8), {})
        for m in (1, 2, 7, 12, 13, 14, 23)
    },
    "strassen, lines": ("strassen", k.strassen(6, 16, 8, 5), {}),
    "strassen, odd lines": ("strassen", k.strassen(5, 16, 8, 3), {}),
    "strassen, symbolic batch": ("strassen", k.strassen(17, 16, 24, S), {"s": 2}),
    "strassen, polynomial": ("strassen", k.strassen(15, 32, 8, polynomial=True), {}),
    "conv 3x3 in a border": ("slabs", k.bordered(k.convolution(7, 7, 3, 16, 3), 7, 7, 16), {}),
    "conv 3x3 in a border, symbolic size": (
        "slabs",
        k.bordered(k.convolution(S, S, 3, 8, 3), S, S, 8),
        {"s": 8},
    ),
    "depthwise in a border": ("slabs", k.bordered(k.depthwise(7, 7, 20, 3), 7, 7, 20), {}),
    "winograd in a border": (
        "slabs",
        k.bordered(k.winograd(Form(3, 1, 4, 3), 10, 8, 16), 10, 10, 16),
        {},
    ),
    "one element of many is special": ("stages", k.special_element(12), {}),
    "depthwise": ("window", k.depthwise(7, 7, 20, 3), {}),
    "depthwise stride 2": ("window", k.depthwise(6, 9, 8, 3, 2), {}),
    "depthwise 5x5": ("window", k.depthwise(8, 8, 13, 5, epilogue=False), {}),
    "depthwise 5x5 stride 2": ("window", k.depthwise(6, 9, 12, 5, 2), {}),
    "depthwise stride 3": ("window", k.depthwise(5, 6, 12, 5, 3), {}),
    "depthwise, symbolic size": ("window", k.depthwise(S, S, 8, 3), {"s": 6}),
    "max pool": ("window", k.pool(5, 12, 3, "relaxed_max"), {}),
    "average pool": ("window", k.pool(6, 12, 2, "add"), {}),
    "local response": ("window", k.local_response(3, 24, 5), {}),
    "local response, even": ("window", k.local_response(3, 22, 10), {}),
    "local response, few channels": ("rows", k.local_response(3, 10, 5), {}),
    "global average": ("window", k.global_average(7, 40), {}),
    "global average, symbolic": ("window", k.global_average(S, 5), {"s": 3}),
    "softmax": ("rows", k.softmax(5, 40), {}),
    "softmax, short": ("rows", k.softmax(3, 7), {}),
    "softmax, odd": ("rows", k.softmax(4, 129), {}),
    "softmax over channels": ("rows", k.softmax(2, 5, 3, 8, axis=1), {}),
    "softmax, symbolic": ("rows", k.softmax(S, S), {"s": 37}),
    "softmax over channels, symbolic": ("rows", k.softmax(2, 5, S, S, axis=1), {"s": 4}),
    "layer norm": ("rows", k.layer_norm(2, 3, 70), {}),
    "layer norm, symbolic": ("rows", k.layer_norm(S, 3, 9), {"s": 2}),
    "row sums": ("rows", k.total(4, 100, keep=1), {}),
    "row sums, symbolic": ("rows", k.total(3, S, keep=1), {"s": 50}),
    "channel means": ("rows", k.channel_means(2, 3, 4, 8), {}),
    "channel means, with a rest": ("rows", k.channel_means(2, 3, 4, 5), {}),
    "channel means, symbolic": ("rows", k.channel_means(2, 3, S, S), {"s": 9}),
    "sum": ("stages", k.total(8, 16), {}),
    "sum, odd": ("stages", k.total(7, 5), {}),
    "add": ("stages", k.add(2, 3, 5, 7), {}),
    "add, symbolic": ("stages", k.add(S, 4, 3), {"s": 5}),
    "add scalars": ("stages", k.add(), {}),
    "add bias": ("stages", k.add_bias(2, 3, 4, 10), {}),
    "add bias, symbolic": ("stages", k.add_bias(S, S), {"s": 9}),
    "transpose to NHWC": ("stages", k.transpose((0, 2, 3, 1), 1, 3, 8, 8), {}),
    "transpose blocks": ("stages", k.transpose((1, 0), 32, 48), {}),
    "transpose heads": ("stages", k.transpose((0, 2, 1, 3), 2, 3, 4, 16), {}),
    "transpose, symbolic": ("stages", k.transpose((1, 0), S, 8), {"s": 5}),
    "transpose, no whole blocks": ("stages", k.transpose((0, 2, 1), 2, 13, 21), {}),
    "interleave": ("stages", k.interleave(4, 3, 21), {}),
    "interleave, symbolic": ("stages", k.interleave(3, 3, S), {"s": 5}),
    "pack keys": ("stages", k.pack_keys(3, 21, 5), {}),
    "pack keys, symbolic": ("stages", k.pack_keys(3, S, 16), {"s": 13}),
    "gather": ("stages", k.gather_rows(3, 12, 5), {}),
    "gather, symbolic": ("stages", k.gather_rows(3, 12, S), {"s": 4}),
    "convert": ("stages", k.convert(7), {}),
}
MACHINES = {"relaxed": RELAXED, "simd128": SIMD128}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_schedule_keeps_the_meaning(
    case: tuple[str, LoopFunction, dict[str, int]], machine: Machine
) -> None:
    rule, function, symbols = case
    chosen, schedule = choose_rule(function, machine)
    assert chosen == rule
    verify(schedule.function)
    for got, want in zip(
        k.outputs_of(schedule.function, symbols), k.outputs_of(function, symbols), strict=True
    ):
        largest = max(1.0, float(np.abs(want).max(initial=0)))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * largest)
    assert replay(function, schedule.trace) == schedule.function


def _kinds(function: LoopFunction) -> list[str]:
    return [s.kind for s in walk_statements(function.body) if isinstance(s, For)]


def _loops(function: LoopFunction, kind: str) -> list[For]:
    """The loops of a kind, outermost first."""
    return [s for s in walk_statements(function.body) if isinstance(s, For) and s.kind == kind]


def _extent(loop: For) -> str:
    return str(loop.extent)


def _scheduled(text: str) -> Schedule:
    """Of the one kernel of a graph: it computes what the kernel does."""
    (kernel,) = lower_module(fuse(module(text)), CPU_FORM).kernels.values()
    schedule = choose_rule(kernel, RELAXED)[1]
    for got, want in zip(
        k.outputs_of(schedule.function, {}), k.outputs_of(kernel, {}), strict=True
    ):
        np.testing.assert_array_equal(got, want)
    return schedule


def test_rows_picked_by_an_index_are_copied_in_vectors() -> None:
    schedule = choose_rule(k.gather_rows(3, 12, 5), RELAXED)[1]
    assert "vectorized" in _kinds(schedule.function)


def test_a_remainder_of_columns_is_computed_in_whole_vectors() -> None:
    """Ten channels: eight, and two that take the place of four, of which two are written."""
    function = choose_rule(k.convolution(3, 4, 8, 10, 1), RELAXED)[1].function
    sums = [b for b in blocks(function.body) if any(a.kind == "reduce" for a in b.axes)]
    assert sorted({str(block.axes[3].extent) for block in sums}) == ["10", "12"]
    assert _kinds(function).count("vectorized") >= 2 * len(sums)


def test_a_symbolic_batch_alone_is_not_what_threads_share() -> None:
    schedule = choose_rule(k.convolution(8, 8, 16, 16, 3, batch=S), RELAXED)[1]
    (shared,) = (
        s
        for s in walk_statements(schedule.function.body)
        if isinstance(s, For) and s.kind == "parallel"
    )
    assert str(shared.extent) == "s * 8"


def test_a_loop_of_little_work_is_no_part_of_what_threads_share() -> None:
    """Heads and their panels are; the 120 rows of a panel stay a loop."""
    schedule = choose_rule(k.pack_keys(k.Var("heads"), S, 120), RELAXED)[1]
    serial, shared = (
        [
            s
            for s in walk_statements(schedule.function.body)
            if isinstance(s, For) and s.kind == kind
        ]
        for kind in ("serial", "parallel")
    )
    assert [str(loop.extent) for loop in serial] == ["120"]
    assert [str(loop.extent) for loop in shared] == ["(s + 7) // 8 * heads"]


def test_many_rows_of_a_symbolic_batch_are_shared_as_one_loop() -> None:
    """Not the columns of each row, which come in two parts."""
    body = choose_rule(k.add_bias(S, 2048, 257), RELAXED)[1].function.body
    assert isinstance(body, For) and body.kind == "parallel"
    assert str(body.extent) == "s * 2048"


def test_rows_of_a_symbolic_image_are_shared() -> None:
    """Not the pixels of each row, nor an image, of which there may be one."""
    for batch in (1, S):
        function = k.convolution(k.Var("h"), k.Var("w"), 3, 8, 3, batch=batch, skip=False)
        chosen = choose_rule(function, RELAXED)[1].function
        shared = [_extent(loop) for loop in _loops(chosen, "parallel")]
        assert shared == ["h" if batch == 1 else "h * s"]


def test_columns_are_shared_where_heads_are_few() -> None:
    """Three heads would keep two threads busy for two turns, of which the second is half idle."""
    few, many = (
        choose_rule(k.attention_scores(heads, 96, 97, 64), RELAXED)[1].function for heads in (3, 24)
    )
    assert _extent(_loops(few, "serial")[0]) == "3"
    assert _extent(_loops(few, "parallel")[0]) == "12"  # panels
    assert [_extent(loop) for loop in _loops(many, "parallel")] == ["24"]


def test_every_nest_of_a_large_kernel_is_shared() -> None:
    """Blocked rows and their remainder stand under the loop over a batch of one."""
    function = k.convolution(56, 55, 64, 64, 1)
    body = choose_rule(function, RELAXED)[1].function.body
    assert isinstance(body, For) and isinstance(body.body, Seq)
    for nest in body.body.statements:
        assert sum(isinstance(s, For) and s.kind == "parallel" for s in walk_statements(nest)) == 1


def test_lines_of_a_batch_that_may_be_one_are_shared() -> None:
    """The loop over the batch stands inside the one over the only row."""
    function = choose_rule(k.convolution(1, 172, 256, 36, 1, batch=S), RELAXED)[1].function
    assert str(S) not in [_extent(loop) for loop in _loops(function, "parallel")]


def test_parts_of_a_concat_have_loops_of_their_own() -> None:
    """Without a test of which part an element is of: 24 channels in vectors, then one."""
    text = """
    g (float[1,6,7,24] x, float[1,6,7,1] z) => (float[1,8,9,25] y)
        <int64[8] p = {0,1,1,0,0,1,1,0}> {
      c = Concat <axis = 3> (x, z)
      y = Pad <mode = "constant"> (c, p)
    }
    """
    schedule = _scheduled(text)
    copies = [b.name for b in blocks(schedule.function.body) if list(loads(b.body))]
    kinds = [schedule.loop(schedule.loops(name)[-1]).kind for name in copies]
    assert kinds == ["vectorized", "serial"]


def test_a_tensor_and_its_mirror_images_have_loops_of_their_own() -> None:
    """8 elements backwards, 64 as they are, 4 backwards: all vectors, and no test of which."""
    text = """
    g (float[3,64] x) => (float[3,76] y) <int64[4] p = {0,8,0,4}> {
      y = Pad <mode = "reflect"> (x, p)
    }
    """
    schedule = _scheduled(text)
    parts = [b.name for b in blocks(schedule.function.body)]
    assert [schedule.loop(schedule.loops(name)[-1]).kind for name in parts] == ["vectorized"] * 3
    text = print_function(lower(schedule.function, RELAXED))
    assert "select" not in text and "%" not in text


@pytest.mark.parametrize(("value", "kinds"), [("Sqrt", {"vectorized"}), ("Identity", set())])
def test_rows_are_vectors_where_few_columns_are_computed(value: str, kinds: set[str]) -> None:
    """Three channels of ten pixels: two vectors of each channel's row, and two pixels."""
    text = f"""
    g (float[1,3,9,10] x) => (float[1,9,10,3] y) {{
      h = {value} (x)
      y = Transpose <perm = [0,2,3,1]> (h)
    }}
    """
    schedule = _scheduled(text)
    vectors = _loops(schedule.function, "vectorized")
    assert {loop.kind for loop in vectors} == kinds
    assert all(_extent(loop) == "4" for loop in vectors)


def test_slabs_of_padding_are_no_work_for_two() -> None:
    text = """
    g (float[1,56,56,64] x) => (float[1,58,58,64] y) <int64[8] p = {0,1,1,0,0,1,1,0}> {
      y = Pad <mode = "constant"> (x, p)
    }
    """
    (kernel,) = lower_module(fuse(module(text)), CPU_FORM).kernels.values()
    body = choose_rule(kernel, RELAXED)[1].function.body
    assert isinstance(body, Seq)
    shared = ["parallel" in [n.kind for n in walk_statements(s) if isinstance(n, For)]
              for s in body.statements]  # fmt: skip
    assert shared == [False, False, False, False, True]


def test_rows_of_a_symbolic_image_keep_a_pointer_for_each_row_of_a_window() -> None:
    """Under the loop over images and rows, whose index is taken apart by an unknown height."""
    function = k.convolution(k.Var("h"), k.Var("width"), 3, 8, 3, batch=S, skip=False)
    lowered = lower(choose_rule(function, RELAXED)[1].function, RELAXED)
    slots = tuple(range(len(function.params) + len(function.symbols)))
    text = emit_module({"k": lowered}, [Step("k", slots)], "relaxed").text
    loop = text[text.rindex("(loop", 0, text.index("relaxed_madd")) : text.rindex("relaxed_madd")]
    assert len(set(re.findall(r"\$x_p\w*", loop))) <= 8


def test_a_border_changes_nothing_of_what_it_surrounds() -> None:
    """The tiles and threads of a convolution alone."""
    alone = k.convolution(28, 28, 16, 16, 3)
    traces = [choose_rule(f, RELAXED)[1].trace for f in (alone, k.bordered(alone, 28, 28, 16))]
    assert traces[1][: len(traces[0])] == traces[0]
    assert any(step["primitive"] == "parallel" for step in traces[0])


def test_neighbours_share_weights_and_their_sigmoid_is_a_vector() -> None:
    """A convolution into one channel: four pixels a tile, their epilogue along the row."""
    text = f"""
    g (float[1,8,6,10] x) => (float[1,1,4,8] y) <{zeros("w", 1, 8, 3, 3)}> {{
      a = Conv (x, w)
      y = Sigmoid(a)
    }}
    """
    kernels = lower_module(fuse(choose_layouts(module(text))), CPU_FORM).kernels
    kernel = next(f for name, f in kernels.items() if "conv" in name)
    chosen, schedule = choose_rule(kernel, RELAXED)
    assert chosen == "row epilogue"
    for got, want in zip(
        k.outputs_of(schedule.function, {}), k.outputs_of(kernel, {}), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    sigmoid = {b.name for b in blocks(schedule.function.body) if b.name.startswith("sigmoid")}
    kinds = {name: [schedule.loop(loop).kind for loop in schedule.loops(name)] for name in sigmoid}
    assert all(found[-1] == "vectorized" for found in kinds.values())
    reduced = next(n for n in schedule.blocks() if len(schedule.reduce_loops(n)) > 1)
    inside = schedule.loops(reduced)[
        schedule.loops(reduced).index(schedule.reduce_loops(reduced)[-1]) :
    ]
    assert [as_int(schedule.extent(loop)) for loop in inside[1:]] == [4, 2, 4]


def test_rows_are_shared_as_a_whole() -> None:
    """The stages of a row hand it on in a thread's own memory, so one thread runs them all."""
    function = k.layer_norm(S, k.Var("rows"), 384)
    nest = choose_rule(function, RELAXED)[1].function.body
    assert isinstance(nest, For) and nest.kind == "parallel"
    assert _kinds(function).count("parallel") == 0
    assert _kinds(choose_rule(function, RELAXED)[1].function).count("parallel") == 1


def test_small_kernels_stay_on_one_thread() -> None:
    small, large = k.matmul(16, 16, 16), k.matmul(64, 64, 64)
    assert "parallel" not in _kinds(choose_rule(small, RELAXED)[1].function)
    assert "parallel" in _kinds(choose_rule(large, RELAXED)[1].function)


def _inner_loop(function: LoopFunction, machine: Machine, features: str) -> str:
    """The text of the first innermost loop of a kernel's WAT."""
    return _inner_loops(function, machine, features)[0]


def _inner_loops(function: LoopFunction, machine: Machine, features: str) -> list[str]:
    """The text of every innermost loop of a kernel's WAT, up to its branch back."""
    lowered = lower(choose_rule(function, machine)[1].function, machine)
    steps = [Step("kernel", tuple(range(len(function.params) + len(function.symbols))))]
    text = emit_module({"kernel": lowered}, steps, features).text  # type: ignore[arg-type]
    text = text[text.index("(func $kernel") : text.index("(func $program")]
    return re.findall(r"\(loop (?:(?!\(loop ).)*?(?=\(br_if)", text, re.DOTALL)


def test_the_micro_kernel_is_the_hand_written_one() -> None:
    """12 multiply-adds, 6 splats, 2 loads, two pointers and no other arithmetic."""
    loop = _inner_loop(k.matmul(12, 16, 480, epilogue=False), RELAXED, "relaxed")
    assert loop.count("f32x4.relaxed_madd") == 12
    assert loop.count("v128.load32_splat") == 6
    assert loop.count("v128.load ") == 2
    assert loop.count("i32.add") == 2
    assert "i32.mul" not in loop
    assert "offset=9600" in loop


def test_seven_products_run_in_the_same_micro_kernel() -> None:
    """For whole tiles, four steps at a time; the sums are in loops of their own."""
    loops = _inner_loops(k.strassen(24, 32, 480), RELAXED, "relaxed")
    (loop,) = [text for text in loops if "f32x4.relaxed_madd" in text]
    assert loop.count("f32x4.relaxed_madd") == 4 * 12
    assert loop.count("v128.load32_splat") == 4 * 6
    assert loop.count("v128.load ") == 4 * 2
    assert loop.count("i32.add") == 2 + 3 and "i32.mul" not in loop


@pytest.mark.parametrize("rows", [24, 197])
def test_the_products_of_one_tile_exist_at_once(rows: int) -> None:
    """And the sums of one pair of panels; of an odd number of rows, the last is in a tail."""
    lowered = lower(choose_rule(k.strassen(rows, 64, 96), RELAXED)[1].function, RELAXED)
    sizes = {buffer.name: buffer.shape for buffer in lowered.allocations}
    assert sizes["panels"] == (const(7 * 48 * 8),)
    assert sizes["product"] == (const(7 * 6 * 8),)
    assert sizes.get("product_tail", (const(7 * 3 * 8),)) == (const(7 * 3 * 8),)


def test_pairs_of_all_lines_of_an_image_fill_tiles() -> None:
    """Of seven pairs a line, six are multiplied at once: the products of one tile exist."""
    lowered = lower(choose_rule(k.strassen(14, 16, 8, 6), RELAXED)[1].function, RELAXED)
    made = {buffer.name: buffer for buffer in lowered.allocations}
    assert made["product"].shape == (const(7 * 6 * 8),)


def test_a_quarter_of_the_panels_is_read_once_for_all_sums() -> None:
    """4 loads for 7 vectors, whose sums share theirs."""
    loops = _inner_loops(k.strassen(24, 32, 480), RELAXED, "relaxed")
    (loop,) = [text for text in loops if text.count("v128.store") == 14]
    assert loop.count("v128.load ") == 8
    assert loop.count("f32x4.sub") + loop.count("f32x4.add") == 8


def test_groups_run_in_the_same_micro_kernel() -> None:
    loop = _inner_loop(k.grouped_convolution(6, 2, 20, 10), RELAXED, "relaxed")
    assert loop.count("f32x4.relaxed_madd") == 12
    assert loop.count("v128.load32_splat") == 6
    assert loop.count("v128.load ") == 2
    assert "i32.mul" not in loop


@pytest.mark.parametrize(
    ("m", "n", "depth", "lines"),
    [(16, 1024, 240, 120), (6, 1024, 240, 0), (16, 64, 512, 0), (16, 512, 512, 0)],
    ids=["from memory", "read once", "kept in the cache", "in strips"],
)
def test_a_panel_that_tiles_share_comes_from_memory_at_once(
    m: int, n: int, depth: int, lines: int
) -> None:
    """Every line of it is asked for before the first tile; where that gains nothing, none is."""
    function = choose_rule(k.matmul(m, n, depth, epilogue=False), RELAXED)[1].function
    lowered = lower(function, RELAXED)
    steps = [Step("kernel", (0, 1, 2))]
    text = emit_module({"kernel": lowered}, steps, "relaxed").text
    asked = sum("(f32.load" in line and "local.set" in line for line in text.splitlines())
    assert asked == (8 if lines else 0)
    inner = [loop for loop in walk_statements(lowered.body) if isinstance(loop, For)]
    assert any(as_int(loop.extent) == lines // 8 for loop in inner) or not lines
    assert "parallel" in _kinds(function)


def test_an_epilogue_with_a_polynomial_is_no_part_of_the_unrolled_tile() -> None:
    """One polynomial for the two vectors of a row, not for each of the tile's 12."""
    lowered = lower(choose_rule(k.matmul_sigmoid(12, 16, 480), RELAXED)[1].function, RELAXED)
    text = emit_module({"kernel": lowered}, [Step("kernel", (0, 1, 2))], "relaxed").text
    assert text.count("f32x4.div") == 2
    assert text.count("i32x4.shl") == 2


def test_scores_of_a_few_rows_exist_at_once() -> None:
    function = lower(choose_rule(k.attention(2, 1500, 300, 8), RELAXED)[1].function, RELAXED)
    sizes = {b.name: b.shape for b in function.allocations}
    rows = 60  # whole tiles; they divide 1500; the two buffers take 256 KB at most
    assert sizes["scores"] == sizes["exponential"] == (const(rows * 300),)


def test_without_relaxed_instructions_the_tile_is_smaller() -> None:
    loop = _inner_loop(k.matmul(12, 16, 480, epilogue=False), SIMD128, "simd128")
    assert (loop.count("f32x4.mul"), loop.count("f32x4.add")) == (8, 8)
    assert "relaxed" not in loop


@pytest.mark.parametrize(("channels", "line"), [(12, 4), (24, 8), (32, 16), (48, 16)])
def test_planes_are_written_in_whole_cache_lines(channels: int, line: int) -> None:
    """A tile's columns are made for as many channels as are then written side by side."""
    schedule = choose_rule(k.winograd_input(3, channels), RELAXED)[1]
    loops = [schedule.loop(name) for name in schedule.loops("planes")]
    kept = [as_int(loop.extent) for loop in loops if loop.kind == "serial"]
    assert kept == [3, channels // line, *((4, 4)[: line // 8])]
    columns = lower(schedule.function, RELAXED).allocations
    assert line == 4 or columns[0].shape == (const(16 * line),)


def test_a_cold_matrix_is_read_from_one_end_to_the_other() -> None:
    """Four steps of the reduction in one turn of the loop, each with a tile of its own; but by two
    panels, while there are two.
    """
    pair, loop = _inner_loops(k.matmul(1, 136, 256), RELAXED, "relaxed")
    assert loop.count("f32x4.relaxed_madd") == 8 and loop.count("v128.load64_zero") == 2
    assert loop.count("(i32.const 128)") == 1  # one pointer walks the panel: 4 steps of 8 columns
    assert pair.count("f32x4.relaxed_madd") == 8 and pair.count("v128.load64_zero") == 1
    assert f"offset={8 * 256 * 32}" in pair  # the ninth panel of seventeen
    assert _inner_loop(k.matmul(1, 128, 64), RELAXED, "relaxed").count("v128.load32_splat") == 1


@pytest.mark.parametrize("rows", [1, S])
def test_a_row_reads_both_halves_of_a_cold_matrix_at_once(rows: int | str) -> None:
    """One pointer, and the second half at an offset: 8 sums of two steps of four vectors."""
    loops = _inner_loops(k.matmul(rows, 1024, 256), RELAXED, "relaxed")
    (loop,) = [text for text in loops if text.count("f32x4.relaxed_madd") == 8]
    assert loop.count("v128.load64_zero") == 1 and loop.count("i8x16.shuffle") == 2
    loads = [int(n or 0) for n in re.findall(r"v128\.load(?: offset=(\d+))? ", loop)]
    half = 1024 // 2 * 256 * 4
    assert loads == [0, 16, half, half + 16, 32, 48, half + 32, half + 48]


def test_a_softmax_of_any_length_keeps_its_exponentials_in_its_result() -> None:
    """Each is computed once; no memory is needed for a row, whose size only a run knows."""
    function = choose_rule(k.softmax(S, S), RELAXED)[1].function
    made = [s for s in stores(function.body) if "T.exp" in str(s.value)]
    assert [s.buffer.name for s in made] == ["out0", "out0"]  # whole vectors, and the rest
    assert all(buffer.scope == "local" for buffer in function.allocations)


def test_tiles_of_several_rows_read_one_half_after_the_other() -> None:
    """Beside the row that reads both: panels come in bursts that the first cache holds."""
    schedule = choose_rule(k.matmul(S, 1024, 252), RELAXED)[1]
    assert [as_int(schedule.extent(n)) for n in schedule.loops("matmul")][:3] == [16, 2, 4]
    bursts = [as_int(schedule.extent(n)) for n in schedule.loops("b_prefetch")]
    assert bursts[:2] == [16, 2] and math.prod(n or 1 for n in bursts[2:]) == 4 * 252 * 32 // 64
    tail = [as_int(schedule.extent(n)) for n in schedule.loops("matmul_tail_rf")]
    assert tail == [16, None, 4, 126, 2, 2, 2, 4]


def test_a_panel_is_prefetched_where_there_are_tiles_of_several_rows() -> None:
    schedule = choose_rule(k.matmul(S, 1024, 252), RELAXED)[1]
    times = [str(schedule.extent(loop)) for loop in schedule.loops("b_prefetch")]
    assert times[:3] == ["16", "2", "T.min(s // 6, 1)"]
    fixed = choose_rule(k.matmul(8, 1024, 252), RELAXED)[1]
    assert len(fixed.loops("b_prefetch")) == len(times) - 2


@pytest.mark.parametrize(("k_size", "together"), [(128, 8), (252, 4), (509, 2), (1021, 1)])
def test_as_many_panels_are_prefetched_as_the_first_cache_holds(k_size: int, together: int) -> None:
    schedule = choose_rule(k.matmul(16, 2048, k_size), RELAXED)[1]
    panels, *lines = (as_int(schedule.extent(loop)) for loop in schedule.loops("b_prefetch"))
    assert panels == 256 // together
    assert math.prod(n or 0 for n in lines) == together * -(-k_size * 32 // LINE_BYTES)


@pytest.mark.parametrize(("depth", "strips"), [(768, 6), (512, 4), (516, 4), (513, 3), (256, 2)])
def test_a_tile_walks_strips_of_a_panel_side_by_side(depth: int, strips: int) -> None:
    """Each of a page at least, and six at most: as many streams come from memory."""
    loop = _inner_loop(k.matmul(6, 1024, depth, epilogue=False), RELAXED, "relaxed")
    loads = [int(n or 0) for n in re.findall(r"v128\.load(?: offset=(\d+))? ", loop)]
    starts = [strip * depth // strips * 32 for strip in range(strips)]
    assert loads == [start + half for start in starts for half in (0, 16)]
    assert loop.count("f32x4.relaxed_madd") == 12 * strips


@pytest.mark.parametrize(
    ("rows", "depth", "steps"), [(6, 254, 2), (66, 768, 4), (66, 513, 3), (66, 509, 1)]
)
def test_a_tile_takes_steps_of_a_panel_that_it_reads_from_end_to_end(
    rows: int, depth: int, steps: int
) -> None:
    """Where a page holds the panel, or many tiles read it. All steps share the rows' offsets."""
    function = choose_rule(k.matmul(rows, 1024, depth, epilogue=False), RELAXED)[1].function
    kernel = {"kernel": lower(function, RELAXED)}
    text = emit_module(kernel, [Step("kernel", (0, 1, 2))], "relaxed").text
    loop = max(text.split("(loop "), key=lambda part: part.count("f32x4.relaxed_madd"))
    loads = [int(n or 0) for n in re.findall(r"v128\.load(?: offset=(\d+))? ", loop)]
    assert loads == [step * 32 + half for step in range(steps) for half in (0, 16)]
    splats = [int(n or 0) for n in re.findall(r"load32_splat(?: offset=(\d+))? ", loop)]
    assert set(splats) <= {row * depth * 4 for row in range(6)} and len(splats) == 6 * steps
    assert loop.count("f32x4.relaxed_madd") == 12 * steps


@pytest.mark.parametrize(("channels", "halves"), [(129, 1), (130, 2)])
def test_lines_of_a_window_are_strips(channels: int, halves: int) -> None:
    """Three lines of a 3x3 convolution's weights, halved where they divide into two."""
    loop = _inner_loop(k.convolution(3, 6, channels, 128, 3), RELAXED, "relaxed")
    loads = [int(n or 0) for n in re.findall(r"v128\.load(?: offset=(\d+))? ", loop)]
    starts = [strip * 3 * channels * 32 // halves for strip in range(3 * halves)]
    assert loads == [start + half for start in starts for half in (0, 16)]


def test_a_maximum_over_a_window_is_one_instruction_a_tap() -> None:
    loop = _inner_loop(k.pool(8, 8, 3, "relaxed_max"), RELAXED, "relaxed")
    assert loop.count("f32x4.pmax") == 4 * 2 * 9 and "f32x4.max" not in loop


def test_windows_along_the_lanes_have_no_test_but_at_their_ends() -> None:
    """Two vectors of channels read ten neighbours, of which they share one, and themselves."""
    loop = _inner_loop(k.local_response(8, 32, 5), RELAXED, "relaxed")
    assert loop.count("f32x4.relaxed_madd") == 2 * 5 and loop.count("v128.load") == 9
    assert not any(part in loop for part in ("select", "(if", "f32.load"))


def test_a_transpose_gathers_vectors() -> None:
    """Two of a block's row, each of four loads at one distance, and stored as one."""
    loop = _inner_loop(k.transpose((1, 0), 64, 48), RELAXED, "relaxed")
    assert loop.count("v128.load32_lane") == 6 and loop.count("v128.store") == 2
    assert "f32.load" not in loop


def test_channels_of_several_maps_are_interleaved_without_a_test() -> None:
    """Which map a column is of is known where each is written out."""
    loop = _inner_loop(k.interleave(4, 3, 208), RELAXED, "relaxed")
    assert loop.count("f32.load") == loop.count("f32.store") == 12
    assert "(if" not in loop and "select" not in loop


def test_addresses_that_hold_for_a_loop_are_computed_before_it() -> None:
    """A limited index, which may count from before its buffer as far as bounds tell."""
    loop = _inner_loop(k.pack_keys(6, S, 48), RELAXED, "relaxed")
    assert loop.count("f32.load") == 8
    assert not any(part in loop for part in ("select", "i32.mul", "i32.div", "i32.rem"))


@pytest.mark.parametrize(
    ("width", "channels", "products", "vectors"),
    [(4, 8, 8, 10), (4, 11, 8, 10), (3, 8, 6, 12), (3, 11, 2, 4)],
)
def test_a_convolution_into_one_channel_multiplies_vectors_of_its_inputs(
    width: int, channels: int, products: int, vectors: int
) -> None:
    """Four neighbours share weights. Of three, each has its own: three runs of 24 elements are
    walked side by side, with two sums each; those of 33, which are no whole vectors, one by one.
    """
    body = _inner_loop(k.convolution(5, width, channels, 1, 3), RELAXED, "relaxed")
    assert body.count("f32x4.relaxed_madd") == products
    assert body.count("v128.load") == vectors


@pytest.mark.parametrize(("tiles", "copied"), [(16, True), (12, False), (32, True)])
def test_planes_in_one_set_of_the_cache_get_whole_lines(tiles: int, copied: bool) -> None:
    """A line's four vectors are stored one after the other, before another plane's."""
    schedule = choose_rule(k.winograd_input(tiles, 64), RELAXED)[1]
    assert ("planes_write" in schedule.blocks()) == copied
    function = lower(schedule.function, RELAXED)
    stored: list[Any] = [
        s.indices[0] for s in stores(function.body) if s.buffer == function.params[-1]
    ]
    assert len(stored) == 4
    near = [const(4 * vector) for vector in range(4)]
    assert ([simplify(i.base - stored[0].base) for i in stored] == near) == copied


@pytest.mark.parametrize(("channels", "tiles"), [(64, 28), (128, 14), (8, 56)])
def test_the_planes_of_a_part_of_a_row_fit_the_cache(channels: int, tiles: int) -> None:
    schedule = choose_rule(k.winograd(Form(3, 1, 4, 3), 224, channels, channels), RELAXED)[1]
    made = {buffer.name: buffer for buffer in lower(schedule.function, RELAXED).allocations}
    assert made["planes"].shape == made["product"].shape == (const(36 * tiles * channels),)
    assert tiles == 56 or 4 * 36 * tiles * 2 * channels <= RELAXED.l2_bytes


def test_neighbouring_pixels_of_a_depthwise_tile_share_their_loads() -> None:
    """4 pixels of a 3x3 window read 6 columns of 3 rows and 9 weights (72 of both, unshared)."""
    lowered = lower(choose_rule(k.depthwise(8, 8, 8, 3), RELAXED)[1].function, RELAXED)
    text = emit_module({"kernel": lowered}, [Step("kernel", (0, 1, 2, 3))], "relaxed").text
    vectors = 2  # of channels
    assert text.count("f32x4.relaxed_madd") == vectors * 36
    assert text.count("v128.load") <= vectors * (18 + 9 + 1)


def test_a_symbolic_batch_is_no_part_of_tiles_that_an_image_fills() -> None:
    """The batch with its panels of columns is one loop; an image's tiles are counted at build."""
    function = choose_rule(k.convolution(28, 28, 64, 128, 1, batch=S), RELAXED)[1].function
    loops = [s for s in walk_statements(function.body) if isinstance(s, For)]
    assert {str(loop.extent) for loop in loops if as_int(loop.extent) is None} == {"s * 16"}


def test_blocks_of_pixels_meet_all_groups() -> None:
    """Which lie side by side in memory: threads share blocks, and no cache line but at an edge."""
    function = choose_rule(k.grouped_convolution(28, 4, 34, 34, kernel=1), RELAXED)[1].function
    blocks_, rest = _loops(function, "parallel")
    (groups, *_) = (s for s in walk_statements(blocks_.body) if isinstance(s, For))
    assert (_extent(blocks_), _extent(groups)) == ("13", "4")
    assert _extent(rest) == "4"  # of the last four pixels


def test_a_tile_meets_all_columns_of_a_small_matrix() -> None:
    """Threads share an image's tiles, under which all four panels are; the batch is around them."""
    function = choose_rule(k.convolution(28, 28, 4, 32, 1, batch=S), RELAXED)[1].function
    loops = [s for s in walk_statements(function.body) if isinstance(s, For)]
    assert str(loops[0].extent) == "s"
    parallel = next(loop for loop in loops if loop.kind == "parallel")
    assert as_int(parallel.extent) == 28 * 28 // RELAXED.tile.rows
    under = [s for s in walk_statements(parallel.body) if isinstance(s, For)]
    assert as_int(under[0].extent) == 4
