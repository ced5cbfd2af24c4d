"""Convert a TensorFlow Lite file to an ONNX model.

In: the path of a file. Out: the ONNX model of a signature, the first by default, or of the first
subgraph if there are no signatures. Inputs keep their layout, which is NHWC for images, and their
element types.

    pose.tflite, signature serving_default(image) -> landmarks   ->   model pose(image) -> landmarks
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, helper

from webmlc.core.errors import ModelError, Unsupported, UnsupportedError
from webmlc.frontend.doors.door import Example, require
from webmlc.frontend.doors.names import graphs, name_dimensions, name_model, rename_outputs
from webmlc.frontend.file_kinds import is_kind
from webmlc.frontend.tflite.control import Program, value_info
from webmlc.frontend.tflite.file import Signature, Subgraph, Tensor, TfliteFile, open_tflite
from webmlc.frontend.tflite.write_subgraph import SubgraphWriter, unique_names
from webmlc.graph.builder import Value
from webmlc.graph.ir import Array

VERSIONS = (21, 10)
"""The opset of the operators that the rows write, which is the first with all integers of 16 bits,
and the version of ONNX's format that belongs to it.
"""
VERSIONS_OF_BITS = (26, 13)
"""The same of a model with a BitCast."""


def is_tflite(source: object) -> bool:
    """True for the path of a TensorFlow Lite (LiteRT) file, or of a bundle of such files."""
    return is_kind(source, ".tflite") or is_kind(source, ".task")


def export_tflite(source: Any, example: Example) -> ModelProto:
    """Convert a file.

    Raises `ModelError` if the file is damaged, and `UnsupportedError`, which lists all operators
    that cannot be read.
    """
    require("TensorFlow Lite", "tflite", "tflite")
    path = Path(source)
    file = open_tflite(path, example.signature)
    model = _model(file)
    name_model(model, Path(example.signature or path).stem if is_kind(path, ".task") else path.stem)
    name_dimensions(model, example.dynamic_shapes, lambda text: not text, has_batch=True)
    return model


def _model(file: TfliteFile) -> ModelProto:
    graph = file.subgraph
    inputs, outputs = _ports(graph, file.signature)
    _check_ports(graph, (*inputs, *outputs))
    program = Program(file.read, [file.number])
    writer = SubgraphWriter(graph, dict(inputs), program)
    writer.write()
    if writer.unsupported:
        raise UnsupportedError(tuple(writer.unsupported))
    results: list[tuple[Tensor, str, Value | Array]] = []
    for index, name in outputs:
        if index not in writer.values:
            raise ModelError(f"{file.path}: no operator writes the output {name!r}.")
        results.append((graph.tensors[index], name, writer.values[index]))
    ports = [value_info(graph.tensors[index], name) for index, name in inputs]
    for tensor, state, value in program.states():
        ports.append(value_info(tensor, state))
        results.append((tensor, f"{state}_out", value))
    infos = []
    for tensor, name, value in results:
        if isinstance(value, np.ndarray):
            value = writer.builder(name).constant(value, tensor.dtype)
        infos.append(value_info(tensor, str(value)))
    proto = writer.nodes.graph("main", ports, infos)
    has_bits = any(node.op_type == "BitCast" for graph in graphs(proto) for node in graph.node)
    opset, version = VERSIONS_OF_BITS if has_bits else VERSIONS
    model = helper.make_model(
        proto, opset_imports=[helper.make_opsetid("", opset)], ir_version=version
    )
    rename_outputs(model, [name for _, name, _ in results])
    return model


Port = tuple[int, str]
"""An input or output of the model: the index of its tensor, and its name."""


def _ports(graph: Subgraph, signature: Signature | None) -> tuple[list[Port], list[Port]]:
    """The inputs and the outputs. Names are those of the signature, or else of the tensors; equal
    names get a number. A tensor is an input once, and an output for each of its names.
    """
    first_names = dict(reversed(signature.inputs)) if signature else {}
    inputs = _named(graph, tuple(dict.fromkeys(graph.inputs)), first_names.items())
    outputs = _named(graph, graph.outputs, signature.outputs if signature else ())
    names = iter(unique_names(name for _, name in (*inputs, *outputs)).values())
    return [(i, next(names)) for i, _ in inputs], [(i, next(names)) for i, _ in outputs]


def _named(graph: Subgraph, indices: Iterable[int], names: Iterable[Port]) -> list[Port]:
    """The ports of these tensors. A tensor without a name in `names` has the name in the file."""
    port_names: dict[int, list[str]] = {}
    for index, name in names:
        port_names.setdefault(index, []).append(name)
    ports: list[Port] = []
    for index, times in Counter(indices).items():
        default = graph.tensors[index].name.removesuffix(":0") or f"tensor_{index}"
        ports += [(index, name or default) for name in port_names.get(index, [default] * times)]
    return ports


def _check_ports(graph: Subgraph, ports: Sequence[Port]) -> None:
    """Raise one error for all inputs and outputs whose elements are no numbers."""
    unsupported = [
        Unsupported(name, "input or output", f"it is of type {graph.tensors[index].element}")
        for index, name in ports
        if graph.tensors[index].dtype is None
    ]
    if unsupported:
        raise UnsupportedError(tuple(unsupported))
