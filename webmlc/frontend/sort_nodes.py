"""Sort the nodes of a model, so that each node follows the nodes whose values it reads.

In: a model with its nodes in any order, as some optimisers write it. Out: the model in topological
order, which ONNX's checker demands. The sort is stable: nodes that are already in order keep their
positions. Sub-graphs and model-local functions are sorted too. A node with a sub-graph also reads
the outer values that its sub-graph reads.

    y = Relu(a)                  a = Add(x, x)
    a = Add(x, x)        →       y = Relu(a)

Source: Kahn, Topological sorting of large networks (CACM 5, 1962), with a heap of positions.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from webmlc.core.errors import ModelError
from webmlc.frontend.protos import name_of, subgraphs

Body = GraphProto | FunctionProto


def sort_nodes(model: ModelProto) -> ModelProto:
    """Return the model itself if its nodes are in order, else a sorted copy.

    Raises `ModelError` if nodes form a cycle. The message names each node of the cycle.
    """
    if all(_is_sorted(body) for body in _bodies(model)):
        return model
    result = ModelProto()
    result.CopyFrom(model)
    for body in _bodies(result):
        if not _is_sorted(body):
            nodes = _topological_order(body)
            del body.node[:]
            body.node.extend(nodes)
    return result


def _bodies(model: ModelProto) -> Iterator[Body]:
    """Yield every list of nodes in a model, outer lists first."""
    pending: list[Body] = [model.graph, *model.functions]
    while pending:
        body = pending.pop()
        yield body
        pending += [graph for node in body.node for graph in subgraphs(node)]


def _reads(node: NodeProto) -> Iterator[str]:
    """Yield the values that a node needs: its inputs, and the outer values its sub-graphs read."""
    yield from filter(None, node.input)
    for graph in subgraphs(node):
        inner = {value.name for value in graph.input} | {t.name for t in graph.initializer}
        inner |= {sparse.values.name for sparse in graph.sparse_initializer}
        inner |= {output for inside in graph.node for output in inside.output}
        names = [name for inside in graph.node for name in _reads(inside)]
        names += [value.name for value in graph.output]
        yield from (name for name in names if name not in inner)


def _producers(body: Body) -> dict[str, int]:
    """The position of the first node that writes each value."""
    producers: dict[str, int] = {}
    for position, node in enumerate(body.node):
        for output in filter(None, node.output):
            producers.setdefault(output, position)
    return producers


def _is_sorted(body: Body) -> bool:
    producers = _producers(body)
    return all(
        producers.get(name, -1) < position
        for position, node in enumerate(body.node)
        for name in _reads(node)
    )


def _topological_order(body: Body) -> list[NodeProto]:
    """Return the nodes in topological order. Among ready nodes, the first in the body is next."""
    producers = _producers(body)
    needs = [
        {name: producers[name] for name in _reads(node) if name in producers} for node in body.node
    ]
    consumers: list[list[int]] = [[] for _ in needs]
    waiting = [len(set(values.values())) for values in needs]
    for position, values in enumerate(needs):
        for producer in set(values.values()):
            consumers[producer].append(position)
    ready = [position for position, count in enumerate(waiting) if not count]
    order: list[NodeProto] = []
    while ready:
        position = heapq.heappop(ready)
        order.append(body.node[position])
        for consumer in consumers[position]:
            waiting[consumer] -= 1
            if not waiting[consumer]:
                heapq.heappush(ready, consumer)
    if len(order) < len(needs):
        blocked = [
            {name: producer for name, producer in values.items() if waiting[producer]}
            for values in needs
        ]
        start = next(position for position, count in enumerate(waiting) if count)
        raise ModelError(_cycle(body.node, blocked, start))
    return order


def _cycle(nodes: Sequence[NodeProto], needs: Sequence[dict[str, int]], start: int) -> str:
    """Describe the cycle that leads from `start` to its producers, and back."""
    needed = [next(iter(values.items()), ("", start)) for values in needs]
    path: dict[int, None] = {}
    position = start
    while position not in path:
        path[position] = None
        position = needed[position][1]
    cycle = list(path)[list(path).index(position) :]
    links = (
        f"needs {name!r} from node {name_of(nodes[producer])!r}"
        for name, producer in (needed[consumer] for consumer in cycle)
    )
    return (
        f"the model has a cycle: node {name_of(nodes[position])!r} {', which '.join(links)}. "
        "No value may depend on itself: export the model again"
    )
