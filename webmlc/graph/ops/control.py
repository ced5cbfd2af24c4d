"""Control flow that is decided at build time: an If of a known condition is one of its branches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from webmlc.graph.ir import Function, Node, TensorType
from webmlc.graph.ops.operator import Builder, Context, Operator, UnknownValueError


def _if_type(context: Context) -> tuple[TensorType, ...]:
    raise UnknownValueError(context.node.inputs[0], "the condition")


def _if(context: Context, builder: Builder) -> tuple[str, ...]:
    condition = context.known(0, "the condition").reshape(-1)[0]
    if not isinstance(condition, bool):
        raise UnknownValueError(context.node.inputs[0], "the condition")
    branch = context.attribute("then_branch" if condition else "else_branch")
    return splice(branch, builder, {})


def splice(function: Function, builder: Builder, given: Mapping[str, str]) -> tuple[str, ...]:
    """Add a sub-graph's nodes under new names; `given` names its inputs. Returns its outputs.

    Names that it does not define are the surrounding function's own.
    """
    names = dict(given)
    for name, array in function.constants.items():
        names[name] = builder.constant(array)
    for node in function.nodes:
        inputs = tuple(names.get(i, i) for i in node.inputs)
        outputs = tuple(builder.fresh(o) if o else "" for o in node.outputs)
        names.update(zip(node.outputs, outputs, strict=True))
        builder.nodes.append(replace(_closed(node, names), inputs=inputs, outputs=outputs))
    return tuple(names.get(o, o) for o in function.outputs)


def _closed(node: Node, names: Mapping[str, str]) -> Node:
    """The node; its own sub-graphs read the new names."""
    attributes = {
        key: _renamed(value, names) if isinstance(value, Function) else value
        for key, value in node.attributes.items()
    }
    return replace(node, attributes=attributes)


def _renamed(function: Function, names: Mapping[str, str]) -> Function:
    own = set(function.inputs) | set(function.constants)
    own |= {o for node in function.nodes for o in node.outputs}
    outer = {old: new for old, new in names.items() if old not in own}
    nodes = tuple(
        replace(_closed(node, outer), inputs=tuple(outer.get(i, i) for i in node.inputs))
        for node in function.nodes
    )
    outputs = tuple(outer.get(o, o) for o in function.outputs)
    return replace(function, nodes=nodes, outputs=outputs)


OPS: tuple[Operator, ...] = (Operator("If", _if_type, expand=_if),)
