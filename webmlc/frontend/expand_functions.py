"""Replace operators that ONNX itself defines by other operators with their definitions.

In: a model. Out: the model without the operators of `FUNCTIONS`. Each such node calls a separate
function, which the schema defines for its input types and attributes. All these functions are then
inlined. An operator that a row of `graph/ops` computes better (LayerNormalization, Softmax, Gelu,
...) is not in `FUNCTIONS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    inliner,
)

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
    """Replace the operators of `FUNCTIONS` by ONNX's function bodies, also within such bodies."""
    for _ in range(MAX_DEFINITION_DEPTH):
        if not any(_is_function(node) for node in _nodes(model.graph)):
            break
        model = _expand(model)
    return model


def _is_function(node: NodeProto) -> bool:
    return node.op_type in FUNCTIONS.get(_domain(node.domain), ())


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _expand(model: ModelProto) -> ModelProto:
    """Expand one level: turn every function node into a call of a local function, and inline it."""
    typed_model = onnx.shape_inference.infer_shapes(model, data_prop=False)
    types = _types(typed_model.graph)
    versions = {_domain(o.domain): o.version for o in model.opset_import}
    result = ModelProto()
    result.CopyFrom(model)
    declared_names = {
        v.name for v in (*model.graph.input, *model.graph.value_info, *model.graph.output)
    }
    result.graph.value_info.extend(  # the inliner ignores the types of initialisers
        onnx.helper.make_value_info(t.name, types[t.name])
        for t in model.graph.initializer
        if t.name not in declared_names
    )
    for number, node in enumerate(_nodes(result.graph)):
        if not _is_function(node):
            continue
        body = _body(node, [types.get(i, TypeProto()) for i in node.input], versions)
        if body is None:
            continue
        body.domain, body.name = DOMAIN, f"{node.op_type}_{number}"
        result.functions.append(body)
        node.domain, node.op_type = body.domain, body.name
    result.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    inlined = inliner.inline_local_functions(result, convert_version=True)
    opsets = [o for o in inlined.opset_import if o.domain != DOMAIN]
    del inlined.opset_import[:]
    inlined.opset_import.extend(opsets)
    return inlined


def _types(graph: GraphProto) -> dict[str, TypeProto]:
    """The known types of values, including those in sub-graphs."""
    types = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
    for tensor in graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                types |= _types(attribute.g)
    return types


def _body(
    node: NodeProto, types: list[TypeProto], versions: Mapping[str, int]
) -> FunctionProto | None:
    """Return the schema's definition for this node, and give it the default attributes."""
    domain = _domain(node.domain)
    schema: Any = defs.get_schema(node.op_type, versions[domain], domain)
    attribute_names = {a.name for a in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in attribute_names and attribute.default_value.type != AttributeProto.UNDEFINED:
            node.attribute.append(attribute.default_value)
    body = FunctionProto()
    if schema.has_function:
        body.CopyFrom(schema.function_body)
    elif schema.has_context_dependent_function:
        data = schema.get_context_dependent_function(
            node.SerializeToString(), [t.SerializeToString() for t in types]
        )
        body.ParseFromString(data)
    else:
        return None
    return body
