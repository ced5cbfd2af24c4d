"""The architectures that can be read, one row each, and the sizes of a model.

In: a file. Out: the `Sizes` that `decoder.py` builds the graph by.

Metadata that would change a decoder's results is refused, if the decoder does not implement it.
Every key `<architecture>.<key>` must be in one of three tables. `READ` has the keys that the reader
implements. `HARMLESS` has keys that change no result, and `NEUTRAL` keys that change no result with
certain values. The keys come from the library `gguf` and from llama.cpp.

    llama.final_logit_softcapping = 0.0   ->  accepted: no cap
    llama.final_logit_softcapping = 30.0  ->  ModelError
    llama.attention.something_new = 1     ->  ModelError

All rows are decoders of the same kind: RMS norm, attention with rotary embedding, RMS norm, and a
gated feed-forward network (SwiGLU). A row says how its decoder differs from other decoders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from webmlc.frontend.gguf.file import GgufFile, shown
from webmlc.graph.ir import Array


@dataclass(frozen=True, slots=True)
class Architecture:
    """The differences between the decoders of this architecture and of other architectures.

    - `is_interleaved`: the rotary embedding rotates neighbours, `2 * i` with `2 * i + 1`. Otherwise
      it rotates `i` with `i + size / 2`.
    - `has_biases`: the products of queries, keys and values have biases. (If this is false, a file
      may still have some biases.)
    - `has_head_norms`: each head of queries and keys has an RMS norm before its rotation.
    """

    is_interleaved: bool = False
    has_biases: bool = False
    has_head_norms: bool = False


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(is_interleaved=True),  # SmolLM2, Llama 2 and 3, TinyLlama, Mistral
    "qwen2": Architecture(has_biases=True),
    "qwen3": Architecture(has_head_norms=True),
}
"""The architectures by the name in `general.architecture`."""

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
"""The keys that this module and `decoder.py` read."""
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


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes and numbers of a decoder.

    `heads` of queries share `groups` heads of keys and values, of `size` elements each. `hidden` is
    the width of the feed-forward network. `positions` is the longest context. `frequencies` holds
    the angles, at position 1, of each pair of elements that the rotary embedding rotates.
    """

    layers: int
    width: int
    heads: int
    groups: int
    size: int
    hidden: int
    vocabulary: int
    positions: int
    epsilon: float
    frequencies: Array


def architecture_of(file: GgufFile) -> Architecture:
    """The row of the file's architecture. Raises `ModelError` if no row has this name."""
    name = file.architecture
    if name not in ARCHITECTURES:
        raise file.error(
            f"the architecture {name!r} is not supported. webmlc reads GGUF models of "
            f"the architectures {', '.join(ARCHITECTURES)}."
        )
    if file.number("expert_count", 0):
        raise file.error("mixtures of experts are not supported.")
    return ARCHITECTURES[name]


def sizes_of(file: GgufFile, context: int | None) -> Sizes:
    """The sizes of a model. The positions are at most `context`, and at most the file's limit."""
    width, heads = file.count("embedding_length"), file.count("attention.head_count")
    groups = file.count("attention.head_count_kv", heads)
    equal_share = None if width % heads else width // heads
    size = file.count("attention.key_length", equal_share)
    if file.count("attention.value_length", equal_share) != size:
        raise file.error("keys and values of different lengths are not supported.")
    if heads % groups:
        raise file.error(f"{heads} heads of queries cannot share {groups} heads of keys.")
    positions = file.count("context_length")
    return Sizes(
        layers=file.count("block_count"),
        width=width,
        heads=heads,
        groups=groups,
        size=size,
        hidden=file.count("feed_forward_length"),
        vocabulary=len(file.tokens),
        positions=positions if context is None else min(positions, context),
        epsilon=file.positive("attention.layer_norm_rms_epsilon"),
        frequencies=_frequencies(file, size),
    )


def _frequencies(file: GgufFile, size: int) -> Array:
    """The angles of position 1, [rotated elements / 2].

    Linear scaling divides all angles by one factor. Llama 3 divides each angle by a separate
    factor, from the tensor `rope_freqs`.
    """
    rotated = file.count("rope.dimension_count", size)
    if rotated > size or rotated % 2:
        raise file.error(f"a head of {size} elements cannot have {rotated} rotated.")
    base = file.positive("rope.freq_base", 10000.0)
    frequencies: Array = float(base) ** -(np.arange(0, rotated, 2) / rotated)
    scaling = file.text(f"{file.architecture}.rope.scaling.type", "linear")
    if scaling == "linear":  # as in llama.cpp, also for a file with only a factor
        factor = file.positive("rope.scaling.factor", file.positive("rope.scale_linear", 1.0))
        frequencies = frequencies / factor
    elif scaling != "none":
        raise file.error(
            f"the rotary scaling {scaling!r} is not supported. webmlc reads 'linear' "
            "and the factors of Llama 3."
        )
    factors = file.optional_vector("rope_freqs.weight", rotated // 2)
    if factors is None:
        return frequencies
    if np.any(factors <= 0):
        raise file.error("'rope_freqs.weight' has factors that are not above 0.")
    return frequencies / factors


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
                raise file.error(
                    f"{name} is {shown(value)}. That asks for {effect}, which webmlc "
                    "does not support in GGUF models."
                )
        elif key == "attention.sliding_window":
            _check_window(file, positions)
        else:
            raise file.error(
                f"{name} is {shown(value)}. webmlc does not know what this changes, "
                "and would compute something else."
            )


def _check_window(file: GgufFile, positions: int) -> None:
    """Refuse a window of attention that is shorter than the context. 0 means no window."""
    window = file.number("attention.sliding_window")
    if window and window < positions:
        raise file.error(
            f"{file.architecture}.attention.sliding_window is {window}, but the "
            f"context has {positions} tokens. Windows of attention are not supported. Build with "
            f"--context {int(window)}."
        )
