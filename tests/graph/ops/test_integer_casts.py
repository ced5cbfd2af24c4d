"""Casts of floats to integers on both devices: fractions, negative numbers, and numbers that do not
fit, compared with onnxruntime and numpy.
"""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from webmlc.core.dtypes import DType
from webmlc.core.machine import Device
from webmlc.host.load import load
from webmlc.pipeline import build

WITHIN_INT32 = [
    -0.5, 0.5, -1.0, -1.7, 1.7, -2.5, 2.5, 127.9, 128.0, 255.9, 256.0, 300.0, -128.9, -129.0,
    -300.0, 32768.0, 65535.9, 65536.0, -32769.0, -70000.0, 2147483520.0, -2147483648.0,
]  # fmt: skip
"""Numbers that a small integer may not hold, but an int32 does."""

WITHIN_INT64 = [2147483648.0, 3e9, 4294967040.0, 9.2e18]
BEYOND = [np.nan, np.inf, -np.inf, 1e30, -1e30]

RESULTS_BEYOND = {
    **dict.fromkeys(["int8", "uint8", "int16", "uint16", "int4", "uint4"], [0] * 5),
    "int32": [-(2**31)] * 5,
    "int64": [-(2**63)] * 5,
    "uint32": [2**31, 0, 2**31, 0, 2**31],
    "uint64": [2**63, 0, 2**63, 0, 2**63],
}
"""The results of `BEYOND` by numpy's loops over vectors on x86."""


def model_of(source: DType, target: DType) -> onnx.ModelProto:
    elements = [helper.np_dtype_to_tensor_dtype(dtype.numpy) for dtype in (source, target)]
    node = helper.make_node("Cast", ["x"], ["y"], to=elements[1])
    x = helper.make_tensor_value_info("x", elements[0], ["n"])
    y = helper.make_tensor_value_info("y", elements[1], ["n"])
    graph = helper.make_graph([node], "cast", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def run(model: onnx.ModelProto, x: np.ndarray, folder: Path, device: Device) -> np.ndarray:
    build(model, folder, target=device)
    package = load(folder, device=device)
    try:
        return np.asarray(package.run({"x": x})["y"])
    finally:
        package.dispose()


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("target", ["uint8", "int8", "uint16", "int16", "int32", "uint32"])
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_a_number_is_truncated_and_wraps(
    source: str, target: str, device: Device, tmp_path: Path
) -> None:
    x = np.array(WITHIN_INT32, source)
    model = model_of(DType(source), DType(target))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"x": x})
    y = run(model, x, tmp_path, device)
    assert y.tolist() == expected.tolist() == x.astype(np.int64).astype(target).tolist()


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("target", ["int64", "uint64", "uint32"])
def test_a_large_number_is_truncated(target: str, device: Device, tmp_path: Path) -> None:
    x = np.array(WITHIN_INT32 + WITHIN_INT64[: 3 if target == "uint32" else 4], np.float32)
    y = run(model_of(DType.float32, DType(target)), x, tmp_path, device)
    assert y.tolist() == x.astype(np.int64).astype(target).tolist()


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("source", ["float32", "bfloat16"])
@pytest.mark.parametrize("target", RESULTS_BEYOND)
def test_a_number_that_does_not_fit_has_one_result(
    source: str, target: str, device: Device, tmp_path: Path
) -> None:
    x = np.array(BEYOND, ml_dtypes.bfloat16 if source == "bfloat16" else np.float32)
    y = run(model_of(DType(source), DType(target)), x, tmp_path, device)
    assert y.astype(object).tolist() == RESULTS_BEYOND[target]


@pytest.mark.parametrize("to", [TensorProto.INT64, TensorProto.INT32, TensorProto.UINT32])
def test_a_size_that_was_halved_as_a_float_stays_a_small_expression(
    to: int, tmp_path: Path
) -> None:
    """Shape arithmetic knows that a size fits: y = x[:, :floor(n / 2)]."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], start=1),
        helper.make_node("Cast", ["shape"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["float", "half"], ["halved"]),
        helper.make_node("Floor", ["halved"], ["floor"]),
        helper.make_node("Cast", ["floor"], ["integer"], to=to),
        helper.make_node("Cast", ["integer"], ["end"], to=TensorProto.INT64),
        helper.make_node("Slice", ["x", "zero", "end", "one"], ["y"]),
    ]
    constants = [
        onnx.numpy_helper.from_array(np.array([value], dtype), name)
        for name, value, dtype in (
            ("half", 0.5, np.float32), ("zero", 0, np.int64), ("one", 1, np.int64)
        )
    ]  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, "n"])
    graph = helper.make_graph(nodes, "halves", [x], [onnx.ValueInfoProto(name="y")], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    build(model, tmp_path, target="wasm")
    package = load(tmp_path)
    assert str(package.outputs[0].shape[1]) == "min(n // 2, n)"
    assert np.asarray(package.run({"x": np.ones((2, 7), np.float32)})["y"]).shape == (2, 3)
    package.dispose()
