"""Questions about the inputs and outputs of `main` that states may replace.

In: a function, its inputs and outputs. Out: what the passes `use_states`, `use_buffer_states` and
`use_recurrent_states` have to know of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from webmlc.core.rewrite import variables
from webmlc.graph.ir import Function, Node


def source_of(output: str, makers: Mapping[str, Node]) -> Node | None:
    """The node that computes an output, before nodes that only rename it. None for an input."""
    node = makers.get(output)
    while node is not None and node.op == "Identity":
        node = makers.get(node.inputs[0])
    return node


def symbols_of(function: Function, values: Iterable[str]) -> set[str]:
    """The names of the symbols in the shapes of some values."""
    return {v.name for value in values for d in function.type(value).shape for v in variables(d)}
