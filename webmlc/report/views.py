"""Draw the graph of a model in several views.

In: the nodes. Out: the `View`s, each with its items and their places, and the edges between items.
An item is one node, or the nodes of equal layers that the view folds. Values are no items.

- "layers": nodes that run, with equal layers folded. Missing if the model has no equal layers.
- "computation": all nodes that run.
- "model": all nodes, also constants and the nodes that the compiler computed.

Nodes have places in layers, from top to bottom, as in the usual algorithm in three steps (Sugiyama,
Tagawa and Toda, "Methods for Visual Understanding of Hierarchical System Structures", 1981),
without dummy nodes on long edges:

1. the row of a node is one below its lowest predecessor; a node without predecessors is just
   above its first successor;
2. the nodes of a row are ordered by the mean column of their neighbours, in sweeps down and up;
3. columns approach the mean column of the neighbours, as far as the distance to other nodes allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from webmlc.report.nodes import ModelNode

FEWEST = 3
"""The fewest equal layers to fold. Two equal layers are drawn in full. Chosen by hand."""
SMALLEST = 12
"""The fewest nodes that folding must hide. Hiding fewer nodes makes a drawing no easier to read."""
LONGEST = 512
"""The most nodes of a layer, which bounds the time of the search."""


@dataclass(frozen=True, slots=True)
class Layers:
    """`count` equal layers of `period` nodes each, from node `first` on."""

    first: int
    period: int
    count: int

    @property
    def hidden(self) -> range:
        """The nodes of all layers but the first."""
        return range(self.first + self.period, self.first + self.period * self.count)


def find_layers(texts: Sequence[str], fewest: int = FEWEST, smallest: int = 0) -> list[Layers]:
    """Find consecutive groups of nodes in topological order whose texts, which describe their
    operations, repeat: from left to right, each with the period that hides the most nodes. A
    repetition that hides fewer than `smallest` nodes is left out.

    >>> find_layers(["Gemm", "MatMul", "Add", "MatMul", "Add", "MatMul", "Add", "Softmax"])
    [Layers(first=1, period=2, count=3)]
    """
    layers: list[Layers] = []
    position = 0
    equal_from = _equal_runs(texts)
    while position < len(texts):
        best: Layers | None = None
        for period, lengths in equal_from.items():
            count = 1 + lengths[position] // period
            candidate = Layers(position, period, count)
            if count >= fewest and (best is None or len(candidate.hidden) > len(best.hidden)):
                best = candidate
        if best is None or len(best.hidden) < smallest:
            position += 1
            continue
        layers.append(best)
        position += best.period * best.count
    return layers


def _equal_runs(texts: Sequence[str]) -> dict[int, list[int]]:
    """For each period and each node, the number of nodes from there on that equal the node one
    period later.
    """
    runs = {}
    for period in range(1, min(len(texts) // FEWEST, LONGEST) + 1):
        lengths = [0] * (len(texts) + 1)
        for i in range(len(texts) - period - 1, -1, -1):
            if texts[i] == texts[i + period]:
                lengths[i] = lengths[i + 1] + 1
        if max(lengths) >= (FEWEST - 1) * period:
            runs[period] = lengths
    return runs


SWEEPS = 6
"""Sweeps over all rows, down and up in turn. More hardly change a drawing; chosen by eye."""

Edges = Sequence[tuple[int, int]]


def layered_layout(count: int, edges: Edges) -> list[tuple[float, int]]:
    """The column and the row of each node. Edges lead from a lower number to a higher number. Rows
    are whole numbers, and two nodes of a row are at least 1 column apart.
    """
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        before[target].append(source)
        after[source].append(target)
    rows = _rows(before, after)
    members: list[list[int]] = [[] for _ in range(max(rows, default=-1) + 1)]
    for node, row in enumerate(rows):
        members[row].append(node)
    columns = [0.0] * count
    for row_nodes in members:
        for place, node in enumerate(row_nodes):
            columns[node] = place - (len(row_nodes) - 1) / 2
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row_nodes in members if down else reversed(members):
            neighbours = before if down else after
            _place(row_nodes, neighbours, columns)
    for row_nodes in members:
        _place(row_nodes, [[*b, *a] for b, a in zip(before, after, strict=True)], columns)
    return [(round(c, 2), r) for c, r in zip(columns, rows, strict=True)]


def _rows(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> list[int]:
    """The row of each node. Nodes are in topological order."""
    rows = [0] * len(before)
    for node, sources in enumerate(before):
        rows[node] = max((rows[s] + 1 for s in sources), default=0)
    for node, sources in enumerate(before):
        if not sources and after[node]:
            rows[node] = max(0, min(rows[t] for t in after[node]) - 1)
    return rows


def _place(row: list[int], neighbours: Sequence[Sequence[int]], columns: list[float]) -> None:
    """Order the nodes of a row by the mean column of their neighbours, and move them there.

    Nodes that would overlap form a group, which is placed at the mean of its nodes' targets. This
    is the least-squares solution (pooling of adjacent violators).
    """
    targets = {n: _mean((columns[m] for m in neighbours[n]), columns[n]) for n in row}
    row.sort(key=lambda n: (targets[n], columns[n]))
    groups: list[tuple[float, int]] = []  # the sum of the nodes' targets for column 0, and the size
    for node in row:
        total, size = targets[node], 1
        while groups:
            last_total, last_size = groups[-1]
            if last_total / last_size + last_size <= total / size:
                break
            groups.pop()
            total, size = last_total + total - size * last_size, last_size + size
        groups.append((total, size))
    nodes = iter(row)
    for total, size in groups:
        for place in range(size):
            columns[next(nodes)] = total / size + place


def _mean(values: Iterable[float], default: float) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else default


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
