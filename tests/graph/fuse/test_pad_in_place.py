"""Padding on GPUs: feature maps that are written into their padded form, and read there.

Every case compares with onnxruntime on all devices, and states the kernels that a GPU starts.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

import webmlc
from tests.against_onnxruntime import check, parse
from webmlc.core.stages import ignore
from webmlc.pipeline import kernel_module, shared_graph
from webmlc.target.webgpu.target import WEBGPU

WEIGHTS = {"u": (8, 8, 1, 1), "v": (8, 8, 3, 3), "w": (12, 8, 3, 3), "d": (8, 1, 3, 3)}


def _model(nodes: str, image: str) -> onnx.ModelProto:
    """A model of nodes that compute `y` from `a`, the Relu of a convolution of `x`, whose type is
    `image`.
    """
    rng = np.random.default_rng(0)
    weights = (
        f"float[{','.join(map(str, shape))}] {name} = "
        f"{{{', '.join(f'{value:.2f}' for value in rng.standard_normal(shape).ravel())}}}"
        for name, shape in WEIGHTS.items()
    )
    return parse(
        f"g (float[{image}] x) => (float[n,c,h,w] y) "
        f"<{', '.join(weights)}, int64[8] p = {{0, 0, 2, 1, 0, 0, 0, 3}}, float f = {{-2.5}}> "
        f"{{ z = Conv(x, u) a = Relu(z) {nodes} }}"
    )


def _kernels(model: onnx.ModelProto) -> Counter[str]:
    """Count the GPU's kernels of each name, without the transposition of an input or output."""
    module = kernel_module(shared_graph(model, watch=ignore), WEBGPU, ignore)
    calls = [node for node in module.main.nodes if node.op == "call_kernel"]
    assert {node.attributes["device"] for node in calls} == {"webgpu"}
    names = (re.sub(r"_\d+$", "", node.attributes["kernel"]) for node in calls)
    return Counter(name for name in names if name != "transpose")


FLOAT = onnx.TensorProto.FLOAT
SAME = "pads = [1, 1, 1, 1]"
CASES = {
    "read by one convolution": (
        f"y = Conv<{SAME}>(a, v)",
        {"conv_relu_pad": 1, "conv": 1},
    ),
    "read by a depthwise convolution": (
        f"y = Conv<{SAME}, group = 8>(a, d)",
        {"conv_relu_pad": 1, "depthwiseconv": 1},
    ),
    "read by two convolutions, and with stride 2": (
        f"b = Conv<{SAME}>(a, v) c = Conv<strides = [2, 2]>(b, u) "
        f"e = Conv<{SAME}, strides = [2, 2]>(b, v) y = Add(c, e)",
        {"conv_relu_pad": 1, "conv_pad": 1, "conv": 1, "conv_add": 1},
    ),
    "read by a convolution and by its epilogue": (
        f"b = Conv<{SAME}>(a, v) c = Relu(b) y = Add(a, c)",
        {"conv_relu_pad": 1, "conv_relu_add": 1},
    ),
    "read by a pool": (
        f"y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], {SAME}>(a)",
        {"conv_relu_pad": 1, "maxpool": 1},
    ),
    "read by a pool and by a convolution": (
        f"b = MaxPool<kernel_shape = [3, 3], {SAME}>(a) c = Conv<{SAME}>(a, v) y = Mul(b, c)",
        {"conv_relu_pad": 1, "pad_maxpool": 1, "conv_mul": 1},
    ),
    "read by a mean of windows and by a pointwise kernel": (
        f"b = AveragePool<kernel_shape = [3, 3], {SAME}>(a) c = Exp(a) y = Add(b, c)",
        {"conv_relu": 1, "exp": 1, "pad_averagepool_add": 1},
    ),
    "a pool pads what a pool computes": (
        f"b = MaxPool<kernel_shape = [2, 2]>(a) y = MaxPool<kernel_shape = [3, 3], {SAME}>(b)",
        {"conv_relu": 1, "maxpool_pad": 1, "maxpool": 1},
    ),
    "a value and sides of other sizes": (
        "b = Pad(a, p, f) y = Conv(b, w)",
        {"conv_relu_pad": 1, "conv": 1},
    ),
    "a border that repeats elements": (
        'b = Pad<mode = "edge">(a, p) y = Conv(b, w)',
        {"conv_relu": 1, "pad": 1, "conv": 1},
    ),
    "two borders of one feature map": (
        f"b = Conv<{SAME}>(a, v) c = Pad(a, p, f) e = Conv(c, v) "
        "m = GlobalMaxPool(e) y = Add(b, m)",
        {"conv_relu_pad": 1, "pad": 1, "conv": 1, "reducemax": 1, "conv_add": 1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_feature_maps_are_written_into_their_padded_form(case: str, tmp_path: Path) -> None:
    nodes, kernels = CASES[case]
    model = _model(nodes, "2,8,6,9")
    assert _kernels(model) == kernels
    x = np.random.default_rng(1).standard_normal((2, 8, 6, 9)).astype(np.float32)
    check(model, tmp_path, {"x": x}, {"x": -x})


def test_an_output_of_the_model_is_copied_from_its_padded_form(tmp_path: Path) -> None:
    model = _model(f"y = Identity(a) k = Conv<{SAME}>(a, v)", "1,8,6,9")
    model.graph.output.append(onnx.helper.make_tensor_value_info("k", FLOAT, "nchw"))
    assert _kernels(model) == {"conv_relu_pad": 1, "conv": 1}
    x = np.random.default_rng(2).standard_normal((1, 8, 6, 9)).astype(np.float32)
    check(model, tmp_path, {"x": x})


@pytest.mark.parametrize("image", ["batch,8,6,9", "1,8,height,width"])
def test_sizes_may_be_symbolic(image: str, tmp_path: Path) -> None:
    """The border is written in every run: another run had other values in its place."""
    nodes, kernels = CASES["read by a convolution and by its epilogue"]
    model = _model(nodes, image)
    assert _kernels(model) == kernels
    rng = np.random.default_rng(3)
    sizes = (
        [(3, 6, 9), (1, 6, 9), (2, 6, 9)]
        if "batch" in image
        else [(1, 7, 5), (1, 1, 1), (1, 9, 12)]
    )
    runs = [{"x": rng.standard_normal((n, 8, h, w)).astype(np.float32)} for n, h, w in sizes]
    check(model, tmp_path, *runs)


def test_no_kernel_writes_outside_a_padded_feature_map(tmp_path: Path) -> None:
    nodes, _ = CASES["a value and sides of other sizes"]
    webmlc.build(_model(nodes, "1,8,height,width"), tmp_path, target="webgpu")
    checked = webmlc.load(tmp_path, device="webgpu", red_zones=True)
    plain = webmlc.load(tmp_path, device="webgpu")
    for rows, columns in ((6, 9), (1, 1), (13, 4)):
        x = np.random.default_rng(4).standard_normal((1, 8, rows, columns)).astype(np.float32)
        np.testing.assert_array_equal(checked.run({"x": x})["y"], plain.run({"x": x})["y"])
