"""Rewrite every node to the form of its newest opset, and report all operators without a row.

needs: a module as read. guarantees: each node has a row in `OPS`, the version of its operator, and
a name for each output up to its last one. Rows return results by position, so a skipped output
becomes an output that no node reads. before → after, opset 11:

    %y = Softmax(%x)             →   %y = Softmax(%x) {axis=1, coerced=1}
    %y, , %d = LayerNorm(%x)     →   %y, %y.unused_1, %d = LayerNorm(%x)

A parameter that later opsets moved from an attribute to an input (axes, for example) stays where it
is: rows read both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from webmlc.core.errors import Unsupported, UnsupportedError
from webmlc.graph.ir import Attribute, Function, Module, Node
from webmlc.graph.ops.refused import REFUSED
from webmlc.graph.ops.subgraphs import names_in
from webmlc.graph.table import OWN_DOMAINS, find_row

RESULT_FOR_EACH_OUTPUT = {("", "If"), ("", "Loop"), ("", "Scan"), ("", "Split")}
"""The operators with a result for each output, even if the output is skipped."""


def normalise(module: Module) -> Module:
    """Normalise every function and sub-graph; raises `UnsupportedError`."""
    missing: list[Unsupported] = []
    functions = {
        name: _function(function, module.opsets, missing)
        for name, function in module.functions.items()
    }
    if missing:
        raise UnsupportedError(tuple(missing))
    return replace(module, functions=functions)


def _function(
    function: Function, opsets: Mapping[str, int], missing: list[Unsupported]
) -> Function:
    nodes: list[Node] = []
    names = set(names_in(function))
    for node in filter(lambda node: any(node.outputs), function.nodes):
        row = find_row(*node.operator)
        if row is None or (node.domain == "webmlc" and node.domain not in opsets):
            name = f"{node.domain}.{node.op}" if node.domain else node.op
            reason = REFUSED.get(name, _advice(node.domain))
            missing.append(Unsupported(node.name, name, reason))
            continue
        attributes = {k: _attribute(v, opsets, missing) for k, v in node.attributes.items()}
        version = opsets.get(node.domain, 1) if node.version is None else node.version
        outputs = _named_outputs(node, names)
        node = replace(node, attributes=attributes, outputs=outputs, version=version)
        nodes.append(row.normalise(node, version) if row.normalise else node)
    return replace(function, nodes=tuple(nodes))


def _advice(domain: str) -> str:
    """Why a node of a domain has no row, and what to do."""
    if domain in OWN_DOMAINS:
        return "this operator is not in webmlc's table"
    return (
        "webmlc does not know this operator. Define it by @webmlc.operator, and give it to the "
        "build (docs/programs.md, Operators of your own)"
    )


def _named_outputs(node: Node, names: set[str]) -> tuple[str, ...]:
    """The outputs of a node; skipped outputs get new names. Adds these names to `names`."""
    whole = node.operator in RESULT_FOR_EACH_OUTPUT
    last = max(position for position, output in enumerate(node.outputs) if output)
    base = next(filter(None, node.outputs))
    outputs = list(node.outputs if whole else node.outputs[: last + 1])
    for position, output in enumerate(outputs):
        if not output:
            name = f"{base}.unused_{position}"
            while name in names:
                name += "_"
            names.add(name)
            outputs[position] = name
    return tuple(outputs)


def _attribute(
    value: Attribute, opsets: Mapping[str, int], missing: list[Unsupported]
) -> Attribute:
    return _function(value, opsets, missing) if isinstance(value, Function) else value
