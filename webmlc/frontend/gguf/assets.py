"""Write the files that turn text into tokens and back, from the metadata of a GGUF file.

In: a file. Out: files by name, in the formats of Hugging Face, which their libraries read in Python
and in the page:

- `tokenizer.json`: the tokeniser (see `tokenizer.py`).
- `chat_template.jinja`: the template that makes a prompt of messages, if the file has one.
- `generation_config.json`: the tokens that begin and end a text, and the longest context.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from webmlc.frontend.gguf.file import GgufFile
from webmlc.frontend.gguf.tokenizer import CONTROL, tokenizer_json

END_TOKENS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<EOT>",
    }
)
"""Tokens that end a text or a turn. Files name only one of them. From llama.cpp's vocabulary."""


def assets_of(file: GgufFile, positions: int) -> Mapping[str, bytes]:
    """The files of a model whose longest context is `positions`. Without a tokeniser in the
    metadata, there is only the configuration.
    """
    assets = {"generation_config.json": _json(_generation(file, positions))}
    if "tokenizer.ggml.model" in file.metadata:
        assets["tokenizer.json"] = _json(tokenizer_json(file))
    if template := file.metadata.get("tokenizer.chat_template"):
        assets["chat_template.jinja"] = str(template).encode()
    return assets


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _generation(file: GgufFile, positions: int) -> dict[str, Any]:
    """The configuration under the keys of `transformers.GenerationConfig`."""
    metadata = file.metadata
    special = {
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _ends(metadata) or None,
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
        "max_length": positions,
    }
    return {key: value for key, value in special.items() if value is not None}


def _ends(metadata: Mapping[str, Any]) -> list[int]:
    """The tokens after which generation stops, the one that the file names first."""
    keys = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
    named = [int(metadata[key]) for key in keys if key in metadata]
    tokens = metadata.get("tokenizer.ggml.tokens", ())
    kinds = metadata.get("tokenizer.ggml.token_type", ())
    pairs = enumerate(zip(tokens, kinds, strict=False))
    listed = [number for number, (t, k) in pairs if k == CONTROL and t in END_TOKENS]
    return list(dict.fromkeys([*named, *listed]))
