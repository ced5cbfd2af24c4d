"""The operators that have schemas in ONNX or onnxruntime and that webmlc refuses, each with the
reason and what to do instead.

With the operator table and with the operators that ONNX defines by others, they account for all
schemas of onnxruntime: `webmlc ops` prints the account.
"""

from __future__ import annotations

from collections.abc import Mapping

_REASONS: dict[str, str] = {
    "it works on dictionaries, which webmlc does not compile: do it before the model":
        "ai.onnx.ml.CastMap ai.onnx.ml.DictVectorizer",
    "image files are decoded by the platform: give the model the pixels": "ImageDecoder",
    "only onnxruntime writes it, into graphs in memory: save the model before this optimisation":
        "MemcpyFromHost MemcpyToHost com.microsoft.MaxpoolWithMask",
    "it needs the layout of one kind of processor: save the optimised model at the level 'extended'"
    " at most":
        "com.microsoft.nchwc.AveragePool com.microsoft.nchwc.Conv"
        " com.microsoft.nchwc.GlobalAveragePool com.microsoft.nchwc.GlobalMaxPool"
        " com.microsoft.nchwc.MaxPool com.microsoft.nchwc.ReorderInput"
        " com.microsoft.nchwc.ReorderOutput com.microsoft.nchwc.Upsample",
    "it needs the layout of one execution provider: save the model before it is partitioned":
        "com.ms.internal.nhwc.AveragePool com.ms.internal.nhwc.BatchNormalization"
        " com.ms.internal.nhwc.Conv com.ms.internal.nhwc.ConvTranspose"
        " com.ms.internal.nhwc.DepthToSpace com.ms.internal.nhwc.GlobalAveragePool"
        " com.ms.internal.nhwc.GlobalLpPool com.ms.internal.nhwc.GlobalMaxPool"
        " com.ms.internal.nhwc.GridSample com.ms.internal.nhwc.InstanceNormalization"
        " com.ms.internal.nhwc.LRN com.ms.internal.nhwc.LpPool com.ms.internal.nhwc.MaxPool"
        " com.ms.internal.nhwc.MaxUnpool com.ms.internal.nhwc.QLinearAveragePool"
        " com.ms.internal.nhwc.QLinearConv com.ms.internal.nhwc.QLinearConvTranspose"
        " com.ms.internal.nhwc.Resize com.ms.internal.nhwc.SpaceToDepth",
    "it holds a program that another compiler made: give webmlc the model that this was made from":
        "com.microsoft.EPContext com.microsoft.Snpe",
    "it is a plugin of TensorRT: export the model for onnxruntime without TensorRT":
        "DisentangledAttention_TRT EfficientNMS_TRT MultilevelCropAndResize_TRT"
        " PyramidROIAlign_TRT",
    "onnxruntime has no kernel and ONNX no definition of it: no runtime computes it":
        "GRUUnit GivenTensorFill",
    "it is of training only: export the model for inference":
        "com.microsoft.BitmaskBiasDropout com.microsoft.BitmaskDropout",
    "it manages the memory of a server on a GPU: export the model with MultiHeadAttention or"
    " GroupQueryAttention":
        "com.microsoft.PagedAttention com.microsoft.SparsePagedAttention",
    "it rolls states in the memory of a GPU back: export the model for plain decoding":
        "com.microsoft.ConvStateReplay com.microsoft.GatedDeltaNetStateReplay"
        " com.microsoft.Mamba2Verify com.microsoft.SpeculativePrefixCommit",
    "it selects blocks for a kernel of CUDA: export the model with dense attention":
        "com.microsoft.DynamicSparseAttention com.microsoft.PackedSparseAttentionIndexer"
        " com.microsoft.PackedSparseAttentionIndexerMerge com.microsoft.SparseAttentionIndexer",
    "the bytes of its weights have no documented layout: export the model with MatMulNBits or QMoE":
        "com.microsoft.MatMulFpQ4",
    "it needs the number format of one kind of processor: export the model with QuantizeLinear":
        "com.microsoft.DequantizeBFP com.microsoft.QuantizeBFP",
    "webmlc has no kernels for it yet: report the model that needs it":
        "com.microsoft.AttnLSTM com.microsoft.BifurcationDetector com.microsoft.DecoderAttention"
        " com.microsoft.DynamicTimeWarping"
        " com.microsoft.WordConvEmbedding"
        " com.microsoft.GatedDeltaNet com.microsoft.GatherPacked com.microsoft.MatMulPacked"
        " com.microsoft.MoEPacked"
        " com.microsoft.GemmFloat8"
        " com.microsoft.MatMulBlockQuantizedFp4Weight"
        " com.microsoft.MatMulBlockQuantizedFp8Weight"
        " com.microsoft.NGramHashMapping"
        " com.microsoft.RMSNormRotary"
        " com.microsoft.VarlenCausalConvWithState com.microsoft.VarlenNGramHashMapping",
    "only CUDA computes it, and its roundings of int8 are not documented: export the model with"
    " QAttention, or with LongformerAttention and QuantizeLinear":
        "com.microsoft.QOrderedAttention com.microsoft.QOrderedLongformerAttention",
    "it takes texts apart or joins them as onnxruntime-extensions does: do it before the model, or"
    " with StringNormalizer, StringSplit and StringConcat of ONNX":
        "ai.onnx.contrib.MaskedFill ai.onnx.contrib.StringConcat"
        " ai.onnx.contrib.StringECMARegexReplace ai.onnx.contrib.StringECMARegexSplitWithOffsets"
        " ai.onnx.contrib.StringEqual ai.onnx.contrib.StringJoin ai.onnx.contrib.StringLength"
        " ai.onnx.contrib.StringLower ai.onnx.contrib.StringMapping"
        " ai.onnx.contrib.StringRaggedTensorToDense ai.onnx.contrib.StringRegexReplace"
        " ai.onnx.contrib.StringRegexSplitWithOffsets ai.onnx.contrib.StringSplit"
        " ai.onnx.contrib.StringStrip ai.onnx.contrib.StringToHashBucket"
        " ai.onnx.contrib.StringToHashBucketFast ai.onnx.contrib.StringToVector"
        " ai.onnx.contrib.StringUpper ai.onnx.contrib.VectorToString",
    "it is a tokeniser: encode and decode texts outside the model":
        "ai.onnx.contrib.BasicTokenizer ai.onnx.contrib.BertTokenizer"
        " ai.onnx.contrib.BertTokenizerDecoder ai.onnx.contrib.BlingFireSentenceBreaker"
        " ai.onnx.contrib.BpeDecoder ai.onnx.contrib.CLIPTokenizer ai.onnx.contrib.GPT2Tokenizer"
        " ai.onnx.contrib.HfBertTokenizer ai.onnx.contrib.HfJsonTokenizer"
        " ai.onnx.contrib.RobertaTokenizer ai.onnx.contrib.SentencepieceDecoder"
        " ai.onnx.contrib.SentencepieceTokenizer ai.onnx.contrib.SpmTokenizer"
        " ai.onnx.contrib.TrieDetokenizer ai.onnx.contrib.TrieTokenizer"
        " ai.onnx.contrib.WordpieceTokenizer",
    "it reads or writes a file of a picture or a sound: give the model pixels or samples":
        "ai.onnx.contrib.AudioDecoder ai.onnx.contrib.DecodeImage ai.onnx.contrib.EncodeImage"
        " ai.onnx.contrib.ImageDecoder ai.onnx.contrib.ImageReader",
    "it is a step beside a model, without kernels in webmlc: do it before or after the model":
        "ai.onnx.contrib.DrawBoundingBoxes ai.onnx.contrib.GaussianBlur"
        " ai.onnx.contrib.MergeSignalSegments ai.onnx.contrib.SplitSignalSegments",
    "it reads a sparse tensor: make it dense before the model": "com.microsoft.SparseToDenseMatMul",
}  # fmt: skip

REFUSED: Mapping[str, str] = {
    name: reason for reason, names in _REASONS.items() for name in names.split()
}
"""The reason for each refused operator, by its name, with its domain before it."""
