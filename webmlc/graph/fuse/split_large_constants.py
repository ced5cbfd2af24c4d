"""Split constants that are larger than a GPU kernel can bind.

In: a fused module and the limits of one kernel. Out: the same results; a kernel that reads a large
constant reads consecutive parts of it instead, and joins them. Lowering inlines the `Concat`, so
the joined value never exists in memory.

    %y = fused(%ids, %table) {gather}  ->  %y = fused(%ids, %table.0, %table.1) {concat, gather}
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.fuse.kernels import kernel
from webmlc.graph.ir import Array, Function, Module, Node
from webmlc.graph.ops.operator import array_type


def split_large_constants(module: Module, limits: FusionLimits) -> Module:
    """Replace constants of more than `limits.binding_bytes` by parts along their outermost axis.

    needs: a fused module. guarantees: no kernel reads a constant of more bytes, except a constant
    whose parts would need more than `limits.buffers` bindings. Such a constant stays whole, for the
    CPU.
    """
    return module.map_functions(lambda function: _split_in(function, limits))


def _split_in(function: Function, limits: FusionLimits) -> Function:
    parts = {
        name: dict(_parts(name, array, limits.binding_bytes))
        for name, array in function.constants.items()
        if array.nbytes > limits.binding_bytes
    }
    if not parts:
        return function
    nodes = tuple(
        _read_parts(node, parts, limits.buffers) if node.op == "fused" else node
        for node in function.nodes
    )
    reads = {value for node in nodes for value in node.inputs} | {*function.outputs}
    constants = dict(function.constants)
    for group in parts.values():
        constants |= group
    used = {name: array for name, array in constants.items() if name in reads}
    return replace(function, nodes=nodes, constants=used)


def _parts(name: str, array: Array, limit: int) -> Iterator[tuple[str, Array]]:
    """Views of consecutive slices along the first axis longer than 1, each of at most `limit`
    bytes. If one element of that axis has more bytes, each slice has one element.
    """
    axis = _axis(array)
    count = array.shape[axis]
    bytes_each = array.nbytes // count
    rows = math.ceil(count / math.ceil(count / max(limit // bytes_each, 1)))  # equal parts
    for number, start in enumerate(range(0, count, rows)):
        yield f"{name}.{number}", array[(slice(None),) * axis + (slice(start, start + rows),)]


def _axis(array: Array) -> int:
    """The first axis longer than 1: slices along it are contiguous."""
    return next(axis for axis, size in enumerate(array.shape) if size > 1)


def _read_parts(node: Node, parts: dict[str, dict[str, Array]], max_buffers: int) -> Node:
    """The fused node, reading the parts of its large constants if it can bind all of them."""
    for value in node.inputs:
        group = parts.get(value, {})
        count = len(dict.fromkeys(node.inputs)) + len(node.outputs) - 1 + len(group)
        if group and count <= max_buffers:
            node = _with_parts(node, value, group)
    return node


def _with_parts(node: Node, value: str, parts: dict[str, Array]) -> Node:
    """The fused node with a `Concat` of the parts in front of its body."""
    body: Function = node.attributes["body"]
    axis = _axis(body.constants[value])
    concat = Node("Concat", tuple(parts), (value,), {"axis": axis}, origin=node.origin)
    types = dict(body.types) | {n: array_type(a) for n, a in parts.items()}
    types[value] = array_type(body.constants[value])
    constants = {n: a for n, a in body.constants.items() if n != value} | parts
    inputs = tuple(n for v in body.inputs for n in (parts if v == value else (v,)))
    nodes = (concat, *body.nodes)
    body = replace(body, inputs=inputs, nodes=nodes, types=types, constants=constants)
    return kernel(body, node)
