"""JavaScript engines fill inputs and compare outputs as Python does."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from webmlc.core.dtypes import DType
from webmlc.tune.measure.listen import PAGE
from webmlc.tune.measure.trial import TrialBuffer, difference, fill, pattern_of

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TYPES = (
    DType.bool, DType.int8, DType.uint8, DType.int16, DType.uint16, DType.int32, DType.uint32,
    DType.int64, DType.uint64, DType.float16, DType.bfloat16, DType.float32, DType.float64,
)  # fmt: skip
NAN, INF = float("nan"), float("inf")
PAIRS: tuple[tuple[str, list[Any], list[Any], float], ...] = (
    ("float32", [1, 2, -4], [1, 2, -4], 0),
    ("float32", [1, 2.0000002, -4], [1, 2, -4], 0),
    ("float32", [1, 2.0000002, -4], [1, 2, -4], 1e-4),
    ("float32", [1, 2.0005, -4], [1, 2, -4], 1e-4),
    ("float32", [0.0, NAN, INF], [-0.0, NAN, INF], 1e-4),
    ("float32", [NAN, 2.0001, 1], [1, 2, 1], 1e-4),
    ("float32", [1, 2, 3], [NAN, 2, 3], 1e-4),
    ("float32", [INF, 2, 3], [1, 2, 3], 1e-4),
    ("float32", [INF, 2.0001, 3], [-INF, 2, 3], 1e-4),
    ("float64", [1, 2.001], [1, 2], 1e-2),
    ("float64", [1, 2.001], [1, 2], 1e-4),
    ("float16", [1, 2.002], [1, 2], 1e-4),
    ("float16", [1, 2.01], [1, 2], 1e-4),
    ("int8", [127, 1], [126, 1], 1e-4),
    ("uint8", [255, 1], [1, 1], 1e-4),
    ("int32", [-5, 7], [-5, 9], 1e-4),
    ("int64", [2**60 + 1, 0], [2**60, 0], 1e-4),
    ("int64", [2**60 + 2, 0], [2**60, 0], 1e-4),
)
NUMBER = re.compile(r"-?\d[\d.e+-]*|inf|nan|Infinity|NaN")


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def in_node(fills: list[Any], pairs: list[Any]) -> Any:
    """The results of the page's functions (see `compare.mjs`)."""
    done = subprocess.run(
        ["node", str(HERE / "compare.mjs")],
        input=json.dumps({"fills": fills, "pairs": pairs}),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


def test_inputs_are_the_same() -> None:
    buffers = [TrialBuffer(0, 1000 * t.bytes, t, pattern_of(t)) for t in TYPES]
    rows = [[{**asdict(b), "pattern": text_of(b.pattern)}, s] for s, b in enumerate(buffers)]
    expected = [text_of(fill(buffer, seed).tobytes()) for seed, buffer in enumerate(buffers)]
    assert in_node(rows, [])["fills"] == expected


def test_differences_are_the_same() -> None:
    """Engines round the numbers of a message in their own way."""
    pairs, expected = [], []
    for dtype, left, right, tolerance in PAIRS:
        actual, reference = (np.array(v, dtype).tobytes() for v in (left, right))
        pairs.append([text_of(actual), text_of(reference), dtype, tolerance])
        expected.append(difference(actual, reference, DType(dtype), tolerance))
    results = in_node([], pairs)["differences"]
    assert [bool(text) for text in results] == [bool(text) for text in expected]
    for text, other in zip(results, expected, strict=True):
        assert NUMBER.sub("#", text) == NUMBER.sub("#", other)
        for number, reference in zip(NUMBER.findall(text), NUMBER.findall(other), strict=True):
            assert float(number) == pytest.approx(float(reference), rel=0.01, nan_ok=True)


def test_features_are_probed_with_the_modules_of_the_runtime() -> None:
    """The page describes the features by which the runtime chooses a module."""
    probes = [
        set(re.findall(r'"(AGFzbQ[^"]+)"', path.read_text("utf-8")))
        for path in (PAGE / "platform.js", ROOT / "runtime_js" / "variants.js")
    ]
    assert len(probes[0]) == 4
    assert probes[0] == probes[1]


def test_engines_have_the_names_by_which_the_runtime_finds_their_schedules() -> None:
    names = [
        (re.findall(r"(\w+): /\w", text), re.findall(r'\["bun".*?\]', text))
        for path in (PAGE / "platform.js", ROOT / "runtime_js" / "machine_class.js")
        if (text := path.read_text("utf-8"))
    ]
    assert names[0][0] == ["firefox", "chromium", "safari"]
    assert names[0] == names[1]
