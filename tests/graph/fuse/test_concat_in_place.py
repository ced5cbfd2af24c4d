"""Concat in place: parts that are written directly to the result, and results equal to
onnxruntime's. A GPU differs from the CPU where a kernel would read a part of what it writes.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.against_onnxruntime import Device, check, parse
from webmlc.build_options import BuildOptions
from webmlc.core.stages import Stage
from webmlc.pipeline import compile_model


def _model(nodes: str) -> onnx.ModelProto:
    """A model of nodes that compute `j` from `x` with 8 channels, and from the convolutions `a` and
    `b` with 4 and 5.
    """
    rng = np.random.default_rng(0)
    sizes = {"u": (4, 8, 1, 1), "v": (5, 8, 1, 1), "k": (6, 9, 1, 1)}
    weights = (
        f"float[{','.join(map(str, shape))}] {name} = "
        f"{{{', '.join(f'{value:.2f}' for value in rng.standard_normal(shape).ravel())}}}"
        for name, shape in sizes.items()
    )
    return parse(
        f"g (float[n,8,6,6] x) => (float[n,c,h,w] y) <{', '.join(weights)}> "
        f"{{ a = Conv(x, u) b = Conv(x, v) {nodes} y = MaxPool<kernel_shape = [2, 2]>(j) }}"
    )


def _kernels(model: onnx.ModelProto, target: Device = "wasm") -> Counter[str]:
    """Count the kernels of each name that a model becomes, apart from those that write a part, and
    the values that consist of parts.
    """
    texts: list[str] = []

    def watch(stage: Stage) -> None:
        if stage.title == f"{target}: concat in place":
            texts.append(stage.text())

    compile_model(model, BuildOptions(target, on_stage=watch))
    (text,) = texts
    kernels: Counter[str] = Counter()
    for line in text.splitlines():
        if (kernel := re.search(r"\{body=@(\w*)\}", line)) is not None:
            place = " in place" if " in %" in line else ""
            kernels[(kernel[1] or "copy") + place] += 1
    return kernels + Counter(wholes=len(set(re.findall(r" in (%\S+)\[", text))))


CASES = {
    "two convolutions": (
        "r = Relu(a) j = Concat<axis = 1>(r, b)",
        {"wholes": 1, "conv_relu in place": 1, "conv in place": 1},
    ),
    "a part that a pointwise kernel reads, too": (
        "s = Sin(b) j = Concat<axis = 1>(a, s, b)",
        {"wholes": 1, "conv in place": 2, "sin in place": 1},
    ),
    "a Concat in a Concat, read in between": (
        "s = Concat<axis = 1>(a, b) t = Sin(s) c = Conv(t, k) j = Concat<axis = 1>(s, c)",
        {"wholes": 1, "conv in place": 3, "sin": 1},
    ),
    "a Concat in a Concat of another axis": (
        "z = Sin(x) c = Conv(z, u) d = Conv(z, v) s = Concat<axis = 1>(a, b) "
        "t = Concat<axis = 1>(d, c) j = Concat<axis = 2>(s, t)",
        {"wholes": 1, "conv in place": 4, "sin_transpose": 1},
    ),
    "the smaller part is an input": (
        "j = Concat<axis = 1>(a, x, b)",
        {"wholes": 1, "conv in place": 2, "copy in place": 1},
    ),
    "a Concat copies what lies in another": (
        "s = Concat<axis = 1>(a, b) t = Concat<axis = 1>(a, x) "
        "m = MaxPool<kernel_shape = [1, 1]>(t) j = Concat<axis = 1>(s, m)",
        {"wholes": 1, "conv in place": 2, "concat": 1, "maxpool in place": 1},
    ),
    "the larger part is an input": (
        "j = Concat<axis = 1>(x, a)",
        {"conv": 1, "concat": 1},
    ),
    "one part twice": ("j = Concat<axis = 1>(a, a)", {"conv": 1, "concat": 1}),
    "a part that a convolution reads": (
        "z = MaxPool<kernel_shape = [1, 1]>(x) c = Conv(z, u) j = Concat<axis = 1>(z, c)",
        {"conv": 1, "maxpool": 1, "concat": 1},
    ),
}


ON_GPU = {"a part that a pointwise kernel reads, too": {"conv": 2, "sin_concat": 1}}
"""The kernels of the cases that differ on a GPU."""


@pytest.mark.parametrize("case", CASES)
def test_parts_are_written_in_place(case: str, tmp_path: Path) -> None:
    nodes, kernels = CASES[case]
    model = _model(nodes)
    around = {"transpose": 2, "maxpool": 1}
    assert _kernels(model) == Counter(kernels) + Counter(around)
    on_gpu = ON_GPU.get(case, kernels)
    assert _kernels(model, "webgpu") == Counter(on_gpu) + Counter(around)
    x = np.random.default_rng(1).standard_normal((3, 8, 6, 6)).astype(np.float32)
    check(model, tmp_path, {"x": x}, {"x": x[:1]})


def test_derived_constants_are_copied_in_every_run(tmp_path: Path) -> None:
    """The memory of the joined tensor holds other values between two runs."""
    values = ", ".join(str(k % 13) for k in range(72))
    model = parse(
        "g (float[1,2,6,6] x) => (float[1,c,h,w] y) <float[3,2,1,1] u = {1, 2, 3, 4, 5, 6}, "
        f"int8[1,2,6,6] q = {{{values}}}, float s = {{0.5}}, int8 z = {{3}}> "
        "{ a = Conv(x, u) d = DequantizeLinear(q, s, z) r = Sin(d) j = Concat<axis = 1>(a, r) "
        "m = MaxPool<kernel_shape = [2, 2]>(j) y = Exp(m) }"
    )
    assert _kernels(model)["wholes"] == 1
    x = np.random.default_rng(2).standard_normal((1, 2, 6, 6)).astype(np.float32)
    check(model, tmp_path, {"x": x}, {"x": -x}, {"x": x})
