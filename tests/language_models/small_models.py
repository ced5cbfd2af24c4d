"""Write small language models of random weights as GGUF files.

`write_llama(path)` is shaped like Llama 3: rotated neighbours, factors of frequencies, heads of
keys that are shared, and a head of its own. `write_qwen2(path)` has biases and a tied embedding,
and `write_qwen3(path)` has norms of heads. Their weights have several quantisation types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType, GGUFWriter, RopeScalingType, quants
from gguf.constants import GGML_QUANT_SIZES

WORDS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True)
class SmallModel:
    """The sizes of a model, and what its architecture adds. `types` are used in turn.

    `rotated` is the number of elements of a head that are rotated (0: all of them).
    """

    architecture: str
    tied: bool
    width: int = 64
    hidden: int = 256
    heads: int = 4
    groups: int = 2
    layers: int = 2
    vocabulary: int = 96
    positions: int = 64
    frequency_base: float = 10000.0
    frequency_scale: float = 1.0
    rotated: int = 0
    biases: bool = False
    head_norms: bool = False
    frequency_factors: bool = False
    types: tuple[Type, ...] = (Type.Q4_1, Type.Q8_0)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Elements of a head."""
        return self.width // self.heads

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The name and the shape of each tensor."""
        width, queries, keys = self.width, self.heads * self.size, self.groups * self.size
        yield "token_embd.weight", (self.vocabulary, width)
        for layer in range(self.layers):
            block = f"blk.{layer}"
            for norm in ("attn_norm", "ffn_norm"):
                yield f"{block}.{norm}.weight", (width,)
            for name, rows in (("q", queries), ("k", keys), ("v", keys)):
                yield f"{block}.attn_{name}.weight", (rows, width)
                if self.biases:
                    yield f"{block}.attn_{name}.bias", (rows,)
                if self.head_norms and name != "v":
                    yield f"{block}.attn_{name}_norm.weight", (self.size,)
            yield f"{block}.attn_output.weight", (width, queries)
            yield f"{block}.ffn_gate.weight", (self.hidden, width)
            yield f"{block}.ffn_up.weight", (self.hidden, width)
            yield f"{block}.ffn_down.weight", (width, self.hidden)
        yield "output_norm.weight", (width,)
        if not self.tied:
            yield "output.weight", (self.vocabulary, width)
        if self.frequency_factors:
            yield "rope_freqs.weight", ((self.rotated or self.size) // 2,)


LLAMA = SmallModel("llama", tied=False, frequency_factors=True)
QWEN2 = SmallModel("qwen2", tied=True, biases=True)
QWEN3 = SmallModel("qwen3", tied=True, head_norms=True, types=(Type.Q4_0, Type.F16))


def write_model(path: Path, model: SmallModel, seed: int = 0) -> dict[str, np.ndarray]:
    """Write a model to a file, and return its tensors as the file's types round them."""
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, model.architecture)
    writer.add_context_length(model.positions)
    writer.add_embedding_length(model.width)
    writer.add_block_count(model.layers)
    writer.add_feed_forward_length(model.hidden)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.groups)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(model.frequency_base)
    if model.frequency_scale != 1:
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(model.frequency_scale)
    if model.rotated:
        writer.add_rope_dimension_count(model.rotated)
    _add_tokens(writer, model.vocabulary)
    for key, value in model.metadata.items():
        writer.add_key_value(key, value, GGUFValueType.get_type(value))
    tensors: dict[str, np.ndarray] = {}
    for number, (name, shape) in enumerate(model.shapes()):
        if len(shape) == 2:
            kind = model.types[number % len(model.types)]
            if shape[1] % 256 == 0:
                kind = Type.Q4_K  # only some matrices have rows that are long enough
            data = _quantise(rng, shape, kind)
            writer.add_tensor(name, data, raw_dtype=kind)
            tensors[name] = quants.dequantize(data, kind).reshape(shape)
        else:
            around = 0.0 if name.endswith("bias") else 1.0
            vector = (around + 0.3 * rng.random(shape)).astype(np.float32)
            writer.add_tensor(name, vector)
            tensors[name] = vector
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _add_tokens(writer: GGUFWriter, vocabulary: int) -> None:
    """Add a byte-level tokeniser of some letters and one merge."""
    letters = [*(chr(0x21 + i) for i in range(vocabulary - len(WORDS) - 1)), "!!"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*WORDS, *letters])
    writer.add_token_types([3] * len(WORDS) + [1] * len(letters))
    writer.add_token_merges(["! !"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")


def _quantise(rng: np.random.Generator, shape: tuple[int, ...], kind: Type) -> np.ndarray:
    """Random weights of a type. The library writes no K types, so their bytes are random."""
    deviation = shape[1] ** -0.5
    if kind is not Type.Q4_K:
        weights = (rng.standard_normal(shape) * deviation).astype(np.float32)
        return quants.quantize(weights, kind)
    block, size = GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (shape[0], shape[1] // block, size), dtype=np.uint8)
    # Values are 0 to 15 and scales 0 to 63: these factors give a mean of nearly 0.
    factors = np.array([deviation / 150, deviation / 20], np.float16)
    data[:, :, :4] = factors.view(np.uint8)
    return data.reshape(shape[0], -1)
