"""A Concat of more parts than one kernel can bind becomes Concats of Concats.

In: a module after layouts, and how many buffers a kernel may hold. Out: the same results; no Concat
binds more.

    %y = Concat(%a, ..., %i)  ->  %p = Concat(%a, ..., %g); %q = Concat(%h, %i); %y = Concat(%p, %q)
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.expr import Expr, const
from webmlc.core.simplify import simplify
from webmlc.graph.fuse import FusionLimits
from webmlc.graph.ir import Function, Module, Node, TensorType


def split_concats(module: Module, limits: FusionLimits) -> Module:
    """needs: inferred types. guarantees: every Concat of `main` has an input less than
    `limits.buffers`, or fewer.
    """
    types = dict(module.main.types)
    nodes = [
        made
        for node in module.main.nodes
        for made in (
            _split(node, module.main, limits.buffers - 1, types)
            if (node.domain, node.op) == ("", "Concat")
            else [node]
        )
    ]
    main = replace(module.main, nodes=tuple(nodes), types=types)
    return replace(module, functions={**module.functions, "main": main})


def _split(node: Node, function: Function, most: int, types: dict[str, TensorType]) -> list[Node]:
    """A tree of Concats, the leaves first; adds the types of the values in between."""
    result = types[node.outputs[0]]
    axis = int(node.attributes["axis"]) % result.rank
    made: list[Node] = []
    parts = node.inputs
    while len(parts) > most:
        groups = [parts[start : start + most] for start in range(0, len(parts), most)]
        joined: list[str] = []
        for group in groups:
            if len(group) == 1:
                joined += group
                continue
            name = f"{node.outputs[0]}/part{len(made)}"
            shape = list(result.shape)
            shape[axis] = simplify(_length(function, types, group, axis))
            types[name] = TensorType(result.dtype, tuple(shape))
            made.append(replace(node, inputs=group, outputs=(name,)))
            joined.append(name)
        parts = tuple(joined)
    return [*made, replace(node, inputs=parts)]


def _length(
    function: Function, types: dict[str, TensorType], parts: tuple[str, ...], axis: int
) -> Expr:
    """The length of some parts along an axis."""
    total: Expr = const(0)
    for part in parts:
        constant = function.constants.get(part)
        total = total + (types[part].shape[axis] if constant is None else constant.shape[axis])
    return total
