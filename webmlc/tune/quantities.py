"""Write times, gains and shares as people read them: three digits and a unit."""

from __future__ import annotations


def duration(milliseconds: float, scale: float | None = None) -> str:
    """A time, in the unit that suits `scale` (milliseconds, too), or itself.

    duration(0.0123)  ->  "12.3 µs"
    """
    scale = milliseconds if scale is None else scale
    if scale >= 1000:
        return f"{digits(milliseconds / 1000)} s"
    return f"{digits(milliseconds)} ms" if scale >= 1 else f"{digits(milliseconds * 1000)} µs"


def times(factor: float) -> str:
    """How many times as fast something is: "1.38×"."""
    return f"{digits(factor)}×"


def percent(share: float) -> str:
    """A share of 1: "87 %"."""
    return f"{100 * share:.0f} %"


def budget(seconds: float) -> str:
    """A budget or its remaining seconds: "40 s", "10 min", "1 h 30 min"."""
    whole = round(seconds)
    parts = ((whole // 3600, "h"), (whole // 60 % 60, "min"), (whole % 60, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or "0 s"


def count(number: int, noun: str) -> str:
    """A number of things: "1 call", "1,200 calls"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def digits(number: float) -> str:
    """A number to two or three digits: "1,234", "12.3", "1.23", "0.012"."""
    if number >= 99.95:
        return f"{number:,.0f}"
    if number >= 9.995:
        return f"{number:.1f}"
    return f"{number:.2f}" if number >= 0.0995 else f"{number:.2g}"
