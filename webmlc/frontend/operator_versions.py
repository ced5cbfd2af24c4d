"""Look up versions of operators: in ONNX's schemas, and in the imports of a model.

>>> first_opset("", "Gelu"), first_opset("com.microsoft", "FastGelu")
(20, 1)

A node of a local function may be of another version than the nodes of the model. When the function
is inlined, the node keeps the version in its metadata (`keep_version`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import onnx
from onnx import NodeProto, OperatorSetIdProto

VERSION_KEY = "webmlc.version"
"""The key of a node's metadata that holds the version of its operator."""


@cache
def _first_opsets() -> dict[tuple[str, str], int]:
    opsets: dict[tuple[str, str], int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        key = schema.domain, schema.name
        opsets[key] = min(schema.since_version, opsets.get(key, schema.since_version))
    return opsets


def first_opset(domain: str, name: str) -> int:
    """The version of the domain that introduced the operator; 1 if ONNX does not define it."""
    return _first_opsets().get((domain, name), 1)


def plain_domain(domain: str) -> str:
    """The domain. ONNX's own domain has two names; the result is the shorter name."""
    return "" if domain == "ai.onnx" else domain


def versions_of(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    """The version of each domain. If a domain is imported twice, the last import counts."""
    return {plain_domain(opset.domain): opset.version for opset in imports}


def keep_version(node: NodeProto, version: int) -> None:
    """Note the version of a node's operator, which differs from the model's version."""
    node.metadata_props.add(key=VERSION_KEY, value=str(version))


def kept_version(node: NodeProto) -> int | None:
    """The version that a node keeps, or `None` if the node has the version of the model."""
    texts = [entry.value for entry in node.metadata_props if entry.key == VERSION_KEY]
    return int(texts[-1]) if texts and texts[-1].isdecimal() and len(texts[-1]) < 10 else None


def version_of(node: NodeProto, versions: Mapping[str, int]) -> int | None:
    """The version of a node's operator, or None if nothing imports its domain."""
    version = kept_version(node)
    return versions.get(plain_domain(node.domain)) if version is None else version
