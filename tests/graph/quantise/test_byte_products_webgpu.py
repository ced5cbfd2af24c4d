"""Products of bytes on WebGPU are dot products of words, and exact.

The expected results are those of `onnx.reference`, which computes in wide integers: onnxruntime's
products of bytes saturate on processors without VNNI.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import webmlc
from tests.browser.pages import Page, open_pages
from tests.hosts.packages import quantised
from tests.schedule.rules.kernels import matmul_of_words
from tests.target.webgpu.gpu import run_on_gpu
from webmlc.core.machine import ADAPTERS
from webmlc.host.load import load
from webmlc.schedule.rules import match_kernel
from webmlc.target.targets import lower
from webmlc.target.webgpu.emit_shaders import emit_shaders

DTYPES = ("uint8", "int8")
ELEMENTS = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
CALLS = ("dot4I8Packed(", "dot4I8Packed_words_lanes(")
_ENTRY = re.compile(r"^fn (\w+)\(@builtin", re.MULTILINE)
"""The line of a kernel with the name of its entry point."""

Array = np.ndarray[Any, Any]


def bytes_of(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    """Random bytes, a third of which are the lowest or the highest of the type."""
    limits, rng = np.iinfo(dtype), np.random.default_rng(seed)
    values = rng.integers(limits.min, limits.max + 1, shape)
    extremes = rng.choice((limits.min, limits.max), shape)
    return np.where(rng.random(shape) < 1 / 3, extremes, values).astype(dtype)


def extreme_columns(dtype: str, depth: int, columns: int, seed: int) -> Array:
    """A matrix of bytes whose first two columns are the lowest and the highest of the type."""
    matrix = bytes_of(dtype, (depth, columns), seed)
    matrix[:, 0], matrix[:, 1] = np.iinfo(dtype).min, np.iinfo(dtype).max
    return matrix


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[str, tuple[str | int, ...]]],
    outputs: dict[str, tuple[str | int, ...]],
    constants: dict[str, Array],
) -> onnx.ModelProto:
    """A model whose inputs are bytes, and whose outputs are int32."""
    graph = helper.make_graph(
        nodes,
        "bytes",
        [helper.make_tensor_value_info(n, ELEMENTS[t], s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.INT32, s) for n, s in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(model: onnx.ModelProto, folder: Path, *runs: dict[str, Array], products: int) -> None:
    """The package of a model computes on both devices exactly what the reference does, on WebGPU in
    `products` steps that multiply words. The devices shift bytes by different numbers.
    """
    manifest = webmlc.build(model, folder, target="both", emit_text=True)
    steps = [step for step in manifest.programs["webgpu"].steps if step.control is None]
    assert {step.device for step in steps} == {"webgpu"}
    (text,) = (path.read_text() for path in folder.glob("*.wgsl"))
    kernels = {_ENTRY.search(part)[1]: part for part in text.split("\n// ")[1:]}
    texts = [kernels[step.kernel] for step in steps]
    of_words = [text for text in texts if any(call in text for call in CALLS)]
    assert len(of_words) == products
    assert not any("bytes_of(" in text for text in of_words)
    reference = ReferenceEvaluator(model)
    expected = [reference.run(None, feeds) for feeds in runs]
    for device in ("wasm", "webgpu"):
        loaded = load(folder, device)
        for feeds, results in zip(runs, expected, strict=True):
            actual = loaded.run(feeds)
            for output, result in zip(model.graph.output, results, strict=True):
                np.testing.assert_array_equal(actual[output.name], result)
        loaded.dispose()


@pytest.mark.parametrize("depth", [13, 96])
def test_products_of_all_types_are_exact(depth: int, tmp_path: Path) -> None:
    """Of every combination of signs, with zero points, for one row and for several."""
    nodes, inputs, outputs, constants = [], {}, {}, {}
    for left in DTYPES:
        inputs[f"x_{left}"] = (left, ("n", depth))
        constants[f"zero_{left}"] = np.array(np.iinfo(left).max, left)
        for seed, right in enumerate(DTYPES):
            name, zero = f"{left}_{right}", np.array(128 if right == "uint8" else 0, right)
            constants |= {f"w_{name}": extreme_columns(right, depth, 11, seed), f"z_{name}": zero}
            operands = [f"x_{left}", f"w_{name}", f"zero_{left}", f"z_{name}"]
            nodes.append(helper.make_node("MatMulInteger", operands, [name]))
            outputs[name] = ("n", 11)
    model = model_of(nodes, inputs, outputs, constants)
    runs = []
    for rows in (1, 19):
        feeds = {f"x_{dtype}": extreme_columns(dtype, rows, depth, rows) for dtype in DTYPES}
        runs.append(feeds | ({} if rows == 1 else {n: np.sort(x, 0) for n, x in feeds.items()}))
    check(model, tmp_path, *runs, products=4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_few_rows_are_exact_where_threads_divide_the_reduction(
    dtype: str, tmp_path: Path
) -> None:
    model = model_of(
        [helper.make_node("MatMulInteger", ["x", "w", "zero"], ["y"])],
        {"x": (dtype, (2, 1024))},
        {"y": (2, 24)},
        {"w": extreme_columns("int8", 1024, 24, 0), "zero": np.array(7, dtype)},
    )
    x = bytes_of(dtype, (2, 1024), 1)
    x[0] = np.iinfo(dtype).max
    check(model, tmp_path, {"x": x}, products=1)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "pointwise": ((2, 16, 5, 3), (12, 16, 1, 1), {}),
    "channels_padded_to_words": ((1, 6, 5, 5), (9, 6, 3, 3), {"pads": (1, 1, 1, 1)}),
    "taps_of_a_line_in_words": ((1, 1, 9, 12), (8, 1, 3, 8), {"pads": (1, 3, 1, 4)}),
    "strides": ((1, 8, 7, 9), (8, 8, 3, 3), {"strides": (2, 2), "pads": (1, 1, 0, 1)}),
    "groups": ((1, 16, 4, 4), (8, 8, 3, 3), {"group": 2}),
    "lines": ((2, 4, 20), (8, 4, 7), {"strides": (3,)}),
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_convolutions_are_exact(dtype: str, tmp_path: Path) -> None:
    nodes, inputs, outputs, constants, feeds = [], {}, {}, {}, {}
    constants["zero"] = np.array(5, dtype)
    for seed, (name, (shape, weights, attributes)) in enumerate(CONVOLUTIONS.items()):
        inputs[f"x_{name}"] = (dtype, shape)
        constants[f"w_{name}"] = bytes_of("int8", weights, seed)
        operands = [f"x_{name}", f"w_{name}", "zero"]
        nodes.append(helper.make_node("ConvInteger", operands, [name], **attributes))
        outputs[name] = tuple(f"{name}_{n}" for n in range(len(shape)))
        feeds[f"x_{name}"] = bytes_of(dtype, shape, seed + 1)
    model = model_of(nodes, inputs, outputs, constants)
    check(model, tmp_path, feeds, products=len(CONVOLUTIONS))


def test_both_devices_compute_a_quantised_network(tmp_path: Path) -> None:
    """Within a step of onnxruntime, which here multiplies bytes without saturation."""
    package = quantised(tmp_path)
    for device in ("wasm", "webgpu"):
        loaded = load(tmp_path / package.name, device)
        for feeds, expected in zip(package.feeds, package.expected, strict=True):
            actual = loaded.run(feeds)
            assert actual.keys() == expected.keys()
            for name, result in expected.items():
                package.check_array(actual[name], result)
        loaded.dispose()


@pytest.mark.parametrize("adapter", ["gpu", "software"])
@pytest.mark.parametrize("rows", [1, 21])
def test_all_schedules_of_a_product_are_exact(rows: int, adapter: str) -> None:
    """Random members of the search space, and its default. Software adapters unpack the words."""
    kernel, machine = matmul_of_words(rows, 24, 48), ADAPTERS[adapter]
    match = match_kernel(kernel, machine)
    assert match is not None and match.rule.name == "contraction"
    left, right = bytes_of("int8", (rows, 48 * 4), 0), bytes_of("int8", (3, 48, 8, 4), 1)
    columns = right.astype(np.int32).transpose(1, 3, 0, 2).reshape(48 * 4, 24)
    names = [buffer.name for buffer in kernel.params]
    arrays = (left.view(np.int32), right.view(np.int32)[..., 0], np.zeros((rows, 24), np.int32))
    space, default = match.space(), match.default()
    generator = Random(rows)
    for parameters in (default, space.random(generator)):
        lowered = lower(match.build(parameters).function, machine)
        text = emit_shaders({kernel.name: lowered}).text
        assert (CALLS[0] in text) == (adapter == "gpu")
        (actual,) = run_on_gpu(lowered, dict(zip(names, arrays, strict=True))).values()
        np.testing.assert_array_equal(actual, left.astype(np.int32) @ columns)


LOAD = """async ({ x, lacks }) => {
  if (lacks) Object.defineProperty(GPU.prototype, "wgslLanguageFeatures", { get: () => new Set() });
  const texts = [];
  const create = GPUDevice.prototype.createShaderModule;
  GPUDevice.prototype.createShaderModule = function (descriptor) {
    texts.push(descriptor.code);
    return create.call(this, descriptor);
  };
  const { load } = await import("/model/webmlc.js");
  const model = await load("/model/", { device: "webgpu" });
  const input = { dtype: "int8", shape: [x.length, x[0].length], data: Int8Array.from(x.flat()) };
  const { y } = await model.run({ x: input });
  return { y: Array.from(y.data), defined: texts.some((t) => t.includes("fn dot4I8Packed(")) };
}"""


def test_the_loader_defines_the_function_where_the_browser_lacks_it(tmp_path: Path) -> None:
    weights = extreme_columns("int8", 12, 8, 0)
    model = model_of(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        {"x": ("int8", (5, 12))},
        {"y": (5, 8)},
        {"w": weights},
    )
    webmlc.build(model, tmp_path / "model", target="webgpu")
    (tmp_path / "index.html").write_text("<!doctype html><title>blank</title>")
    x = extreme_columns("int8", 5, 12, 3)
    pages = [Page("/", LOAD, arg={"x": x.tolist(), "lacks": lacks}) for lacks in (False, True)]
    reports = open_pages({"/": tmp_path}, *pages)
    expected = x.astype(np.int32) @ weights.astype(np.int32)
    for report, is_defined in zip(reports, (False, True), strict=True):
        np.testing.assert_array_equal(np.reshape(report.value["y"], (5, 8)), expected)
        assert report.value["defined"] == is_defined
