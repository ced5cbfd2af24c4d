"""A rewriting whose counts of readers are compared with a fresh count after each node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from webmlc.graph.ir import Function, Node
from webmlc.graph.rewrite.patterns import Rules
from webmlc.graph.rewrite.rewriting import Simplification, count_uses


def rewritten(source: Function, rules: Rules) -> Function:
    """Rewrite a function, and check its counts of readers before and after each node."""
    rewriting = Simplification(source, rules)
    assert_counts(rewriting, source.nodes)
    for number, node in enumerate(source.nodes, start=1):
        rewriting.add(node)
        assert_counts(rewriting, source.nodes[number:])
    return rewriting.finish()


def assert_counts(rewriting: Simplification, pending: Iterable[Node]) -> None:
    """Compare `uses` with a count in the nodes so far and the nodes to come."""
    alias, source = rewriting.alias, rewriting.source
    nodes = (*rewriting.nodes, *(node.reading(alias) for node in pending))
    outputs = tuple(alias.get(output, output) for output in source.outputs)
    assert +rewriting.uses == +Counter(count_uses(replace(source, nodes=nodes, outputs=outputs))), (
        "readers were counted wrongly"
    )
