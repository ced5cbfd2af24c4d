"""Indices that a run computes are counted where they lie outside what they index.

In: a simplified module. Out: the same module, in which `main` has further outputs: the number of
indices out of range, one for each node that reads indices. The hosts read them after a run, and
refuse its results where one is not 0. (Gathers clamp their indices and scatters skip theirs, so
nothing outside a tensor is touched.)

    %y = Gather(%table, %ids)  ->  %y = Gather(%table, %ids)
                                   %outside: int32[1] = webmlc.CountOutside(%ids) {512}

What control flow runs is counted by `check_bodies`. Not counted are indices that are within range
whatever the inputs hold, such as the results of a Clip.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_int, const
from webmlc.graph.ir import Attribute, Check, Function, Module, Node, TensorType, producers
from webmlc.graph.ops.operator import IndexInput, Scope, is_symbolic
from webmlc.graph.rewrite.meaning import row_of

ANYTHING = (-math.inf, math.inf)
"""The range of a value of which nothing is known."""

LONGEST_CHAIN = 16
"""The nodes through which the range of an index is followed."""

COUNTED_TOGETHER = 6
"""The index tensors that one kernel counts, so that a GPU can bind them all."""


def check_indices(module: Module) -> Module:
    """needs: inferred types. guarantees: `module.checks` names an output of counts for the nodes of
    `main` that read indices which only a run knows; each tensor is counted once for the same sizes.
    """
    main = module.main
    nodes, checks = count_outside(main)
    if not checks:
        return module
    types = {check.value: counts_type(len(check.nodes)) for check in checks}
    counted = replace(
        main,
        outputs=(*main.outputs, *types),
        nodes=(*main.nodes, *nodes),
        types={**main.types, **types},
    )
    return replace(module, functions={**module.functions, "main": counted}, checks=checks)


def count_outside(function: Function) -> tuple[tuple[Node, ...], tuple[Check, ...]]:
    """The nodes that count the indices of a function which a run computes, and their outputs."""
    unique: dict[tuple[object, ...], tuple[IndexInput, list[str]]] = {}
    for index, origin in _unknown_indices(function):
        key = (index.value, index.sizes, index.from_end)
        unique.setdefault(key, (index, []))[1].append(origin)
    nodes, checks = list[Node](), list[Check]()
    prefix = "webmlc" if function.name == "main" else f"webmlc.{function.name}"
    for number, group in enumerate(_batched(list(unique.values()))):
        name = f"{prefix}.outside.{number}"
        attributes: dict[str, Attribute] = {
            "sizes": tuple(index.sizes for index, _ in group),
            "from_end": tuple(int(index.from_end) for index, _ in group),
        }
        inputs = tuple(index.value for index, _ in group)
        origins = tuple(dict.fromkeys(o for _, names in group for o in names))
        nodes.append(Node("CountOutside", inputs, (name,), attributes, "webmlc", origins))
        checks.append(Check(name, tuple(names[0] for _, names in group)))
    return tuple(nodes), tuple(checks)


def counts_type(size: int) -> TensorType:
    """The type of so many counts."""
    return TensorType(DType.int32, (const(size),))


def _batched(
    indices: list[tuple[IndexInput, list[str]]],
) -> Iterator[list[tuple[IndexInput, list[str]]]]:
    for start in range(0, len(indices), COUNTED_TOGETHER):
        yield indices[start : start + COUNTED_TOGETHER]


def _unknown_indices(function: Function) -> Iterator[tuple[IndexInput, str]]:
    """The index inputs of a function that are computed during a run, with their nodes' names."""
    scope, makers = Scope.of(function), producers(function)
    symbolic = {o for node in function.nodes if is_symbolic(node) for o in node.outputs}
    for node in function.nodes:
        indices = row_of(node).indices
        if indices is None:
            continue
        for index in indices(scope.context(node)):
            if index.value in function.constants or index.value in symbolic:
                continue
            low, high = _range(index.value, function, makers, LONGEST_CHAIN)
            sizes = [as_int(size) for size in index.sizes]
            least = [0 if size is None or not index.from_end else -size for size in sizes]
            fits = all(size is not None and high < size for size in sizes) and low >= max(least)
            fits = fits or _is_place(makers.get(index.value), function, index.sizes)
            if not fits:
                yield index, node.name


def _is_place(node: Node | None, function: Function, sizes: tuple[Expr, ...]) -> bool:
    """True where a node finds a place along an axis of this size."""
    if node is None or node.domain or node.op not in ("ArgMax", "ArgMin"):
        return False
    axis = int(node.attributes.get("axis", 0))
    return function.type(node.inputs[0]).shape[axis] == sizes[0] and len(sizes) == 1


def _range(
    value: str, function: Function, makers: Mapping[str, Node], steps: int
) -> tuple[float, float]:
    """The least and the greatest element that a value of integers can have."""
    array = function.constants.get(value)
    if array is not None:
        return (int(array.min()), int(array.max())) if array.size else (0, 0)
    node = makers.get(value)
    if node is None or node.domain or not steps:
        return ANYTHING

    def operand(index: int) -> tuple[float, float]:
        name = node.inputs[index] if index < len(node.inputs) else ""
        return _range(name, function, makers, steps - 1) if name else ANYTHING

    match node.op:
        case "Clip":
            (low, high), (least, _), (_, most) = (operand(i) for i in range(3))
            return max(low, least), min(high, most)
        case "Add":
            (low, high), (least, most) = operand(0), operand(1)
            return low + least, high + most
        case "Cast":
            return operand(0) if function.type(node.inputs[0]).dtype.is_integer else ANYTHING
        case "Reshape" | "Transpose" | "Identity" | "Expand" | "Unsqueeze" | "Squeeze":
            return operand(0)
        case "ArgMax" | "ArgMin":
            axis = int(node.attributes.get("axis", 0))
            return 0, (as_int(function.type(node.inputs[0]).shape[axis]) or math.inf) - 1
    return ANYTHING
