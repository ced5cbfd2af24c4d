"""TensorFlow: a SavedModel folder or a `.tflite` file, through tf2onnx.

tf2onnx cannot read the sparse constants of a TensorFlow Lite file, so they become dense: the
results of `DENSIFY` operators are constants instead. A sparse tensor is stored level by level
(https://www.tensorflow.org/lite/api_docs, `Sparsity`). A level is a dimension, in the order of
`traversalOrder`, or a part of a block. A dense level has all of its places. A sparse level has only
the places in `arrayIndices`: for place p of the level above, the entries from `arraySegments[p]` to
`arraySegments[p + 1]`:

    [[0, 5, 0], [7, 0, 9]]   ->   dense level of 2; sparse level: segments 0 1 3, indices 1 0 2;
                                  values 5 7 9
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from webmlc.core.errors import ModelError
from webmlc.frontend.doors.door import Example, is_path, require
from webmlc.frontend.doors.names import (
    name_dimensions,
    name_model,
    rename_values,
    without_suffix,
)
from webmlc.frontend.file_kinds import is_kind
from webmlc.graph.ir import Array

OPSET = 18
"""The newest opset that tf2onnx 1.17 writes."""
SIGNATURE = "serving_default"
"""The signature that TensorFlow's own tools use by default."""


def is_saved_model(source: object) -> bool:
    """True for the folder of a SavedModel."""
    return is_path(source) and (Path(str(source)) / "saved_model.pb").is_file()


def is_tflite(source: object) -> bool:
    """True for the path of a TensorFlow Lite (LiteRT) file."""
    return is_kind(source, ".tflite")


def is_anonymous(text: str) -> bool:
    """True for a name that tf2onnx invents for a dimension."""
    return bool(re.fullmatch(r"unk__\d+", text))


def export_saved_model(source: Any, example: Example) -> ModelProto:
    """Export the signature `serving_default` of a SavedModel."""
    require("TensorFlow", "tensorflow", "tensorflow", "tf2onnx")
    import tensorflow
    import tf2onnx

    loaded = tensorflow.saved_model.load(str(source))
    if SIGNATURE not in loaded.signatures:
        names = ", ".join(loaded.signatures) or "none"
        raise ModelError(f"{source}: no signature {SIGNATURE!r}. Its signatures are: {names}")
    signature = loaded.signatures[SIGNATURE]
    inputs = signature.structured_input_signature[1]

    def call(*tensors: Any) -> Any:
        return signature(**dict(zip(inputs, tensors, strict=True)))

    model, _ = tf2onnx.convert.from_function(
        tensorflow.function(call), list(inputs.values()), opset=OPSET
    )
    return _named(model, Path(source), example)


def export_tflite(source: Any, example: Example) -> ModelProto:
    """Export a TensorFlow Lite file. Its inputs keep the layout NHWC."""
    require("TensorFlow Lite", "tensorflow", "tensorflow", "tf2onnx")
    import tf2onnx

    path = Path(source)
    with tempfile.TemporaryDirectory(prefix="webmlc-") as folder:
        dense = Path(folder) / path.name
        dense.write_bytes(with_dense_constants(path.read_bytes()))
        model, _ = tf2onnx.convert.from_tflite(str(dense), opset=OPSET)
    rename_values(model, _signature_names(path))
    return _named(model, path, example)


def _named(model: ModelProto, path: Path, example: Example) -> ModelProto:
    name_model(model, path.stem)
    without_suffix(model)
    name_dimensions(model, example.dynamic_shapes, is_anonymous, has_batch=True)
    return model


def _signature_names(path: Path) -> dict[str, str]:
    """The names of tensors in the file's first signature, by the tensors' own names."""
    from tensorflow.lite.python import schema_py_generated as schema

    file = schema.Model.GetRootAs(path.read_bytes(), 0)
    if not file.SignatureDefsLength():
        return {}
    signature = file.SignatureDefs(0)
    graph = file.Subgraphs(signature.SubgraphIndex())
    ports = [signature.Inputs(i) for i in range(signature.InputsLength())]
    ports += [signature.Outputs(i) for i in range(signature.OutputsLength())]
    return {
        graph.Tensors(port.TensorIndex()).Name().decode(): port.Name().decode() for port in ports
    }


DENSE = 0
"""The format of a dense level (`DimensionType.DENSE`)."""
IDENTIFIER = b"TFL3"
TYPES = {0: np.float32, 1: np.float16, 2: np.int32, 4: np.int64, 9: np.int8}
"""The numpy types of the elements that a sparse tensor may have, by `TensorType`."""


def with_dense_constants(content: bytes) -> bytes:
    """The file without `DENSIFY` operators."""
    import flatbuffers
    from tensorflow.lite.python import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    tensors = [t for graph in model.subgraphs for t in graph.tensors if t.sparsity is not None]
    if not tensors:
        return content
    for tensor in tensors:
        buffer, values = schema.BufferT(), np.asarray(model.buffers[tensor.buffer].data, np.uint8)
        buffer.data = dense_values(tensor, values).view(np.uint8).reshape(-1)
        tensor.buffer, tensor.sparsity = len(model.buffers), None
        model.buffers.append(buffer)
    codes = [code.builtinCode for code in model.operatorCodes]
    for graph in model.subgraphs:
        operators = []
        for operator in graph.operators:
            if codes[operator.opcodeIndex] != schema.BuiltinOperator.DENSIFY:
                operators.append(operator)
                continue
            constant, result = (graph.tensors[i[0]] for i in (operator.inputs, operator.outputs))
            result.buffer = constant.buffer
        graph.operators = operators
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), IDENTIFIER)
    return bytes(builder.Output())


def dense_values(tensor: Any, content: Array) -> Array:
    """The elements of a sparse tensor, whose stored values are the bytes in `content`."""
    sparsity, shape = tensor.sparsity, tuple(int(n) for n in tensor.shape)
    values = content.view(TYPES[tensor.type])
    places = np.zeros(1, np.int64)
    coordinates: list[Array] = []
    for level in sparsity.dimMetadata:
        if level.format == DENSE:
            counts = np.full(len(places), level.denseSize)
            starts, indices = places * level.denseSize, None
        else:
            segments = np.asarray(level.arraySegments.values, np.int64)
            indices = np.asarray(level.arrayIndices.values, np.int64)
            starts, counts = segments[places], segments[places + 1] - segments[places]
        first = np.repeat(np.cumsum(counts) - counts, counts)
        within = np.arange(counts.sum()) - first
        coordinates = [np.repeat(c, counts) for c in coordinates]
        places = np.repeat(starts, counts) + within
        coordinates.append(within if indices is None else indices[places])
    dense: Array = np.zeros(shape, values.dtype)
    dense[_positions(sparsity, coordinates, len(shape))] = values[places]
    return dense


def _positions(sparsity: Any, coordinates: list[Array], rank: int) -> tuple[Array, ...]:
    """The indices of elements, from their coordinates in each level. The coordinate in a block's
    level is the position within a block of its dimension.
    """
    levels = [int(d) for d in sparsity.traversalOrder]
    indices = [coordinates[levels.index(d)] for d in range(rank)]
    blocks = [] if sparsity.blockMap is None else [int(d) for d in sparsity.blockMap]
    for number, dimension in enumerate(blocks):
        level = levels.index(rank + number)
        size = int(sparsity.dimMetadata[level].denseSize)
        indices[dimension] = indices[dimension] * size + coordinates[level]
    return tuple(indices)
