"""Check the nodes of a model against ONNX's schemas.

In: a model with resolved names. Out: nothing, or a `ModelError` that names the first node whose
inputs, outputs, attributes or version its operator does not allow. ONNX's own checker also refuses
models that run: names used twice, graphs without a name, outputs without a shape. Nodes of
operators without a schema pass: `normalise` and the rows of the operators check these nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from onnx import AttributeProto, ModelProto, NodeProto, defs

from webmlc.core.errors import ModelError
from webmlc.frontend.protos import (
    all_nodes,
    first_opset,
    name_of,
    plain_domain,
    version_of,
    versions_of,
)

EARLY = frozenset({("", "LayerNormalization")})
"""The operators that onnxruntime also runs in opsets before their first version."""

_KIND_NAMES: dict[int, str] = {
    number: name for name, number in AttributeProto.AttributeType.items()
}


def check_nodes(model: ModelProto) -> None:
    """Raise `ModelError` for the first node that its operator's schema does not permit."""
    versions = versions_of(model.opset_import)
    for node in all_nodes(model.graph.node):
        _check_node(node, versions)


def _check_node(node: NodeProto, versions: Mapping[str, int]) -> None:
    domain, version = plain_domain(node.domain), version_of(node, versions)
    label = f"{node.op_type} (node {name_of(node)!r})"
    names = [attribute.name for attribute in node.attribute]
    if repeated := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ModelError(f"{label} has the attribute {repeated[0]!r} twice")
    if version is None or not defs.has(node.op_type, domain):
        return
    schema = _schema(node.op_type, version, domain)
    if schema is None:
        if (domain, node.op_type) in EARLY:
            return
        first = first_opset(domain, node.op_type)
        raise ModelError(
            f"{label}: the operator began with opset {first}, and the model imports opset "
            f"{version}. Export the model with opset {first} or newer"
        )
    _check_operands(node, schema, label)
    _check_attributes(node, schema, label)


@cache
def _schema(op: str, version: int, domain: str) -> Any:
    """The schema of an operator in a version of its domain; None if the operator is newer."""
    try:
        return defs.get_schema(op, version, domain)
    except (defs.SchemaError, TypeError):  # TypeError: the version does not fit into 32 bits
        return None


def _check_operands(node: NodeProto, schema: Any, label: str) -> None:
    """Check the numbers of inputs and outputs, and that no needed input is left out."""
    for what, names, formals, least, most in (
        ("input", node.input, schema.inputs, schema.min_input, schema.max_input),
        ("output", node.output, schema.outputs, schema.min_output, schema.max_output),
    ):
        count = max((i for i, name in enumerate(names, 1) if name), default=0)
        if not least <= len(names) or count > most:
            expected = f"{least}" if least == most else f"{least} to {most}"
            expected = f"at least {least}" if most > 1 << 20 else expected
            raise ModelError(f"{label} has {len(names)} {what}s; it takes {expected}")
        single = defs.OpSchema.FormalParameterOption.Single
        for position, (name, formal) in enumerate(zip(names, formals, strict=False)):
            if not name and formal.option == single and what == "input":
                raise ModelError(f"{label} omits input {position}, {formal.name!r}: it needs it")


def _check_attributes(node: NodeProto, schema: Any, label: str) -> None:
    """Check the names and types of attributes, and that no needed attribute is left out."""
    for attribute in node.attribute:
        formal = schema.attributes.get(attribute.name)
        if formal is None:
            raise ModelError(
                f"{label}: its operator has no attribute {attribute.name!r} in this opset"
            )
        kind = attribute.type
        if kind != formal.type.value:
            kinds = [_KIND_NAMES.get(k, str(k)) for k in (kind, formal.type.value)]
            raise ModelError(
                f"{label}: the attribute {attribute.name!r} is of type {kinds[0]}; it must be "
                f"{kinds[1]}"
            )
    missing = schema.attributes.keys() - {attribute.name for attribute in node.attribute}
    for name in sorted(missing):
        if schema.attributes[name].required:
            raise ModelError(f"{label} needs the attribute {name!r}")
