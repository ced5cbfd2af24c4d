"""Buffers that are alive together never overlap, and a placement wastes little."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from webmlc.package.placement import Interval, align, place


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
