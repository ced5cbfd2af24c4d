"""Count the operations of a model's convolutions by their definition.

In: a model and the shapes of its inputs. Out: the flops of each node, two for every product of a
weight and a pixel, padding included. Algorithms with fewer operations are measured against these.

    direct_flops(model, {"data": (1, 3, 224, 224)})["conv1"]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx
from onnx import shape_inference

CONVOLUTIONS = ("Conv", "FusedConv", "ConvInteger", "QLinearConv")
"""The operators whose flops are counted."""


def direct_flops(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The flops of every convolution of the main graph, by the name in its kernels' origin. Empty
    where the shape of a convolution cannot be inferred.
    """
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        if value.name in shapes:
            dims = value.type.tensor_type.shape.dim
            for dim, size in zip(dims, shapes[value.name], strict=True):
                dim.dim_value = size
    graph = shape_inference.infer_shapes(fixed, data_prop=True).graph
    shapes_of = {v.name: _shape(v) for v in (*graph.value_info, *graph.output)}
    shapes_of |= {t.name: list(t.dims) for t in graph.initializer}
    flops = {}
    for node in graph.node:
        if node.op_type in CONVOLUTIONS:
            weights = shapes_of.get(node.input[3 if node.op_type == "QLinearConv" else 1])
            output = shapes_of.get(node.output[0])
            if not weights or not output or not all(weights) or not all(output):
                return {}
            flops[node.name or node.output[0]] = 2 * math.prod(output) * math.prod(weights[1:])
    return flops


def _shape(value: onnx.ValueInfoProto) -> list[int]:
    """The dimensions of a value, with 0 for an unknown one."""
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]
