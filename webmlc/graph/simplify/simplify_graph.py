"""Simplify a graph: remove identities, common sub-expressions and dead code; merge views and
transposes; fold batch normalisation and padding into convolutions.

needs: types. guarantees: a node computes every output; every constant is used; every view
(Reshape, Flatten, Squeeze, Unsqueeze) is a `Reshape` with its shape as an attribute.
before → after:

    %a = Conv(%x, %w)                              const %w2 = %w · factor, %b2 = ...
    %b = BatchNormalization(%a, ...)       →       %c = Conv(%x, %w2, %b2)
    %c = Identity(%b)

One walk in order is enough: the inputs of a node are simplified before the node.
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.graph.ir import Function, Module, Node
from webmlc.graph.rewrite.bound_symbols import BoundSymbols
from webmlc.graph.rewrite.rewriting import Rewriting
from webmlc.graph.simplify.simplify_rules import RULES


def simplify_graph(module: Module) -> Module:
    """Simplify every function."""
    functions = {name: simplify_function(f) for name, f in module.functions.items()}
    return replace(module, functions=functions)


def simplify_function(function: Function) -> Function:
    """Simplify one function."""
    live = remove_dead_code(function)
    return remove_dead_code(Rewriting(live, RULES).run())


def remove_dead_code(function: Function) -> Function:
    """Remove the nodes and constants that neither an output nor a requirement needs."""
    bound = BoundSymbols(function)
    checked = (binder.outputs[0] for binder in bound.checked_by(function.requirements))
    needed = {*function.outputs, *checked}
    live: list[Node] = []
    for node in reversed(function.nodes):
        if needed.intersection(o for o in node.outputs if o):
            live.append(node)
            needed.update(node.inputs)
            needed.update(binder.outputs[0] for binder in bound.needed_by(node))
    values = {o for node in live for o in node.outputs} | set(function.inputs)
    return replace(
        function,
        nodes=tuple(reversed(live)),
        types={name: t for name, t in function.types.items() if name in values},
        constants={name: a for name, a in function.constants.items() if name in needed},
    )
