"""Refuse a model that is small as a file and huge when it is written out.

In: a model as it was parsed. Out: nothing, or a `ModelError` that names what grows. Local functions
that call each other twice, forty levels deep, are 2⁴⁰ nodes; a sparse tensor of one value may have
a shape that no memory holds. Both are counted before anything is expanded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, helper

from webmlc.core.errors import ModelError
from webmlc.core.machine import ADDRESSABLE_BYTES

MAX_NODES = 200_000
"""Nodes of a model whose local functions are written out. A build takes some tenths of a
millisecond a node; the largest models that exporters write have some tens of thousands.
"""

MAX_DEPTH = 31
"""Levels of sub-graphs that protobuf parses: 100 messages deep, three of them a level."""

Key = tuple[str, str, str]
"""Domain, name and overload: what a function is called by."""


def check_expansion(model: ModelProto) -> None:
    """Raise `ModelError` where writing out the local functions makes too many nodes, or never ends,
    and where sub-graphs nest too deep.

    Every function is counted once, whatever calls it; an explicit stack, since calls may nest to
    any depth.
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
    """Raise `ModelError` where a sparse tensor is too large to be written out."""
    itemsize = helper.tensor_dtype_to_np_dtype(sparse.values.data_type).itemsize
    if prod(sparse.dims) * itemsize > ADDRESSABLE_BYTES:
        raise ModelError(
            f"sparse tensor {sparse.values.name!r} has shape {list(sparse.dims)}: written out, it "
            "is larger than 32-bit memory. Make it smaller"
        )


def nesting_error(name: str) -> ModelError:
    """What to say of a model whose sub-graphs nest deeper than `MAX_DEPTH`."""
    return ModelError(
        f"{name}: its sub-graphs stand in each other more than {MAX_DEPTH} deep, and protobuf "
        "reads no deeper. Export the model with fewer nested loops and branches"
    )


def _key(node: NodeProto) -> Key:
    return (node.domain, node.op_type, node.overload)


def _nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes, and those of their sub-graphs."""
    return (node for level in _levels(nodes) for node in level)


def _depth(nodes: Iterable[NodeProto]) -> int:
    """How many sub-graphs stand in each other."""
    return sum(1 for _ in _levels(nodes)) - 1


def _levels(nodes: Iterable[NodeProto]) -> Iterator[list[NodeProto]]:
    """Nodes, then all those of their sub-graphs, and so on."""
    level = list(nodes)
    while level:
        yield level
        graphs = (g for node in level for a in node.attribute for g in _graphs(a))
        level = [node for graph in graphs for node in graph.node]


def _graphs(attribute: AttributeProto) -> Iterator[GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs
