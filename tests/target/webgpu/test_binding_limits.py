"""A build splits what exceeds the default limits of WebGPU, or moves it to the CPU."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import webmlc
from webmlc.core.errors import UserError
from webmlc.core.machine import MAX_BINDING_BYTES, MAX_BINDINGS
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.host.webgpu import WebGpuExecutor
from webmlc.package.manifest import Manifest
from webmlc.target.webgpu.target import BY_ADAPTER, WEBGPU, webgpu_target

HEAD = '<ir_version: 8, opset_import: ["" : 18]> '


def embedding(table: np.ndarray, *, indices: str = "ids") -> onnx.ModelProto:
    """`y = Relu(table[ids])`."""
    nodes = [
        helper.make_node("Gather", ["table", indices], ["rows"], "lookup"),
        helper.make_node("Relu", ["rows"], ["y"], "relu"),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    element = helper.np_dtype_to_tensor_dtype(table.dtype)
    y = helper.make_tensor_value_info("y", element, ["n", table.shape[1]])
    graph = helper.make_graph([*nodes], "g", [ids], [y], [numpy_helper.from_array(table, "table")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def bound_bytes(manifest: Manifest) -> dict[str, int]:
    """The bytes of each constant that the webgpu program binds."""
    program = manifest.programs["webgpu"]
    spans = {n: end - begin for f in manifest.weights for n, (begin, end) in f.tensors.items()}
    used = {a for step in program.steps if step.device == "webgpu" for a in step.arguments}
    return {b.name: spans[b.tensor] for b in program.buffers if b.tensor and b.name in used}


def test_an_embedding_of_154_mb_runs_on_default_limits(tmp_path: Path) -> None:
    table = np.random.default_rng(0).standard_normal((50257, 768), np.float32)
    manifest = webmlc.build(embedding(table), tmp_path, target="webgpu")
    constants = bound_bytes(manifest)
    assert len(constants) == 2 and max(constants.values()) <= MAX_BINDING_BYTES
    assert sum(constants.values()) == table.nbytes
    model = webmlc.load(tmp_path, device="webgpu")
    (executor,) = model._executors.values()
    assert isinstance(executor, WebGpuExecutor)
    assert executor.device.limits["max-storage-buffer-binding-size"] == MAX_BINDING_BYTES
    half = len(table) // 2
    ids = np.array([0, 1, half, half + 1, 50256, -1, -50257], np.int64)
    np.testing.assert_array_equal(model.run({"ids": ids})["y"], np.maximum(table[ids], 0))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.int64])
@pytest.mark.parametrize("parts", [2, 5])
def test_kernels_read_a_constant_in_parts(tmp_path: Path, dtype: type, parts: int) -> None:
    table = np.random.default_rng(1).integers(-100, 100, (41, 6)).astype(dtype)
    limits = FusionLimits(buffers=MAX_BINDINGS, binding_bytes=-(-41 // parts) * table[0].nbytes)
    with patch.dict(BY_ADAPTER, gpu=webgpu_target(limits, WEBGPU.variants)):
        manifest = webmlc.build(embedding(table), tmp_path, target="webgpu")
    assert len(bound_bytes(manifest)) == parts
    ids = np.arange(-41, 41)
    result = webmlc.load(tmp_path, device="webgpu").run({"ids": ids})["y"]
    np.testing.assert_array_equal(result, np.maximum(table[ids], 0))


def test_a_constant_of_more_parts_than_a_kernel_binds_is_read_on_the_cpu(tmp_path: Path) -> None:
    # A part of four rows has 256 bytes, as many as the counts of indices that 64 threads add.
    table = np.arange(41 * 16, dtype=np.float32).reshape(41, 16)
    limits = FusionLimits(buffers=MAX_BINDINGS, binding_bytes=4 * table[0].nbytes)
    with (
        patch.dict(BY_ADAPTER, gpu=webgpu_target(limits, WEBGPU.variants)),
        patch("webmlc.loops.kernel_form.MAX_BINDING_BYTES", limits.binding_bytes),
    ):
        manifest = webmlc.build(embedding(table), tmp_path, target="webgpu")
    step, *counts = manifest.programs["webgpu"].steps  # the others count indices
    assert step.device == "wasm"
    assert step.reason == "a buffer of 2624 bytes, of which a kernel can bind 256"
    assert {count.device for count in counts} == {"webgpu"}
    ids = np.arange(41)
    result = webmlc.load(tmp_path, device="webgpu").run({"ids": ids})["y"]
    np.testing.assert_array_equal(result, table)


def test_a_feature_map_that_no_kernel_binds_is_computed_on_the_cpu(tmp_path: Path) -> None:
    text = """g (float[1,3,4096,4096] x) => (float[1,3,64,64] y)
        { a = Relu(x) b = AveragePool<kernel_shape=[64,64], strides=[64,64]>(a) y = Exp(b) }"""
    manifest = webmlc.build(parser.parse_model(HEAD + text), tmp_path, target="webgpu")
    program = manifest.programs["webgpu"]
    large = {b.name for b in program.buffers if (b.static_bytes or 0) > MAX_BINDING_BYTES}
    on_cpu = [step for step in program.steps if large & set(step.arguments)]
    assert {step.device for step in on_cpu} == {"wasm"}
    assert {step.device for step in program.steps if step not in on_cpu} == {"webgpu"}
    reason = "a buffer of 201326592 bytes, of which a kernel can bind 134217728"
    assert {step.reason for step in on_cpu} == {reason}


def test_a_model_that_no_memory_holds_is_refused_with_its_largest_buffer(tmp_path: Path) -> None:
    text = """g (float[20000,20000] x) => (float[20000,20000] y) { a = Relu(x)
        b = Softmax<axis=0>(a) c = Softmax<axis=1>(a) d = Add(b, c) y = Softmax<axis=0>(d) }"""
    with pytest.raises(UserError) as error:
        webmlc.build(parser.parse_model(HEAD + text), tmp_path, target="wasm")
    assert "(the largest buffer: 'x', float32[20000, 20000] of 1,600,000,000 bytes)" in str(
        error.value
    )
