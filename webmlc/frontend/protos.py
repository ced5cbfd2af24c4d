"""Read ONNX's messages: versions, names and sub-graphs of nodes, and element types.

>>> first_opset("", "Gelu"), first_opset("com.microsoft", "FastGelu")
(20, 1)

A node of a local function may be of another version than the nodes of the model. When the function
is inlined, the node keeps the version in its metadata (`keep_version`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto, OperatorSetIdProto, helper

from webmlc.core.dtypes import DType

VERSION_KEY = "webmlc.version"
"""The key of a node's metadata that holds the version of its operator."""
Key = tuple[str, str, str]
"""The domain, name and overload by which nodes call a function."""


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


def key_of(node: NodeProto) -> Key:
    """The key of the function that a node calls, if there is such a function."""
    return (plain_domain(node.domain), node.op_type, node.overload)


def name_of(node: NodeProto) -> str:
    """The name of a node in messages: its own name, else the name of its first output."""
    return node.name or next(filter(None, node.output), node.op_type)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def levels(nodes: Iterable[NodeProto]) -> Iterator[list[NodeProto]]:
    """Yield the nodes, then all nodes of their sub-graphs, and so on."""
    level = list(nodes)
    while level:
        yield level
        level = [inner for node in level for graph in subgraphs(node) for inner in graph.node]


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, then the nodes of their sub-graphs."""
    return (node for level in levels(nodes) for node in level)


def constant_nodes(source: str | Path | ModelProto) -> dict[str, str]:
    """The names of the `Constant` nodes of a model by their outputs, also in sub-graphs. Reading
    turns these nodes into constants, and `webmlc report` shows them as constants.
    """
    if not isinstance(source, ModelProto):
        source = onnx.load(str(source), load_external_data=False)
    return {
        node.output[0]: node.name or node.output[0]
        for node in all_nodes(source.graph.node)
        if node.op_type == "Constant" and node.output
    }


def dtype_of(element_type: int) -> DType | None:
    """The `DType` for ONNX's number of an element type, or `None` if webmlc lacks the type."""
    try:
        return DType.of(helper.tensor_dtype_to_np_dtype(element_type))
    except (ValueError, TypeError, KeyError):
        return None
