"""Operators that ONNX itself defines by other operators are replaced by that definition.

In: a model. Out: the model without the operators of `FUNCTIONS`; what a row of `graph/ops` says
better or faster (LayerNormalization, Softmax, Gelu, ...) is not in that list.
"""

from __future__ import annotations

from onnx import GraphProto, ModelProto, inliner

FUNCTIONS = (
    "AffineGrid",
    "Attention",
    "BlackmanWindow",
    "CenterCropPad",
    "DynamicQuantizeLinear",
    "HammingWindow",
    "HannWindow",
    "MeanVarianceNormalization",
    "NegativeLogLikelihoodLoss",
    "RotaryEmbedding",
    "SoftmaxCrossEntropyLoss",
    "SwiGLU",
)
"""Names in the ai.onnx domain; no row of the operator table has one of them."""


def expand_functions(model: ModelProto) -> ModelProto:
    """Replace the operators of `FUNCTIONS` by ONNX's own function bodies, bodies in bodies too."""
    if not _uses(model.graph):
        return model
    names = [("", name) for name in FUNCTIONS]
    return inliner.inline_selected_functions(model, names, inline_schema_functions=True)


def _uses(graph: GraphProto) -> bool:
    return any(
        (node.domain in ("", "ai.onnx") and node.op_type in FUNCTIONS)
        or any(a.HasField("g") and _uses(a.g) for a in node.attribute)
        for node in graph.node
    )
