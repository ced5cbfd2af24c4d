"""How far apart two neighbouring values of a quantised output are.

In: an ONNX model. Out: by output name, the scale of the DequantizeLinear that makes it (perhaps
through a Reshape or the like), or 1 for the integers of a QuantizeLinear or QLinear operator.
Outputs that are not quantised are left out.

    y = DequantizeLinear(q, 0.05, 128)  ->  {"y": 0.05}
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, numpy_helper

_MOVES = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast"})


def quantisation_steps(model: onnx.ModelProto) -> dict[str, float]:
    """The step of every quantised output of the model; the largest where it has several."""
    makers = {name: node for node in model.graph.node for name in node.output}
    found = {o.name: _step(model.graph, makers, o.name) for o in model.graph.output}
    return {name: step for name, step in found.items() if step is not None}


def _step(graph: GraphProto, makers: dict[str, NodeProto], value: str) -> float | None:
    maker = makers.get(value)
    while maker is not None and maker.op_type in _MOVES:
        maker = makers.get(maker.input[0])
    if maker is None:
        return None
    if maker.op_type == "QuantizeLinear" or maker.op_type.startswith("QLinear"):
        return 1.0
    if maker.op_type != "DequantizeLinear":
        return None
    scale = _constant(graph, makers, maker.input[1])
    return None if scale is None else float(np.abs(scale).max())


def _constant(graph: GraphProto, makers: dict[str, NodeProto], name: str) -> np.ndarray | None:
    """The array of an initialiser, or of a Constant node, perhaps under other names."""
    maker = makers.get(name)
    while maker is not None and maker.op_type == "Identity":
        name = maker.input[0]
        maker = makers.get(name)
    if maker is not None and maker.op_type == "Constant" and maker.attribute[0].name == "value":
        return numpy_helper.to_array(maker.attribute[0].t)
    known = (t for t in graph.initializer if t.name == name)
    return next((numpy_helper.to_array(t) for t in known), None)
