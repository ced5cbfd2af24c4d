"""Determine the quantisation step of outputs: the distance of two neighbouring values.

In: an ONNX model. Out: the step of each quantised output by name. It is the scale of the
DequantizeLinear that produces the output, perhaps through a Reshape or a similar node. It is 1 for
the integers of a QuantizeLinear or QLinear operator. Other outputs are omitted.

    y = DequantizeLinear(q, 0.05, 128)  ->  {"y": 0.05}
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, numpy_helper

_MOVES = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast"})


def quantisation_steps(model: onnx.ModelProto) -> dict[str, float]:
    """The step of every quantised output of the model; the largest step if it has several."""
    producers = {name: node for node in model.graph.node for name in node.output}
    steps = {o.name: _step(model.graph, producers, o.name) for o in model.graph.output}
    return {name: step for name, step in steps.items() if step is not None}


def _step(graph: GraphProto, producers: dict[str, NodeProto], value: str) -> float | None:
    producer = producers.get(value)
    while producer is not None and producer.op_type in _MOVES:
        producer = producers.get(producer.input[0])
    if producer is None:
        return None
    if producer.op_type == "QuantizeLinear" or producer.op_type.startswith("QLinear"):
        return 1.0
    if producer.op_type != "DequantizeLinear":
        return None
    scale = _constant(graph, producers, producer.input[1])
    return None if scale is None else float(np.abs(scale).max())


def _constant(graph: GraphProto, producers: dict[str, NodeProto], name: str) -> np.ndarray | None:
    """The array of an initialiser or of a Constant node, also through Identity nodes."""
    producer = producers.get(name)
    while producer is not None and producer.op_type == "Identity":
        name = producer.input[0]
        producer = producers.get(name)
    if (
        producer is not None
        and producer.op_type == "Constant"
        and producer.attribute[0].name == "value"
    ):
        return numpy_helper.to_array(producer.attribute[0].t)
    tensors = (t for t in graph.initializer if t.name == name)
    return next((numpy_helper.to_array(t) for t in tensors), None)
