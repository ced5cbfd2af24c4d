"""Write the page of a search as trees of elements, with charts in SVG.

    element("p", "The kernel ", element("b", name), class_="note")      # texts are escaped, CSS not
    bar(0.5, "before"), share_chart(0.3, 0.6), curve(search, lowest)

Bars and shares hold shapes only, which stretch to the width of the screen; their texts stand beside
them and keep their size. Curves have a fixed shape and hold the labels of their axes. Colours are
classes of `report.css`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from webmlc.tune.report.words import digits
from webmlc.tune.search.outcomes import Outcome
from webmlc.tune.search.task_search import TaskSearch


def element(tag: str, *content: Element | str, **attributes: object) -> Element:
    """An element with texts and elements inside. Trailing underscores of attributes' names are
    dropped, and the others are hyphens: `class_`, `stroke_width`.
    """
    result = Element(tag, {_attribute(name): str(value) for name, value in attributes.items()})
    for item in content:
        if isinstance(item, Element):
            result.append(item)
        elif len(result):
            result[-1].tail = (result[-1].tail or "") + item
        else:
            result.text = (result.text or "") + item
    return result


def page_text(title: str, style: str, *content: Element) -> str:
    """The text of a page that needs no other file, and that a phone shows at its width."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", style),
    )
    page = element("html", head, element("body", element("main", *content)), lang="en")
    return f"<!doctype html>\n{ElementTree.tostring(page, 'unicode', method='html')}\n"


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


CURVE_WIDTH, CURVE_HEIGHT = 240, 132
"""The size of a curve, in CSS pixels where a column has that width."""
LEFT, RIGHT, TOP, BOTTOM = 28, 8, 8, 18
"""The margins of a curve, which hold its axes' labels."""
HIGHEST = 1.5
"""The relative time at a curve's upper edge. Slower candidates lie on that edge: an engine stops
measuring them (`trial.Protocol.hopeless`)."""
TICK = 0.25
"""The relative time between two lines of a curve's grid."""
TARGET_SHARE = 0.8
"""The share of the limit that a kernel should reach."""


def bar(share: float, kind: str) -> Element:
    """A horizontal bar that fills a share of the width."""
    filled = element("rect", class_=kind, width=f"{100 * share:.2f}", height=10, rx=0.4, ry=2)
    return _stretched("bar", filled)


def share_chart(before: float, after: float) -> Element:
    """A kernel's share of the limit with both schedules, beside the share it should reach."""
    low, high = sorted((min(before, 1.0), min(after, 1.0)))
    return _stretched(
        "shares",
        element("rect", class_="track", width=100, height=10),
        element("rect", class_="before", width=f"{100 * low:.2f}", height=10),
        element(
            "rect",
            class_="after" if after >= before else "lost",
            x=f"{100 * low:.2f}",
            width=f"{100 * (high - low):.2f}",
            height=10,
        ),
        element("rect", class_="target", x=100 * TARGET_SHARE, width=0.3, height=10),
    )


def lowest_tick(outcomes: Sequence[Outcome]) -> float:
    """The relative time at the lower edge of all curves: the tick below the best time."""
    lowest = min(min(o.ratio, o.search.best) for o in outcomes)
    return (math.ceil(lowest / TICK) - 1) * TICK


def curve(search: TaskSearch, lowest: float) -> Element:
    """The best relative time over the number of measurements, every candidate as a dot, and the
    confirmed winner.
    """
    best = search.curve
    right, bottom = CURVE_WIDTH - RIGHT, CURVE_HEIGHT - BOTTOM
    step = (right - LEFT) / len(best)

    def y(ratio: float) -> float:
        share = (HIGHEST - min(ratio, HIGHEST)) / (HIGHEST - lowest)
        return TOP + share * (bottom - TOP)

    ratios = [r for text, r in search.ratios.items() if text != search.control.text]
    dots = [
        f"M{LEFT + number * step:.1f} {y(ratio):.1f}h0"
        for number, ratio in enumerate(ratios, 1)
        if ratio is not None
    ]
    steps = [f"H{LEFT + n * step:.1f}V{y(ratio):.1f}" for n, ratio in enumerate(best, 1)]
    parts = [
        *_grid(lowest, y),
        element("path", class_="dots", d=" ".join(dots)),
        element("path", class_="best", d=f"M{LEFT} {y(1.0):.1f}" + "".join(steps)),
        element("text", "0", x=LEFT, y=CURVE_HEIGHT - 5, text_anchor="middle"),
        element("text", f"{len(best)}", x=right, y=CURVE_HEIGHT - 5, text_anchor="end"),
    ]
    if search.confirmed is not None and search.confirmed[1] < 1.0:
        parts.append(
            element("circle", class_="winner", cx=right, cy=f"{y(search.confirmed[1]):.1f}", r=4)
        )
    return element("svg", *parts, class_="curve", viewBox=f"0 0 {CURVE_WIDTH} {CURVE_HEIGHT}")


def _grid(lowest: float, y: Callable[[float], float]) -> list[Element]:
    """A line at every tick. The default's, at 1, is stronger."""
    parts = []
    ticks = round((HIGHEST - lowest) / TICK)
    for tick in (lowest + n * TICK for n in range(ticks + 1)):
        level = f"{y(tick):.1f}"
        kind = "equal" if tick == 1.0 else "grid"
        parts.append(
            element("line", class_=kind, x1=LEFT, x2=CURVE_WIDTH - RIGHT, y1=level, y2=level)
        )
        if tick % 0.5 == 0:
            label = digits(tick).rstrip("0").rstrip(".")
            parts.append(element("text", label, x=LEFT - 5, y=f"{y(tick) + 3.5:.1f}",
                                 text_anchor="end"))  # fmt: skip
    return parts


def _stretched(kind: str, *shapes: Element) -> Element:
    """Shapes 100 wide and 10 high that fill the room that the page gives them."""
    return element(
        "svg",
        *shapes,
        class_=kind,
        viewBox="0 0 100 10",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
