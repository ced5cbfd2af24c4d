"""Write `docs/walkthrough.md`: one small model followed through every stage of the compiler.

In: `walkthrough.template.md`, where a slot (`{{lowered}}` on a line of its own) stands for each
text, and the compiler. Out: the template with every slot replaced by what the compiler prints at
that stage. `tests/docs` compares the result with the file.

    .venv/bin/python -m docs.walkthrough                                   # write walkthrough.md
    .venv/bin/python -m docs.walkthrough --model build/walkthrough.onnx    # write the model only
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from webmlc.core.machine import RELAXED
from webmlc.core.stages import Listing
from webmlc.loops.text import parse_function
from webmlc.package.manifest import MANIFEST, Manifest
from webmlc.package.memory_plan import layout
from webmlc.pipeline import build
from webmlc.schedule.rules import schedule_kernel
from webmlc.schedule.trace import arguments_of

FOLDER = Path(__file__).parent
TEMPLATE = FOLDER / "walkthrough.template.md"
DOCUMENT = FOLDER / "walkthrough.md"
COMMAND = ".venv/bin/python -m docs.walkthrough"
HEADER = f"<!-- Written by `{COMMAND}` from walkthrough.template.md: edit that file. -->"

MODEL = """\
<ir_version: 8, opset_import: ["" : 17]>
walkthrough (float[1, 3, 12, 12] image) => (float[1, 16, 12, 12] feature_map) {
  sums = Conv <pads = [1, 1, 1, 1]> (image, filters, bias)
  feature_map = Relu (sums)
}"""
KERNEL = "conv_add_relu"

LONGEST_PERIOD = 16
"""Lines of the longest block that `cut_repetitions` looks for: the shader's inner loop repeats
14 lines.
"""
FEWEST_REPETITIONS = 3
"""Blocks in a row that make a repetition."""
FEWEST_CUT = 4
"""Lines that `cut_repetitions` leaves out at least: fewer are as easily read."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """What one build of the model leaves: its stages and the package's manifest."""

    texts: Mapping[tuple[str, str | None], str]
    manifest: Manifest
    manifest_text: str

    def stage(self, title: str, kernel: str | None = None) -> str:
        """The text of a stage, of one kernel where the stage has kernels."""
        return self.texts[title, kernel]


@dataclass(frozen=True, slots=True)
class Slot:
    """A text of the walkthrough: the language to highlight it as, and how to get it."""

    language: str
    text: Callable[[Compilation], str]


def walkthrough_model() -> onnx.ModelProto:
    """The model, whose weights are the same on every machine."""
    model = onnx.parser.parse_model(MODEL)
    filters = np.linspace(-1, 1, 16 * 3 * 3 * 3, dtype=np.float32).reshape(16, 3, 3, 3)
    bias = np.linspace(-2, 2, 16, dtype=np.float32)
    weights = {"filters": filters, "bias": bias}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    return model


def compile_walkthrough(folder: Path) -> Compilation:
    """Build the model's package into `folder`, and keep every stage."""
    stages = Listing()
    manifest = build(walkthrough_model(), folder, on_stage=stages, cache=False)
    texts = {(stage.title, stage.kernel): stage.text() for stage in stages.stages}
    return Compilation(texts, manifest, (folder / MANIFEST).read_text("utf-8"))


# -- cutting ---------------------------------------------------------------------------


def line_shape(line: str) -> str:
    """A line without its numbers and declared names: lines of one shape are of one form.

    >>> line_shape("r1 += r8 * r10;") == line_shape("r3 += r11 * r10;")
    True
    """
    line = re.sub(r"^(\s*)\w+ = T\.alloc_buffer", r"\1T.alloc_buffer", line)
    line = re.sub(r"\(local \$\S+ \w+\)", "(local)", line)
    return re.sub(r" offset=\d+| \+ \d+\b|_?\d+", "", line)


def cut_repetitions(text: str, comment: str) -> str:
    """Show a block of lines that repeats with other numbers once, and say how many lines follow.

    >>> print(cut_repetitions("a = 1\\nb0 = 0\\nb1 = 0\\nb2 = 0\\nb3 = 0\\nb4 = 0", "#"))
    a = 1
    b0 = 0
    # ... 4 more lines of this form
    """
    lines = text.splitlines()
    shapes = [line_shape(line) for line in lines]
    kept: list[str] = []
    start = 0
    while start < len(lines):
        period, count = _repetition(shapes, start)
        if (count - 1) * period < FEWEST_CUT:
            kept.append(lines[start])
            start += 1
            continue
        first = _first_line(shapes, start, period, count)
        kept += lines[start : first + period]
        indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
        kept.append(f"{indent}{comment} ... {(count - 1) * period} more lines of this form")
        start = first + period * count
    return "\n".join(kept)


def _repetition(shapes: list[str], start: int) -> tuple[int, int]:
    """The period and the count of the repetition at `start` that covers most lines."""
    best = (1, 1)
    for period in range(1, LONGEST_PERIOD + 1):
        block = shapes[start : start + period]
        count = 1
        while shapes[start + count * period : start + (count + 1) * period] == block:
            count += 1
            if not block:
                return best
        if count >= FEWEST_REPETITIONS and period * count > best[0] * best[1]:
            best = (period, count)
    return best


def _first_line(shapes: list[str], start: int, period: int, count: int) -> int:
    """Where a block of the repetition begins: at the line whose form is rarest in the block.

    A load, two uses, a load, two uses, ... may be read as "use, load, use" as well.
    """
    rotations = [start]
    while _repetition(shapes, rotations[-1] + 1) == (period, count):
        rotations.append(rotations[-1] + 1)
    return min(rotations, key=lambda first: shapes[first : first + period].count(shapes[first]))


def wat_function(module: str, name: str) -> str:
    """A function of a WAT module, whole."""
    pattern = rf"^\(func {re.escape(name)} .*?(?=^\(|^;;|\Z)"
    match = re.search(pattern, module, re.MULTILINE | re.DOTALL)
    if match is None:
        raise ValueError(f"the module has no function {name}")
    return match.group().rstrip()


def wgsl_entry(module: str, name: str) -> str:
    """An entry point of a WGSL module, with its bindings."""
    (entry,) = (part for part in module.split("\n\n") if f"\nfn {name}(" in part)
    return entry.rstrip()


def cut_manifest(text: str) -> str:
    """The manifest without the table of files and the hashes, which change with the runtime."""
    text = re.sub(r'"files":\{\n.*?\n\},', '"files":{ ... },', text, flags=re.DOTALL)
    return re.sub(r'"[0-9a-f]{64}"', '"..."', text).rstrip()


# -- slots -----------------------------------------------------------------------------


def graph_stage(title: str) -> Slot:
    """A slot for the graph after a stage."""
    return Slot("text", lambda compilation: compilation.stage(title))


def loop_stage(title: str, kernel: str = KERNEL) -> Slot:
    """A slot for a loop function, whole."""
    return Slot("python", lambda compilation: compilation.stage(title, kernel))


def print_trace(compilation: Compilation) -> str:
    """The steps of the CPU's schedule, one a line."""
    function = parse_function(compilation.stage("relaxed: loops", KERNEL))
    return "\n".join(
        f"{step['primitive']}({', '.join(map(repr, arguments_of(step)))})"
        for step in schedule_kernel(function, RELAXED).trace
    )


def print_wat(compilation: Compilation) -> str:
    """The kernel's two functions: its parallel loop, and what starts that loop."""
    module = compilation.stage("relaxed: wat")
    functions = (wat_function(module, f"${name}") for name in (f"{KERNEL}.0", KERNEL))
    return cut_repetitions("\n".join(functions), ";;")


def print_memory(compilation: Compilation) -> str:
    """Where each buffer of the CPU's program lies in linear memory, by address."""
    plan = layout(compilation.manifest, "wasm", "wasm", {})
    addresses = {**plan.constants, **plan.offsets}
    rows = sorted((address, name) for name, address in addresses.items())
    lines = [f"{a:>9}  {plan.sizes[name]:>6}  {name}" for a, name in rows]
    return "\n".join(
        ["  address   bytes  buffer", *lines, f"{plan.total:>9}          end of memory"]
    )


SLOTS: Mapping[str, Slot] = {
    "model": Slot("text", lambda _: MODEL),
    "frontend": graph_stage("frontend"),
    "infer shapes": graph_stage("infer shapes"),
    "choose layouts": graph_stage("choose layouts"),
    "fuse": graph_stage("wasm: fuse"),
    "lower": graph_stage("wasm: lower"),
    "loops": loop_stage("relaxed: loops"),
    "trace": Slot("python", print_trace),
    "schedule": loop_stage("relaxed: schedule"),
    "lowered": Slot("python", lambda c: cut_repetitions(c.stage("relaxed: lowered", KERNEL), "#")),
    "wat": Slot("wasm", print_wat),
    "program": Slot("wasm", lambda c: wat_function(c.stage("relaxed: wat"), "$program")),
    "gpu loops": loop_stage("gpu: loops", "transpose_pad"),
    "gpu schedule": loop_stage("gpu: schedule"),
    "wgsl": Slot("wgsl", lambda c: cut_repetitions(wgsl_entry(c.stage("gpu: wgsl"), KERNEL), "//")),
    "manifest": Slot("json", lambda c: cut_manifest(c.manifest_text)),
    "memory": Slot("text", print_memory),
}


def fill(template: str, compilation: Compilation) -> str:
    """The template with its slots filled in.

    Raises `ValueError` if a slot of the template has no text, or a text no slot.
    """
    named = re.findall(r"^\{\{(.+)\}\}$", template, re.MULTILINE)
    if sorted(named) != sorted(SLOTS):
        raise ValueError(f"the template's slots {named} are not those of SLOTS: {list(SLOTS)}")

    def text(match: re.Match[str]) -> str:
        slot = SLOTS[match.group(1)]
        return f"```{slot.language}\n{slot.text(compilation)}\n```"

    return f"{HEADER}\n\n" + re.sub(r"^\{\{(.+)\}\}$", text, template, flags=re.MULTILINE)


def walkthrough() -> str:
    """The text of `walkthrough.md`."""
    with tempfile.TemporaryDirectory() as folder:
        compilation = compile_walkthrough(Path(folder) / "walkthrough")
    return fill(TEMPLATE.read_text("utf-8"), compilation)


def main() -> None:
    """Write the document, or the model."""
    parser = argparse.ArgumentParser(description=__doc__, prog=COMMAND)
    parser.add_argument("--model", type=Path, help="write the ONNX model here, and nothing else")
    model: Path | None = parser.parse_args().model
    if model is None:
        DOCUMENT.write_text(walkthrough(), "utf-8")
    else:
        model.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(walkthrough_model(), model)


if __name__ == "__main__":
    main()
