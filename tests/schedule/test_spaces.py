"""The spaces of schedules: every member builds, is sound, and computes what the kernel computes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, structs

from tests.graph.graphs import module
from tests.schedule.rules import kernels as k
from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError
from webmlc.core.expr import const
from webmlc.core.machine import (
    RELAXED,
    SIMD128,
    SOFTWARE,
    SOFTWARE_SUBGROUPS,
    WEBGPU,
    Machine,
)
from webmlc.graph.algorithms.winograd.operators import Form
from webmlc.graph.fuse.fuse import fuse
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.ir import Function, Module, Node, TensorType
from webmlc.loops.ir import LoopFunction
from webmlc.loops.kernel_form import CPU_FORM, GPU_FORM, KernelForm
from webmlc.loops.lower_module import lower_module
from webmlc.loops.verify import verify
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.rules import match_kernel, rules_of
from webmlc.schedule.rules.rule import Match, NoParameters, Rule, match_rules
from webmlc.schedule.rules.space import Product, Space, changes, leaves_of, plain
from webmlc.schedule.schedule import Schedule

S = k.S


def running_sum(axis: int, form: KernelForm) -> LoopFunction:
    """The kernel of a `CumSum` over rows of eight."""
    text = f"g (float[5,8] x) => (float[5,8] y) <int64 a = {{{axis}}}> {{ y = CumSum(x, a) }}"
    (kernel,) = lower_module(fuse(module(text)), form).kernels.values()
    return kernel


def attention_to_sections() -> LoopFunction:
    """The kernel in which one token of four heads attends to 19 keys, in sections of eight."""
    shapes = {"q": (1, 4, 16), "k": (19, 2, 16), "v": (19, 2, 16)}
    types = {n: TensorType(DType.float32, tuple(map(const, shape))) for n, shape in shapes.items()}
    outputs, attributes = ("averages", "logarithms"), {"scale": 0.5, "section": 8}
    node = Node("AttendSections", tuple(types), outputs, attributes, "webmlc")
    main = Function("main", tuple(types), outputs, (node,), types, {})
    fused = fuse(infer_shapes(Module("g", {"main": main})))
    (kernel,) = lower_module(fused, CPU_FORM).kernels.values()
    return kernel


CPU: dict[str, tuple[str, LoopFunction, dict[str, int]]] = {
    "matmul": ("contraction", k.matmul(13, 20, 6), {}),
    "matmul, symbolic rows": ("contraction", k.matmul(S, 24, 4), {"s": 7}),
    "matmul, streamed": ("contraction", k.matmul(3, 72, 1026), {}),
    "matvec, sigmoid": ("contraction", k.matmul_sigmoid(1, 45, 8), {}),
    "conv 3x3": ("contraction", k.convolution(4, 5, 3, 10, 3), {}),
    "conv in groups": ("contraction", k.grouped_convolution(4, 3, 4, 8), {}),
    "block product": ("block product", k.block_product(5, 24, 3), {}),
    "block product, symbolic rows": ("block product", k.block_product(S, 20, 2, False), {"s": 7}),
    "depthwise": ("window", k.depthwise(4, 6, 12, 3), {}),
    "max pool": ("window", k.pool(4, 12, 3, "relaxed_max"), {}),
    "local response": ("window", k.local_response(2, 24, 5), {}),
    "transform": ("transform", k.winograd_input(2, 16), {}),
    "winograd": ("bands", k.winograd(Form(3, 1, 2, 3), 4, 4, 8), {}),
    "strassen": ("strassen", k.strassen(7, 32, 8), {}),
    "attention": ("attention", k.attention(1, 12, 20, 8), {}),
    "attention to sections": ("attention to sections", attention_to_sections(), {}),
    "softmax": ("rows", k.softmax(3, 72), {}),
    "softmax, symbolic": ("rows", k.softmax(2, S), {"s": 37}),
    "transposed matmul": ("rows", k.transposed_matmul(3, 4, 64), {}),
    "transposed matmul, sigmoid": ("row epilogue", k.transposed_matmul_sigmoid(3, 12, 64), {}),
    "conv 3x3, one output": ("rows", k.convolution(3, 4, 8, 1, 3), {}),
    "layer norm": ("rows", k.layer_norm(1, 2, 70), {}),
    "add bias": ("stages", k.add_bias(2, 3, 4, 10), {}),
    "transpose": ("stages", k.transpose((1, 0), 32, 48), {}),
    "interleave": ("stages", k.interleave(3, 3, 21), {}),
    "sum": ("stages", k.total(8, 16), {}),
    "running sums": ("updates", running_sum(1, CPU_FORM), {}),
    "running sums of columns": ("updates", running_sum(0, CPU_FORM), {}),
    "conv in a border": ("slabs", k.bordered(k.convolution(3, 3, 3, 8, 3), 3, 3, 8), {}),
}
GPU: dict[str, tuple[str, LoopFunction, dict[str, int]]] = {
    "matmul": ("contraction", k.matmul(13, 20, 6), {}),
    "matmul, symbolic rows": ("contraction", k.matmul(S, 24, 4), {"s": 7}),
    "matmul, divided": ("contraction", k.matmul(12, 16, 64), {}),
    "matmul, staged": ("contraction", k.matmul(40, 64, 32), {}),
    "matmul, one row": ("contraction", k.matmul(1, 24, 48), {}),
    "conv 3x3": ("contraction", k.convolution(4, 5, 3, 10, 3), {}),
    "conv 1x1, divided, symbolic batch": (
        "contraction",
        k.convolution(2, 3, 32, 8, 1, batch=S),
        {"s": 2},
    ),
    "conv 3x3, divided": ("contraction", k.convolution(4, 5, 8, 16, 3), {}),
    "conv of patches, divided": ("contraction", k.convolution(2, 3, 3, 16, 8, 8), {}),
    "block product, one row": ("block product", k.float_block_product(1, 16, 3, False), {}),
    "block product, symbolic rows": ("block product", k.float_block_product(S, 24, 2), {"s": 7}),
    "attention in steps": ("attention", k.masked_attention(2, S, 8), {"s": 70}),
    "attention in tiles": ("attention", k.attention_of_heads(1, 2, 19, 40, 8), {}),
    "depthwise": ("window", k.depthwise(4, 6, 12, 3), {}),
    "transposed matmul": ("window", k.transposed_matmul(5, 3, 40), {}),
    "softmax": ("rows", k.softmax(3, 40), {}),
    "layer norm, symbolic": ("rows", k.layer_norm(S, 3, 9), {"s": 2}),
    "long row sums": ("reduction", k.total(2, 300, keep=1), {}),
    "long softmax": ("reduction", k.softmax(1, 300), {}),
    "column sums": ("columns", k.column_sums(90, 8), {}),
    "column sums, symbolic batch": ("columns", k.batch_sums(S, 70, 6), {"s": 2}),
    "running sums": ("updates", running_sum(1, GPU_FORM), {}),
    "add bias": ("pointwise", k.add_bias(2, 3, 4, 10), {}),
    "transpose": ("pointwise", k.transpose((1, 0), 8, 12), {}),
    "transform": ("transform", k.winograd_input(2, 8), {}),
    "transform to outputs, symbolic batch": (
        "transform",
        k.winograd_output(Form(3, 1, 3, 3), 4, 4, S),
        {"s": 2},
    ),
    "transpose in tiles": ("transpose", k.transpose((1, 0), 20, 33), {}),
    "conv in a border": ("slabs", k.bordered(k.convolution(3, 3, 3, 8, 3), 3, 3, 8), {}),
}
SOFTWARE_ADAPTERS: dict[str, tuple[str, LoopFunction, dict[str, int]]] = {
    "matmul": ("contraction", k.matmul(13, 20, 6), {}),
    "matmul, symbolic rows": ("contraction", k.matmul(S, 20, 6), {"s": 13}),
    "scores, symbolic": ("contraction", k.packed_scores(2, S, S, 8), {"s": 21}),
    "softmax": ("rows", k.softmax(3, 72), {}),
    "long softmax": ("rows", k.softmax(8, 300), {}),
    "long softmax of few rows": ("reduction", k.softmax(2, 300), {}),
    "conv in groups": ("window", k.grouped_convolution(4, 4, 4, 9, 1), {}),
    "conv in groups of pairs": ("window", k.grouped_convolution(4, 4, 4, 6, 2), {}),
    "transpose": ("pointwise", k.transpose((1, 0), 20, 33), {}),
    "transform": ("transform", k.winograd_input(2, 8), {}),
    "block product": ("block product", k.float_block_product(S, 24, 2), {"s": 7}),
}
TALL = k.matmul(8 * S, 64, 64)
"""A product whose rows a tile of 16 does not divide."""
CASES = {
    **{f"wasm: {name}": (RELAXED, *case) for name, case in CPU.items()},
    "wasm: matmul, simd128": (SIMD128, *CPU["matmul"]),
    **{f"webgpu: {name}": (WEBGPU, *case) for name, case in GPU.items()},
    **{f"software: {name}": (SOFTWARE, *case) for name, case in SOFTWARE_ADAPTERS.items()},
    "software: matmul in quads": (SOFTWARE_SUBGROUPS, "contraction", k.matmul(37, 48, 6), {}),
    "software: matmul in quads that overlap": (
        SOFTWARE_SUBGROUPS,
        "contraction",
        k.matmul(79, 332, 4),
        {},
    ),
    "software: matmul of tiles that overlap": (SOFTWARE, "contraction", k.matmul(79, 24, 4), {}),
    "software: large matmul in quads": (SOFTWARE_SUBGROUPS, "contraction", TALL, {"s": 2}),
    "software: matmul of few columns in quads": (
        SOFTWARE_SUBGROUPS,
        "contraction",
        k.matmul(70, 24, 8),
        {},
    ),
    "software: scores in quads": (
        SOFTWARE_SUBGROUPS,
        "contraction",
        k.packed_scores(2, S, S, 8),
        {"s": 37},
    ),
    "software: depthwise in quads": (SOFTWARE_SUBGROUPS, "window", k.depthwise(4, 6, 12, 3), {}),
}
Case = tuple[Machine, str, LoopFunction, dict[str, int]]
MEMBERS = 3
"""Members that are drawn for each kernel."""


def matched(function: LoopFunction, machine: Machine) -> Match:
    """The kernel's rule and facts."""
    match = match_kernel(function, machine)
    assert match is not None
    return match


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_member_builds_and_computes_the_same(case: Case) -> None:
    machine, rule, function, symbols = case
    match = matched(function, machine)
    assert match.rule.name == rule
    space, want = match.space(), k.outputs_of(function, symbols)

    @settings(max_examples=MEMBERS)
    @given(st.randoms(use_true_random=False))
    def check(generator: Random) -> None:
        member = space.random(generator)
        assert member in space
        schedule = match.build(member)
        verify(schedule.function)
        for got, wanted in zip(k.outputs_of(schedule.function, symbols), want, strict=True):
            largest = max(1.0, float(np.abs(wanted).max(initial=0)))
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * largest)

    check()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_default_is_a_member_and_plain_data(case: Case) -> None:
    machine, _, function, _ = case
    match = matched(function, machine)
    default = match.default()
    data = json.loads(json.dumps(plain(default)))
    assert default in match.space()
    assert match.space().read(data) == default
    assert match.space().at(leaves_of(data)) == default
    assert match.build(default).trace == match.default_schedule().trace


def test_choices_that_primitives_refuse_are_no_members() -> None:
    match = matched(k.transposed_matmul(3, 4, 64), WEBGPU)  # 64 threads leave no loop over turns
    chosen = structs.replace(match.default(), workgroup=64)
    assert match.space().at(leaves_of(chosen)) == chosen
    assert chosen not in match.space()
    with pytest.raises(InternalError, match="cannot build"):
        match.build(chosen)


@pytest.mark.parametrize("machine", (RELAXED, WEBGPU), ids=lambda machine: machine.device)
def test_every_rule_has_a_case(machine: Machine) -> None:
    cases: list[Any] = [*CASES.values()]
    tested = {rule for other, rule, _, _ in cases if other.device == machine.device}
    assert {rule.name for rule in rules_of(machine)} == tested


class Tile(Struct, frozen=True, tag="tile"):
    """A tile of a made-up rule."""

    rows: int
    columns: int


class Vector(Struct, frozen=True, tag="vector"):
    """A tile of one row."""

    columns: int


class Tiles(Struct, frozen=True):
    """The parameters of a made-up rule."""

    tile: Tile | Vector | None
    block: int | None


TILE = Space.of(Tile, rows=(1, 2, 4), columns=(8, 16)).where(
    "the tile fits", lambda rows, columns: rows * columns <= 32
)


def made_up_space() -> Product[Tiles]:
    """Three tiles, with and without blocks; single rows have none."""
    tiles = Space.either(None, TILE, Space.of(Vector, columns=(8, 16, 32)))
    return Space.of(Tiles, tile=tiles, block=(None, 12)).where(
        "blocks have tiles", lambda tile, block: block is None or isinstance(tile, Tile)
    )


def test_a_space_holds_what_meets_its_constraints() -> None:
    space = made_up_space()
    members = list(space.members())
    assert len(members) == len(set(members)) == 1 + 2 * 5 + 3
    assert all(member in space for member in members)
    assert Tiles(Tile(4, 16), None) not in space
    assert Tiles(Tile(True, 8), None) not in space  # 1 is not True
    assert Tiles(Vector(8), 12) not in space
    assert Tile(1, 8) not in space
    drawn = {space.random(Random(seed)) for seed in range(200)}
    assert drawn == set(members)


def test_members_are_tagged_json() -> None:
    space = made_up_space()
    for member in space.members():
        assert space.read(json.loads(json.dumps(plain(member)))) == member
        assert space.at(leaves_of(member)) == member
    tile = {"type": "tile", "rows": 1, "columns": 8}
    assert space.read({"tile": tile, "block": 12}) == Tiles(Tile(1, 8), 12)
    for other in (
        {"tile": tile},
        {"tile": tile, "block": 12, "steps": 1},
        {"tile": {**tile, "type": "vector"}, "block": None},
        {"tile": {**tile, "type": "line"}, "block": None},
        {"tile": {**tile, "rows": 4, "columns": 16}, "block": None},
        {"tile": {**tile, "rows": True}, "block": None},
        {"tile": 8, "block": None},
    ):
        assert space.read(other) is None, other


def test_leaves_have_paths() -> None:
    assert dict(made_up_space().leaves()) == {
        "tile": (None, "tile", "vector"),
        "tile.tile.rows": (1, 2, 4),
        "tile.tile.columns": (8, 16),
        "tile.vector.columns": (8, 16, 32),
        "block": (None, 12),
    }
    default, other = Tiles(Vector(8), None), Tiles(Tile(1, 8), None)
    assert changes(default, other) == {"tile": "tile", "tile.tile.rows": 1, "tile.tile.columns": 8}
    every = {**leaves_of(default), **changes(default, other)}
    assert made_up_space().at(every) == other
    assert made_up_space().at({**every, "tile": "line"}) is None
    pair = Space.each([TILE, TILE])
    assert leaves_of((Tile(1, 8), Tile(2, 8)))["1.tile.rows"] == 2
    assert len(list(pair.members())) == 25


def test_neighbours_are_members_that_differ_in_little() -> None:
    space, generator = made_up_space(), Random(0)
    members = list(space.members())
    start = Tiles(Tile(2, 8), 12)
    near = [space.near(start, generator) for _ in range(400)]
    assert set(near) <= set(members)
    assert {type(member.tile) for member in near} == {Tile, Vector, type(None)}
    in_place = [m for m in near if isinstance(m.tile, Tile) and m.tile.rows != 2]
    assert all(changes(start, member).keys() <= {"tile.tile.rows"} for member in in_place[:1])
    mended = space.mended(Tiles(Vector(32), 12), generator)
    assert mended in members
    assert space.mended(start, generator) == start


def test_a_neighbour_differs_in_one_leaf_that_has_another_value() -> None:
    space = Space.of(Tile, rows=(1, 2, 4, 8, 16, 32), columns=(8,))
    near = [space.near(Tile(8, 8), Random(seed)) for seed in range(400)]
    assert {tile.columns for tile in near} == {8}
    counts = Counter(tile.rows for tile in near)
    assert counts.keys() == {1, 2, 4, 16, 32}
    assert 310 < counts[4] + counts[16] < 370, "three quarters, and two fifths of the others"
    with pytest.raises(ValueError, match="weights"):
        Space.of(Tile, rows=(1,), columns=(8,)).near(Tile(1, 8), Random(0))


def test_a_sum_has_no_empty_spaces() -> None:
    tiles = Space.either(None, TILE, Space.of(Vector, columns=()))
    assert list(tiles.members()) == [None, *TILE.members()]
    assert Space.of(Tile, rows=(), columns=(8,)).size == 0
    assert list(Space.either(Space.of(Vector, columns=())).members()) == []


def test_a_search_may_leave_proofs_out() -> None:
    space = replace(made_up_space(), proof=lambda member: member.block == 12)
    assert {member.block for member in space.members()} == {12}
    assert len(list(space.without_proofs().members())) == 14
    assert all(space.random(Random(seed)).block == 12 for seed in range(20))


def test_constraints_are_on_parts() -> None:
    with pytest.raises(AssertionError, match="which are no parts"):
        TILE.where("few", lambda lines: lines < 2)


def test_a_space_of_nothing_says_so() -> None:
    with pytest.raises(ValueError, match="did not meet the constraints"):
        TILE.where("never", lambda rows: rows > 4).random(Random(0))


def refusing(function: LoopFunction) -> Iterator[Rule[Any, Any, Any]]:
    """A rule whose default is refused, then one that leaves a kernel as it is."""

    def refuse(_: Schedule, facts: LoopFunction, __: NoParameters) -> None:
        raise ScheduleError("split", "it is refused", facts)

    for name, build in (("refused", refuse), ("plain", lambda _, __, ___: None)):
        yield Rule(
            name,
            lambda kernel, _: kernel,
            lambda _, __: Space.of(NoParameters),
            lambda _, __: NoParameters(),
            build,
        )


def test_a_refused_default_is_reported_as_a_bug() -> None:
    function = k.add(4)
    with pytest.raises(InternalError, match=r"rule 'refused' .* cannot build .*: split: it is"):
        match_rules(refusing(function), function, RELAXED)


def test_what_proofs_decide_goes_to_the_next_rule() -> None:
    function = k.add(S)
    match = match_rules(refusing(function), function, RELAXED)
    assert match is not None and match.rule.name == "plain"
