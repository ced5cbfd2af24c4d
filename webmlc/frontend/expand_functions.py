"""Replace operators that ONNX itself defines by other operators with their definitions.

In: a model. Out: the model without the operators of `FUNCTIONS`. Each node of these operators
becomes a call of a separate function, which the schema defines for its input types and attributes.
All these functions are then inlined. An operator that a row of `graph/ops` computes better
(LayerNormalization, Softmax, Gelu, ...) is not in `FUNCTIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import onnx
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TypeProto,
    defs,
)

from webmlc.core.errors import ModelError
from webmlc.frontend.protos import all_nodes, plain_domain, subgraphs, version_of, versions_of
from webmlc.frontend.resolve_names import resolve_names

FUNCTIONS: dict[str, frozenset[str]] = {
    "": frozenset({
        "AffineGrid",
        "Attention",
        "Bernoulli",
        "BlackmanWindow",
        "CausalConvWithState",
        "CenterCropPad",
        "HammingWindow",
        "HannWindow",
        "LinearAttention",
        "NegativeLogLikelihoodLoss",
        "RotaryEmbedding",
        "SoftmaxCrossEntropyLoss",
        "SwiGLU",
    }),
    "ai.onnx.preview": frozenset({"FlexAttention"}),
}  # fmt: skip
"""The names of the operators to replace, by domain. The operator table has none of them."""

DOMAIN = "webmlc.functions"
"""The domain of the functions between their creation and their inlining."""

MAX_DEFINITION_DEPTH = 8
"""Expand definitions within definitions at most this many levels deep.

Chosen by hand: ONNX's own definitions nest less deep.
"""


def expand_functions(model: ModelProto) -> ModelProto:
    """Replace the operators of `FUNCTIONS` by ONNX's function bodies, also within these bodies."""
    for _ in range(MAX_DEFINITION_DEPTH):
        if not any(_is_function(node) for node in all_nodes(model.graph.node)):
            break
        model = _expand(model)
    return model


def _is_function(node: NodeProto) -> bool:
    return node.op_type in FUNCTIONS.get(plain_domain(node.domain), ())


def _expand(model: ModelProto) -> ModelProto:
    """Expand one level: turn every function node into a call of a local function, and inline it."""
    types = _inferred_types(model)
    versions = versions_of(model.opset_import)
    result = ModelProto()
    result.CopyFrom(model)
    for number, node in enumerate(all_nodes(result.graph.node)):
        if not _is_function(node):
            continue
        body = _body(node, [types.get(i, TypeProto()) for i in node.input], versions)
        if body is None:
            continue
        body.domain, body.name = DOMAIN, f"{node.op_type}_{number}"
        result.functions.append(body)
        node.domain, node.op_type = body.domain, body.name
    return resolve_names(result)


def _inferred_types(model: ModelProto) -> dict[str, TypeProto]:
    """The types that ONNX infers. If ONNX finds the model malformed, the types that it declares."""
    with suppress(onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        model = onnx.shape_inference.infer_shapes(model, data_prop=False)
    return _types(model.graph)


def _types(graph: GraphProto) -> dict[str, TypeProto]:
    """The known types of values, including values in sub-graphs."""
    types = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
    for tensor in graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    for inner in (inner for node in graph.node for inner in subgraphs(node)):
        types |= _types(inner)
    return types


def _body(
    node: NodeProto, types: list[TypeProto], versions: Mapping[str, int]
) -> FunctionProto | None:
    """Return the schema's definition for this node, and give it the default attributes."""
    domain, version = plain_domain(node.domain), version_of(node, versions)
    assert version is not None  # `check_nodes` has found the schema
    schema: Any = defs.get_schema(node.op_type, version, domain)
    attribute_names = {a.name for a in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in attribute_names and attribute.default_value.type != AttributeProto.UNDEFINED:
            node.attribute.append(attribute.default_value)
    body = FunctionProto()
    if schema.has_function:
        body.CopyFrom(schema.function_body)
    elif schema.has_context_dependent_function:
        try:
            data = schema.get_context_dependent_function(
                node.SerializeToString(), [t.SerializeToString() for t in types]
            )
        except (RuntimeError, ValueError, TypeError) as error:
            raise ModelError(
                f"{node.op_type} (node {node.name or node.output[0]!r}): ONNX has no definition "
                f"for its inputs and attributes: {str(error).splitlines()[0]}"
            ) from None
        body.ParseFromString(data)
    else:
        return None
    return body
