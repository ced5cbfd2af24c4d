"""Scans, scatters, sorts and selections, whose kernels update elements in order: one package a
device, built once for any size, against numpy.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import webmlc
from webmlc.core.dtypes import DType
from webmlc.core.machine import Device
from webmlc.graph.ops.sort import _block_size

pytestmark = pytest.mark.xdist_group("ordered_operators")  # one worker builds what the tests share

RNG = np.random.default_rng(0)
SIZES = [0, 1, 2, 255, 256, 257, 5000, 70_001]
SCANS = """agraph (int32[n] x, float[r, c] f) => (int32[n] y, int32[n] z, float[r, c] g)
    <int64 zero = {0}> {
    y = CumSum (x, zero)
    z = CumSum <exclusive = 1, reverse = 1> (x, zero)
    g = CumSum (f, zero)
}"""
SCATTERS = """agraph (float[n] x, int64[m, 1] i, float[m] u, float[n, 3] d, float[m, 3] v)
    => (float[n] y, float[n] z, float[n, 3] w) {
    y = ScatterND (x, i, u)
    z = ScatterND <reduction = "add"> (x, i, u)
    w = ScatterND (d, i, v)
}"""
SELECTIONS = """agraph (float[n] x, bool[n] m, int64[1] k)
    => (float[k] v, int64[k] i, float[s] p, float[u] y, int64[u] a, int64[n] b, int64[u] c) {
    v, i = TopK (x, k)
    p = Compress (x, m)
    y, a, b, c = Unique (x)
}"""


def _loaded(text: str, folder: Path, device: Device, threads: int = 1) -> webmlc.Model:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 18]>\n' + text)
    webmlc.build(model, folder, target=device)
    return webmlc.load(folder, device=device, threads=threads)


@pytest.fixture(scope="module", params=["wasm", "webgpu"])
def device(request: pytest.FixtureRequest) -> Device:
    return "wasm" if request.param == "wasm" else "webgpu"


@pytest.fixture(scope="module")
def scans(device: Device, tmp_path_factory: pytest.TempPathFactory) -> webmlc.Model:
    return _loaded(SCANS, tmp_path_factory.mktemp("scans"), device, threads=2)


@pytest.fixture(scope="module")
def scatters(device: Device, tmp_path_factory: pytest.TempPathFactory) -> webmlc.Model:
    return _loaded(SCATTERS, tmp_path_factory.mktemp("scatters"), device)


@pytest.fixture(scope="module")
def selections(device: Device, tmp_path_factory: pytest.TempPathFactory) -> webmlc.Model:
    return _loaded(SELECTIONS, tmp_path_factory.mktemp("selections"), device)


@pytest.mark.parametrize("size", SIZES)
def test_scans(scans: webmlc.Model, size: int) -> None:
    x = RNG.integers(-9, 10, size).astype(np.int32)
    f = RNG.random((size // 2, 3)).astype(np.float32)
    result = scans.run({"x": x, "f": f})
    np.testing.assert_array_equal(result["y"], np.cumsum(x, dtype=np.int32))
    np.testing.assert_array_equal(result["z"], np.cumsum(x[::-1], dtype=np.int32)[::-1] - x)
    np.testing.assert_allclose(result["g"], np.cumsum(f, 0, dtype=np.float64), rtol=1e-5)


@pytest.mark.parametrize("size", [size for size in SIZES if size])
def test_scatters(scatters: webmlc.Model, size: int) -> None:
    count = max(size // 2, 1)
    x, d = RNG.random(size).astype(np.float32), RNG.random((size, 3)).astype(np.float32)
    u, v = RNG.random(count).astype(np.float32), RNG.random((count, 3)).astype(np.float32)
    places = RNG.permutation(size)[:count]
    result = scatters.run({"x": x, "i": places[:, None] - size, "u": u, "d": d, "v": v})
    y, z, w = x.copy(), x.copy(), d.copy()
    y[places], w[places] = u, v
    z[places] += u
    np.testing.assert_array_equal(result["y"], y)
    np.testing.assert_array_equal(result["z"], z)
    np.testing.assert_array_equal(result["w"], w)


def test_equal_targets_combine_in_order(scatters: webmlc.Model) -> None:
    x, u = np.array([1, 1], np.float32), np.array([1e8, 1, -1e8], np.float32)
    d, v = np.zeros((2, 3), np.float32), np.zeros((3, 3), np.float32)
    result = scatters.run({"x": x, "i": np.ones((3, 1), np.int64), "u": u, "d": d, "v": v})
    assert result["z"].tolist() == [1, 0]  # 1 + 1e8 and 1e8 + 1 are 1e8 in float32


@pytest.mark.parametrize("size", SIZES)
def test_selections(selections: webmlc.Model, size: int) -> None:
    x = RNG.integers(-50, 50, size).astype(np.float32)
    x[::7], x[::11], x[::13] = np.nan, -0.0, 0.0
    mask, count = RNG.random(size) < 0.5, min(size, 300)
    result = selections.run({"x": x, "m": mask, "k": np.array([count])})
    order = np.argsort(np.where(np.isnan(x), -np.inf, -x), kind="stable")[:count]
    np.testing.assert_array_equal(result["i"], order)
    np.testing.assert_array_equal(result["v"], x[order])
    np.testing.assert_array_equal(result["p"], x[mask])
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True
    )
    for name, want in (("y", values), ("a", first), ("b", inverse), ("c", counts)):
        np.testing.assert_array_equal(result[name], want, err_msg=name)


@pytest.mark.parametrize("size", [4096, 5001])
@pytest.mark.parametrize("count", [1, 9])
@pytest.mark.parametrize("largest", [1, 0])
def test_few_of_many(device: Device, tmp_path: Path, size: int, count: int, largest: int) -> None:
    """Sorted by blocks: equal elements stay in order, NaN is the largest, the end counts."""
    assert _block_size(DType.float32, size, count)
    text = f"""g (float[{size}] x) => (float[{count}] v, int64[{count}] i)
        <int64[1] k = {{{count}}}> {{ v, i = TopK <largest = {largest}> (x, k) }}"""
    model = _loaded(text, tmp_path, device)
    for values in ((-3, 3), (-9999, 9999), (-1, 0)):
        x = RNG.integers(*values, size).astype(np.float32)
        x[1::7], x[1::11], x[-2:] = -0.0, 0.0, values
        for nans in (0, 5, size):
            x[RNG.permutation(size)[:nans]] = np.nan
            key = np.where(np.isnan(x), np.inf, x)
            order = np.argsort(-key if largest else key, kind="stable")[:count]
            result = model.run({"x": x})
            np.testing.assert_array_equal(result["i"], order)
            np.testing.assert_array_equal(result["v"], x[order])


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_a_constant_that_is_updated_is_copied_in_every_run(tmp_path: Path, device: str) -> None:
    """Its copy is made of constants alone, and yet no part of loading."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
        g (int64[1] i, int64[1] u) => (int64[3] y) <int64[3] c = {1,2,3}>
        { y = ScatterElements(c, i, u) }"""
    webmlc.build(onnx.parser.parse_model(text), tmp_path, target=device)
    model = webmlc.load(tmp_path, device=device)
    for index, expected in [(0, [9, 2, 3]), (-1, [1, 2, 9])]:
        result = model.run({"i": np.array([index]), "u": np.array([9])})["y"]
        assert result.tolist() == expected
