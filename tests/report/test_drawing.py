"""The drawing of a graph: layers that are found, and boxes that do not overlap."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from webmlc.report.nodes import ModelNode
from webmlc.report.views import Layers, find_layers, layered_layout, views
from webmlc.target.line_stages import line_ranges


def chain(*ops: str, fates: dict[int, str] | None = None) -> list[ModelNode]:
    """Nodes that read the one before."""
    return [
        ModelNode(f"n{i}", op, (f"v{i}",), (f"v{i + 1}",), fate=(fates or {}).get(i, ""))
        for i, op in enumerate(ops)
    ]


@given(
    st.integers(1, 30).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=60),
        )
    )
)
def test_boxes_do_not_overlap_and_edges_lead_down(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, pairs = graph
    edges = sorted({(min(p), max(p)) for p in pairs if p[0] != p[1]})
    places = layered_layout(count, edges)
    assert all(places[source][1] < places[target][1] for source, target in edges)
    rows = defaultdict(list)
    for column, row in places:
        rows[row].append(column)
    for columns in map(sorted, rows.values()):
        assert all(b - a > 0.97 for a, b in pairwise(columns))


def test_a_chain_is_a_straight_line() -> None:
    places = layered_layout(5, [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)])
    assert [row for _, row in places] == [0, 1, 2, 3, 4]
    assert len({column for column, _ in places}) == 1


def test_equal_layers_are_found_with_their_period() -> None:
    texts = ["Gemm", *["MatMul", "Add", "Relu"] * 5, "Softmax"]
    assert find_layers(texts) == [Layers(1, 3, 5)]
    assert find_layers(["a", "b", "a", "b", "c"]) == []


def test_a_view_folds_layers_and_another_shows_them() -> None:
    nodes = chain("Gemm", *["MatMul", "Add", "Relu"] * 6, "Softmax")
    layers, computation = views(nodes)
    assert [view.name for view in (layers, computation)] == ["layers", "computation"]
    (folded,) = (item for item in layers.items if item.label)
    assert folded.label == "5 more equal layers, 15 nodes"
    assert sorted(n for item in layers.items for n in item.nodes) == list(range(len(nodes)))
    assert len(computation.items) == len(nodes)


def test_edges_lead_through_nodes_that_a_view_hides() -> None:
    computation, model = views(chain("Conv", "Identity", "Relu", fates={1: "removed"}))
    assert computation.edges == ((0, 1),)
    assert model.edges == ((0, 1), (1, 2))


def test_line_ranges_are_those_of_the_joined_text() -> None:
    texts = ["a\nb", "c", "d\n"]
    lines = "\n".join(["head", *texts, "tail"]).split("\n")
    ranges = line_ranges(texts, 1)
    assert ["\n".join(lines[r.start : r.stop]) for r in ranges] == texts
