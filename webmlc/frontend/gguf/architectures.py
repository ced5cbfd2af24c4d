"""The architectures that can be read, one row each, and the sizes of a model.

In: a file. Out: the `Sizes` that `decoder.py` builds the graph by.

All rows are decoders of the same kind: RMS norm, attention with rotary embedding, RMS norm, and a
gated feed-forward network (SwiGLU). A row says how its decoder differs from other decoders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from webmlc.core.errors import ModelError
from webmlc.frontend.gguf.file import GgufFile
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
        raise ModelError(
            f"{file.path}: the architecture {name!r} is not supported. webmlc reads GGUF models of "
            f"the architectures {', '.join(ARCHITECTURES)}."
        )
    if file.number("expert_count", 0):
        raise ModelError(f"{file.path}: mixtures of experts are not supported.")
    return ARCHITECTURES[name]


def sizes_of(file: GgufFile, context: int | None) -> Sizes:
    """The sizes of a model. The positions are at most `context`, and at most the file's limit."""
    width, heads = file.count("embedding_length"), file.count("attention.head_count")
    groups = file.count("attention.head_count_kv", heads)
    equal_share = None if width % heads else width // heads
    size = file.count("attention.key_length", equal_share)
    if file.count("attention.value_length", equal_share) != size:
        raise ModelError(f"{file.path}: keys and values of different lengths are not supported.")
    if heads % groups:
        raise ModelError(
            f"{file.path}: {heads} heads of queries cannot share {groups} heads of keys."
        )
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
        raise ModelError(f"{file.path}: a head of {size} elements cannot have {rotated} rotated.")
    base = file.positive("rope.freq_base", 10000.0)
    frequencies: Array = float(base) ** -(np.arange(0, rotated, 2) / rotated)
    scaling = file.text(f"{file.architecture}.rope.scaling.type", "linear")
    if scaling == "linear":  # as in llama.cpp, also for a file with only a factor
        factor = file.positive("rope.scaling.factor", file.positive("rope.scale_linear", 1.0))
        frequencies = frequencies / factor
    elif scaling != "none":
        raise ModelError(
            f"{file.path}: the rotary scaling {scaling!r} is not supported. webmlc reads 'linear' "
            "and the factors of Llama 3."
        )
    factors = file.optional_vector("rope_freqs.weight", rotated // 2)
    if factors is None:
        return frequencies
    if np.any(factors <= 0):
        raise ModelError(f"{file.path}: 'rope_freqs.weight' has factors that are not above 0.")
    return frequencies / factors
