"""Buffers that are alive together never overlap, and the plan wastes little."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.packages import mixed, scaled
from webmlc.package.memory_plan import Interval, align, layout, lifetimes, place
from webmlc.package.transfers import stages


@st.composite
def intervals(draw: st.DrawFn) -> list[Interval]:
    count = draw(st.integers(0, 40))
    cases = []
    for _ in range(count):
        first = draw(st.integers(0, 20))
        cases.append(Interval(draw(st.integers(0, 5000)), first, draw(st.integers(first, 22))))
    return cases


@given(intervals(), st.sampled_from([64, 256]))
def test_no_two_live_buffers_overlap(cases: list[Interval], alignment: int) -> None:
    plan = place(cases, alignment)
    for i, a in enumerate(cases):
        assert plan.offsets[i] % alignment == 0
        assert plan.offsets[i] + a.bytes <= plan.total
        for j, b in enumerate(cases[:i]):
            together = a.first <= b.last and b.first <= a.last
            apart = (
                plan.offsets[i] + a.bytes <= plan.offsets[j]
                or plan.offsets[j] + b.bytes <= plan.offsets[i]
            )
            assert apart or not together


def test_a_chain_needs_only_two_buffers() -> None:
    chain = [Interval(1000, step, step + 1) for step in range(50)]
    assert place(chain, 64).total == 2 * align(1000, 64)


def test_a_residual_network_stays_at_its_largest_live_set() -> None:
    # Blocks of ResNet: the input of each stays alive beside two inner buffers.
    cases = []
    for block in range(16):
        size = 800_000 >> (block // 4)
        cases += [
            Interval(size, 3 * block, 3 * block + 3),
            Interval(size // 4, 3 * block + 1, 3 * block + 2),
            Interval(size // 4, 3 * block + 2, 3 * block + 3),
        ]
    live = max(sum(c.bytes for c in cases if c.first <= step <= c.last) for step in range(49))
    assert place(cases, 64).total <= 1.05 * live


def test_another_order_is_tried_where_largest_first_leaves_a_gap() -> None:
    # Largest first: the third lies above the second, and the last does not fit between it and the
    # first.
    cases = [Interval(256, 0, 2), Interval(320, 4, 5), Interval(256, 2, 4), Interval(192, 2, 3)]
    assert place(cases, 64).total == 704 == 256 + 256 + 192


@given(intervals(), intervals())
def test_what_is_placed_later_moves_nothing(known: list[Interval], later: list[Interval]) -> None:
    bound = [Interval(i.bytes, i.first, i.last, group=1) for i in later]
    both = place([*bound, *known], 64)
    assert both.offsets[len(bound) :] == place(known, 64).offsets


def test_the_layout_of_a_program(tmp_path: Path) -> None:
    manifest = scaled(tmp_path)
    plan = layout(manifest, "wasm", "wasm", {"n": 100}, threads=2)
    assert plan.constants == {"w": 1280}  # after the control area and the slot table
    assert plan.offsets["x"] == 1536
    # y may lie where x was: x is not needed any more when y is written.
    assert plan.offsets["y"] == plan.offsets["x"]
    assert plan.arena == 2 * align(1600, 64)
    assert plan.total == 1536 + plan.arena


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
