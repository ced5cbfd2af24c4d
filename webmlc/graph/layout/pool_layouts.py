"""Pools over NHWC feature maps: padding becomes a node, global pools become reductions.

In: a pool of ONNX. Out: `webmlc.MaxPool` or `webmlc.AveragePool` over a feature map that is padded
so that every window lies inside it; a global pool reduces over the spatial dimensions.

    %y = MaxPool(%x)            ->  %y.pad = Pad(%x.nhwc); %y.nhwc = webmlc.MaxPool(%y.pad)
    %y = GlobalAveragePool(%x)  ->  %y.nhwc = ReduceMean(%x.nhwc, [1, 2])
"""

from __future__ import annotations

import numpy as np

from webmlc.graph.builder import Builder
from webmlc.graph.compute import identity
from webmlc.graph.ir import Node
from webmlc.graph.layout.convolution_layouts import padded, windows_of
from webmlc.graph.layout.layout_values import LayoutValues

_REDUCTIONS = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}


def pool(values: LayoutValues, node: Node) -> bool:
    """Write a pool; False if its padding depends on a run, or it also gives indices."""
    if not values.is_map(node.inputs[0]):
        return False
    kernel = tuple(node.attributes["kernel_shape"])
    windows = windows_of(values, node, kernel, bool(node.attributes.get("ceil_mode", 0)))
    if windows is None or len([o for o in node.outputs if o]) > 1:
        return False
    dtype = values.types[node.inputs[0]].dtype
    fill = identity("max", dtype).value if node.op == "MaxPool" else 0.0
    twin = f"{node.outputs[0]}.nhwc"
    data = padded(values, node, windows, fill)
    passes = [windows]
    if node.op == "MaxPool":
        passes = windows.separated(values.types[data].shape[1:-1]) or passes
    for number, part in enumerate(passes, 1):
        data = Builder(node, values)(
            node.op,
            data,
            output=twin if number == len(passes) else f"{twin}.rows",
            domain="webmlc",
            windows=part,
            count_include_pad=int(node.attributes.get("count_include_pad", 0)),
        )
    values.define_nhwc(node.outputs[0], twin, node.origin)
    return True


def global_pool(values: LayoutValues, node: Node) -> bool:
    """Write a global pool as a reduction; False for data that are no feature map."""
    if not values.is_map(node.inputs[0]):
        return False
    build = Builder(node, values)
    data = values.as_nhwc(node.inputs[0])
    twin = f"{node.outputs[0]}.nhwc"
    spatial = np.arange(1, values.rank(data) - 1, dtype=np.int64)
    axes = build.constant(spatial, name=f"{twin}.axes")
    build(_REDUCTIONS[node.op], data, axes, output=twin, keepdims=1)
    values.define_nhwc(node.outputs[0], twin, node.origin)
    return True
