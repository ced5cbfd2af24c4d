"""Make small models of kinds that the light models lack: recurrent layers, and a quantised encoder.

The weights are seeded random numbers. onnxruntime's quantiser makes the quantised models.

    recurrent("LSTM", quantised=True)     a layer as DynamicQuantizeLSTM, with weights of bytes
    quantised_encoder()                   a transformer's encoder with QuantizeLinear and
                                          DequantizeLinear around each node
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx.parser
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

FEATURES, HIDDEN, STEPS = 128, 256, 100
"""The sizes of the recurrent layers."""
WIDTH, HEADS, LAYERS, SEQUENCE = 256, 4, 4, 128
"""The sizes of the encoder."""
CALIBRATION_RUNS = 3
"""The random inputs from whose ranges the scales of the encoder are chosen."""
GATES = {"GRU": 3, "LSTM": 4}

Arrays = Mapping[str, NDArray[Any]]


def parsed(text: str, weights: Arrays) -> onnx.ModelProto:
    """The model of a graph in ONNX's text form, with these weights."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    tensors = (numpy_helper.from_array(array, name) for name, array in weights.items())
    model.graph.initializer.extend(tensors)
    return model


def recurrent(op: Literal["GRU", "LSTM"], quantised: bool) -> onnx.ModelProto:
    """A recurrent layer over a sequence of one sample."""
    rng = np.random.default_rng(1)
    rows, bound = GATES[op] * HIDDEN, 1 / math.sqrt(HIDDEN)
    shapes = {"w": (1, rows, FEATURES), "r": (1, rows, HIDDEN), "b": (1, 2 * rows)}
    weights = {n: rng.uniform(-bound, bound, s).astype(np.float32) for n, s in shapes.items()}
    reset = ", linear_before_reset = 1" if op == "GRU" else ""
    model = parsed(
        f"layer (float[{STEPS}, 1, {FEATURES}] x) => (float[{STEPS}, 1, 1, {HIDDEN}] y)"
        f" {{ y = {op} <hidden_size = {HIDDEN}{reset}> (x, w, r, b) }}",
        weights,
    )
    if not quantised:
        return model
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "before.onnx"), Path(folder, "after.onnx")
        onnx.save(model, before)
        quantize_dynamic(before, after, weight_type=QuantType.QInt8)
        return onnx.load(after)


LAYER = """
  h{n} = LayerNormalization <axis = -1> (x{n}, g{n}, c{n})
  q{n} = MatMul (h{n}, wq{n})  qb{n} = Add (q{n}, bq{n})  qs{n} = Mul (qb{n}, scale)
  k{n} = MatMul (h{n}, wk{n})  kb{n} = Add (k{n}, bk{n})
  v{n} = MatMul (h{n}, wv{n})  vb{n} = Add (v{n}, bv{n})
  qr{n} = Reshape (qs{n}, heads)  qt{n} = Transpose <perm = [0, 2, 1, 3]> (qr{n})
  kr{n} = Reshape (kb{n}, heads)  kt{n} = Transpose <perm = [0, 2, 3, 1]> (kr{n})
  vr{n} = Reshape (vb{n}, heads)  vt{n} = Transpose <perm = [0, 2, 1, 3]> (vr{n})
  logits{n} = MatMul (qt{n}, kt{n})
  weights{n} = Softmax <axis = -1> (logits{n})
  o{n} = MatMul (weights{n}, vt{n})
  ot{n} = Transpose <perm = [0, 2, 1, 3]> (o{n})  or{n} = Reshape (ot{n}, flat)
  p{n} = MatMul (or{n}, wo{n})  pb{n} = Add (p{n}, bo{n})  y{n} = Add (x{n}, pb{n})
  i{n} = LayerNormalization <axis = -1> (y{n}, d{n}, e{n})
  u{n} = MatMul (i{n}, wu{n})  ub{n} = Add (u{n}, bu{n})
  ud{n} = Div (ub{n}, root)  ue{n} = Erf (ud{n})  ua{n} = Add (ue{n}, one)
  um{n} = Mul (ub{n}, ua{n})  uh{n} = Mul (um{n}, half)
  z{n} = MatMul (uh{n}, wz{n})  zb{n} = Add (z{n}, bz{n})  x{next} = Add (y{n}, zb{n})
"""
"""One layer of an encoder: attention and a perceptron with GELU, each after a normalisation."""


def quantised_encoder(
    layers: int = LAYERS, width: int = WIDTH, has_small_weights: bool = False
) -> onnx.ModelProto:
    """A transformer's encoder with static quantisation, for any batch and sequence. Weights of
    seven bits (`has_small_weights`) have exact products in native onnxruntime on every CPU.
    """
    model = _float_encoder(layers, width)
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "before.onnx"), Path(folder, "after.onnx")
        onnx.save(model, before)
        quantize_static(
            before,
            after,
            _RandomInputs(width),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=has_small_weights,
        )
        return onnx.load(after)


def _float_encoder(layers: int, width: int) -> onnx.ModelProto:
    rng = np.random.default_rng(2)
    weights: dict[str, NDArray[Any]] = {
        "heads": np.array([0, 0, HEADS, width // HEADS]),
        "flat": np.array([0, 0, width]),
    }
    numbers = {"scale": math.sqrt(HEADS / width), "root": math.sqrt(2), "one": 1, "half": 0.5}
    weights |= {name: np.array(number, np.float32) for name, number in numbers.items()}
    sizes = dict.fromkeys("qkvo", (width, width))
    sizes |= {"u": (width, 4 * width), "z": (4 * width, width)}
    for n in range(layers):
        for name, (depth, columns) in sizes.items():
            matrix = rng.normal(0, 1 / math.sqrt(depth), (depth, columns))
            weights[f"w{name}{n}"] = matrix.astype(np.float32)
            weights[f"b{name}{n}"] = rng.normal(0, 0.1, columns).astype(np.float32)
        for name, middle in {"g": 1, "c": 0, "d": 1, "e": 0}.items():
            weights[f"{name}{n}"] = rng.normal(middle, 0.1, width).astype(np.float32)
    nodes = "".join(LAYER.format(n=n, next=n + 1) for n in range(layers))
    shape = f"float[batch, sequence, {width}]"
    return parsed(f"encoder ({shape} x0) => ({shape} x{layers}) {{{nodes}}}", weights)


class _RandomInputs(CalibrationDataReader):  # type: ignore[misc]
    """The inputs of the encoder for its calibration."""

    def __init__(self, width: int) -> None:
        rng = np.random.default_rng(3)
        shape = (CALIBRATION_RUNS, 1, SEQUENCE, width)
        self.runs = iter(rng.normal(size=shape).astype(np.float32))

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        """The next input, or `None` after the last."""
        run = next(self.runs, None)
        return None if run is None else {"x0": run}
