"""Outputs have memory of their own, and a run keeps the inputs that it began with, although the
host only renames values between the regions of control flow.
"""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webmlc
from tests.against_onnxruntime import parse
from tests.js.test_session import exercised
from webmlc.core.errors import InputError, PackageError
from webmlc.host import host_values

X = [1.0, -2.0, 3.0]
BRANCH = """g (float[a] x, bool c) => (float[q] y, float[r] z, float[s] w) {
    e = Abs(x)
    y, z, w = If(c) <
        then_branch = t () => (float[p] o, float[p] u, float[p] v) {
            o = Identity(x)
            u = Concat<axis = 0>(e, x)
            v = Identity(u)
        },
        else_branch = f () => (float[p] o, float[p] u, float[p] v) {
            o = Concat<axis = 0>(x, x, x)
            u = Identity(x)
            v = Identity(e)
        }
    >
}"""
LOOP = """g (float[a] x, bool c, float[1] limit) => (float[q] y) {
    y = Loop(, c, x) <
        body = b (int64 i, bool go, float[p] v) => (bool on, float[p2] o) {
            o = Concat<axis = 0>(v, x)
            all = ReduceSum<keepdims = 1>(o)
            less = Less(all, limit)
            on = Squeeze(less)
        }
    >
}"""
CASES: dict[str, tuple[str, list[dict[str, Any]], list[dict[str, list[float]]]]] = {
    "branch": (
        BRANCH,
        [{"x": X, "c": c} for c in (True, False, True)],
        [
            {"y": X, "z": [1, 2, 3, *X], "w": [1, 2, 3, *X]},
            {"y": X * 3, "z": X, "w": [1, 2, 3]},
            {"y": X, "z": [1, 2, 3, *X], "w": [1, 2, 3, *X]},
        ],
    ),
    "loop": (
        LOOP,
        [{"x": X, "c": c, "limit": [7.0]} for c in (True, False)],
        [{"y": X * 4}, {"y": X}],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_have_memory_of_their_own(tmp_path: Path, name: str) -> None:
    text, runs, expected = CASES[name]
    webmlc.build(parse(text), tmp_path, target="wasm")
    model = webmlc.load(tmp_path)
    for run, want in zip(runs, expected, strict=True):
        feeds = {
            n: np.array(v, np.float32 if isinstance(v, list) else bool) for n, v in run.items()
        }
        outputs = model.run(feeds)
        assert {n: v.tolist() for n, v in outputs.items()} == want
        arrays = [*outputs.values(), *feeds.values()]
        assert not any(np.shares_memory(a, b) for a, b in combinations(arrays, 2))
    model.dispose()
    answers = exercised(tmp_path, 1, "./own_memory.mjs", runs)
    assert answers == [{"outputs": want, "shares": False} for want in expected]


def test_a_moved_value_has_the_bytes_of_its_shape(tmp_path: Path) -> None:
    text, (run, _), _ = CASES["loop"]
    webmlc.build(parse(text), tmp_path, target="wasm")
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    moves = [s for s in manifest["programs"]["wasm"]["segments"] if s["type"] == "move"]
    (place,) = [i for i, source in enumerate(moves[0]["sources"]) if source == "x"]
    for shape in ([1000], [2]):
        moves[0]["shapes"][place] = shape
        path.write_text(json.dumps(manifest))
        model = webmlc.load(tmp_path)
        feeds = {name: np.array(run[name], np.float32) for name in ("x", "limit")}
        feeds["c"] = np.array(True)
        with pytest.raises(PackageError, match="'x' has 12 bytes"):
            model.run(feeds)
        model.dispose()
        (error,) = exercised(tmp_path, 1, "./own_memory.mjs", [run])
        assert error.startswith('package: manifest.json: "x" has 12 bytes')


def test_jumps_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, (run, _), _ = CASES["loop"]
    webmlc.build(parse(text), tmp_path, target="wasm")
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    for number, segment in enumerate(manifest["programs"]["wasm"]["segments"]):
        if segment["type"] == "jump":
            segment["target"] = number
    path.write_text(json.dumps(manifest))
    monkeypatch.setattr(host_values, "MAX_JUMPS", 1000)
    model = webmlc.load(tmp_path)
    feeds = {name: np.array(run[name], np.float32) for name in ("x", "limit")}
    with pytest.raises(InputError, match="a loop does not end"):
        model.run({**feeds, "c": np.array(True)})
    model.dispose()
    (error,) = exercised(tmp_path, 1, "./own_memory.mjs", [run])
    assert error.startswith("input: with these inputs a loop does not end")
