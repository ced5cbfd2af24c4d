"""The quantised operators of ONNX Runtime's domain, compiled and run on both devices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import webmlc
from tests.graph.ops.test_rows import make_model
from webmlc.core.machine import Device
from webmlc.graph.ops.microsoft import quantised
from webmlc.graph.ops.operator import Case
from webmlc.host.load import load

DEVICES: tuple[Device, ...] = ("wasm", "webgpu")

CASES = [
    pytest.param(row.name, case, id=f"{row.name}-{number}")
    for row in quantised.OPS
    for number, case in enumerate(row.cases)
]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_operator_equals_onnxruntime(name: str, case: Case, tmp_path: Path) -> None:
    model, feeds = make_model("com.microsoft", name, case)
    for info in model.graph.output:
        info.ClearField("type")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, feeds)
    (output,) = model.graph.output
    element = onnx.helper.np_dtype_to_tensor_dtype(expected.dtype)
    output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, element, expected.shape))
    webmlc.build(model, tmp_path / "package", target="both")
    for device in DEVICES:
        actual = load(tmp_path / "package", device).run(feeds)[output.name]
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
