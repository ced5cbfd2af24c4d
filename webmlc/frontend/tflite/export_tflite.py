"""Convert a TensorFlow Lite file to an ONNX model.

In: the path of a file. Out: the ONNX model of its first signature, or of its first subgraph if it
has no signatures. Inputs keep their layout, which is NHWC for images, and their element types.

    pose.tflite, signature serving_default(image) -> landmarks   ->   model pose(image) -> landmarks
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
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
    graph = file.subgraph
    inputs, outputs = _ports(graph, file.signature)
    _check_ports(graph, (*inputs, *outputs))
    writer = SubgraphWriter(graph, dict(inputs))
    writer.write()
    if writer.unsupported:
        raise UnsupportedError(tuple(writer.unsupported))
    infos = []
    for index, name in outputs:
        if index not in writer.values:
            raise ModelError(f"{file.path}: no operator writes the output {name!r}.")
        value = writer.values[index]
        if isinstance(value, np.ndarray):
            value = writer.builder(name).constant(value, graph.tensors[index].dtype)
        infos.append(_info(graph, index, str(value)))
    proto = writer.nodes.graph("main", [_info(graph, *port) for port in inputs], infos)
    model = helper.make_model(
        proto, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    rename_outputs(model, [name for _, name in outputs])
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


def _info(graph: Subgraph, index: int, name: str) -> ValueInfoProto:
    tensor = graph.tensors[index]
    assert tensor.dtype is not None
    shape: Sequence[int | None] = [None if size < 0 else size for size in tensor.shape]
    return helper.make_tensor_value_info(name, TYPE_NUMBERS[tensor.dtype], shape)
