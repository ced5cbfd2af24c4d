"""Convert a TensorFlow Lite file to an ONNX model.

In: the path of a file. Out: the ONNX model of its first signature, or of its first subgraph if it
has no signatures. Inputs keep their layout, which is NHWC for images, and their element types.

    pose.tflite, signature serving_default(image) -> landmarks   ->   model pose(image) -> landmarks
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper

from webmlc.core.errors import ModelError, Unsupported, UnsupportedError
from webmlc.frontend.doors.door import Example, require
from webmlc.frontend.doors.names import name_dimensions, name_model, rename_outputs
from webmlc.frontend.file_kinds import is_kind
from webmlc.frontend.tflite.file import Signature, Subgraph, TfliteFile, open_tflite
from webmlc.frontend.tflite.write_subgraph import SubgraphWriter, unique_names
from webmlc.graph.element_types import TYPE_NUMBERS

OPSET = 21
"""The opset of the operators that the rows write: the first with all integers of 16 bits."""
IR_VERSION = 10
"""The version of ONNX's format that belongs to the opset."""


def is_tflite(source: object) -> bool:
    """True for the path of a TensorFlow Lite (LiteRT) file."""
    return is_kind(source, ".tflite")


def export_tflite(source: Any, example: Example) -> ModelProto:
    """Convert a file.

    Raises `ModelError` if the file is damaged, and `UnsupportedError`, which lists all operators
    that cannot be read.
    """
    require("TensorFlow Lite", "tflite", "tflite")
    path = Path(source)
    file = open_tflite(path)
    model = _model(file)
    name_model(model, path.stem)
    name_dimensions(model, example.dynamic_shapes, lambda text: not text, has_batch=True)
    return model


def _model(file: TfliteFile) -> ModelProto:
    signature = file.signatures[0] if file.signatures else None
    number = 0 if signature is None else signature.subgraph
    if number >= len(file.subgraphs):
        raise ModelError(f"{file.path}: the signature names subgraph {number}, which is missing.")
    graph = file.subgraphs[number]
    names = port_names(graph, signature)
    _check_ports(graph, names)
    writer = SubgraphWriter(graph, {i: names[i] for i in graph.inputs})
    writer.write()
    if writer.unsupported:
        raise UnsupportedError(tuple(writer.unsupported))
    outputs = []
    for index in graph.outputs:
        value = writer.values[index]
        if isinstance(value, np.ndarray):
            value = writer.builder(names[index]).constant(value, graph.tensors[index].dtype)
        outputs.append(str(value))
    proto = writer.nodes.graph(
        "main",
        [_info(graph, index, names[index]) for index in graph.inputs],
        [_info(graph, i, name) for i, name in zip(graph.outputs, outputs, strict=True)],
    )
    model = helper.make_model(
        proto, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    rename_outputs(model, [names[index] for index in graph.outputs])
    return model


def port_names(graph: Subgraph, signature: Signature | None) -> Mapping[int, str]:
    """The names of inputs and outputs: those of the signature, or else of the tensors."""
    ports = tuple(dict.fromkeys((*graph.inputs, *graph.outputs)))
    given: dict[int, str] = {}
    if signature is not None:
        given = {**signature.outputs, **signature.inputs}
    names = (given.get(i, graph.tensors[i].name.removesuffix(":0")) for i in ports)
    return dict(zip(ports, unique_names(names).values(), strict=True))


def _check_ports(graph: Subgraph, names: Mapping[int, str]) -> None:
    """Raise one error for all inputs and outputs whose elements are no numbers."""
    unsupported = [
        Unsupported(name, "input or output", f"it is of type {graph.tensors[index].element}")
        for index, name in names.items()
        if graph.tensors[index].dtype is None
    ]
    if unsupported:
        raise UnsupportedError(tuple(unsupported))


def _info(graph: Subgraph, index: int, name: str) -> ValueInfoProto:
    tensor = graph.tensors[index]
    assert tensor.dtype is not None
    shape: Sequence[int | None] = [None if size < 0 else size for size in tensor.shape]
    return helper.make_tensor_value_info(name, TYPE_NUMBERS[tensor.dtype], shape)
