"""Draw the speed of all models relative to ONNX Runtime Web, for docs/measured.md.

In: results (`results.merge`). Out: SVG that is readable on light and on dark pages.

    Path("docs/measured.svg").write_text(chart(results))
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from benchmarks.results import Results, ratio

WIDTH, LEFT, RIGHT, TOP = 760, 190, 44, 58
"""The width of the chart and its margins, in pixels."""
BAR, GAP = 10, 6
"""The height of a bar, and the gap between models, in pixels."""
STEP = 2 * BAR + GAP
"""The height of one model's row, in pixels."""
STYLE = """
 text { font: 12px system-ui, sans-serif; fill: #1f2328 }
 .title { font-weight: 600; font-size: 14px }
 .small { font-size: 10px; fill: #59636e }
 .one { fill: #0969da } .two { fill: #8250df }
 .grid { stroke: #d1d9e0 } .equal { stroke: #59636e }
 @media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .small { fill: #9198a1 }
  .one { fill: #4493f8 } .two { fill: #ab7df8 }
  .grid { stroke: #3d444d } .equal { stroke: #9198a1 }
 }"""
"""The style sheet of the chart."""


def chart(results: Results) -> str:
    """The text of the SVG. Models are sorted by their ratio with one thread, best first."""
    ratios = {
        name: (single_thread, ratio(entry, 2))
        for name, entry in results["models"].items()
        if (single_thread := ratio(entry, 1)) is not None
    }
    ordered = sorted(ratios.items(), key=lambda item: -item[1][0])
    highest = max((r for pair in ratios.values() for r in pair if r is not None), default=1.0)
    scale = (WIDTH - LEFT - RIGHT) / highest
    height = TOP + len(ordered) * STEP + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-labelledby="title">',
        f"<style>{STYLE}</style>",
        '<text id="title" class="title" x="8" y="20">'
        "Times as fast as ONNX Runtime Web (WASM) in the same Chromium</text>",
        '<rect class="one" x="8" y="31" width="10" height="10"/>'
        '<text x="23" y="40">1 thread</text>',
        '<rect class="two" x="90" y="31" width="10" height="10"/>'
        '<text x="105" y="40">2 threads</text>',
        *_grid(int(highest), scale, height),
    ]
    for i, (name, pair) in enumerate(ordered):
        y = TOP + i * STEP
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + BAR + 4}" text-anchor="end">{escape(name)}</text>'
        )
        for j, value in enumerate(pair):
            if value is not None:
                parts += _bar(value, LEFT, y + j * BAR, scale, ("one", "two")[j])
    return "\n".join([*parts, "</svg>", ""])


def _grid(highest: int, scale: float, height: int) -> list[str]:
    """A vertical line at every whole number. The line of equal speed is stronger."""
    lines = []
    for n in range(highest + 1):
        x = f"{LEFT + n * scale:.1f}"
        kind = "equal" if n == 1 else "grid"
        lines.append(f'<line class="{kind}" x1="{x}" y1="{TOP - 4}" x2="{x}" y2="{height - 18}"/>')
        lines.append(
            f'<text class="small" x="{x}" y="{height - 6}" text-anchor="middle">{n}×</text>'
        )
    return lines


def _bar(value: float, x: int, y: int, scale: float, kind: str) -> list[str]:
    """One bar, with its value as text."""
    width = value * scale
    return [
        f'<rect class="bar {kind}" x="{x}" y="{y}" width="{width:.1f}" height="{BAR - 1}"/>',
        f'<text class="small" x="{x + width + 4:.1f}" y="{y + BAR - 1}">{value:.1f}</text>',
    ]
