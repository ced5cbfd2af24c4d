"""Twins: models of the same meaning as a damaged one, which a reference runs.

- `sorted_twin`: each node stands after the nodes whose results it reads. `onnx.reference` needs it.
- `repaired_twin`: without the parts that only onnxruntime refuses, such as a branch without a name.
- `explicit_twin`: nodes do what onnxruntime leaves undefined or does in its own way.

All of them edit the model that they get, and return it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

PLAIN_OPSET = 21
"""The opset of twins of newer models. onnxruntime has kernels of all its operators. Later versions
of the operators that it has only add element types and attributes.
"""
IR_VERSION = 10
FARTHEST = float(1 << 20)
"""The coordinate that stands for each greater one. A corner so far outside a feature map makes bins
that are larger than the map, as any farther corner does.
"""


def sorted_twin(model: ModelProto) -> ModelProto:
    """Sort the nodes of each graph. A node of a cycle keeps its place. Attributes outside functions
    refer to nothing, and keep the values that they have.
    """
    for graph in graphs_of(model.graph):
        _sort(graph)
        for attribute in (a for node in graph.node for a in node.attribute):
            attribute.ClearField("ref_attr_name")
    return model


def repaired_twin(model: ModelProto) -> ModelProto:
    """Give names to graphs, remove inputs that are there twice, and forget the declared types of
    results. Nodes lose their last operands if these are omitted. A recurrent layer without
    `hidden_size` gets that of its weights. A newer opset becomes `PLAIN_OPSET`, if that has all
    operators. Functions import what the model does, and nobody imports a domain without nodes.
    """
    for number, graph in enumerate(graphs_of(model.graph)):
        graph.name = graph.name or f"graph {number}"
        for info in (*graph.output, *graph.value_info):
            info.ClearField("type")
        for elements in (graph.input, graph.initializer):
            first = {element.name: element for element in reversed(elements)}
            kept = [type(e).FromString(e.SerializeToString()) for e in reversed(first.values())]
            del elements[:]
            elements.extend(kept)
    sizes = {t.name: t.dims[-1] for t in model.graph.initializer if t.dims}
    for node in nodes_of(model):
        for operands in (node.input, node.output):
            while operands and not operands[-1]:
                del operands[-1]
        is_recurrent = node.op_type in ("RNN", "GRU", "LSTM") and len(node.input) > 2
        names = {attribute.name for attribute in node.attribute}
        if is_recurrent and "hidden_size" not in names and node.input[2] in sizes:
            node.attribute.append(helper.make_attribute("hidden_size", sizes[node.input[2]]))
    model.ir_version = min(model.ir_version, IR_VERSION)
    domains = {node.domain for node in nodes_of(model)}
    for function in model.functions:
        imported = {opset.domain for opset in function.opset_import}
        function.opset_import.extend(o for o in model.opset_import if o.domain not in imported)
    for imports in (model.opset_import, *(f.opset_import for f in model.functions)):
        for opset in [o for o in imports if o.domain not in domains]:
            imports.remove(opset)
    for imports in (model.opset_import, *(f.opset_import for f in model.functions)):
        for opset in imports:
            if opset.domain in ("", "ai.onnx") and opset.version > PLAIN_OPSET and _is_plain(model):
                opset.version = PLAIN_OPSET
    return model


def explicit_twin(model: ModelProto) -> ModelProto | None:
    """Write out what onnxruntime leaves undefined or does in its own way; None if nothing is.

    - The padding of a convolution: onnxruntime leaves it out, though an infinite weight times a
      padding of 0 is NaN, as in `onnx.reference`.
    - NaNs in the windows of MaxPool: which one is kept depends on its place, on the width of
      vectors, and on whether the positions are an output. `onnx.reference` leaves all of them out.
    - Corners of MaxRoiPool beyond 2**31: their conversion to an integer is undefined in C++.
    """
    model = onnx.inliner.inline_local_functions(model)
    typed = onnx.shape_inference.infer_shapes(model)
    dtypes = {
        info.name: helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        for info in (*typed.graph.input, *typed.graph.value_info)
        if info.type.tensor_type.elem_type
    }
    dtypes |= {
        t.name: helper.tensor_dtype_to_np_dtype(t.data_type) for t in model.graph.initializer
    }
    count = 0
    for graph in graphs_of(model.graph):
        nodes: list[NodeProto] = []
        for node in graph.node:
            before = _explicit(node, dtypes, count)
            count += len(before)
            nodes += [*before, node]
        copies = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
        del graph.node[:]
        graph.node.extend(copies)
    return model if count else None


def _explicit(node: NodeProto, dtypes: dict[str, Any], count: int) -> list[NodeProto]:
    """The nodes before a node that write out a part of it, which the node then lacks."""
    if node.domain:
        return []
    name = f"explicit {count}"
    constants: list[NodeProto] = []

    def constant(array: Any) -> str:
        output = f"{name}.{len(constants)}"
        value = numpy_helper.from_array(np.asarray(array))
        constants.append(helper.make_node("Constant", [], [output], value=value))
        return output

    attributes = {a.name: a for a in node.attribute}
    if node.op_type == "Conv" and "auto_pad" not in attributes and "pads" in attributes:
        pads = list(attributes["pads"].ints)
        rank = len(pads) // 2
        whole = np.array([0, 0, *pads[:rank], 0, 0, *pads[rank:]], np.int64)
        del attributes["pads"].ints[:]
        attributes["pads"].ints.extend([0] * len(pads))
        padded = helper.make_node("Pad", [node.input[0], constant(whole)], [name])
        node.input[0] = name
        return [*constants, padded]
    if node.op_type == "MaxPool":
        dtype = dtypes.get(node.input[0], np.dtype(np.float32))
        if dtype.kind != "f":
            return []
        x, node.input[0] = node.input[0], name
        is_nan = helper.make_node("IsNaN", [x], [f"{name}.nan"])
        lowest = constant(np.asarray(-np.inf, dtype))
        return [*constants, is_nan, helper.make_node("Where", [f"{name}.nan", lowest, x], [name])]
    if node.op_type == "MaxRoiPool":
        regions, node.input[1] = node.input[1], name
        dtype = dtypes.get(regions, np.dtype(np.float32))
        low, high = (constant(np.asarray(v, dtype)) for v in (-FARTHEST, FARTHEST))
        above = helper.make_node("Max", [regions, low], [f"{name}.above"])
        return [*constants, above, helper.make_node("Min", [f"{name}.above", high], [name])]
    return []


def graphs_of(graph: GraphProto) -> list[GraphProto]:
    """The graph and its sub-graphs."""
    inner = [g for node in graph.node for a in node.attribute for g in _graphs(a)]
    return [graph, *(g for part in inner for g in graphs_of(part))]


def nodes_of(model: ModelProto) -> list[NodeProto]:
    """The nodes of all graphs and functions."""
    bodies = [[*f.node] for f in model.functions]
    bodies += [[*graph.node] for graph in graphs_of(model.graph)]
    return [node for body in bodies for node in body]


def _graphs(attribute: onnx.AttributeProto) -> Iterable[GraphProto]:
    return (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs)


def _sort(graph: GraphProto) -> None:
    pending = list(graph.node)
    written = {output for node in pending for output in node.output if output}
    result: list[NodeProto] = []
    while pending:
        ready = [node for node in pending if not _reads(node) & written] or pending[:1]
        for node in ready:
            result.append(node)
            written -= set(node.output)
        pending = [node for node in pending if not any(node is r for r in ready)]
    copies = [NodeProto.FromString(node.SerializeToString()) for node in result]
    del graph.node[:]
    graph.node.extend(copies)


def _reads(node: NodeProto) -> set[str]:
    """The values that a node reads, also in its sub-graphs."""
    inner = [g for attribute in node.attribute for graph in _graphs(attribute) for g in [graph]]
    names = {name for graph in inner for n in graph.node for name in _reads(n)}
    names |= {output.name for graph in inner for output in graph.output}
    own = {o for graph in inner for n in graph.node for o in n.output}
    own |= {i.name for graph in inner for i in graph.input}
    return {*node.input} | (names - own)


def _is_plain(model: ModelProto) -> bool:
    """True if `PLAIN_OPSET` has all operators of ONNX in a model."""
    try:
        for node in nodes_of(model):
            if not node.domain and onnx.defs.has(node.op_type):
                onnx.defs.get_schema(node.op_type, PLAIN_OPSET, "")
    except onnx.defs.SchemaError:
        return False
    return True
