"""Every bug that the fuzzer over run-time sizes found: a model, inputs, and the right verdicts.

Each case runs on all devices. `equal` is equal to onnxruntime, `refused` refused like it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from tests.fuzz.sizes.check import Bench

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> '
INF, NAN = np.inf, np.nan


def floats(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def integers(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


CASES: dict[str, tuple[str, list[tuple[str, dict[str, Any]]]]] = {
    "scales that are not one for each axis": (
        "g (float[2,3] x, float[n] s) => (float[a,b] y) { y = Resize(x, , s) }",
        [
            ("equal", {"x": ones(2, 3), "s": floats(2, 2)}),
            ("refused", {"x": ones(2, 3), "s": floats(2, 2, 2)}),
            ("refused", {"x": ones(2, 3), "s": floats(2)}),
        ],
    ),
    "constant indices into an axis of symbolic size": (
        """g (float[n,m] x) => (float[2,m] y, float[2] z)
            <int64[2] i = {3,-2}, int64[2,2] p = {3,-3,-4,2}> {
            y = Gather(x, i) z = GatherND(x, p) }""",
        [
            ("equal", {"x": np.arange(12, dtype=np.float32).reshape(4, 3)}),
            ("refused", {"x": ones(3, 3)}),
            ("refused", {"x": ones(4, 2)}),
            ("refused", {"x": ones(0, 3)}),
        ],
    ),
    "indices that are made of sizes": (
        """g (float[n] x, float[m] z) => (float y) <int64 one = {1}> {
            s = Shape(z) k = Squeeze(s) i = Sub(k, one) y = Gather(x, i) }""",
        [
            ("equal", {"x": floats(1, 2, 3), "z": ones(2)}),
            ("equal", {"x": floats(1, 2, 3), "z": ones(0)}),
            ("refused", {"x": floats(1, 2, 3), "z": ones(4)}),
            ("refused", {"x": ones(0), "z": ones(0)}),
        ],
    ),
    "nothing broadcast with one": (
        "g (float[n,2] x, float[m,2] z) => (float[k,2] y) { y = Mul(x, z) }",
        [
            ("equal", {"x": ones(0, 2), "z": ones(1, 2)}),
            ("equal", {"x": ones(1, 2), "z": ones(0, 2)}),
            ("equal", {"x": ones(1, 2), "z": ones(3, 2)}),
            ("equal", {"x": ones(3, 2), "z": ones(3, 2)}),
            ("refused", {"x": ones(0, 2), "z": ones(3, 2)}),
        ],
    ),
    "distances between rows of different lengths": (
        "g (float[n,k] a, float[m,l] b) => (float[n,m] y) { y = com.microsoft.CDist(a, b) }",
        [
            ("equal", {"a": ones(2, 3), "b": ones(4, 3)}),
            ("refused", {"a": ones(2, 3), "b": ones(4, 1)}),
        ],
    ),
    "a bias that is not as long as the rows": (
        """g (float[n,k] a, float[k,m] b, float[l] c) => (float[n,m] y) {
            y = com.microsoft.FusedGemm<activation="Relu">(a, b, c) }""",
        [
            ("equal", {"a": ones(2, 3), "b": ones(3, 4), "c": ones(4)}),
            ("equal", {"a": ones(2, 3), "b": ones(3, 4), "c": ones(1)}),
            ("refused", {"a": ones(2, 3), "b": ones(3, 4), "c": ones(5)}),
            ("refused", {"a": ones(2, 3), "b": ones(3, 0), "c": ones(5)}),
        ],
    ),
    "a negative number of iterations": (
        """g (int64 k, float[2] x) => (float[2] y, float[n,2] z) {
            y, z = Loop <body = b (int64 i, bool more, float[2] s) =>
                                (bool go, float[2] t, float[2] u) {
                t = Add(s, s) u = Neg(s) go = Identity(more) }>(k, "", x) }""",
        [
            ("equal", {"k": integers(3).reshape(()), "x": floats(1, 2)}),
            ("equal", {"k": integers(-5).reshape(()), "x": floats(1, 2)}),
            ("equal", {"k": integers(0).reshape(()), "x": floats(1, 2)}),
        ],
    ),
}


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


@pytest.mark.parametrize("name", CASES)
def test_a_bug_of_sizes_stays_mended(bench: Bench, name: str, tmp_path: Path) -> None:
    text, cases = CASES[name]
    model = onnx.parser.parse_model(HEAD + text)
    failure = bench.host.ask("build", model.SerializeToString(), str(tmp_path), bench.ways)
    assert failure is None, failure
    checked = bench.check_runs(model, str(tmp_path), [feeds for _, feeds in cases], threads=1)
    assert not checked.skipped
    for way, verdicts in checked.verdicts.items():
        kinds = [verdict.kind for verdict in verdicts]
        assert kinds == [kind for kind, _ in cases], (way, verdicts)
