"""How the time of every operator grows with its sizes: a benchmark, run by hand.

    python -m tests.complexity [--operator TopK] [--device wasm|webgpu]

In: the cases of every row of the operator table. The longest axis of a case, with every axis as
long, becomes a symbol, and one package runs sizes that grow by 4 until one takes a second. Out: a
line a row with the times of the last sizes n, 4n, 16n, and the exponent of their growth over that
of the bytes that the node reads and writes: 1 is linear. Exponents above 1.3 that `JUSTIFIED` does
not name are listed at the end, and make the exit status 1.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

import webmlc
from tests.graph.ops.test_rows import make_input, make_model
from webmlc.core.errors import WebmlcError
from webmlc.core.machine import Device
from webmlc.graph.ops.operator import Case
from webmlc.graph.table import OPS

MOST_ELEMENTS = 1 << 20
"""Elements of the largest input that are not exceeded: of a linear operator, a millisecond."""
LONG_ENOUGH = 1.0
"""Seconds of a run after which sizes do not grow any more."""
NOISE = 1e-3
"""Seconds below which a run tells of calls and copies, not of the operator."""
MARKED = 61
"""A length that no case has, and no attribute."""
LIMIT = 1.3
"""Exponents above this are listed: linear, n log n, and what caches that overflow add."""

JUSTIFIED = {
    "MultiHeadAttention": "every query is compared with every key: the square of the length; with a"
    " mask or a past, the scores go through memory, and do not fit the caches",
    "TopK": "a radix sort reads and writes the same number of bytes per element at all sizes (229"
    " for float32), but scatters into buffers that outgrow the caches",
}
"""Rows whose time grows faster than their bytes, and why."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The last three measurements of a case: bytes that a node reads and writes, and seconds."""

    bytes: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def exponent(self) -> float:
        """Of the seconds over the bytes; 0 where they are lost in noise."""
        if self.seconds[-1] < NOISE or self.bytes[-1] <= self.bytes[0]:
            return 0.0
        first = max(self.seconds[0], NOISE / 4)
        return math.log(self.seconds[-1] / first) / math.log(self.bytes[-1] / self.bytes[0])


def grown(case: Case, size: int, longer: int) -> Case:
    """The case with `longer` for every `size` in the shapes of its inputs."""

    def shape(match: re.Match[str]) -> str:
        sizes = (longer if int(n) == size else int(n) for n in match[1].split(",") if n.strip())
        return f"[{', '.join(map(str, sizes))}]"

    inputs = (re.sub(r"\[(.*?)\]", shape, s) if isinstance(s, str) else s for s in case.inputs)
    return replace(case, inputs=tuple(inputs))


def shapes(case: Case) -> list[list[int]]:
    """The shapes of the inputs that are drawn."""
    texts = (re.search(r"\[(.*?)\]", spec) for spec in case.inputs if isinstance(spec, str))
    return [[int(n) for n in text[1].split(",") if n.strip()] for text in texts if text]


def axis_lengths(case: Case) -> list[int]:
    """The lengths of the axes of the inputs, the longest first."""
    return sorted({n for shape in shapes(case) for n in shape if n > 1}, reverse=True)


def elements(case: Case) -> int:
    """The elements of the largest input."""
    return max(map(math.prod, shapes(case)))


def symbolic(model: onnx.ModelProto, size: int) -> onnx.ModelProto:
    """The model with a symbol for every axis of its inputs of this length."""
    for value in model.graph.input:
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_value == size:
                axis.dim_param = "n"
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for value in model.graph.output:
        if not value.type.tensor_type.elem_type:
            # Of an operator that onnx does not know; what it is declared as does not matter.
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, 1, ["unknown"]))
    return model


def measured(key: tuple[str, str], case: Case, size: int, device: Device) -> Growth | None:
    """Times of one case whose axes of length `size` grow; None where the sizes do not fit then."""
    points: list[tuple[int, float]] = []
    model, _ = make_model(*key, grown(case, size, MARKED))
    with tempfile.TemporaryDirectory() as folder:
        try:
            webmlc.build(symbolic(model, MARKED), folder, target=device)
            loaded = webmlc.load(folder, device=device)
        except WebmlcError:
            return None
        longer = size
        try:
            while elements(grown(case, size, longer)) <= MOST_ELEMENTS:
                points.append(_timed(loaded, _feeds(grown(case, size, longer))))
                if points[-1][1] > LONG_ENOUGH:
                    break
                longer *= 4
        except (WebmlcError, ValueError):  # sizes of other inputs, or of attributes, do not fit
            return None
        finally:
            loaded.dispose()
    if len(points) < 3:
        return None
    sizes, seconds = zip(*points[-3:], strict=True)
    return Growth(sizes, seconds)


def _feeds(case: Case) -> dict[str, Any]:
    rng = np.random.default_rng(zlib.crc32(repr(case).encode()))
    specs = enumerate(case.inputs)
    return {f"x{i}": make_input(spec, rng) for i, spec in specs if isinstance(spec, str)}


def _timed(model: webmlc.Model, feeds: dict[str, Any]) -> tuple[int, float]:
    """Bytes read and written, and the processor's seconds of the fastest of some runs."""
    seconds = []
    for _ in range(7):
        start = time.process_time()
        results = model.run(feeds)
        seconds.append(time.process_time() - start)
        if seconds[-1] > LONG_ENOUGH:
            break
    arrays = (*feeds.values(), *results.values())
    return sum(a.nbytes for a in arrays), min(seconds)


def rows(operator: str | None, device: Device) -> Iterator[tuple[str, Growth | None]]:
    """The steepest growth among the cases of each row; None of one that cannot grow."""
    for (domain, name), row in OPS.items():
        if domain == "webmlc" or not row.cases or operator not in (None, name):
            continue
        growths = []
        for case in row.cases:
            lengths = axis_lengths(case)
            each = (measured((domain, name), case, size, device) for size in lengths)
            growths += [next((g for g in each if g is not None), None)]
        known = [growth for growth in growths if growth is not None]
        yield name, max(known, key=lambda g: g.exponent, default=None)


def main() -> int:
    """Measure, and print the table and the list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operator")
    parser.add_argument("--device", choices=("wasm", "webgpu"), default="wasm")
    arguments = parser.parse_args()
    steep, fixed = [], []
    for name, growth in rows(arguments.operator, arguments.device):
        if growth is None:
            fixed.append(name)
            continue
        times = ", ".join(f"{1e3 * s:.2f}" for s in growth.seconds)
        print(f"{name:32} {growth.exponent:5.2f}   {times} ms", flush=True)
        if growth.exponent > LIMIT and name not in JUSTIFIED:
            steep.append(name)
    print("cannot grow (sizes are fixed by attributes or constants):", ", ".join(fixed) or "none")
    print(f"exponent above {LIMIT}, not justified:", ", ".join(steep) or "none")
    return 1 if steep else 0


if __name__ == "__main__":
    sys.exit(main())
