"""Forms of operators that no kernel computes are refused with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graph.ops.test_wrong_shapes import reason

X, ROI = "float32[1, 1, 4, 6]", np.array([0, 0, 0.1, 0.2, 1, 1, 0.8, 0.9], np.float32)
SIZES = np.array([1, 1, 5, 9])
TOKENS, MORE = "float32[2, 3, 8]", "float32[2, 5, 8]"
LAYER = ("float32[3, 2, 4]", "float32[1, 5, 4]", "float32[1, 5, 5]")
GRAMS: dict[str, Any] = {
    "ngram_counts": (0, 2), "ngram_indexes": (0, 1, 2), "pool_int64s": (2, 3, 5, 4),
    "mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0,
}  # fmt: skip
BITS = (
    "float32[3, 32]", np.arange(64, dtype=np.uint8).reshape(4, 1, 16), np.ones(4, np.float32),
)  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "message"),
    [
        ("Gemm", ("int32[3, 4]", "int32[4, 5]"), {"alpha": 0.5},
         "alpha is 0.5, and it multiplies int32 numbers"),
        ("Gemm", ("int64[3, 4]", "int64[4, 5]", "int64[5]"), {"beta": 1.5},
         "beta is 1.5, and it multiplies int64 numbers"),
        ("Concat", ("float32[]", "float32[]"), {"axis": 0},
         "scalars have no axis to concatenate: unsqueeze them first"),
        ("ConvTranspose", ("float32[3, 4]", "float32[4, 5]"), {},
         "a kernel of shape [] over rank 2"),
        ("ConvTranspose", ("float32[1, 2, 5, 5]", "float32[2, 2, 3, 3]"), {"strides": (2,)},
         "strides, dilations and pads are not of 2 dimensions"),
        ("SimplifiedLayerNormalization", ("float32[3, 4]",), {},
         "input 1 is left out; the operator needs 2"),
        ("EyeLike", ("float32[3, 4]",), {"dtype": 14}, "element type 14 is not supported"),
        ("QuantizeLinear", ("float32[4]", np.float32(1), np.uint8(3)), {"output_dtype": 3},
         "output_dtype int8 with a zero point of uint8"),
        ("QuantizeLinear", ("float32[2, 4]", np.ones(4, np.float32), np.zeros(4, np.uint8)),
         {"block_size": 2}, "parameters of rank 1 for a tensor of 2"),
        ("Resize", (X, None, None, SIZES), {"exclude_outside": 1},
         "exclude_outside of mode nearest, which reads one element"),
        ("Resize", (X, ROI, None, SIZES),
         {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear",
          "keep_aspect_ratio_policy": "not_larger"},
         "keep_aspect_ratio_policy of a region (tf_crop_and_resize): give its sizes"),
        ("TfIdfVectorizer", ("int64[9] in 2..8",), {**GRAMS, "max_gram_length": 3},
         "n-grams of 1 to 3 items; the pool has those of 1 to 2"),
        ("TfIdfVectorizer", ("int64[9] in 2..8",), {**GRAMS, "ngram_counts": (2, 0)},
         "ngram_counts [2, 0] for a pool of 4 items"),
        ("TfIdfVectorizer", ("int64[9] in 2..8",), {**GRAMS, "max_skip_count": -1},
         "max_skip_count -1"),
        ("RNN", LAYER, {"hidden_size": 5, "activations": ("ScaledTanh",)},
         "the activation ScaledTanh without an activation_alpha and an activation_beta of its own: "
         "ONNX has no defaults for them"),
    ],
)  # fmt: skip
def test_a_form_is_refused(
    operator: str, inputs: tuple[Any, ...], attributes: dict[str, Any], message: str
) -> None:
    assert reason(operator, *inputs, **attributes) == message


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "message"),
    [
        ("FusedMatMul", ("int32[3, 4]", "int32[4, 5]"), {"alpha": 0.5},
         "alpha is 0.5, and it multiplies int32 numbers"),
        ("QGemm", ("uint8[3, 5]", np.float32(1), np.uint8(0), "uint8[5, 4]", np.float32(1),
                   np.uint8(0), None, None, np.uint8(3)), {},
         "a zero point of the output without a scale"),
        ("MultiHeadAttention", (TOKENS, MORE, MORE), {"num_heads": 2, "unidirectional": 1},
         "unidirectional attention of 3 queries to 5 keys"),
        ("MatMulNBits", BITS, {"K": 32, "N": 4, "block_size": 32, "weight_prepacked": 1},
         "weights that are packed for a GPU (weight_prepacked)"),
        ("DynamicQuantizeLSTM",
         ("float32[3, 2, 4]", "int8[1, 4, 20] in -99..99", "int8[1, 5, 20] in -99..99", None,
          np.array([3, 1], np.int32)), {"hidden_size": 5},
         "sequence_lens: onnxruntime's scale of a step depends on when the sequences end"),
        ("GroupQueryAttention",
         ("float32[2, 1, 128]", None, None, *("float32[2, 2, 4, 16]",) * 2,
          np.array([4, 4], np.int32), np.int32(5)),
         {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 0},
         "a local_window_size of 0: no token sees any"),
        ("FusedMatMulActivation", ("float32[3, 4]", "float32[4, 5]"),
         {"activation": "HardSigmoid", "activation_beta": 0.4},
         "the activation HardSigmoid without its alpha"),
        ("FusedGemm", ("float32[3, 4]", "float32[4, 5]"), {"activation": "Clip"},
         "the activation Clip without its alpha and beta"),
        ("QMoE", ("float32[6, 32]", "float32[6, 4]", np.zeros((4, 16, 16), np.uint8),
                  np.ones((4, 16), np.float32), None, np.zeros((4, 32, 8), np.uint8),
                  np.ones((4, 32), np.float32)), {"k": 2, "weights_prepacked": 1},
         "weights that are packed for a GPU (weights_prepacked)"),
        ("MatMulNBitsMlp", ("float32[3, 32]", "float32[3, 32]", None, *BITS[1:], None, *BITS[1:]),
         {"K": 32, "N": 4, "block_size": 32, "activation": "silu"},
         "a skip without a norm_scale: add it before the operator"),
        ("DecoderMaskedMultiHeadAttention",
         ("float32[2, 2, 8]",) * 3 + (None, None) + ("float32[2, 2, 4, 4]",) * 2,
         {"num_heads": 2}, "input 0 is of shape [2, 2, 8], not [batch, 1, heads*size], where "
         "batch = 2, heads = 2"),
        ("DecoderMaskedSelfAttention",
         ("float32[2, 2, 8]", "float32[8, 24]", "float32[24]", None, "float32[2, 2, 2, 4, 4]"),
         {"num_heads": 2}, "input 0 is of shape [2, 2, 8], not [batch, 1, features], where "
         "batch = 2"),
        ("GroupNorm", ("float32[2, 4, 4, 8]", "float32[8]", "float32[8]"),
         {"groups": 4, "activation": 2}, "the activation 2: it is 0 for none or 1 for SiLU"),
        ("RotaryEmbedding",
         ("float32[2, 3, 16]", "int64[1] in 0..2", "float32[9, 4]", "float32[9, 4]"),
         {"rotary_embedding_dim": 8}, "rotary_embedding_dim without num_heads"),
        ("MatMulBnb4", ("float32[3, 32]", np.zeros(80, np.uint8), np.ones(9, np.float32)),
         {"K": 32, "N": 5, "block_size": 16, "quant_type": 1},
         "80 bytes of weights and 9 greatest numbers, not 80 bytes and 10 blocks of 16 elements"),
        ("MatMulBnb4", ("float32[3, 32]", np.zeros(80, np.uint8), np.ones(10, np.float32)),
         {"K": 32, "N": 5, "block_size": 16, "quant_type": 2},
         "quant_type 2: it is 0 for FP4 or 1 for NF4"),
    ],
)  # fmt: skip
def test_a_form_of_an_onnxruntime_operator_is_refused(
    operator: str, inputs: tuple[Any, ...], attributes: dict[str, Any], message: str
) -> None:
    assert reason(operator, *inputs, domain="com.microsoft", **attributes) == message
