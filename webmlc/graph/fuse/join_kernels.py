"""Join pointwise kernels that read the same value into one kernel with several outputs.

In: a fused module, whose rows that are appended to states have their places. Out: the same results.

needs: fused nodes. guarantees: kernels are joined if all their nodes are pointwise, they read an
activation in common, no kernel between them is needed by one of them, and the joined kernel is
within the limits. before → after:

    %k in %keys[past] = fused(%qkv, %cos, %sin) {slice, rotate}
    %v in %values[past] = fused(%qkv) {slice}                        →   %k, %v, %q = fused(...)
    %q = fused(%qkv, %cos, %sin) {slice, rotate}

A dispatch on a GPU takes longer to start than such a kernel takes to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from webmlc.graph.fuse.concat_in_place import constant_values
from webmlc.graph.fuse.fuse import POINTWISE, FusionLimits, kernel_name
from webmlc.graph.ir import Function, Module, Node
from webmlc.graph.rewrite.meaning import kind_of

WORD_BYTES = 4
"""The largest elements of a joined kernel: one kernel of long integers may run on the CPU, and
would take the others along.
"""


def join_kernels(module: Module, limits: FusionLimits) -> Module:
    """Join in every function."""
    functions = {name: _joined(f, limits) for name, f in module.functions.items()}
    return replace(module, functions=functions)


def _joined(function: Function, limits: FusionLimits) -> Function:
    """Join each kernel with as many later ones as possible."""
    constants = constant_values(function)
    nodes = list(function.nodes)
    position = 0
    while position < len(nodes):
        members = [nodes[position]]
        if _can_join(members[0], function, constants):
            available = {*function.inputs, *constants}
            available.update(o for node in nodes[:position] for o in node.outputs)
            for node in nodes[position + 1 :]:
                if (
                    _can_join(node, function, constants)
                    and available.issuperset(node.inputs)
                    and _shares_activation(members[0], node, constants)
                    and _fits([*members, node], limits)
                ):
                    members.append(node)
        if len(members) > 1:
            nodes[position] = _one_kernel(members)
            nodes = [node for node in nodes if node not in members[1:]]
        position += 1
    return replace(function, nodes=tuple(nodes))


def _can_join(node: Node, function: Function, constants: set[str]) -> bool:
    """True for kernels of pointwise nodes on numbers that every device has, run for each input."""
    body = node.attributes.get("body")
    if node.op != "fused" or not isinstance(body, Function) or constants.issuperset(node.outputs):
        return False
    values = (*node.inputs, *node.outputs)
    is_small = all(body.type(value).dtype.bytes <= WORD_BYTES for value in values)
    return is_small and all(kind_of(inner) in POINTWISE for inner in body.nodes)


def _shares_activation(node: Node, other: Node, constants: set[str]) -> bool:
    """True for kernels that read the same value, which is no constant."""
    return bool((set(node.inputs) & set(other.inputs)) - constants)


def _fits(members: Sequence[Node], limits: FusionLimits) -> bool:
    """True if one kernel may have the nodes and the buffers of all members."""
    bodies = [member.attributes["body"] for member in members]
    buffers = {v for member in members for v in (*member.inputs, *member.outputs)}
    count = sum(len(body.nodes) for body in bodies)
    return count <= limits.nodes and len(buffers) <= limits.buffers


def _one_kernel(members: Sequence[Node]) -> Node:
    """The kernel that computes the outputs of all members."""
    bodies: list[Function] = [member.attributes["body"] for member in members]
    nodes = tuple({n.outputs: n for body in bodies for n in body.nodes}.values())
    body = Function(
        kernel_name(nodes),
        tuple(dict.fromkeys(v for body in bodies for v in body.inputs)),
        tuple(v for body in bodies for v in body.outputs),
        nodes,
        {v: t for body in bodies for v, t in body.types.items()},
        {v: a for body in bodies for v, a in body.constants.items()},
    )
    origin = tuple(dict.fromkeys(o for member in members for o in member.origin))
    return Node("fused", body.inputs, body.outputs, {"body": body}, "webmlc", origin)
