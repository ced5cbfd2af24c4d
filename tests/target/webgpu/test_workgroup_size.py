"""Test that the sections of a kernel share workgroups that every WebGPU device can run, for matrix
products whose columns do not fill whole panels.
"""

from __future__ import annotations

import math
import re

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from webmlc.build_options import BuildOptions
from webmlc.core.machine import WEBGPU
from webmlc.pipeline import compile_model


@pytest.mark.parametrize("rows", ["512", "rows"])
@pytest.mark.parametrize("columns", [12, 36, 44, 60, 68, 100, 196])
def test_sections_share_one_workgroup_size(rows: str, columns: int) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[{rows}, 32] x) => (float[{rows}, {columns}] y) {{ y = MatMul(x, w) }}"""
    )
    w = np.zeros((32, columns), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    sizes = re.findall(
        r"@workgroup_size\((.*)\)", compile_model(model, BuildOptions("webgpu")).shaders["gpu"]
    )
    assert sizes
    for size in sizes:
        assert math.prod(int(extent) for extent in size.split(",")) <= WEBGPU.workgroup_size
