"""Refuse a parsed model with names that are no text, or a model that is huge when it is expanded.

In: a parsed model. Out: nothing, or a `ModelError` that names the field, or the part that grows.
Local functions that call each other twice, forty levels deep, expand to 2⁴⁰ nodes. A sparse tensor
of one value may have a shape that no memory can hold. Nodes and sizes are counted before anything
is expanded.
"""

from __future__ import annotations

from math import prod

from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import ModelProto, SparseTensorProto, helper

from webmlc.core.errors import ModelError
from webmlc.core.machine import ADDRESSABLE_BYTES
from webmlc.frontend.protos import Key, all_nodes, key_of, levels, name_of, plain_domain

MAX_NODES = 200_000
"""The largest number of nodes of a model after its local functions are inlined.

A larger model is refused. Chosen by hand: a build takes some tenths of a millisecond per node, and
the largest models that exporters write have some tens of thousands of nodes.
"""

MAX_DEPTH = 31
"""The largest number of nested sub-graphs.

Derived from protobuf, which parses messages up to 100 levels deep: a sub-graph takes three levels.
"""

STRING, MESSAGE = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE
UNREAD = frozenset(
    {"doc_string", "metadata_props", "producer_name", "producer_version", "training_info"}
)
"""The fields of descriptions, and other fields that inference does not need."""


def check_texts(message: Message) -> None:
    """Raise `ModelError` for the first name that is not UTF-8.

    Protobuf's Python library returns such a name as bytes. Descriptions may be any bytes: nothing
    reads them, and exporters copy paths of any encoding into them.
    """
    pending = [message]
    while pending:
        part = pending.pop()
        for field, value in part.ListFields():
            if field.name in UNREAD or field.type not in (STRING, MESSAGE):
                continue
            values = (value,) if isinstance(value, Message | str | bytes) else value
            if field.type == MESSAGE:
                pending.extend(values)
                continue
            for text in values:
                if isinstance(text, bytes):
                    raise ModelError(
                        f"the {field.name} {text!r} of a {part.DESCRIPTOR.name} is not UTF-8. "
                        "Export the model again, or rename it with onnx"
                    )


def check_expansion(model: ModelProto) -> None:
    """Raise `ModelError` if the model becomes too large, or if its sub-graphs nest too deep.

    Inlining the local functions must end, and must give at most `MAX_NODES` nodes. The nodes of
    each function are counted once. An explicit stack permits calls of any depth.
    """
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        if len(list(levels(nodes))) > MAX_DEPTH + 1:
            raise nesting_error(model.graph.name)
    bodies = {
        (plain_domain(f.domain), f.name, f.overload): list(all_nodes(f.node))
        for f in model.functions
    }
    sizes: dict[Key, int] = {}
    started: set[Key] = set()
    for root in bodies:
        stack = [root]
        while stack:
            key = stack[-1]
            callees = {key_of(node) for node in bodies[key]} & bodies.keys()
            waiting = [callee for callee in callees if callee not in sizes]
            if key not in sizes and waiting:
                if key in started:
                    raise ModelError(f"local function {key[1]!r} calls itself: it never ends")
                started.add(key)
                stack.extend(waiting)
                continue
            stack.pop()
            sizes[key] = sum(sizes.get(key_of(node), 1) for node in bodies[key])
    nodes = list(all_nodes(model.graph.node))
    total = sum(sizes.get(key_of(node), 1) for node in nodes)
    if total > MAX_NODES:
        largest = max(nodes, key=lambda node: sizes.get(key_of(node), 1))
        raise ModelError(
            f"the model has more than {MAX_NODES:,} nodes when its local functions are written "
            f"out. Most come from node {name_of(largest)!r}, a call of "
            f"{largest.op_type!r}. Export the model without nested functions, or split it"
        )


def check_dense(sparse: SparseTensorProto) -> None:
    """Raise `ModelError` if a sparse tensor is too large as a dense one, or of an unknown type."""
    try:
        itemsize = helper.tensor_dtype_to_np_dtype(sparse.values.data_type).itemsize
    except KeyError as error:
        raise ModelError(
            f"sparse tensor {sparse.values.name!r} has an unknown element type {error}"
        ) from None
    if prod(sparse.dims) * itemsize > ADDRESSABLE_BYTES:
        raise ModelError(
            f"sparse tensor {sparse.values.name!r} has shape {list(sparse.dims)}: as a dense "
            "tensor, it is larger than 32-bit memory. Make it smaller"
        )


def nesting_error(name: str) -> ModelError:
    """The error about a model whose sub-graphs nest deeper than `MAX_DEPTH`."""
    return ModelError(
        f"{name}: its sub-graphs nest more than {MAX_DEPTH} levels deep, which protobuf cannot "
        "read. Export the model with fewer nested loops and branches"
    )
