"""Times, gains and shares are written with a unit and as many digits as a person reads."""

import pytest

from webmlc.tune.report.words import budget, count, digits, duration, percent, times


@pytest.mark.parametrize(
    ("number", "text"),
    [(1234.5, "1,234"), (99.96, "100"), (12.34, "12.3"), (9.996, "10.0"), (1.234, "1.23"),
     (0.5, "0.50"), (0.01234, "0.012")],
)  # fmt: skip
def test_numbers_have_two_or_three_digits(number: float, text: str) -> None:
    assert digits(number) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(0.0123, "12.3 µs"), (4.5678, "4.57 ms"), (2500.0, "2.50 s")]
)
def test_a_time_has_the_unit_of_its_magnitude(milliseconds: float, text: str) -> None:
    assert duration(milliseconds) == text


def test_a_time_beside_another_has_its_unit() -> None:
    assert duration(0.5, scale=2.0) == "0.50 ms"


@pytest.mark.parametrize(
    ("seconds", "text"), [(40, "40 s"), (600, "10 min"), (5400, "1 h 30 min"), (0.2, "0 s")]
)
def test_a_budget_is_in_hours_minutes_and_seconds(seconds: float, text: str) -> None:
    assert budget(seconds) == text


def test_counts_gains_and_shares() -> None:
    assert [count(1, "call"), count(1200, "call")] == ["1 call", "1,200 calls"]
    assert [times(1.384), percent(0.867)] == ["1.38×", "87 %"]
