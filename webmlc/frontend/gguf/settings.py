"""Refuse metadata that would change a decoder's results, if the decoder does not implement it.

In: a file, and its longest context. Out: nothing, or a `ModelError` that names the key and its
value. Every key `<architecture>.<key>` must be in one of three tables. `READ` has the keys that the
reader implements. `HARMLESS` has keys that change no result, and `NEUTRAL` keys that change no
result with certain values. The keys come from the library `gguf` and from llama.cpp.

    llama.final_logit_softcapping = 0.0   ->  accepted: no cap
    llama.final_logit_softcapping = 30.0  ->  ModelError
    llama.attention.something_new = 1     ->  ModelError
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from webmlc.core.errors import ModelError
from webmlc.frontend.gguf.file import GgufFile, shown

READ = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.scale",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "expert_count",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.factor",
        "rope.scaling.type",
    }
)
"""The keys that `architectures.py` and `decoder.py` read."""
HARMLESS: Mapping[str, str] = {
    "attention.layer_norm_epsilon": "the decoder has RMS norms only",
    "rope.scaling.finetuned": "tells about training",
    "rope.scaling.original_context_length": "belongs to scalings that are refused",
    "rope.scaling.yarn_attn_factor": "belongs to the scaling yarn, which is refused",
    "rope.scaling.yarn_beta_fast": "belongs to the scaling yarn, which is refused",
    "rope.scaling.yarn_beta_slow": "belongs to the scaling yarn, which is refused",
    "rope.scaling.yarn_ext_factor": "belongs to the scaling yarn, which is refused",
    "rope.scaling.yarn_log_multiplier": "belongs to the scaling yarn, which is refused",
    "tensor_data_layout": "tells where the tensors come from",
    "vocab_size": "the list of tokens says it, and the shape of the embedding",
}
"""Keys that change no result, with the reason."""
NEUTRAL: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "attention.causal": ((True,), "tokens that see later ones"),
    "attention.clamp_kqv": ((0,), "limits of queries, keys and values"),
    "attention.max_alibi_bias": ((0,), "biases of positions"),
    "attention.output_scale": ((0, 1), "a scale of the attention's output"),
    "attention.temperature_length": ((0,), "a temperature of long contexts"),
    "attention.temperature_scale": ((0,), "a temperature of long contexts"),
    "attn_logit_softcapping": ((0,), "a soft cap of scores"),
    "embedding_scale": ((0, 1), "a scale of the embedding"),
    "expert_group_count": ((0,), "experts"),
    "expert_group_used_count": ((0,), "experts"),
    "expert_shared_count": ((0,), "experts"),
    "expert_used_count": ((0,), "experts"),
    "final_logit_softcapping": ((0,), "a soft cap of logits"),
    "leading_dense_block_count": ((0,), "experts"),
    "logit_scale": ((0, 1), "a scale of logits"),
    "nextn_predict_layers": ((0,), "layers that predict further tokens"),
    "pooling_type": ((0,), "embeddings of texts instead of next tokens"),
    "residual_scale": ((0, 1), "a scale of each layer"),
    "rope.scaling.attn_factor": ((1,), "a scale of rotated queries and keys"),
    "use_parallel_residual": ((False,), "parallel attention and feed-forward network"),
}
"""The values with which a key changes no result, and the feature that other values ask for. In
llama.cpp, 0 switches a scale off.
"""


def check_settings(file: GgufFile, positions: int) -> None:
    """Check every key of the architecture. `positions` is the longest context.

    Raises `ModelError` for the first key that asks for a feature that the decoder lacks.
    """
    prefix = f"{file.architecture}."
    for name in sorted(name for name in file.metadata if name.startswith(prefix)):
        key, value = name.removeprefix(prefix), file.metadata[name]
        if key in READ or key in HARMLESS:
            continue
        if key in NEUTRAL:
            values, effect = NEUTRAL[key]
            if not any(value == neutral for neutral in values):
                raise ModelError(
                    f"{file.path}: {name} is {shown(value)}. That asks for {effect}, which webmlc "
                    "does not support in GGUF models."
                )
        elif key == "attention.sliding_window":
            _check_window(file, positions)
        else:
            raise ModelError(
                f"{file.path}: {name} is {shown(value)}. webmlc does not know what this changes, "
                "and would compute something else."
            )


def _check_window(file: GgufFile, positions: int) -> None:
    """Refuse a window of attention that is shorter than the context. 0 means no window."""
    window = file.number("attention.sliding_window")
    if window and window < positions:
        raise ModelError(
            f"{file.path}: {file.architecture}.attention.sliding_window is {window}, but the "
            f"context has {positions} tokens. Windows of attention are not supported. Build with "
            f"--context {int(window)}."
        )
