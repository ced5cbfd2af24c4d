"""Merge small pointwise kernels that read the same value into one kernel.

In: a fused module whose regions are decided. Out: the same results with fewer kernels. Kernels of
several results compute them one after another:

    %a = fused(%x) {slice, rotate}                %a, %b, %c in %v[past, 0, 0] =
    %b = fused(%x) {slice, rotate}           →        fused(%x) {slice, rotate, slice, rotate, slice}
    %c in %v[past, 0, 0] = fused(%x) {slice}

Starting a kernel takes about as long as computing a thousand elements, and more where threads wait
for each other. For large results this time is negligible, and separate kernels share more code.
"""  # noqa: E501 (the example)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from webmlc.core.expr import as_int
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.fuse.kernels import constant_values, is_pointwise, kernel, kernel_name
from webmlc.graph.ir import Function, Module, Node
from webmlc.graph.ops.control import CONTROL
from webmlc.graph.rewrite.bound_symbols import BoundSymbols

_MAX_ELEMENTS = 1 << 13
"""The most elements in the result of a kernel that is merged, with symbolic sizes taken as 1. If a
kernel start and a thousand elements take a microsecond each, merging then saves a tenth of the time
or more (estimated).
"""
_MAX_RESULTS = 8
"""The most results of a merged kernel: build time grows with the square of their number."""


def merge_siblings(module: Module, limits: FusionLimits | None = None) -> Module:
    """Merge in every function. A merged kernel has no more buffers than the limits allow.

    needs: a fused module, regions decided. guarantees: topological order; nodes that read a value
    come after those that write its parts.
    """
    chosen_limits = limits or FusionLimits()
    return module.map_functions(lambda function: _merge(function, chosen_limits))


@dataclass(slots=True)
class _Group:
    """Kernels that become one kernel. `reads` are the values that they read, and `writes` the
    values that they write, both with the larger values that contain them.
    """

    members: list[Node]
    reads: set[str]
    writes: set[str]

    def with_group(self, other: _Group) -> _Group:
        """The kernels of both groups."""
        return _Group(
            self.members + other.members, self.reads | other.reads, self.writes | other.writes
        )


def _merge(function: Function, limits: FusionLimits) -> Function:
    """Move each kernel down to the last kernel that it can be merged with."""
    bound = BoundSymbols(function)
    constants = constant_values(function)
    roots: dict[str, str] = {}
    groups: list[_Group] = []
    open_groups: dict[str, _Group] = {}
    for node in function.nodes:
        if node.operator in CONTROL:
            open_groups.clear()  # its functions may read any value
        if node.op == "View":
            roots[node.outputs[0]] = roots.get(node.inputs[0], node.inputs[0])
        reads = {roots.get(value, value) for value in node.inputs if value}
        writes = {place for value in node.outputs for place in _places(value, function)}
        reads |= {place for value in reads for place in _places(value, function)}
        key = _shared_value(node, function, constants)
        key = key if key is not None and not bound.needed_by(node) else None
        for value, group in list(open_groups.items()):
            joins = value == key and not reads & group.writes
            if not joins and (reads & group.writes or writes & (group.writes | group.reads)):
                del open_groups[value]
        group = _Group([node], reads, writes)
        open_group = open_groups.get(key) if key is not None else None
        if open_group is not None:
            both = open_group.with_group(group)
            buffers = {value for n in both.members for value in (*n.inputs, *n.outputs)}
            if len(both.members) <= _MAX_RESULTS and len(buffers) <= limits.buffers:
                groups.remove(open_group)
                group = both
        groups.append(group)
        if key is not None:
            open_groups[key] = group
    nodes = (g.members[0] if len(g.members) == 1 else _merged(g.members) for g in groups)
    return replace(function, nodes=tuple(nodes))


def _places(value: str, function: Function) -> tuple[str, ...]:
    """A value, and the larger value that it is a part of."""
    region = function.regions.get(value)
    return (value,) if region is None else (value, region.whole)


def _shared_value(node: Node, function: Function, constants: set[str]) -> str | None:
    """The first value that a small pointwise kernel of one result reads; `None` for others."""
    if len(node.outputs) != 1 or not is_pointwise(node):
        return None
    read = [value for value in node.inputs if value not in constants]
    sizes = [as_int(size) or 1 for size in function.type(node.outputs[0]).shape]
    return read[0] if read and prod(sizes) <= _MAX_ELEMENTS else None


def _merged(nodes: Sequence[Node]) -> Node:
    """One kernel that computes the results of several kernels."""
    bodies = [node.attributes["body"] for node in nodes]
    members = tuple({node.outputs: node for body in bodies for node in body.nodes}.values())
    body = Function(
        kernel_name(members),
        tuple(dict.fromkeys(value for node in nodes for value in node.inputs)),
        tuple(value for node in nodes for value in node.outputs),
        members,
        {value: type_ for body in bodies for value, type_ in body.types.items()},
        {value: array for body in bodies for value, array in body.constants.items()},
    )
    return kernel(body, *nodes)
