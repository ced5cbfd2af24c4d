"""Statistics over many elements, in models whose sizes a run decides: one package on the GPU, built
once, against numpy; sums of millions of ones; the errors of sums of millions of equal terms.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
import onnx.parser
import pytest

import webmlc
from webmlc.core.errors import InputError

pytestmark = pytest.mark.xdist_group("long_reductions")  # one worker builds what the tests share

RNG = np.random.default_rng(0)
NORMALISED = """agraph (float[n, 4, h, w] x) => (float[n, 4, h, w] y, float[4] top) {
    mean = ReduceMean <keepdims = 1> (x, axes)
    centred = Sub (x, mean)
    squares = Mul (centred, centred)
    variance = ReduceMean <keepdims = 1> (squares, axes)
    deviation = Sqrt (variance)
    y = Div (centred, deviation)
    top = ReduceMax <keepdims = 0> (x, others)
}"""
ROWS = """agraph (float[n, w] x) => (float[n, w] y, float all) {
    y = Softmax <axis = 1> (x)
    all = ReduceSum <keepdims = 0> (x)
}"""


COLUMNS = """agraph (float[n, r, 22] x, float[22] b) => (float[n, 22] top, float[n, 22] product,
    float[n, r, 22] sum, float[n, 22] mean) {
    sum = Add (x, b)
    curve = Tanh (sum)
    top = ReduceMax <keepdims = 0> (curve, rows)
    cosine = Cos (x)
    product = ReduceProd <keepdims = 0> (cosine, rows)
    average = ReduceMean <keepdims = 0> (sum, rows)
    mean = Mul (average, b)
}"""


def _package(text: str, folder: Path) -> webmlc.Model:
    """The model on the GPU, all of it."""
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 18]>\n' + text)
    for name, axes in (("axes", [2, 3]), ("others", [0, 2, 3]), ("rows", [1])):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(axes), name))
    manifest = webmlc.build(model, folder, target="webgpu")
    assert {step.device for step in manifest.programs["webgpu"].steps} == {"webgpu"}
    return webmlc.load(folder, device="webgpu")


@pytest.fixture(scope="module")
def normalised(tmp_path_factory: pytest.TempPathFactory) -> webmlc.Model:
    return _package(NORMALISED, tmp_path_factory.mktemp("normalised"))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> webmlc.Model:
    return _package(ROWS, tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> webmlc.Model:
    return _package(COLUMNS, tmp_path_factory.mktemp("columns"))


@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (2, 4, 3, 5), (1, 4, 65, 33), (1, 4, 540, 540)])
def test_statistics_of_channels(normalised: webmlc.Model, shape: tuple[int, ...]) -> None:
    x = RNG.standard_normal(shape).astype(np.float32) + 50
    result = normalised.run({"x": x})
    wide = x.astype(np.float64)
    centred = wide - wide.mean((2, 3), keepdims=True)
    with np.errstate(invalid="ignore"):
        want = centred / np.sqrt((centred**2).mean((2, 3), keepdims=True))
    np.testing.assert_allclose(result["y"], want, rtol=1e-3, atol=2e-4)
    np.testing.assert_array_equal(result["top"], x.max((0, 2, 3)))


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 64), (2, 65), (1, 100_003)])
def test_statistics_of_rows(rows: webmlc.Model, shape: tuple[int, ...]) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    result = rows.run({"x": x})
    wide = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(result["y"], wide / wide.sum(1, keepdims=True), rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(result["all"], x.sum(dtype=np.float64), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("shape", [(1, 1, 22), (2, 70, 22), (1, 9001, 22)])
def test_folds_of_columns_with_what_is_before_and_behind_them(
    columns: webmlc.Model, shape: tuple[int, ...]
) -> None:
    x = (RNG.standard_normal(shape) * 0.1).astype(np.float32)
    b = RNG.standard_normal(22).astype(np.float32)
    result = columns.run({"x": x, "b": b})
    wide = x.astype(np.float64)
    np.testing.assert_allclose(result["sum"], x + b, rtol=1e-6)
    np.testing.assert_allclose(result["top"], np.tanh(wide + b).max(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result["product"], np.cos(wide).prod(1), rtol=1e-2, atol=1e-30)
    np.testing.assert_allclose(result["mean"], (wide + b).mean(1) * b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("device", "dtype", "shape"),
    [
        ("wasm", "float32", (4100, 4100)),
        ("webgpu", "float32", (4096, 2048)),
        ("webgpu", "int32", (4096, 2048)),
        ("webgpu", "int64", (4096, 2048)),
    ],
)
def test_ones_are_counted(
    tmp_path: Path, device: Literal["wasm", "webgpu"], dtype: str, shape: tuple[int, int]
) -> None:
    """One float32 accumulator stops at 16,777,216. The software GPU of the tests, llvmpipe, ends
    every loop of a shader after 65,535 iterations: one workgroup cannot add 2**23 elements.
    """
    name = "float" if dtype == "float32" else dtype
    text = f"agraph ({name}[n, m] x) => ({name} y) {{ y = ReduceSum <keepdims = 0> (x) }}"
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 18]>\n' + text)
    webmlc.build(model, tmp_path, target=device)
    loaded = webmlc.load(tmp_path, device=device)
    assert loaded.run({"x": np.ones(shape, dtype)})["y"] == np.prod(shape)
    loaded.dispose()


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


SUMS = {
    "all": ("ReduceSum <keepdims = 0> (x)", (2000, 1500), lambda x: x.sum()),
    "rows": ("ReduceSum <keepdims = 0> (x, second)", (2, 1_500_000), lambda x: x.sum(1)),
    "columns": ("ReduceSum <keepdims = 0> (x, first)", (1_000_000, 3), lambda x: x.sum(0)),
    "planes": ("ReduceMean <keepdims = 0> (x, last)", (1, 3, 1000, 999), lambda x: x.mean((2, 3))),
    "one plane": ("ReduceSum <keepdims = 0> (x, last)", (1, 1, 3000, 2999),
                  lambda x: x.sum((2, 3))),
    "norms": ("ReduceL2 <keepdims = 0> (x, second)", (2, 1_500_000),
              lambda x: np.sqrt((x * x).sum(1))),
    "exponentials": ("ReduceLogSumExp <keepdims = 0> (x, second)", (1, 3_000_000),
                     lambda x: np.log(np.exp(x).sum(1))),
    "softmax": ("Softmax <axis = 1> (x)", (2, 1_000_000), lambda x: x * 0 + 1 / x.shape[1]),
    "feature maps": ("GlobalAveragePool (x)", (1, 3, 1000, 999),
                     lambda x: x.mean((2, 3), keepdims=True)),
    "a dot product": ("MatMul (x, w)", (2, 1_000_000), lambda x: x @ np.full((x.shape[1], 1), 0.1)),
    "a tile of products": ("Gemm <transB = 1> (x, x)", (12, 200_000), lambda x: x @ x.T),
}  # fmt: skip
"""The terms of a sum in their shape, and the same terms in float64."""


LONG_SUMS = [
    pytest.param(name, device, is_symbolic, id=f"{name}-{device}{'-symbolic' * is_symbolic}")
    for name, device, is_symbolic in product(SUMS, ("wasm", "webgpu"), (False, True))
    # A tile whose depth is a symbol adds up all products in one register.
    if not (name == "a tile of products" and (is_symbolic or device == "webgpu"))
]


@pytest.mark.parametrize(("name", "device", "is_symbolic"), LONG_SUMS)
def test_millions_of_equal_terms_keep_their_sum(
    tmp_path: Path, name: str, device: Literal["wasm", "webgpu"], is_symbolic: bool
) -> None:
    """A tenth has no exact form, so that every addition rounds."""
    operation, shape, exact = SUMS[name]
    sizes = ", ".join(f"d{i}" if is_symbolic else str(n) for i, n in enumerate(shape))
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    agraph (float[{sizes}] x) => (float[] y) {{ y = {operation} }}"""
    model = onnx.parser.parse_model(text)
    x = np.full(shape, 0.1, np.float32)
    constants = {"first": [0], "second": [1], "last": [2, 3], "w": x[:1].reshape(-1, 1)}
    for key, value in constants.items():
        if key in operation:
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), key))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    webmlc.build(onnx.shape_inference.infer_shapes(model), tmp_path, target=device)
    loaded = webmlc.load(tmp_path, device=device)
    result = loaded.run({"x": x})["y"]
    loaded.dispose()
    np.testing.assert_allclose(result, exact(_wide(x)), rtol=1e-5)


def test_one_index_of_millions_is_refused(tmp_path: Path) -> None:
    """Counts of indices out of range are long integer sums, several in a kernel."""
    text = """agraph (float[4] x, int32[n] i, int32[n] j) => (float[n] y)
        { a = Gather(x, i) b = Gather(x, j) y = Add(a, b) }"""
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 18]>\n' + text)
    webmlc.build(model, tmp_path, target="webgpu")
    loaded = webmlc.load(tmp_path, device="webgpu")
    indices = np.zeros((2, 1 << 23), np.int32)
    indices[1, -1] = 4
    with pytest.raises(InputError, match=r"node 'b'.* 1 of its indices"):
        loaded.run({"x": np.ones(4, np.float32), "i": indices[0], "j": indices[1]})
    loaded.dispose()


def test_a_sum_is_split_along_an_axis_of_its_own(tmp_path: Path) -> None:
    """The rows of the image become partial sums, which leaves a loop of one iteration."""
    text = (
        "agraph (float[1, 96, 160, 160] x) => (float[1, 96, 1, 1] y) { y = GlobalAveragePool (c) }"
    )
    text = text.replace("{", "{ c = Conv <group = 96> (x, w)")
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 13]>\n' + text)
    ones = np.ones((96, 1, 1, 1), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(ones, "w"))
    webmlc.build(model, tmp_path, target="webgpu")
    x = RNG.standard_normal((1, 96, 160, 160)).astype(np.float32)
    result = webmlc.load(tmp_path, device="webgpu").run({"x": x})["y"]
    np.testing.assert_allclose(result, x.mean((2, 3), keepdims=True, dtype=np.float64), atol=1e-5)
