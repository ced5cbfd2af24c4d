"""List the `Constant` nodes of an ONNX model, which reading turns into constants.

In: an ONNX model, or its path. Out: the name of each `Constant` node, by its output. `webmlc
report` shows these nodes as constants.

    >>> constant_nodes("model.onnx")  # doctest: +SKIP
    {'axes': 'Constant_3'}
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto


def constant_nodes(source: str | Path | ModelProto) -> dict[str, str]:
    """The names of the `Constant` nodes by their outputs, including nodes in sub-graphs."""
    if isinstance(source, ModelProto):
        model = source
    else:
        model = onnx.load(str(source), load_external_data=False)
    return {
        node.output[0]: node.name or node.output[0]
        for node in _nodes(model.graph)
        if node.op_type == "Constant" and node.output
    }


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes of a graph and of its sub-graphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)
