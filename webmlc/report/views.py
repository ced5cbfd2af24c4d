"""Draw the graph of a model in several views.

In: the nodes. Out: the `View`s, each with its items and their places, and the edges between items.
An item is one node, or the nodes of equal layers that the view folds. Values are no items.

- "layers": nodes that run, with equal layers folded. Missing if the model has no equal layers.
- "computation": all nodes that run.
- "model": all nodes, also constants and the nodes that the compiler computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from webmlc.report.fold_layers import SMALLEST, Layers, find_layers
from webmlc.report.layered_layout import layered_layout
from webmlc.report.nodes import ModelNode

_HIDDEN = ("constant", "folded", "unused", "removed")
"""The fates of nodes that only the view "model" shows."""


@dataclass(frozen=True, slots=True)
class Item:
    """A box of the drawing: the numbers of its nodes, and a label if it has several."""

    nodes: tuple[int, ...]
    label: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """A drawing. `places` are columns and rows, in the order of the items."""

    name: str
    items: tuple[Item, ...]
    places: tuple[tuple[float, int], ...]
    edges: tuple[tuple[int, int], ...]


def views(nodes: Sequence[ModelNode]) -> list[View]:
    """The views of a model, the clearest one first."""
    runs = [n for n, node in enumerate(nodes) if node.fate not in _HIDDEN]
    layers = find_layers([_text(nodes[n]) for n in runs], smallest=SMALLEST)
    result = []
    if layers:
        result.append(_view("layers", nodes, _fold(runs, layers)))
    if runs:
        result.append(_view("computation", nodes, [Item((n,)) for n in runs]))
    if len(runs) < len(nodes):
        result.append(_view("model", nodes, [Item((n,)) for n in range(len(nodes))]))
    return result


def _text(node: ModelNode) -> str:
    """The text of a node's operation, by which equal layers are found. A node without an operator
    has only its name.
    """
    return f"{node.op} {node.attributes} {node.types}" if node.op else node.name


def _fold(runs: Sequence[int], layers: Sequence[Layers]) -> list[Item]:
    """The items of a view that draws only the first of several equal layers."""
    items: list[Item] = []
    position = 0
    for layer in layers:
        items += [Item((n,)) for n in runs[position : layer.hidden.start]]
        hidden = tuple(runs[i] for i in layer.hidden)
        count = layer.count - 1
        items.append(Item(hidden, f"{count} more equal layers, {len(hidden)} nodes"))
        position = layer.hidden.stop
    return items + [Item((n,)) for n in runs[position:]]


def _view(name: str, nodes: Sequence[ModelNode], items: Sequence[Item]) -> View:
    """Place the items."""
    owners = {node: number for number, item in enumerate(items) for node in item.nodes}
    edges = _edges(nodes, owners)
    return View(name, tuple(items), tuple(layered_layout(len(items), edges)), tuple(edges))


def _edges(nodes: Sequence[ModelNode], owners: Mapping[int, int]) -> list[tuple[int, int]]:
    """The edges between items. They lead through nodes that have no item."""
    sources = _sources(nodes, lambda node: node in owners)
    edges = {
        (owners[source], item): None
        for node, item in owners.items()
        for source in sources[node]
        if owners[source] != item
    }
    return sorted(edges)


def _sources(
    nodes: Sequence[ModelNode], is_visible: Callable[[int], bool]
) -> list[dict[int, None]]:
    """The visible nodes whose results reach each node, directly or through invisible nodes. A node
    of a sub-graph that reads no other node follows the node around it.
    """
    producers: dict[str, int] = {}
    sources: list[dict[int, None]] = []
    for number, node in enumerate(nodes):
        reached: dict[int, None] = {}
        direct = [producers[value] for value in node.inputs if value in producers]
        if not direct and node.parent is not None:
            direct = [node.parent]
        for source in direct:
            reached |= {source: None} if is_visible(source) else sources[source]
        sources.append(reached)
        producers |= dict.fromkeys(filter(None, node.outputs), number)
    return sources
