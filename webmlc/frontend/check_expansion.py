"""Refuse a model that is small as a file and huge when it is expanded.

In: a parsed model. Out: nothing, or a `ModelError` that names the part that grows. Local functions
that call each other twice, forty levels deep, expand to 2⁴⁰ nodes. A sparse tensor of one value may
have a shape that no memory can hold. Nodes and sizes are counted before anything is expanded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, helper

from webmlc.core.errors import ModelError
from webmlc.core.machine import ADDRESSABLE_BYTES

MAX_NODES = 200_000
"""The largest number of nodes of a model after its local functions are inlined.

A larger model is refused. Chosen by hand: a build takes some tenths of a millisecond per node, and
the largest models that exporters write have some tens of thousands of nodes.
"""

MAX_DEPTH = 31
"""The largest number of nested sub-graphs.

Derived from protobuf, which parses messages up to 100 levels deep: a sub-graph takes three levels.
"""

Key = tuple[str, str, str]
"""The domain, name and overload by which nodes call a function."""


def check_expansion(model: ModelProto) -> None:
    """Raise `ModelError` if the model becomes too large, or if its sub-graphs nest too deep.

    Inlining the local functions must end, and must give at most `MAX_NODES` nodes. The nodes of
    each function are counted once. An explicit stack permits calls of any depth.
    """
    if any(
        _depth(nodes) > MAX_DEPTH
        for nodes in (model.graph.node, *(f.node for f in model.functions))
    ):
        raise nesting_error(model.graph.name)
    bodies = {(f.domain, f.name, f.overload): list(_nodes(f.node)) for f in model.functions}
    sizes: dict[Key, int] = {}
    started: set[Key] = set()
    for root in bodies:
        stack = [root]
        while stack:
            key = stack[-1]
            callees = {_key(node) for node in bodies[key]} & bodies.keys()
            waiting = [callee for callee in callees if callee not in sizes]
            if key not in sizes and waiting:
                if key in started:
                    raise ModelError(f"local function {key[1]!r} calls itself: it never ends")
                started.add(key)
                stack.extend(waiting)
                continue
            stack.pop()
            sizes[key] = sum(sizes.get(_key(node), 1) for node in bodies[key])
    nodes = list(_nodes(model.graph.node))
    total = sum(sizes.get(_key(node), 1) for node in nodes)
    if total > MAX_NODES:
        largest = max(nodes, key=lambda node: sizes.get(_key(node), 1))
        raise ModelError(
            f"the model has more than {MAX_NODES:,} nodes when its local functions are written "
            f"out. Most come from node {largest.name or largest.output[0]!r}, a call of "
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


def _key(node: NodeProto) -> Key:
    return (node.domain, node.op_type, node.overload)


def _nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield the nodes, then the nodes of their sub-graphs."""
    return (node for level in _levels(nodes) for node in level)


def _depth(nodes: Iterable[NodeProto]) -> int:
    """The largest number of sub-graphs that are nested in each other."""
    return sum(1 for _ in _levels(nodes)) - 1


def _levels(nodes: Iterable[NodeProto]) -> Iterator[list[NodeProto]]:
    """Yield the nodes, then all nodes of their sub-graphs, and so on."""
    level = list(nodes)
    while level:
        yield level
        graphs = (g for node in level for a in node.attribute for g in _graphs(a))
        level = [node for graph in graphs for node in graph.node]


def _graphs(attribute: AttributeProto) -> Iterator[GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs
