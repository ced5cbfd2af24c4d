"""Buffers that are alive together never overlap, and the plan wastes little."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.packages import BUFFERS, mixed, parts, scaled
from webmlc.core.expr import const
from webmlc.package.memory_plan import LARGE, Interval, align, layout, lifetimes, place
from webmlc.package.transfers import stages
from webmlc.package.write import write_package


@st.composite
def intervals(draw: st.DrawFn) -> list[Interval]:
    count = draw(st.integers(0, 40))
    cases = []
    for _ in range(count):
        first = draw(st.integers(0, 20))
        size, last = draw(st.integers(0, 5000)), draw(st.integers(first, 22))
        cases.append(Interval(size, first, last, draw(st.sampled_from([64, 256, 4096]))))
    return cases


@given(intervals())
def test_no_two_live_buffers_overlap(cases: list[Interval]) -> None:
    plan = place(cases)
    for i, a in enumerate(cases):
        assert plan.offsets[i] % a.alignment == 0
        assert plan.offsets[i] + a.bytes <= plan.total
        for j, b in enumerate(cases[:i]):
            together = a.first <= b.last and b.first <= a.last
            apart = (
                plan.offsets[i] + a.bytes <= plan.offsets[j]
                or plan.offsets[j] + b.bytes <= plan.offsets[i]
            )
            assert apart or not together


def test_a_chain_needs_only_two_buffers() -> None:
    chain = [Interval(1000, step, step + 1, 64) for step in range(50)]
    assert place(chain).total == 2 * align(1000, 64)


def test_a_residual_network_stays_at_its_largest_live_set() -> None:
    # Blocks of ResNet: the input of each stays alive beside two inner buffers.
    cases = []
    for block in range(16):
        size = 800_000 >> (block // 4)
        cases += [
            Interval(size, 3 * block, 3 * block + 3, 64),
            Interval(size // 4, 3 * block + 1, 3 * block + 2, 64),
            Interval(size // 4, 3 * block + 2, 3 * block + 3, 64),
        ]
    live = max(sum(c.bytes for c in cases if c.first <= step <= c.last) for step in range(49))
    assert place(cases).total <= 1.05 * live


def test_another_order_is_tried_where_largest_first_leaves_a_gap() -> None:
    # Largest first: the third lies above the second, and the last does not fit between it and the
    # first.
    spans = [(256, 0, 2), (320, 4, 5), (256, 2, 4), (192, 2, 3)]
    cases = [Interval(*span, alignment=64) for span in spans]
    assert place(cases).total == 704 == 256 + 256 + 192


@given(intervals(), intervals())
def test_what_is_placed_later_moves_nothing(known: list[Interval], later: list[Interval]) -> None:
    bound = [replace(interval, group=1) for interval in later]
    both = place([*bound, *known])
    assert both.offsets[len(bound) :] == place(known).offsets


def test_the_layout_of_a_program(tmp_path: Path) -> None:
    manifest = scaled(tmp_path)
    plan = layout(manifest, "wasm", "wasm", {"n": 100}, threads=2)
    assert plan.constants == {"w": 1280}  # after the control area and the slot table
    assert plan.offsets["x"] == 1536
    # y may lie where x was: x is not needed any more when y is written.
    assert plan.offsets["y"] == plan.offsets["x"]
    assert plan.arena == 2 * align(1600, 64)
    assert plan.total == 1536 + plan.arena


def test_large_weights_start_at_a_page(tmp_path: Path) -> None:
    count = LARGE // 4
    small = parts()
    buffers = tuple(replace(b, shape=(const(count),)) if b.name == "w" else b for b in BUFFERS)
    programs = {d: replace(p, buffers=buffers) for d, p in small.programs.items()}
    weight = np.zeros(count, np.float32)
    large = replace(small, programs=programs, constants={"weight": weight})
    manifest = write_package(tmp_path, large)
    plan = layout(manifest, "wasm", "wasm", {"n": 1})
    assert plan.constants == {"w": 4096}
    assert plan.offsets["x"] == 4096 + LARGE


def test_crossing_buffers_move_once_and_live_on_both_sides(tmp_path: Path) -> None:
    manifest = mixed(tmp_path)
    program = manifest.programs["webgpu"]
    first, second = stages(program, ["y"], "webgpu")
    assert (first.uploads, first.downloads) == (("x",), ("t",))
    assert (second.uploads, second.downloads) == (("t",), ("y",))
    assert (second.segment.module_first, second.segment.module_last) == (2, 3)
    both = stages(program, ["y"], "webgpu")
    assert lifetimes(program, both, "webgpu", "webgpu") == {"x": (0, 0), "t": (0, 0)}
    assert lifetimes(program, both, "wasm", "webgpu") == {"t": (1, 1), "y": (1, 1)}
    assert layout(manifest, "webgpu", "wasm", {"n": 1}).constants == {}
