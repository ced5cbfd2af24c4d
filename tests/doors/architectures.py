"""Tiny models of the architectures of Hugging Face's transformers, with random weights.

Each row of `ARCHITECTURES` makes a model of one or two layers, and its inputs for a batch of any
size. `REFUSED` lists what an exporter cannot do, `REPRESENTATIVE` the rows that CI runs: one for
each kind of layer that the others repeat. Longformer is no row: torch.export refuses it, and what
the older exporter writes of it computes other values, in onnxruntime, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import transformers as hf
from torch import Tensor, nn

Exporter = Literal["dynamo", "legacy"]
Inputs = dict[str, Tensor]

VOCABULARY = 99
TOKENS = 12
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
ENCODER = {**SIZES, "vocab_size": VOCABULARY, "max_position_embeddings": 64}
DECODER = {**ENCODER, "use_cache": False}
GROUPED = {**DECODER, "num_key_value_heads": 2}
VISION = {**SIZES, "image_size": 32, "patch_size": 8}
FEATURES = {"hidden_sizes": [8, 16, 32, 32], "depths": [1, 1, 1, 1]}
GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
PAIR = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "use_cache": False,
}
TEXT_PAIR = {**PAIR, "max_position_embeddings": 64}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "use_cache": False,
}
SPEECH = {
    **SIZES,
    "vocab_size": VOCABULARY,
    "num_feat_extract_layers": 3,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0,
    "apply_spec_augment": False,
}


@dataclass(frozen=True)
class Architecture:
    """How to make a model, and its inputs for a batch of some size."""

    model: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]


def ids(batch: int, tokens: int = TOKENS) -> Tensor:
    return torch.randint(5, VOCABULARY, (batch, tokens))


def tokens(batch: int) -> Inputs:
    """Token ids and a mask. The last text of a larger batch is shorter than the others."""
    mask = torch.ones(batch, TOKENS, dtype=torch.long)
    mask[1:][-1:, -4:] = 0
    return {"input_ids": ids(batch), "attention_mask": mask}


def text(configuration: Any, kind: Any, **options: Any) -> Architecture:
    return Architecture(lambda: kind(configuration(**options)), tokens)


def image(configuration: Any, kind: Any, size: int = 32, **options: Any) -> Architecture:
    def inputs(batch: int) -> Inputs:
        return {"pixel_values": torch.randn(batch, 3, size, size)}

    return Architecture(lambda: kind(configuration(**options)), inputs)


def translation(configuration: Any, kind: Any, **options: Any) -> Architecture:
    def inputs(batch: int) -> Inputs:
        return {**tokens(batch), "decoder_input_ids": ids(batch, 7)}

    return Architecture(lambda: kind(configuration(**options)), inputs)


def speech(configuration: Any, kind: Any) -> Architecture:
    def inputs(batch: int) -> Inputs:
        return {"input_values": torch.randn(batch, 1600)}

    return Architecture(lambda: kind(configuration(**SPEECH)), inputs)


def text_and_image(configuration: Any, kind: Any, has_mask: bool, **options: Any) -> Architecture:
    def inputs(batch: int) -> Inputs:
        words = tokens(batch) if has_mask else {"input_ids": ids(batch)}
        return {**words, "pixel_values": torch.randn(batch, 3, 32, 32)}

    return Architecture(lambda: kind(configuration(**options)), inputs)


def _without(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def _detr() -> nn.Module:
    backbone = hf.ResNetConfig(embedding_size=8, out_features=["stage4"], **FEATURES)
    return hf.DetrForObjectDetection(
        hf.DetrConfig(
            **_without(PAIR, "vocab_size", "decoder_start_token_id", "use_cache"),
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=backbone,
            num_queries=6,
        )
    )


def _samples(batch: int) -> Inputs:
    return {"input_values": torch.randn(batch, 64, 32)}


def _video(batch: int) -> Inputs:
    return {"pixel_values": torch.randn(batch, 4, 3, 32, 32)}


def _mel(batch: int) -> Inputs:
    return {
        "input_features": torch.randn(batch, 80, 100),
        "decoder_input_ids": ids(batch, 7),
    }


ARCHITECTURES = {
    # Encoders of text.
    "bert": text(hf.BertConfig, hf.BertModel, **ENCODER),
    "roberta": text(hf.RobertaConfig, hf.RobertaForTokenClassification, pad_token_id=1, **ENCODER),
    "xlm_roberta": text(hf.XLMRobertaConfig, hf.XLMRobertaForQuestionAnswering, **ENCODER),
    "distilbert": text(
        hf.DistilBertConfig, hf.DistilBertForSequenceClassification,
        vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=64,
    ),
    "albert": text(hf.AlbertConfig, hf.AlbertModel, embedding_size=16, **ENCODER),
    "electra": text(hf.ElectraConfig, hf.ElectraModel, embedding_size=16, **ENCODER),
    "deberta": text(
        hf.DebertaConfig, hf.DebertaModel,
        relative_attention=True, pos_att_type=["p2c", "c2p"], **ENCODER,
    ),
    "deberta_v2": text(
        hf.DebertaV2Config, hf.DebertaV2Model,
        relative_attention=True, position_buckets=8, norm_rel_ebd="layer_norm",
        share_att_key=True, pos_att_type=["p2c", "c2p"], **ENCODER,
    ),
    "mpnet": text(hf.MPNetConfig, hf.MPNetModel, **ENCODER),
    "modernbert": text(
        hf.ModernBertConfig, hf.ModernBertForMaskedLM, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, cls_token_id=1, sep_token_id=2, local_attention=8, **ENCODER,
    ),
    "mobilebert": text(
        hf.MobileBertConfig, hf.MobileBertModel,
        embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16, **ENCODER,
    ),
    "squeezebert": text(
        hf.SqueezeBertConfig, hf.SqueezeBertModel,
        embedding_size=32, q_groups=2, k_groups=2, v_groups=2, **ENCODER,
    ),
    "big_bird": text(hf.BigBirdConfig, hf.BigBirdModel, attention_type="original_full", **ENCODER),
    "fnet": Architecture(
        lambda: hf.FNetModel(hf.FNetConfig(**_without(ENCODER, "num_attention_heads"))),
        lambda batch: {"input_ids": ids(batch)},
    ),
    # Decoders of text.
    "gpt2": text(hf.GPT2Config, hf.GPT2LMHeadModel, use_cache=False, **GPT),
    "gpt_neo": text(
        hf.GPTNeoConfig, hf.GPTNeoForCausalLM, vocab_size=VOCABULARY, hidden_size=32, num_layers=2,
        num_heads=4, attention_types=[[["global", "local"], 1]], window_size=8, use_cache=False,
    ),
    "gpt_neox": text(hf.GPTNeoXConfig, hf.GPTNeoXForCausalLM, **DECODER),
    "gptj": text(hf.GPTJConfig, hf.GPTJForCausalLM, rotary_dim=4, use_cache=False, **GPT),
    "codegen": text(hf.CodeGenConfig, hf.CodeGenForCausalLM, rotary_dim=4, use_cache=False, **GPT),
    "opt": text(
        hf.OPTConfig, hf.OPTForCausalLM, vocab_size=VOCABULARY, hidden_size=32, ffn_dim=64,
        word_embed_proj_dim=32, num_hidden_layers=2, num_attention_heads=4, use_cache=False,
    ),
    "bloom": text(
        hf.BloomConfig, hf.BloomForCausalLM,
        vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, use_cache=False,
    ),
    "llama": text(hf.LlamaConfig, hf.LlamaForCausalLM, **GROUPED),
    "mistral": text(hf.MistralConfig, hf.MistralForCausalLM, sliding_window=8, **GROUPED),
    "mixtral": text(hf.MixtralConfig, hf.MixtralForCausalLM, num_local_experts=4, **GROUPED),
    "qwen2": text(hf.Qwen2Config, hf.Qwen2ForCausalLM, **GROUPED),
    "qwen3": text(hf.Qwen3Config, hf.Qwen3ForCausalLM, head_dim=8, **GROUPED),
    "gemma": text(hf.GemmaConfig, hf.GemmaForCausalLM, head_dim=8, **GROUPED),
    "gemma2": text(
        hf.Gemma2Config, hf.Gemma2ForCausalLM, head_dim=8, sliding_window=8, **GROUPED
    ),
    "gemma3": text(
        hf.Gemma3TextConfig, hf.Gemma3ForCausalLM, head_dim=8, sliding_window=8, **GROUPED
    ),
    "phi": text(hf.PhiConfig, hf.PhiForCausalLM, **DECODER),
    "phi3": text(hf.Phi3Config, hf.Phi3ForCausalLM, pad_token_id=0, **GROUPED),
    "stablelm": text(hf.StableLmConfig, hf.StableLmForCausalLM, **GROUPED),
    "falcon": text(
        hf.FalconConfig, hf.FalconForCausalLM, vocab_size=VOCABULARY, hidden_size=32,
        num_hidden_layers=2, num_attention_heads=4, use_cache=False,
    ),
    # Pairs of an encoder and a decoder.
    "t5_encoder": text(hf.T5Config, hf.T5EncoderModel, **T5),
    "t5": translation(hf.T5Config, hf.T5ForConditionalGeneration, **T5),
    "bart": translation(hf.BartConfig, hf.BartForConditionalGeneration, **TEXT_PAIR),
    "marian": translation(hf.MarianConfig, hf.MarianMTModel, **TEXT_PAIR),
    "pegasus": translation(hf.PegasusConfig, hf.PegasusForConditionalGeneration, **TEXT_PAIR),
    "whisper": Architecture(
        lambda: hf.WhisperForConditionalGeneration(
            hf.WhisperConfig(max_source_positions=50, max_target_positions=64, **PAIR)
        ),
        _mel,
    ),
    # Sound.
    "wav2vec2": speech(hf.Wav2Vec2Config, hf.Wav2Vec2ForCTC),
    "hubert": speech(hf.HubertConfig, hf.HubertModel),
    "ast": Architecture(
        lambda: hf.ASTForAudioClassification(
            hf.ASTConfig(
                max_length=64, num_mel_bins=32, frequency_stride=8, time_stride=8,
                **_without(VISION, "image_size"),
            )
        ),
        _samples,
    ),
    # Images.
    "vit": image(hf.ViTConfig, hf.ViTForImageClassification, **VISION),
    "deit": image(hf.DeiTConfig, hf.DeiTModel, **VISION),
    "beit": image(hf.BeitConfig, hf.BeitModel, use_relative_position_bias=True, **VISION),
    "swin": image(
        hf.SwinConfig, hf.SwinModel, image_size=32, patch_size=2, embed_dim=16, depths=[1, 2],
        num_heads=[2, 4], window_size=4,
    ),
    "convnext": image(hf.ConvNextConfig, hf.ConvNextModel, size=64, **FEATURES),
    "resnet": image(hf.ResNetConfig, hf.ResNetModel, size=64, embedding_size=8, **FEATURES),
    "mobilenet_v2": image(
        hf.MobileNetV2Config, hf.MobileNetV2Model, size=64, depth_multiplier=0.25
    ),
    "efficientnet": image(
        hf.EfficientNetConfig, hf.EfficientNetModel, size=64, image_size=64,
        in_channels=[32, 16, 24], out_channels=[16, 24, 40], strides=[1, 2, 2],
        kernel_sizes=[3, 3, 5], num_block_repeats=[1, 1, 2], expand_ratios=[1, 6, 6],
        depthwise_padding=[], width_coefficient=0.5, depth_coefficient=1.0, hidden_dim=640,
    ),
    "segformer": image(
        hf.SegformerConfig, hf.SegformerForSemanticSegmentation, size=64, num_encoder_blocks=2,
        depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[16, 32], patch_sizes=[7, 3], strides=[4, 2],
        num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=32,
    ),
    "detr": Architecture(_detr, lambda batch: {"pixel_values": torch.randn(batch, 3, 64, 64)}),
    "yolos": image(
        hf.YolosConfig, hf.YolosForObjectDetection,
        **{**VISION, "image_size": [32, 32]}, num_detection_tokens=5,
    ),
    "dpt": image(
        hf.DPTConfig, hf.DPTForDepthEstimation, **{**VISION, "num_hidden_layers": 4},
        backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 16, 32, 32], fusion_hidden_size=16,
    ),
    "videomae": Architecture(
        lambda: hf.VideoMAEModel(hf.VideoMAEConfig(num_frames=4, tubelet_size=2, **VISION)), _video
    ),
    # Text and images.
    "clip": text_and_image(
        hf.CLIPConfig, hf.CLIPModel, has_mask=True, projection_dim=16,
        text_config={**ENCODER, "eos_token_id": 2, "projection_dim": 16},
        vision_config={**VISION, "projection_dim": 16},
    ),
    "siglip": text_and_image(
        hf.SiglipConfig, hf.SiglipModel, has_mask=False, text_config=ENCODER, vision_config=VISION
    ),
}  # fmt: skip
"""Models of one or two layers, by the name of their architecture."""

REFUSED: dict[tuple[str, Exporter], str] = {
    ("fnet", "legacy"): "aten::fft_fftn",
    ("mixtral", "legacy"): "aten::histc",
    ("whisper", "legacy"): "aten::diff",
}
"""The architectures that an exporter refuses, with the words of its refusal."""

REPRESENTATIVE = (
    "bert", "deberta_v2", "modernbert", "gpt2", "gemma3", "t5", "whisper", "wav2vec2", "swin",
    "mobilenet_v2", "segformer", "clip",
)  # fmt: skip
"""The architectures that CI runs."""
ON_GPU = ("bert", "llama", "segformer")
"""The architectures that run on the GPU, too."""
