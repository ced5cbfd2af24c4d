"""Load weights that are stored beside the model file, and never from outside its folder.

In: a model whose tensors may refer to files. Out: the model with the bytes of every tensor. A
location that is absolute, or that leaves the folder by `..` or through a link, is a `ModelError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from onnx import GraphProto, ModelProto, TensorProto
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from webmlc.core.dependencies import note_file
from webmlc.core.errors import ModelError


def load_external_data(model: ModelProto, folder: Path | None) -> ModelProto:
    """Fill in the external tensors of the model in place. `folder` is where it was read from."""
    for tensor in _tensors(model.graph):
        if uses_external_data(tensor):
            _load(tensor, folder)
    return model


def _load(tensor: TensorProto, folder: Path | None) -> None:
    info = ExternalDataInfo(tensor)
    subject = f"tensor {tensor.name!r} keeps its data in {info.location!r}"
    if folder is None:
        raise ModelError(f"{subject}: pass the path of the model file, so that it can be found")
    root = folder.resolve()
    path = (root / info.location).resolve()
    if Path(info.location).is_absolute() or not path.is_relative_to(root):
        raise ModelError(f"{subject}, outside the model's folder: refused")
    if not path.is_file():
        raise ModelError(f"{subject}, which does not exist")
    size, offset = path.stat().st_size, info.offset or 0
    length = size - offset if info.length is None else info.length
    if offset < 0 or length < 0 or offset + length > size:
        raise ModelError(
            f"{subject}, at bytes {offset} to {offset + length}, but it has only {size}"
        )
    note_file(folder / info.location)
    with path.open("rb") as file:
        file.seek(offset)
        tensor.raw_data = file.read(length)
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield every tensor of a graph and of its sub-graphs, including those in attributes."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("g"):
                yield from _tensors(attribute.g)
            for inner in attribute.graphs:
                yield from _tensors(inner)
