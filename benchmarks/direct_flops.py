"""The operations of a model's convolutions, as their definition counts them.

In: a model and the shapes of its inputs. Out: by node, two operations for every product of a
weight and a pixel, padding included: what an algorithm that does fewer is measured by.

    direct_flops(model, {"data": (1, 3, 224, 224)})["conv1"]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx
from onnx import shape_inference

CONVOLUTIONS = ("Conv", "FusedConv", "ConvInteger", "QLinearConv")


def direct_flops(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Flops of every convolution of the main graph, by the name that its kernels' origin says.
    Empty where the shape of one cannot be inferred.
    """
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        if value.name in shapes:
            dims = value.type.tensor_type.shape.dim
            for dim, size in zip(dims, shapes[value.name], strict=True):
                dim.dim_value = size
    graph = shape_inference.infer_shapes(fixed, data_prop=True).graph
    known = {v.name: _shape(v) for v in (*graph.value_info, *graph.output)}
    known |= {t.name: list(t.dims) for t in graph.initializer}
    found = {}
    for node in graph.node:
        if node.op_type in CONVOLUTIONS:
            weights = known.get(node.input[3 if node.op_type == "QLinearConv" else 1])
            output = known.get(node.output[0])
            if not weights or not output or not all(weights) or not all(output):
                return {}
            found[node.name or node.output[0]] = 2 * math.prod(output) * math.prod(weights[1:])
    return found


def _shape(value: onnx.ValueInfoProto) -> list[int]:
    """The dimensions; 0 for one that is not known."""
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]
