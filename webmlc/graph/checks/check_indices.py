"""Count the indices that are out of range during a run.

In: a simplified module. Out: the same module, in which `main` has further outputs. They hold the
number of indices out of range, for each node that reads indices. The hosts read these outputs after
a run, and refuse its results if a number is not 0. (Gathers clamp indices out of range, and
scatters skip them, so no kernel reads or writes outside a tensor.)

    %y = Gather(%table, %ids)  ->  %y = Gather(%table, %ids)
                                   %outside: int32[1] = webmlc.CountOutside(%ids) {512}

Nodes inside control flow are counted by `check_bodies`. Indices that are always in range, such as
the results of a Clip, are not counted.
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

UNBOUNDED = (-math.inf, math.inf)
"""The range of a value that may be any number."""

MAX_CHAIN = 16
"""The most nodes through which the range of an index is traced back. It bounds the time of the
pass. Chosen by hand: exporters write a few nodes between an index and its Clip.
"""

MAX_TENSORS_PER_COUNT = 6
"""The most index tensors that one kernel counts. Derived: the kernel has 7 buffers with its output,
and WebGPU guarantees 8 storage buffers in a shader.
"""


def check_indices(module: Module) -> Module:
    """Add the counts of indices out of range to the outputs of `main`.

    needs: inferred types. guarantees: each node of `main` that reads indices known only at run time
    has a count in an output that `module.checks` names. Indices that several nodes read with the
    same sizes are counted once.
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
    return module.with_main(counted, checks=checks)


def count_outside(function: Function) -> tuple[tuple[Node, ...], tuple[Check, ...]]:
    """The nodes that count the indices of a function which a run computes, and their outputs."""
    unique: dict[tuple[object, ...], tuple[IndexInput, list[str]]] = {}
    for index, origin in _unknown_indices(function):
        key = (index.value, index.sizes, index.from_end)
        unique.setdefault(key, (index, []))[1].append(origin)
    nodes, checks = list[Node](), list[Check]()
    prefix = "webmlc" if function.name == "main" else f"webmlc.{function.name}"
    indices = list(unique.values())
    for number, start in enumerate(range(0, len(indices), MAX_TENSORS_PER_COUNT)):
        group = indices[start : start + MAX_TENSORS_PER_COUNT]
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
    """The type of `size` counts."""
    return TensorType(DType.int32, (const(size),))


def _unknown_indices(function: Function) -> Iterator[tuple[IndexInput, str]]:
    """The index inputs of a function that a run computes and that may be out of range, with the
    names of their nodes.
    """
    scope, producer_of = Scope.of(function), producers(function)
    symbolic = {o for node in function.nodes if is_symbolic(node) for o in node.outputs}
    for node in function.nodes:
        indices = row_of(node).indices
        if indices is None:
            continue
        for index in indices(scope.context(node)):
            if index.value in function.constants or index.value in symbolic:
                continue
            low, high = _range(index.value, function, producer_of, MAX_CHAIN)
            sizes = [as_int(size) for size in index.sizes]
            lowest = [0 if size is None or not index.from_end else -size for size in sizes]
            fits = all(size is not None and high < size for size in sizes) and low >= max(lowest)
            fits = fits or _is_place(producer_of.get(index.value), function, index.sizes)
            if not fits:
                yield index, node.name


def _is_place(node: Node | None, function: Function, sizes: tuple[Expr, ...]) -> bool:
    """True if a node computes positions along an axis of this size."""
    if node is None or node.domain or node.op not in ("ArgMax", "ArgMin"):
        return False
    axis = int(node.attributes.get("axis", 0))
    return function.type(node.inputs[0]).shape[axis] == sizes[0] and len(sizes) == 1


def _range(
    value: str, function: Function, producer_of: Mapping[str, Node], steps: int
) -> tuple[float, float]:
    """The least and the greatest element that an integer value can have. Follow at most `steps`
    nodes.
    """
    array = function.constants.get(value)
    if array is not None:
        return (int(array.min()), int(array.max())) if array.size else (0, 0)
    node = producer_of.get(value)
    if node is None or node.domain or not steps:
        return UNBOUNDED

    def operand(index: int) -> tuple[float, float]:
        name = node.inputs[index] if index < len(node.inputs) else ""
        return _range(name, function, producer_of, steps - 1) if name else UNBOUNDED

    match node.op:
        case "Clip":
            (low, high), (other_low, _), (_, other_high) = (operand(i) for i in range(3))
            return max(low, other_low), min(high, other_high)
        case "Add":
            (low, high), (other_low, other_high) = operand(0), operand(1)
            return low + other_low, high + other_high
        case "Cast":
            return operand(0) if function.type(node.inputs[0]).dtype.is_integer else UNBOUNDED
        case "Reshape" | "Transpose" | "Identity" | "Expand" | "Unsqueeze" | "Squeeze":
            return operand(0)
        case "ArgMax" | "ArgMin":
            axis = int(node.attributes.get("axis", 0))
            return 0, (as_int(function.type(node.inputs[0]).shape[axis]) or math.inf) - 1
    return UNBOUNDED
