"""The inputs and attributes that the rows of `com.microsoft` read.

onnx has no schemas of these operators, so it refuses no input or attribute that does not exist. A
row must not ignore an unknown input or attribute in silence: a newer onnxruntime may have added it,
and compute another result with it.
"""

from __future__ import annotations

from webmlc.graph.ops.operator import Signature

_WINDOWS = "auto_pad kernel_shape pads strides"
_ACTIVATIONS = "activation activation_alpha activation_beta activation_gamma"

MANY = 1 << 31
"""The number of inputs of an operator that takes any number of them."""

_ENTRIES: dict[str, tuple[int, str]] = {  # the number of inputs, and the names of attributes
    "Attention": (
        6,
        "do_rotary mask_filter_value num_heads past_present_share_buffer"
        " qkv_hidden_sizes rotary_embedding_dim scale unidirectional",
    ),
    "BiasGelu": (2, ""),
    "CDist": (2, "metric"),
    "DequantizeLinear": (3, "axis"),
    "DynamicQuantizeLSTM": (
        12,
        "activation_alpha activation_beta activations clip direction hidden_size input_forget",
    ),
    "DynamicQuantizeMatMul": (5, ""),
    "EmbedLayerNormalization": (9, "epsilon mask_index_type"),
    "ExpandDims": (2, ""),
    "FastGelu": (2, ""),
    "FusedConv": (4, f"{_WINDOWS} activation activation_params dilations group"),
    "FusedGemm": (3, f"{_ACTIVATIONS} alpha beta transA transB"),
    "FusedMatMul": (2, "alpha transA transB transBatchA transBatchB"),
    "GatedAdd": (3, ""),
    "GatedRMSNorm": (3, "activation epsilon"),
    "GatherBlockQuantized": (4, "bits block_size gather_axis quantize_axis"),
    "GatherND": (2, ""),
    "Gelu": (1, ""),
    "GridSample": (2, "align_corners mode padding_mode"),
    "GroupQueryAttention": (
        17,
        "causal do_rotary k_quant_type kv_num_heads local_window_size"
        " num_heads qk_output rotary_interleaved scale sliding_window_cache smooth_softmax softcap"
        " v_quant_type",
    ),
    "Inverse": (1, ""),
    "MatMulIntegerToFloat": (7, ""),
    "MatMulNBits": (6, "K N accuracy_level bits block_size weight_prepacked"),
    "MultiHeadAttention": (10, "mask_filter_value num_heads scale unidirectional"),
    "NhwcMaxPool": (1, f"{_WINDOWS} ceil_mode dilations"),
    "Pad": (3, "mode"),
    "QGemm": (9, "alpha transA transB"),
    "QLinearAdd": (8, ""),
    "QLinearAveragePool": (5, f"{_WINDOWS} ceil_mode channels_last count_include_pad"),
    "QLinearConcat": (MANY, "axis"),
    "QLinearGlobalAveragePool": (5, "channels_last"),
    "QLinearLeakyRelu": (5, "alpha"),
    "QLinearMul": (8, ""),
    "QLinearSigmoid": (5, ""),
    "QLinearSoftmax": (5, "axis opset"),
    "QLinearWhere": (9, ""),
    "QuantizeLinear": (3, "axis"),
    "QuickGelu": (1, "alpha"),
    "Range": (3, ""),
    "RotaryEmbedding": (4, "interleaved is_packed_batching num_heads rotary_embedding_dim scale"),
    "ScaledSiLU": (2, "alpha"),
    "SimplifiedLayerNormalization": (2, "axis epsilon stash_type"),
    "SkipLayerNormalization": (5, "epsilon"),
    "SkipSimplifiedLayerNormalization": (4, "epsilon"),
    "TransposeMatMul": (2, "alpha transA transB"),
    "Trilu": (2, "upper"),
}
SIGNATURES = {
    name: Signature(inputs, frozenset(text.split())) for name, (inputs, text) in _ENTRIES.items()
}
"""The signatures by operator."""
