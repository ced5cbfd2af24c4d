"""Indices that a run computes are counted where they lie outside what they index.

In: a simplified module. Out: the same module, in which `main` has further outputs: the number of
indices out of range, one for each node that reads indices. The hosts read them after a run, and
refuse its results where one is not 0. (Gathers clamp their indices and scatters skip theirs, so
nothing outside a tensor is touched.)

    %y = Gather(%table, %ids)  ->  %y = Gather(%table, %ids)
                                   %outside: int32[1] = webmlc.CountOutside(%ids) {512}

Nodes inside control flow are not counted: whether they run is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from webmlc.core.dtypes import DType
from webmlc.core.expr import const
from webmlc.graph.ir import Check, Module, Node, TensorType
from webmlc.graph.meaning import row_of
from webmlc.graph.ops.operator import IndexInput, Scope, is_symbolic

COUNTED_TOGETHER = 6
"""The index tensors that one kernel counts, so that a GPU can bind them all."""


def check_indices(module: Module) -> Module:
    """needs: inferred types. guarantees: `module.checks` names an output of counts for the nodes of
    `main` that read indices which only a run knows; each tensor is counted once for the same sizes.
    """
    main = module.main
    unique: dict[tuple[object, ...], tuple[IndexInput, list[str]]] = {}
    for index, origin in _unknown_indices(module):
        unique.setdefault((index.value, index.sizes), (index, []))[1].append(origin)
    if not unique:
        return module
    nodes, types, checks = list(main.nodes), dict(main.types), list[Check]()
    for number, group in enumerate(_batched(list(unique.values()))):
        name = f"webmlc.outside.{number}"
        sizes = tuple(index.sizes for index, _ in group)
        inputs = tuple(index.value for index, _ in group)
        origins = tuple(dict.fromkeys(o for _, names in group for o in names))
        nodes.append(Node("CountOutside", inputs, (name,), {"sizes": sizes}, "webmlc", origins))
        types[name] = TensorType(DType.int32, (const(len(group)),))
        checks.append(Check(name, tuple(names[0] for _, names in group)))
    outputs = (*main.outputs, *(check.value for check in checks))
    changed = replace(main, outputs=outputs, nodes=tuple(nodes), types=types)
    return replace(module, functions={**module.functions, "main": changed}, checks=tuple(checks))


def _batched(
    indices: list[tuple[IndexInput, list[str]]],
) -> Iterator[list[tuple[IndexInput, list[str]]]]:
    for start in range(0, len(indices), COUNTED_TOGETHER):
        yield indices[start : start + COUNTED_TOGETHER]


def _unknown_indices(module: Module) -> Iterator[tuple[IndexInput, str]]:
    """The index inputs of `main` that are computed during a run, with their nodes' names."""
    main = module.main
    scope = Scope.of(main)
    symbolic = {o for node in main.nodes if is_symbolic(node) for o in node.outputs}
    for node in main.nodes:
        indices = row_of(node).indices
        if indices is None:
            continue
        for index in indices(scope.context(node)):
            if index.value not in main.constants and index.value not in symbolic:
                yield index, node.name
