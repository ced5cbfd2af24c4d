"""Write a sentence encoder of the BERT family as ONNX, with mean pooling and normalisation inside.

In: the weights of a Hugging Face `BertModel`, by name. Out: a model that maps `input_ids` and
`attention_mask`, int64 [sentences, tokens], to `embedding`, float32 [sentences, hidden], with
vectors of length 1. The product of two embeddings is then their cosine.

The layers are those of Devlin et al., "BERT" (2019), section 3. Reimers and Gurevych,
"Sentence-BERT" (2019), section 3, describe the pooling.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

OPSET = 20
"""The first opset with Gelu."""
EPSILON = 1e-12
"""BERT's layer normalisations add this to the variance."""


class _Writer:
    """Nodes and constants of a graph. Each method returns the name of a value."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.initialisers: list[TensorProto] = []

    def constant(self, array: ArrayLike) -> str:
        name = f"constant_{len(self.initialisers)}"
        self.initialisers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], output, **attributes))
        return output


def sentence_encoder(weights: Mapping[str, NDArray[np.float32]], heads: int) -> ModelProto:
    """Write the encoder. `heads` is the number of attention heads of each layer."""
    w = _Writer()
    hidden = weights["embeddings.word_embeddings.weight"].shape[1]
    split_shape = w.constant(np.array([0, 0, heads, hidden // heads]))
    joined_shape = w.constant(np.array([0, 0, hidden]))

    def linear(name: str, value: str) -> str:
        product = w.node("MatMul", value, w.constant(weights[f"{name}.weight"].T))
        return w.node("Add", product, w.constant(weights[f"{name}.bias"]))

    def normalise(name: str, value: str) -> str:
        scale, bias = (w.constant(weights[f"{name}.{part}"]) for part in ("weight", "bias"))
        return w.node("LayerNormalization", value, scale, bias, axis=-1, epsilon=EPSILON)

    def attention(name: str, value: str, mask: str) -> str:
        query, key, product = (
            w.node("Transpose", w.node("Reshape", part, split_shape), perm=order)
            for part, order in (
                (linear(f"{name}.query", value), (0, 2, 1, 3)),
                (linear(f"{name}.key", value), (0, 2, 3, 1)),
                (linear(f"{name}.value", value), (0, 2, 1, 3)),
            )
        )
        scale = w.constant(np.float32((hidden // heads) ** -0.5))
        scores = w.node("Add", w.node("Mul", w.node("MatMul", query, key), scale), mask)
        context = w.node("MatMul", w.node("Softmax", scores, axis=-1), product)
        return w.node("Reshape", w.node("Transpose", context, perm=(0, 2, 1, 3)), joined_shape)

    count = w.node("Shape", "input_ids", start=1, end=2)
    first, axes, step = (w.constant(np.array([n])) for n in (0, 0, 1))
    positions = w.constant(weights["embeddings.position_embeddings.weight"])
    words = w.node("Gather", w.constant(weights["embeddings.word_embeddings.weight"]), "input_ids")
    value = w.node("Add", words, w.node("Slice", positions, first, count, axes, step))
    sentence_type = w.constant(weights["embeddings.token_type_embeddings.weight"][0])
    value = normalise("embeddings.LayerNorm", w.node("Add", value, sentence_type))

    is_token = w.node("Cast", "attention_mask", to=TensorProto.FLOAT)
    is_padding = w.node("Sub", w.constant(np.float32(1)), is_token)
    lowest = w.constant(np.finfo(np.float32).min)
    mask = w.node("Unsqueeze", w.node("Mul", is_padding, lowest), w.constant(np.array([1, 2])))
    layers = 1 + max(int(n.split(".")[2]) for n in weights if n.startswith("encoder.layer."))
    for layer in (f"encoder.layer.{index}" for index in range(layers)):
        context = linear(
            f"{layer}.attention.output.dense", attention(f"{layer}.attention.self", value, mask)
        )
        value = normalise(f"{layer}.attention.output.LayerNorm", w.node("Add", context, value))
        inner = w.node("Gelu", linear(f"{layer}.intermediate.dense", value))
        outer = w.node("Add", linear(f"{layer}.output.dense", inner), value)
        value = normalise(f"{layer}.output.LayerNorm", outer)

    # The length of the mean does not matter, because its direction is all that is left.
    weight = w.node("Unsqueeze", is_token, w.constant(np.array([2])))
    total = w.node("ReduceSum", w.node("Mul", value, weight), w.constant(np.array([1])), keepdims=0)
    length = w.node("ReduceL2", total, w.constant(np.array([1])), keepdims=1)
    w.node("Div", total, length, output="embedding")
    return _model(w, hidden)


def _model(w: _Writer, hidden: int) -> ModelProto:
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["sentences", "tokens"])
        for name in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["sentences", hidden])
    graph = helper.make_graph(w.nodes, "sentence_encoder", inputs, [output], w.initialisers)
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)
