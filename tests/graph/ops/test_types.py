"""Every element type all the way: as input, weight and output, on both devices and under Node."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.numpy_helper import to_float8e8m0
from onnx.reference import ReferenceEvaluator

import webmlc
from webmlc.core.dtypes import DType

NODE_SCRIPT = Path(__file__).parents[2] / "js" / "run_types.mjs"


def element(dtype: DType) -> int:
    return int(helper.np_dtype_to_tensor_dtype(dtype.numpy))


def values(dtype: DType, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Numbers of the whole range, but NaN."""
    rng = np.random.default_rng(seed)
    if dtype is DType.bool:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        low, high = (int(limit) for limit in dtype.limits)
        return rng.integers(low, high, shape, dtype.numpy if dtype.bits > 32 else np.int64,
                            endpoint=True).astype(dtype.numpy)  # fmt: skip
    low, high = dtype.limits
    return rng.uniform(max(low, 0.25), min(high, 99), shape).astype(dtype.numpy)


def joined(dtype: DType, weight: np.ndarray) -> onnx.ModelProto:
    """y = concat(transpose(x), weight), and z = y as float64: `dtype` moves and converts."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Concat", ["t", "w"], ["y"], axis=0),
        helper.make_node("Cast", ["y"], ["z"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(
        nodes,
        "types",
        [helper.make_tensor_value_info("x", element(dtype), [5, 12])],
        [helper.make_tensor_value_info("y", element(dtype), [19, 5]),
         helper.make_tensor_value_info("z", TensorProto.FLOAT, [19, 5])],
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    opset = helper.make_opsetid("", 28)
    return helper.make_model(graph, opset_imports=[opset], ir_version=14)


@pytest.mark.parametrize("dtype", list(DType))
def test_a_type_is_input_weight_and_output(dtype: DType, tmp_path: Path) -> None:
    x, w = values(dtype, (5, 12), 0), values(dtype, (7, 5), 1)
    webmlc.build(joined(dtype, w), tmp_path / "package")
    wanted = np.concatenate([x.T, w])
    for device in ("wasm", "webgpu"):
        model = webmlc.load(tmp_path / "package", device)  # type: ignore[arg-type]
        found = model.run({"x": x})
        model.dispose()
        assert (found["y"].dtype, found["z"].dtype) == (dtype.numpy, np.float32)
        np.testing.assert_array_equal(found["y"], wanted)
        np.testing.assert_array_equal(found["z"], wanted.astype(np.float32))


def copied(dtype: DType) -> onnx.ModelProto:
    """y = x: what a page hands in comes out."""
    types = [helper.make_tensor_value_info(n, element(dtype), [3, 4]) for n in ("x", "y")]
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "copy", types[:1], types[1:])
    opset = helper.make_opsetid("", 28)
    return helper.make_model(graph, opset_imports=[opset], ir_version=14)


def test_every_type_goes_through_javascript(tmp_path: Path) -> None:
    for dtype in DType:
        webmlc.build(copied(dtype), tmp_path / dtype, target="wasm")
    command = ["node", str(NODE_SCRIPT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {str(dtype): [dtype, [3, 4], True] for dtype in DType}


def cast_model(source: DType, target: DType, size: int, **attributes: object) -> onnx.ModelProto:
    node = helper.make_node("Cast", ["x"], ["y"], to=element(target), **attributes)
    inputs = [helper.make_tensor_value_info("x", element(source), [size])]
    outputs = [helper.make_tensor_value_info("y", element(target), [size])]
    graph = helper.make_graph([node], "cast", inputs, outputs)
    opset = helper.make_opsetid("", 28)
    return helper.make_model(graph, opset_imports=[opset], ir_version=14)


def run_once(model: onnx.ModelProto, folder: Path, device: str, x: np.ndarray) -> np.ndarray:
    webmlc.build(model, folder, target=device)  # type: ignore[arg-type]
    loaded = webmlc.load(folder, device)  # type: ignore[arg-type]
    y = loaded.run({"x": x})["y"]
    loaded.dispose()
    return y


HALVES = np.arange(1 << 16).astype(np.uint16).view(np.float16)
SATURATING = [DType.float8_e4m3fn, DType.float8_e4m3fnuz, DType.float8_e5m2, DType.float8_e5m2fnuz]


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("target", SATURATING)
def test_every_half_becomes_an_8_bit_float(
    target: DType, saturate: int, device: str, tmp_path: Path
) -> None:
    model = cast_model(DType.float16, target, HALVES.size, saturate=saturate)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": HALVES})
    found = run_once(model, tmp_path / "package", device, HALVES)
    assert found.dtype == wanted.dtype
    numbers = ~np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), ~numbers)
    np.testing.assert_array_equal(found.view(np.uint8)[numbers], wanted.view(np.uint8)[numbers])


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("round_mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_every_half_becomes_a_power_of_two(
    saturate: int, round_mode: str, device: str, tmp_path: Path
) -> None:
    """As ONNX's reference; but its operator says that infinity saturates, and that 0 need not."""
    attributes = {"saturate": saturate, "round_mode": round_mode}
    model = cast_model(DType.float16, DType.float8_e8m0fnu, HALVES.size, **attributes)
    wanted = to_float8e8m0(HALVES, bool(saturate), round_mode).view(np.uint8).copy()
    wanted[np.isinf(HALVES)] = 254 if saturate else 255
    wanted[HALVES == 0] = 0 if saturate else 255
    found = run_once(model, tmp_path / "package", device, HALVES)
    np.testing.assert_array_equal(found.view(np.uint8), wanted)
