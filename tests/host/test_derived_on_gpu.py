"""A GPU computes what depends on constants only once, at load: it widens weights of halves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import webmlc
from tests.browser.gpu_models import check
from webmlc.core.dtypes import DType
from webmlc.host.webgpu import WebGpuExecutor

Arrays = dict[str, np.ndarray]


def expected_outputs(model: onnx.ModelProto, feeds: Arrays) -> list[np.ndarray]:
    """The outputs that onnxruntime computes."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return list(session.run(None, feeds))


def weights(dtype: type = np.float16) -> Arrays:
    """Weights of a convolution, two products and their biases."""
    rng = np.random.default_rng(0)
    shapes = {"w": (16, 3, 3, 3), "m": (16, 96), "n": (96, 400), "b": (96,), "c": (400,)}
    return {n: (0.3 * rng.standard_normal(s)).astype(dtype) for n, s in shapes.items()}


def mixed_model() -> onnx.ModelProto:
    """Halves as weights of a network of float32: exporters write a Cast of each."""
    nodes = [helper.make_node("Cast", [name], [f"{name}_f"], to=TensorProto.FLOAT)
             for name in weights()]  # fmt: skip
    nodes += [
        helper.make_node("Conv", ["x", "w_f"], ["f"], pads=[1, 1, 1, 1]),
        helper.make_node("ReduceMean", ["f"], ["p"], axes=[2, 3], keepdims=0),
        helper.make_node("Gemm", ["p", "m_f", "b_f"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "n_f"], ["u"]),
        helper.make_node("Add", ["u", "c_f"], ["y"]),
    ]
    return model_of(nodes, TensorProto.FLOAT, weights())


def model_of(nodes: list[onnx.NodeProto], kind: int, constants: Arrays) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "halves",
        [helper.make_tensor_value_info("x", kind, ["n", 3, 12, 12])],
        [helper.make_tensor_value_info("y", kind, ["n", 400])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def half_model(dtype: type) -> onnx.ModelProto:
    """A network of halves."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["f"], pads=[1, 1, 1, 1]),
        helper.make_node("ReduceMean", ["f"], ["p"], axes=[2, 3], keepdims=0),
        helper.make_node("Gemm", ["p", "m", "b"], ["h"]),
        helper.make_node("MatMul", ["h", "n"], ["y"]),
    ]
    constants = {name: array for name, array in weights(dtype).items() if name != "c"}
    return model_of(nodes, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), constants)


def test_halves_are_widened_once_at_load(tmp_path: Path) -> None:
    model = mixed_model()
    manifest = webmlc.build(model, tmp_path, target="webgpu")
    program = manifest.programs["webgpu"]
    halves = {b.name for b in program.buffers if b.dtype is DType.float16}
    derived = {b.name for b in program.buffers if b.kind == "derived"}
    assert len(halves) == len(derived) == 1  # small constants are stored as float32
    assert "packed" in min(halves)
    load_steps = {i for run in program.runs if run.once for i in range(run.first, run.last)}
    readers = [i for i, step in enumerate(program.steps) if halves & set(step.arguments)]
    assert set(readers) == load_steps
    loaded = webmlc.load(tmp_path, device="webgpu")
    (executor,) = loaded._executors.values()
    assert isinstance(executor, WebGpuExecutor)
    assert halves.isdisjoint(executor.constants) and derived <= executor.constants.keys()
    for n in (1, 3, 1):
        x = np.random.default_rng(n).standard_normal((n, 3, 12, 12), np.float32)
        (want,) = expected_outputs(model, {"x": x})
        np.testing.assert_allclose(loaded.run({"x": x})["y"], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_matrices_of_halves_are_packed(device: str, tmp_path: Path) -> None:
    model = half_model(np.float16)
    manifest = webmlc.build(model, tmp_path, target=device)  # type: ignore[arg-type]
    buffers = manifest.programs[device].buffers  # type: ignore[index]
    packed = {b.name: b.dtype for b in buffers if b.kind == "constant" and "packed" in b.name}
    assert DType.float16 in packed.values()
    x = np.random.default_rng(1).standard_normal((2, 3, 12, 12)).astype(np.float16)
    loaded = webmlc.load(tmp_path, device=device)  # type: ignore[arg-type]
    (want,) = expected_outputs(model, {"x": x})
    np.testing.assert_allclose(loaded.run({"x": x})["y"], want, rtol=2e-2, atol=2e-3)


def test_a_value_that_the_cpu_reads_is_not_derived_on_the_gpu(tmp_path: Path) -> None:
    """The float64 branch runs on the CPU."""
    w = np.random.default_rng(2).standard_normal((64, 64)).astype(np.float16)
    nodes = [
        helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "f"], ["y"]),
        helper.make_node("Cast", ["f"], ["d"], to=TensorProto.DOUBLE),
        helper.make_node("Cast", ["x"], ["e"], to=TensorProto.DOUBLE),
        helper.make_node("Mul", ["d", "e"], ["z"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 64])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 64]),
               helper.make_tensor_value_info("z", TensorProto.DOUBLE, [64, 64])]  # fmt: skip
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    program = webmlc.build(model, tmp_path, target="webgpu").programs["webgpu"]
    on_cpu = {a for step in program.steps if step.device == "wasm" for a in step.arguments}
    derived = {b.name for b in program.buffers if b.kind == "derived"}
    assert on_cpu and on_cpu.isdisjoint(derived)
    x = np.random.default_rng(3).standard_normal((64, 64), np.float32)
    results = webmlc.load(tmp_path, device="webgpu").run({"x": x})
    for name, want in zip(("y", "z"), expected_outputs(model, {"x": x}), strict=True):
        np.testing.assert_allclose(results[name], want, rtol=1e-6)


def test_a_page_widens_halves_at_load(tmp_path: Path) -> None:
    x = np.random.default_rng(4).standard_normal((2, 3, 12, 12), np.float32)
    check(mixed_model(), {"x": x}, tmp_path)
