"""Place the nodes of a directed acyclic graph in layers, for a drawing from top to bottom.

In: the number of nodes, and edges from a lower number to a higher number. Out: a column and a row
per node. Rows are whole numbers, and columns are fractional. Two nodes of a row are at least 1
column apart.

The algorithm is the usual one in three steps (Sugiyama, Tagawa and Toda, "Methods for Visual
Understanding of Hierarchical System Structures", 1981), without dummy nodes on long edges:

1. the row of a node is one below its lowest predecessor; a node without predecessors is just
   above its first successor;
2. the nodes of a row are ordered by the mean column of their neighbours, in sweeps down and up;
3. columns approach the mean column of the neighbours, as far as the distance to other nodes allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SWEEPS = 6
"""Sweeps over all rows, down and up in turn. More hardly change a drawing; chosen by eye."""

Edges = Sequence[tuple[int, int]]


def layered_layout(count: int, edges: Edges) -> list[tuple[float, int]]:
    """The column and the row of each node."""
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
