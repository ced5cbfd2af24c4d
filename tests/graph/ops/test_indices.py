"""Indices out of range are an error that names the node, on both devices and in JavaScript; nothing
outside a tensor is read or written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import webmlc
from tests.node import as_tensors, in_node
from webmlc.core.errors import InputError

pytestmark = pytest.mark.xdist_group("indices")  # one worker builds what the tests share

HEAD = '<ir_version: 8, opset_import: ["" : 18]> '
TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)

Feeds = dict[str, np.ndarray]


def model_of(text: str) -> onnx.ModelProto:
    return parser.parse_model(HEAD + text)


def integers(*values: Any, dtype: type = np.int64) -> np.ndarray:
    return np.array(values, dtype)


CASES: dict[str, tuple[str, Feeds, Feeds, int]] = {
    "gather": (
        "g (float[4,3] x, int64[n] i) => (float[n,3] y) { y = Gather(x, i) }",
        {"x": TABLE, "i": integers(0, -1, 3, -4)},
        {"x": TABLE, "i": integers(0, 4, -5, 2**40, -(2**40))},
        4,
    ),
    "gather of 32-bit indices": (
        "g (float[4,3] x, int32[n] i) => (float[n,3] y) { y = Gather(x, i) }",
        {"x": TABLE, "i": integers(1, -4, dtype=np.int32)},
        {"x": TABLE, "i": integers(2**31 - 1, -(2**31), dtype=np.int32)},
        2,
    ),
    "gather at one index": (
        "g (float[4,3] x, int64 i) => (float[3] y) { y = Gather(x, i) }",
        {"x": TABLE, "i": np.array(-4)},
        {"x": TABLE, "i": np.array(4)},
        1,
    ),
    "gather of computed indices": (
        "g (float[n,3] x, float[k] i) => (float[k,3] y) { j = Cast<to=7>(i) y = Gather(x, j) }",
        {"x": TABLE, "i": np.array([0, 3, 1], np.float32)},
        {"x": TABLE, "i": np.array([0, 3, 7], np.float32)},
        1,
    ),
    "positions beyond a table": (
        """g (int64[1,n] ids, float[512,2] x) => (float[1,n,2] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}> {
          size = Shape<start=1, end=2>(ids) n = Squeeze(size)
          i = Range(zero, n, one) positions = Unsqueeze(i, axis)
          y = Gather(x, positions)
        }""",
        {"ids": np.ones((1, 512), np.int64), "x": np.ones((512, 2), np.float32)},
        {"ids": np.ones((1, 513), np.int64), "x": np.ones((512, 2), np.float32)},
        1,
    ),
    "gather elements": (
        "g (float[4,3] x, int64[n,3] i) => (float[n,3] y) { y = GatherElements(x, i) }",
        {"x": TABLE, "i": integers((0, 1, 2), (3, -4, -1))},
        {"x": TABLE, "i": integers((0, 1, 99), (3, -4, -1))},
        1,
    ),
    "gather of several axes": (
        "g (float[4,3] x, int64[n,2] i) => (float[n] y) { y = GatherND(x, i) }",
        {"x": TABLE, "i": integers((0, 2), (-1, 1), (3, -3))},
        {"x": TABLE, "i": integers((0, 3), (3, 0), (4, 0))},
        2,
    ),
    "scatter of slices": (
        "g (float[4,3] x, int64[n,1] i, float[n,3] u) => (float[4,3] y) { y = ScatterND(x, i, u) }",
        {"x": TABLE, "i": integers((0,), (-2,)), "u": -TABLE[:2]},
        {"x": TABLE, "i": integers((-5,), (4,)), "u": -TABLE[:2]},
        2,
    ),
    "scatter of elements": (
        """g (float[4,3] x, int64[n,3] i, float[n,3] u) => (float[4,3] y)
        { y = ScatterElements<reduction="add">(x, i, u) }""",
        {"x": TABLE, "i": integers((0, 0, -1), (3, 0, -1)), "u": TABLE[:2]},
        {"x": TABLE, "i": integers((0, 0, -1), (3, 10, -1)), "u": TABLE[:2]},
        1,
    ),
}


def expected_error(name: str) -> str:
    text, _, fails, count = CASES[name]
    are = "is" if count == 1 else "are"
    error = f"node 'y': with these inputs {count} of its indices or sizes {are} out of range"
    origins: dict[str, str] = {}
    for port in model_of(text).graph.input:
        for axis, dim in enumerate(port.type.tensor_type.shape.dim):
            size, origin = fails[port.name].shape[axis], f"axis {axis} of {port.name!r}"
            if dim.dim_param:
                origins.setdefault(dim.dim_param, f"{dim.dim_param} = {size} from {origin}")
    return "; ".join([error, *([", ".join(origins.values())] if origins else [])])


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp("indices") for name in CASES}
    for name, folder in folders.items():
        webmlc.build(model_of(CASES[name][0]), folder)
    return folders


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("name", CASES)
def test_indices_out_of_range_are_refused(
    packages: dict[str, Path], name: str, device: Literal["wasm", "webgpu"]
) -> None:
    text, fits, fails, _ = CASES[name]
    model = webmlc.load(packages[name], device=device)
    reference = ReferenceEvaluator(model_of(text))
    for _ in range(2):  # a refused run does no harm to the next
        with pytest.raises(InputError) as error:
            model.run(fails)
        assert str(error.value) == expected_error(name)
        (want,) = reference.run(None, fits)
        np.testing.assert_array_equal(model.run(fits)["y"], want)
    assert [port.name for port in model.outputs] == ["y"]


@pytest.mark.parametrize("name", CASES)
def test_the_javascript_runtime_refuses_them(packages: dict[str, Path], name: str) -> None:
    _, fits, fails, _ = CASES[name]
    refused, outputs = in_node(packages[name], [as_tensors(fails), as_tensors(fits)])
    assert (refused["code"], refused["error"].replace('"', "'")) == ("input", expected_error(name))
    assert outputs.keys() == {"y"}


def test_the_node_is_named_among_several(tmp_path: Path) -> None:
    text = """g (float[4,3] x, float[9,3] z, int64[n] i, int64[n] j) => (float[n,3] y) {
        a = Gather(x, i) b = Gather(z, j) c = Gather(z, i) d = Add(a, b) y = Add(c, d)
    }"""
    manifest = webmlc.build(model_of(text), tmp_path, target="wasm")
    assert [check.nodes for check in manifest.checks] == [("a", "b", "c")]
    model = webmlc.load(tmp_path, device="wasm")
    x, z = np.ones((4, 3), np.float32), np.ones((9, 3), np.float32)
    model.run({"x": x, "z": z, "i": integers(3, 0), "j": integers(8, 8)})
    for i, j, node in [((4, 0), (8, 8), "a"), ((0, 0), (9, 9), "b")]:
        with pytest.raises(InputError, match=f"node '{node}'"):
            model.run({"x": x, "z": z, "i": integers(*i), "j": integers(*j)})


def test_equal_indices_are_counted_once(tmp_path: Path) -> None:
    text = """g (float[4,3] x, float[4,2] z, int64[n] i) => (float[n,3] y, float[n,2] w)
        { y = Gather(x, i) w = Gather(z, i) }"""
    manifest = webmlc.build(model_of(text), tmp_path, target="wasm")
    assert [check.nodes for check in manifest.checks] == [("y",)]


def test_constant_indices_are_checked_when_a_package_is_built(tmp_path: Path) -> None:
    text = "g (float[4,3] x) => (float[2,3] y) <int64[2] i = {0,-1}> { y = Gather(x, i) }"
    assert webmlc.build(model_of(text), tmp_path, target="wasm").checks == ()


def test_more_indices_than_a_kernel_binds(tmp_path: Path) -> None:
    names = [f"i{number}" for number in range(14)]
    inputs = ", ".join(f"int64[n] {name}" for name in names)
    gathers = " ".join(f"g{name} = Gather(x, {name})" for name in names)
    total = ", ".join(f"g{name}" for name in names)
    text = f"g (float[4,3] x, {inputs}) => (float[n,3] y) {{ {gathers} y = Sum({total}) }}"
    manifest = webmlc.build(model_of(text), tmp_path)
    assert {s.device for s in manifest.programs["webgpu"].steps} == {"webgpu"}
    feeds = {name: integers(0, 3) for name in names}
    for device in ("wasm", "webgpu"):
        model = webmlc.load(tmp_path, device=device)
        model.run({"x": TABLE, **feeds})
        with pytest.raises(InputError, match="node 'gi13'"):
            model.run({"x": TABLE, **feeds, "i13": integers(0, 5)})


def test_indices_that_a_clip_bounds_are_not_counted(tmp_path: Path) -> None:
    text = """g (float[4,3] x, int64[n] i) => (float[n,3] y)
        <int64 low = {-2}, int64 high = {%d}, int64 one = {1}> {
        c = Clip(i, low, high) j = Add(c, one) k = Cast<to=6>(j) y = Gather(x, k)
    }"""
    assert webmlc.build(model_of(text % 2), tmp_path, target="wasm").checks == ()
    assert webmlc.build(model_of(text % 3), tmp_path, target="wasm").checks != ()
