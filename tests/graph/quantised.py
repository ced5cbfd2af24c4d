"""A small quantised CNN, made of a random float one by onnxruntime's own quantiser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

Array = NDArray[Any]
SHAPE = (2, 3, 33, 29)


def float_cnn() -> onnx.ModelProto:
    """Convolutions (plain, pointwise, depthwise, grouped), a residual, pools, a gate, a Gemm."""
    rng = np.random.default_rng(0)
    weights: dict[str, Array] = {}
    nodes: list[onnx.NodeProto] = []

    def add(op: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def conv(x: str, y: str, shape: tuple[int, ...], **attributes: object) -> str:
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        weights[f"{y}_w"] = (rng.standard_normal(shape) * scale).astype(np.float32)
        weights[f"{y}_b"] = (rng.standard_normal(shape[0]) * 0.1).astype(np.float32)
        pads = [shape[2] // 2] * 4
        return add("Conv", [x, f"{y}_w", f"{y}_b"], y, pads=pads, **attributes)

    first = add("Relu", [conv("x", "c1", (16, 3, 3, 3), strides=[2, 2])], "r1")
    expanded = add("Relu", [conv(first, "c2", (24, 16, 1, 1))], "r2")
    depthwise = add("Clip", [conv(expanded, "c3", (24, 1, 3, 3), group=24), "low", "high"], "r3")
    weights["low"], weights["high"] = np.float32(0), np.float32(6)
    both = add("Add", [first, conv(depthwise, "c4", (16, 24, 1, 1))], "sum")
    grouped = add("Relu", [conv(both, "c5", (20, 4, 3, 3), group=4, strides=[2, 2])], "r5")
    pooled = add("MaxPool", [grouped], "maximum", kernel_shape=[2, 2], strides=[2, 2])
    mean = add("AveragePool", [pooled], "mean", kernel_shape=[2, 2])
    gated = add("Mul", [mean, add("Sigmoid", [mean], "gate")], "gated")
    joined = add("Concat", [mean, gated], "joined", axis=1)
    flat = add("Flatten", [add("GlobalAveragePool", [joined], "overall")], "flat")
    weights["w"] = (rng.standard_normal((10, 40)) / 6).astype(np.float32)
    weights["b"] = rng.standard_normal(10).astype(np.float32)
    add("Gemm", [flat, "w", "b"], "y", transB=1)
    graph = helper.make_graph(
        nodes,
        "cnn",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *SHAPE[1:]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


class _Images(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.images: Iterator[dict[str, Array]] = iter(
            [{"x": rng.standard_normal(SHAPE).astype(np.float32)} for _ in range(4)]
        )

    def get_next(self) -> dict[str, Array] | None:
        return next(self.images, None)


def quantised_cnn(
    folder: Path,
    weights: QuantType = QuantType.QInt8,
    form: QuantFormat = QuantFormat.QDQ,
    per_channel: bool = True,
) -> onnx.ModelProto:
    """`float_cnn` with uint8 activations, quantised after a calibration with random images."""
    onnx.save(float_cnn(), folder / "float.onnx")
    quantize_static(
        folder / "float.onnx",
        folder / "quantised.onnx",
        _Images(),
        quant_format=form,
        per_channel=per_channel,
        activation_type=QuantType.QUInt8,
        weight_type=weights,
    )
    return onnx.load(folder / "quantised.onnx")
