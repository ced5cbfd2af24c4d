"""Make the sparse constants of a TensorFlow Lite file dense: tf2onnx cannot read sparse constants.

In: the bytes of a file. Out: the bytes of a file without `DENSIFY` operators, whose results are
constants instead. A file without such operators is unchanged.

A sparse tensor is stored level by level (https://www.tensorflow.org/lite/api_docs, `Sparsity`). A
level is a dimension, in the order of `traversalOrder`, or a part of a block. A dense level has all
of its places. A sparse level has only the places in `arrayIndices`: for place p of the level above,
the entries from `arraySegments[p]` to `arraySegments[p + 1]`:

    [[0, 5, 0], [7, 0, 9]]   ->   dense level of 2; sparse level: segments 0 1 3, indices 1 0 2;
                                  values 5 7 9
"""

from __future__ import annotations

from typing import Any

import numpy as np

from webmlc.graph.ir import Array

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
