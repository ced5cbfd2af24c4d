"""Where our answer and onnxruntime's may differ, and why: by operator.

A row allows nothing else: a difference of an operator that no row names fails the fuzzer.
"""

from __future__ import annotations

STRICTER = {
    "Compress": "a true condition beyond the axis selects nothing that there is",
    "NhwcMaxPool": "a window longer than what it moves over",
    "Squeeze": "without axes, a size of 1 would give the result another rank",
    "SkipLayerNormalization": "a skip of more batches than there are, which is not one for each",
    "SkipSimplifiedLayerNormalization": "a skip of more batches than there are",
    "GroupNormalization": "one scale or bias for all channels, where ONNX has one for each",
    "QLinearConcat": "an input without elements whose other sizes are not those of the rest",
    "Attention": "a mask of starts and ends, which no model that we know of has",
    "GlobalAveragePool": "nothing has no mean",
    "GlobalLpPool": "onnxruntime refuses a pool of nothing, but where there is no image",
    **dict.fromkeys(
        ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
         "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
        "an axis that is named twice",
    ),
}  # fmt: skip
"""What ONNX forbids, and onnxruntime computes. Results without elements are allowed of every
operator: onnxruntime does not look at indices and sizes where there is nothing to compute.
"""

LOOSER = {
    "QLinearSoftmax": "a scale of zero or less, which onnxruntime refuses and we divide by",
    "QLinearGlobalAveragePool": "a scale far from 1, which onnxruntime refuses and we divide by",
    "Div": "the quotient of an integer and zero is undefined",
    "Mod": "the remainder of an integer and zero is undefined",
    "If": "sizes that do not fit inside a branch: whether it runs is not known before",
    "Loop": "sizes that do not fit inside a body: whether it runs is not known before",
    "Scan": "sizes that do not fit inside a body: whether it runs is not known before",
}
"""What we compute, and onnxruntime refuses. Results without elements are allowed of every operator:
there is nothing that could be wrong.
"""

DIFFERS = {
    "QGemm": "onnxruntime leaves zeros where nothing is summed; the sum is the bias",
    "NhwcMaxPool": "onnxruntime has a row at least where the window is longer than the map",
}
"""What onnxruntime computes against its definition, or leaves open."""

_ORDER = (
    "0 · infinity and infinity - infinity are NaN: where they arise depends on the order of sums"
)

NOT_FINITE = {
    **dict.fromkeys(
        ("Attention", "BatchNormalization", "CDist", "Conv", "ConvTranspose", "DFT", "DeformConv",
         "Einsum", "FusedConv", "FusedGemm", "FusedMatMul", "Gemm", "GRU", "GroupNormalization",
         "GroupQueryAttention", "InstanceNormalization", "LRN", "LSTM", "LayerNormalization",
         "LpNormalization", "MatMul", "MatMulNBits", "MeanVarianceNormalization",
         "MultiHeadAttention", "RMSNormalization", "RNN", "Resize", "RotaryEmbedding", "STFT",
         "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "TransposeMatMul", "CumSum",
         "QMoE", "MoE", "EmbedLayerNormalization", "BiasSplitGelu", "GatedRMSNorm", "Swish",
         "SimplifiedLayerNormalization", "Softmax", "LogSoftmax", "ReduceLogSumExp", "GridSample",
         "LinearAttention", "CausalConvWithState", "Celu", "Mish", "Gelu", "FastGelu", "BiasGelu",
         "QuickGelu"),
        _ORDER,
    ),
    **dict.fromkeys(
        ("Cast", "CastLike", "QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul",
         "QLinearSoftmax", "MatMulIntegerToFloat", "DequantizeLinear", "QAttention"),
        "the integer that stands for a NaN, or for a number beyond its range, is undefined",
    ),
    **dict.fromkeys(
        ("TopK", "Unique", "ArgMax", "ArgMin", "Hardmax"),
        "the place of a NaN in an order is undefined",
    ),
    **dict.fromkeys(
        ("Sin", "Cos", "Tan"),
        "angles of 2^22 and more count as 0: a float has no digits left that would tell them",
    ),
    **dict.fromkeys(
        ("MaxRoiPool", "RoiAlign", "MaxPool", "GlobalMaxPool", "NhwcMaxPool"),
        "onnxruntime passes over a NaN, or not, by its place in the window",
    ),
}  # fmt: skip
"""Operators that may differ in runs whose inputs hold NaN, infinity or numbers beyond HUGE."""
HUGE = 1e9
