"""Show what the lessons talk about: the code of a kernel, loop nests, images and measured figures.

`print_code` prints. The other functions return a `Picture`, which a notebook displays when it is
the value of a cell's last line.

    print_code(kernel)
    draw_loops(schedule)
    draw_bars({"numpy": 40.2, "webmlc": 31.0}, "GFLOPS")
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from webmlc.loops.ir import Block, For, If, LoopFunction, Stmt, child_statements, stores
from webmlc.programs.compiled import CompiledModule
from webmlc.programs.ir_module import IRModule
from webmlc.programs.script import Program
from webmlc.programs.tir import Schedule

WIDTH = 480
"""The width of a picture of a loop nest, in CSS pixels: a telephone shows readable text."""
INCHES = WIDTH / 96
"""The width of a chart: as wide as a loop nest. An inch has 96 CSS pixels."""
ROW = 26
"""The height of a line of text in that picture, in CSS pixels."""
GAP = 10
"""The distance between nested boxes, in CSS pixels."""
COLOURS = {
    "serial": ("#f4f6fb", "#8a97b8", ""),
    "vectorized": ("#fff0d6", "#d08b16", "vector"),
    "unrolled": ("#f3e8fb", "#8d5bb5", "unrolled"),
    "parallel": ("#e2f4e4", "#3f9a4c", "threads"),
    "thread_binding": ("#dff0fa", "#2c83b8", ""),
    "block": ("#ffffff", "#444444", ""),
}
"""The fill, the border, and the note of each kind of loop, and of blocks."""
LINE_COLOURS = ("#2c83b8", "#d08b16", "#3f9a4c", "#8d5bb5", "#b8443c")
"""The colours of curves."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as SVG, and a sentence for readers who do not see it."""

    svg: str
    caption: str

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return self.caption


def code_of(kernel: CompiledModule, name: str) -> str:
    """The code of a kernel: its functions in WebAssembly text, without the functions that all
    packages have, or its shader. The body of a parallel loop is a function of its own.
    """
    if kernel.target != "wasm":
        return kernel.text
    pattern = rf"^\(func \${re.escape(name)}(?:\.\d+)? .*?(?=^\(func )"
    return "".join(re.findall(pattern, kernel.text, re.MULTILINE | re.DOTALL)).rstrip()


def print_code(kernel: CompiledModule, name: str, lines: int = 60) -> None:
    """Print the code of a kernel, or its first lines."""
    code = code_of(kernel, name).splitlines()
    print("\n".join(code[:lines]))
    if len(code) > lines:
        print(f"... {len(code) - lines} more lines")


# -- loop nests ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Box:
    """A box of the picture of a loop nest: its kind, its title, and the boxes inside it."""

    kind: str
    title: str
    inner: tuple[_Box, ...] = ()

    @property
    def height(self) -> int:
        return ROW + sum(box.height + GAP for box in self.inner)


def _boxes(statement: Stmt) -> tuple[_Box, ...]:
    """The loops and the blocks of a statement."""
    inner = tuple(box for child in child_statements(statement) for box in _boxes(child))
    match statement:
        case For():
            note = statement.thread or COLOURS[statement.kind][2]
            title = f"for {statement.var.name} in {statement.extent}" + (
                f"  ({note})" if note else ""
            )
            return (_Box(statement.kind, title, inner),)
        case Block() if not inner:
            written = dict.fromkeys(store.buffer.name for store in stores(statement))
            return (_Box("block", f"block {statement.name}: writes {', '.join(written)}"),)
        case Block():
            return (_Box("block", f"block {statement.name}", inner),)
        case If():
            return (_Box("block", f"if {statement.condition}", inner),)
    return inner


def _canvas(height: int) -> list[str]:
    """The start of a picture: a white ground of `height` CSS pixels."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        'font-family="ui-monospace, monospace" font-size="13" fill="#222">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]


def _rectangle(kind: str, x: int, y: int, width: int, height: int) -> list[str]:
    """A rounded rectangle in the colours of a kind."""
    fill, border, _ = COLOURS[kind]
    return [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{fill}" '
        f'stroke="{border}"/>'
    ]


def _svg(box: _Box, x: int, y: int, width: int) -> str:
    """A box at a place, with the boxes inside it."""
    parts = [
        *_rectangle(box.kind, x, y, width, box.height),
        f'<text x="{x + GAP}" y="{y + 18}">{escape(box.title)}</text>',
    ]
    top = y + ROW
    for inner in box.inner:
        parts.append(_svg(inner, x + GAP, top, width - 2 * GAP))
        top += inner.height + GAP
    return "\n".join(parts)


def draw_loops(program: Program | Schedule | LoopFunction) -> Picture:
    """Draw the loops of a program as boxes in boxes, with the blocks inside them."""
    function = program if isinstance(program, LoopFunction) else program.function
    boxes = _boxes(function.body)
    height = sum(box.height + GAP for box in boxes) + GAP
    parts = _canvas(height)
    top = GAP
    for box in boxes:
        parts.append(_svg(box, GAP, top, WIDTH - 2 * GAP))
        top += box.height + GAP
    return Picture("\n".join([*parts, "</svg>"]), f"The loops of {function.name}")


# -- graphs ----------------------------------------------------------------------------------------


def draw_graph(module: IRModule) -> Picture:
    """Draw the calls of a module's graph function from above to below, with what each reads and the
    type of what it writes.
    """
    main = module.graph_function()
    height = (ROW * 2 + 2 * GAP) * len(main.nodes) + ROW
    parts = _canvas(height)
    top = ROW
    parts.append(f'<text x="{GAP}" y="18">inputs: {escape(", ".join(main.inputs))}</text>')
    for node in main.nodes:
        outputs = ", ".join(f"{name}: {main.type(name)}" for name in node.outputs)
        call = f"{node.attributes['kernel']}({', '.join(node.inputs)})"
        parts.append(
            f'<path d="M 40 {top} v {2 * GAP} m -4 -6 l 4 6 l 4 -6" fill="none" stroke="#444"/>'
        )
        top += 2 * GAP
        parts += _rectangle("serial", GAP, top, WIDTH - 2 * GAP, 2 * ROW)
        parts.append(f'<text x="{2 * GAP}" y="{top + 20}">{escape(call)}</text>')
        parts.append(
            f'<text x="{2 * GAP}" y="{top + 42}" fill="#555">{escape(f"→ {outputs}")}</text>'
        )
        top += 2 * ROW
    calls = ", ".join(node.attributes["kernel"] for node in main.nodes)
    return Picture("\n".join([*parts, "</svg>"]), f"A graph of calls: {calls}")


# -- measured figures ------------------------------------------------------------------------------


def _picture(figure: Figure, caption: str) -> Picture:
    """A figure as SVG without the date, so that equal figures are equal texts."""
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    return Picture(re.sub(r"^.*?(?=<svg )", "", text.getvalue(), flags=re.DOTALL), caption)


def draw_bars(
    values: Mapping[str, float], unit: str, limit: float | None = None, title: str = ""
) -> Picture:
    """Draw a bar for each value, in order from above, and a dashed line at the `limit`."""
    figure = Figure(figsize=(INCHES, 0.6 + 0.36 * len(values)))
    axes = figure.subplots()
    bars = axes.barh(list(values), list(values.values()), color=LINE_COLOURS[0])
    axes.bar_label(bars, [f" {value:.3g}" for value in values.values()])
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.set_title(title)
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    if limit is not None:
        axes.axvline(limit, color=LINE_COLOURS[4], linestyle="--")
    texts = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
    return _picture(figure, f"{title or 'Bars'} in {unit}: {texts}")


def draw_curves(
    curves: Mapping[str, Sequence[float]], x_label: str, y_label: str, title: str = ""
) -> Picture:
    """Draw a curve for each sequence, over 1, 2, 3 ..."""
    figure = Figure(figsize=(INCHES, 2.8))
    axes = figure.subplots()
    for number, (name, values) in enumerate(curves.items()):
        colour = LINE_COLOURS[number % len(LINE_COLOURS)]
        axes.plot(range(1, len(values) + 1), values, label=name, color=colour)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    if len(curves) > 1:
        axes.legend(frameon=False)
    return _picture(figure, f"{title or 'Curves'}: {y_label} over {x_label}")


def draw_images(images: np.ndarray[Any, Any], titles: Sequence[str]) -> Picture:
    """Draw grey images (count, height, width) in a row, each with its title."""
    figure = Figure(figsize=(0.85 * len(images), 1.2))
    grid = figure.subplots(1, len(images), squeeze=False)
    for axes, image, title in zip(grid[0], images, titles, strict=True):
        axes.imshow(image, cmap="gray_r")
        axes.set_title(title, fontsize=9)
        axes.set_axis_off()
    return _picture(figure, f"Images: {', '.join(titles)}")
