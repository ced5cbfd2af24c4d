"""Read, rename and copy the sub-graphs that control flow has as attributes.

A sub-graph may read values of the functions around it. No value that it defines has the name of one
of those values.

    splice(function, build, {"x": "a"})     adds a copy of the nodes, which reads a in place of x
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from webmlc.graph.builder import Builder
from webmlc.graph.ir import Function, Node


def splice(function: Function, build: Builder, arguments: Mapping[str, str]) -> tuple[str, ...]:
    """Add the nodes of a sub-graph under new names, and return its outputs. `arguments` maps its
    inputs to values.

    Names that the sub-graph does not define belong to the surrounding function.
    """
    names = dict(arguments)
    for name, array in function.constants.items():
        names[name] = build.constant(array)
    for node in function.nodes:
        inputs = tuple(names.get(i, i) for i in node.inputs)
        outputs = tuple(build.fresh(o) if o else "" for o in node.outputs)
        names.update(zip(node.outputs, outputs, strict=True))
        build.append(replace(rename_captures(node, names), inputs=inputs, outputs=outputs))
    return tuple(names.get(o, o) for o in function.outputs)


def rename_captures(node: Node, names: Mapping[str, str]) -> Node:
    """The node, with sub-graphs that read their captures under the new names."""
    attributes = {
        key: _renamed(value, names) if isinstance(value, Function) else value
        for key, value in node.attributes.items()
    }
    return replace(node, attributes=attributes)


def reads(node: Node, value: str) -> bool:
    """True if a node or one of its sub-graphs reads a value."""
    return value in node.inputs or any(
        value in f.outputs or any(reads(n, value) for n in f.nodes)
        for f in functions_in(node).values()
    )


def names_in(function: Function) -> Iterator[str]:
    """The names of the values of a function and of its sub-graphs."""
    yield from (*function.inputs, *function.constants, *function.outputs)
    for node in function.nodes:
        yield from (*node.inputs, *node.outputs)
        for inner in functions_in(node).values():
            yield from names_in(inner)


def _renamed(function: Function, names: Mapping[str, str]) -> Function:
    local_names = set(function.inputs) | set(function.constants)
    local_names |= {o for node in function.nodes for o in node.outputs}
    outer_names = {old: new for old, new in names.items() if old not in local_names}
    nodes = tuple(
        replace(
            rename_captures(node, outer_names),
            inputs=tuple(outer_names.get(i, i) for i in node.inputs),
        )
        for node in function.nodes
    )
    outputs = tuple(outer_names.get(o, o) for o in function.outputs)
    return replace(function, nodes=nodes, outputs=outputs)


def functions_in(node: Node) -> dict[str, Function]:
    """The sub-graphs of a node, by attribute."""
    return {key: f for key, f in node.attributes.items() if isinstance(f, Function)}
