"""Inputs that become constants: their values, types and shapes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import webmlc
from tests.against_onnxruntime import parse
from webmlc.core.errors import InputError
from webmlc.core.expr import const
from webmlc.frontend.bind_constants import read_constants
from webmlc.frontend.read_model import read_model
from webmlc.graph.infer.infer_shapes import UnknownShapeError

CHOICE = """g (float[4, 6] x, bool c) => (float[a] y) { y = If(c) <
    then_branch = t () => (float[4, 6] o) { o = Neg(x) },
    else_branch = e () => (float[4] o) { o = ReduceMax<axes = [1], keepdims = 0>(x) }> }"""
REDUCED = (
    "g (float[4, 6] x, int64[k] axes) => (float[a] y) { y = ReduceSum<keepdims = 0>(x, axes) }"
)
TYPES = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, m] x, float f, float16[n] h, uint8[2] u, bool b, int64[k] i, float[k, k] square)
    => (float[n, m] y) { y = Relu(x) }"""


def bound(**constants: Any) -> Any:
    """The functions constants and types, by name, after these became constants."""
    return read_model(onnx.parser.parse_model(TYPES), constants).main


def test_what_inputs_decide_a_shape_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnknownShapeError) as caught:
        webmlc.build(parse(REDUCED), tmp_path)
    assert str(caught.value) == (
        "1 node of this model cannot be compiled:\n"
        "  ReduceSum (node 'y'): the number of axes is computed at run time (value 'axes'); "
        "make it a constant\n"
        "If they never change, build these inputs in: --constant axes=..."
    )


def test_a_constant_condition_chooses_the_branch(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for condition, expected in ((True, -x), (False, x[:, -1])):
        webmlc.build(parse(CHOICE), tmp_path, target="wasm", constants={"c": condition})
        loaded = webmlc.load(tmp_path)
        np.testing.assert_array_equal(loaded.run({"x": x})["y"], expected)
        loaded.dispose()


def test_a_constant_leaves_the_signature(tmp_path: Path) -> None:
    model = parse(REDUCED)
    given = model.SerializeToString()
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for axes in ([0], [1], np.array([-1])):
        webmlc.build(model, tmp_path / "p", target="wasm", constants={"axes": axes})
        loaded = webmlc.load(tmp_path / "p")
        assert [port.name for port in loaded.inputs] == ["x"]
        np.testing.assert_array_equal(loaded.run({"x": x})["y"], x.sum(axis=axes[0]))
        loaded.dispose()
    assert model.SerializeToString() == given


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("f", 0.1, np.float32(0.1)),
        ("f", 3, np.float32(3)),
        ("f", float("inf"), np.float32(np.inf)),
        ("h", np.array([0.1, 2.0]), np.array([0.1, 2.0], np.float16)),
        ("u", [0, 255], np.array([0, 255], np.uint8)),
        ("u", [1.0, 2.0], np.array([1, 2], np.uint8)),
        ("b", 1, np.array(True)),
        ("i", [], np.zeros(0, np.int64)),
        ("i", [-(2**63), 2**63 - 1], np.array([-(2**63), 2**63 - 1], np.int64)),
    ],
)
def test_values_take_the_type_of_the_input(name: str, value: Any, expected: Any) -> None:
    array = bound(**{name: value}).constants[name]
    assert array.dtype == expected.dtype
    np.testing.assert_array_equal(array, expected)


def test_a_constant_tells_the_sizes_of_other_inputs() -> None:
    main = bound(h=[1, 2, 3])
    assert main.types["x"].shape[0] == const(3)
    assert "h" not in main.types and "h" not in main.inputs


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"g": 1}, "constant 'g': the model has no such input; its inputs: "
         "'x', 'f', 'h', 'u', 'b', 'i', 'square'"),
        ({"f": [1]}, "constant 'f' has shape [1], expected []"),
        ({"u": 3}, "constant 'u' has shape [], expected [2]"),
        ({"u": [1, 2, 3]}, "constant 'u' has shape [3], expected [2]"),
        ({"u": [1, 256]}, "constant 'u': uint8 cannot hold [  1, 256] exactly"),
        ({"u": [1, 0.5]}, "constant 'u': uint8 cannot hold [1. , 0.5] exactly"),
        ({"u": [1, float("nan")]}, "constant 'u': uint8 cannot hold [ 1., nan] exactly"),
        ({"b": 2}, "constant 'b': bool cannot hold 2 exactly"),
        ({"i": [2**63]}, "constant 'i': int64 cannot hold [9223372036854775808] exactly"),
        ({"h": [1e6]}, "constant 'h': float16 cannot hold [1000000.] exactly"),
        ({"f": "one"}, "constant 'f': 'one' does not consist of numbers"),
        ({"square": np.ones((2, 3))},
         "constant 'square' has shape [2, 3], expected [k, k] with k = 2"),
        ({"i": [1, 2, 3], "square": np.ones((2, 2))},
         "constant 'square' has shape [2, 2], expected [k, k] with k = 3"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(constants: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        bound(**constants)
    assert str(caught.value) == message


def test_rows_of_different_lengths_are_refused() -> None:
    with pytest.raises(InputError, match=r"constant 'i': \[\[1\], \[2, 3\]\] is not an array"):
        bound(i=[[1], [2, 3]])


def test_texts_are_numbers_lists_and_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 2], np.int64))
    texts = ["sr=16000", "f=[0.5, 1e3]", "m=[[1],[2]]", "b=true", f"a={tmp_path / 'a.npy'}"]
    arrays = read_constants(texts)
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "sr": 16000, "f": [0.5, 1000], "m": [[1], [2]], "b": True, "a": [1, 2]}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("axes", "--constant 'axes': write NAME=VALUE or NAME=FILE.npy, for instance "
         "--constant axes=[1,2]"),
        ("=3", "--constant '=3': write NAME=VALUE or NAME=FILE.npy, for instance "
         "--constant axes=[1,2]"),
        ("a=[1,", "--constant 'a=[1,': '[1,' is neither a number nor a list of numbers. "
         "Write for instance 16000, [1, 2] or [[0.5], [1]], or name a .npy file"),
        ("a=[[1],[2,3]]", "--constant 'a=[[1],[2,3]]': '[[1],[2,3]]' is neither a number nor a "
         "list of numbers. Write for instance 16000, [1, 2] or [[0.5], [1]], or name a .npy file"),
        ("a=gone.npy", "--constant a: gone.npy cannot be read: no such file"),
    ],
)  # fmt: skip
def test_texts_that_are_no_constants(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_constants([text])
    assert str(caught.value) == message


def test_a_file_that_is_no_array(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for content in (b"", b"hello"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"--constant a: .*a\.npy cannot be read: "):
            read_constants([f"a={path}"])
