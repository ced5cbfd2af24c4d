"""Write the files that turn text into tokens and back, from the metadata of a GGUF file.

In: a file. Out: files by name, in the formats of Hugging Face. Hugging Face's libraries read them
in Python and in the page:

- `tokenizer.json`: the tokeniser (see `tokenizer.py`).
- `chat_template.jinja`: the template that makes a prompt of messages, if the file has a template.
- `generation_config.json`: the tokens that begin and end a text, and the longest context.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from webmlc.core.chat_template import template_environment
from webmlc.core.errors import ModelError
from webmlc.frontend.gguf.file import GgufFile
from webmlc.frontend.gguf.tokenizer import CONTROL, kinds_of, tokenizer_json

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
"""Tokens that end a text or a turn, from llama.cpp's vocabulary. A file names only one token."""


def assets_of(file: GgufFile, positions: int) -> Mapping[str, bytes]:
    """The files of a model whose longest context is `positions`. Without a tokeniser in the
    metadata, there is only the configuration.
    """
    assets = {"generation_config.json": _json(_generation(file, positions))}
    if "tokenizer.ggml.model" in file.metadata:
        assets["tokenizer.json"] = _json(tokenizer_json(file))
    if template := file.text("tokenizer.chat_template", ""):
        check_template(file, template)
        assets["chat_template.jinja"] = template.encode()
    return assets


def check_template(file: GgufFile, template: str) -> None:
    """Raise `ModelError` if a chat template cannot be parsed. Without Jinja, nothing is checked."""
    try:
        from jinja2 import TemplateSyntaxError
    except ImportError:
        return
    try:
        template_environment().parse(template)
    except TemplateSyntaxError as error:
        raise ModelError(
            f"{file.path}: the chat template cannot be parsed: {error.message}, in line "
            f"{error.lineno}."
        ) from None


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _generation(file: GgufFile, positions: int) -> dict[str, Any]:
    """The configuration under the keys of `transformers.GenerationConfig`."""
    special = {
        "bos_token_id": file.token_number("bos"),
        "eos_token_id": _ends(file) or None,
        "pad_token_id": file.token_number("padding"),
        "max_length": positions,
    }
    return {key: value for key, value in special.items() if value is not None}


def _ends(file: GgufFile) -> list[int]:
    """The tokens after which generation stops. The tokens that the file names come first."""
    named = [file.token_number(name) for name in ("eos", "eot", "eom")]
    pairs = enumerate(zip(file.tokens, kinds_of(file), strict=True))
    listed = [number for number, (t, k) in pairs if k == CONTROL and t in END_TOKENS]
    return list(dict.fromkeys([*(n for n in named if n is not None), *listed]))
