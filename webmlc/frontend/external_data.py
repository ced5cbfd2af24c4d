"""Load weights that are stored beside the model file, and never from outside its folder.

In: a model whose tensors may refer to files. Out: the model with the bytes of every tensor. A
location that is absolute, or that leaves the folder by `..` or through a link, is a `ModelError`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from onnx import ModelProto, TensorProto
from onnx.external_data_helper import uses_external_data

from webmlc.core.dependencies import note_file
from webmlc.core.errors import ModelError
from webmlc.frontend.protos import dtype_of, subgraphs

MAX_DIGITS = 18
"""The most digits of a number of bytes. Every number of 18 digits fits into 64 bits."""


def load_external_data(model: ModelProto, folder: Path | None) -> ModelProto:
    """Fill in the external tensors of the model in place. `folder` is the folder of its file."""
    for tensor in _tensors(model):
        if uses_external_data(tensor):
            _load(tensor, folder)
    return model


def _load(tensor: TensorProto, folder: Path | None) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    subject = f"tensor {tensor.name!r} keeps its data in {location!r}"
    if folder is None:
        raise ModelError(f"{subject}: pass the path of the model file, so that it can be found")
    root = folder.resolve()
    if "\0" in location:
        raise ModelError(f"{subject}, which is no name of a file")
    path = (root / location).resolve()
    if Path(location).is_absolute() or not path.is_relative_to(root):
        raise ModelError(f"{subject}, outside the model's folder: refused")
    try:
        is_file = path.is_file()
    except OSError as error:
        raise ModelError(f"{subject}, which cannot be read: {error.strerror}") from None
    if not is_file:
        raise ModelError(f"{subject}, which does not exist")
    size = path.stat().st_size
    offset = _number(entries, "offset", subject, 0)
    length = _number(entries, "length", subject, _bytes_of(tensor, size - offset))
    if length < 0 or offset + length > size:
        raise ModelError(
            f"{subject}, at bytes {offset} to {offset + length}, but it has only {size}"
        )
    note_file(folder / location)
    with path.open("rb") as file:
        file.seek(offset)
        tensor.raw_data = file.read(length)
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def _number(entries: Mapping[str, str], key: str, subject: str, default: int) -> int:
    """A number of bytes. Raises `ModelError` if its text is no number."""
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS):
        raise ModelError(f"{subject}: its {key} is {text!r}, which is no number of bytes")
    return int(text)


def _bytes_of(tensor: TensorProto, most: int) -> int:
    """The number of bytes of data without a stated length: the bytes that the shape needs, but at
    most `most`, the bytes to the end of the file.
    """
    dtype = dtype_of(tensor.data_type)
    if dtype is None or any(size < 0 for size in tensor.dims):
        return most
    return min(most, -(-int(math.prod(tensor.dims)) * dtype.bits // 8))


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor of a model, including its attributes, sub-graphs and functions."""
    graphs = [model.graph]
    nodes = [node for function in model.functions for node in function.node]
    while graphs or nodes:
        for graph in graphs:
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
            nodes += graph.node
        graphs = []
        for node in nodes:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
            graphs += subgraphs(node)
        nodes = []
