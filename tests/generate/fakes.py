"""A language model that computes nothing: its logits are a function of the tokens so far.

`twin.mjs` defines the same model in JavaScript. The vocabulary has a token for every byte, a few
for words, and three special ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from webmlc.core.errors import InputError
from webmlc.core.machine import Device
from webmlc.core.package_files import TOKENIZER
from webmlc.package.tokenizer_file import pack_tokenizer

START, END, BEGIN = "<|im_start|>", "<|im_end|>", "<|begin|>"
TEMPLATE = """{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
WORD = 0xFFFFFFFF

Logits = Callable[[Sequence[int]], NDArray[np.float32]]


def tokenizer() -> Tokenizer:
    """A tokenizer of bytes, with merges for a few words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)}
    merges = []
    for first, second in (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w")):
        merges.append((first, second))
        vocabulary[first + second] = len(vocabulary)
    result = Tokenizer(models.BPE(vocabulary, merges))
    result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    result.decoder = decoders.ByteLevel()
    result.add_special_tokens([AddedToken(text, special=True) for text in (START, END, BEGIN)])
    return result


def language_assets(**config: Any) -> dict[str, bytes]:
    """The files that make a package one of a language model, as the frontend gives them."""
    tokens = tokenizer()
    defaults = {
        "bos_token_id": tokens.token_to_id(BEGIN),
        "eos_token_id": [tokens.token_to_id(END)],
        "max_length": 4096,
    }
    return {
        "tokenizer.json": tokens.to_str().encode(),
        "chat_template.jinja": TEMPLATE.encode(),
        "generation_config.json": json.dumps(defaults | config).encode(),
    }


def language_files(**config: Any) -> dict[str, bytes]:
    """The same files as a package holds them, decompressed."""
    files = language_assets(**config)
    return files | {TOKENIZER: b"".join(pack_tokenizer(files.pop("tokenizer.json")))}


def reader(files: Mapping[str, bytes]) -> Callable[[str], bytes]:
    """A function that reads these files."""
    return lambda path: files[path]


def mixed_logits(tokens: Sequence[int]) -> NDArray[np.float32]:
    """Logits from 0 to 8 that look random, and depend on all tokens."""
    state = 0
    for token in tokens:
        state = (state * 31 + token + 1) & WORD
    indices = np.arange(tokenizer_size(), dtype=np.uint64)
    words = (indices * 2654435761 & WORD) ^ np.uint64(state)
    words = (words ^ words >> np.uint64(15)) * 2246822519 & WORD
    words ^= words >> np.uint64(13)
    return (words.astype(np.float64) / 2**29).astype(np.float32)


def tokenizer_size() -> int:
    """The number of tokens of the vocabulary."""
    return 256 + 5 + 3


def scripted(answer: str, start: int) -> Logits:
    """Logits that say this answer, and end it, if the prompt has `start` tokens."""
    tokens = tokenizer()
    script = [*tokens.encode(answer).ids, tokens.token_to_id(END)]

    def logits(history: Sequence[int]) -> NDArray[np.float32]:
        result = np.zeros(tokenizer_size(), np.float32)
        result[script[min(len(history) - start, len(script) - 1)]] = 9
        return result

    return logits


class FakeSession:
    """A session that only remembers its tokens, the length of every run, and the outputs that were
    read.
    """

    def __init__(self, capacity: int, logits: Logits) -> None:
        self.capacity = capacity
        self.tokens: list[int] = []
        self.runs: list[int] = []
        self.outputs: list[str] = []
        self.is_disposed = False
        self._logits = logits

    @property
    def length(self) -> int:
        return len(self.tokens)

    def run(
        self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        ids = inputs["input_ids"]
        assert ids.dtype == np.int64 and ids.shape[0] == 1
        if len(self.tokens) + ids.shape[1] > self.capacity:
            raise InputError("the capacity is exceeded")
        self.tokens += ids[0].tolist()
        self.runs.append(ids.shape[1])
        self.outputs.extend(outputs)
        logits = self._logits(self.tokens)[None]
        best = np.where(np.isfinite(logits.max(1)), logits.argmax(1), -1)
        results = {"logits": logits, "next_token": best}
        return {name: results[name] for name in outputs}

    def truncate(self, length: int) -> None:
        assert 0 <= length <= len(self.tokens)
        del self.tokens[length:]

    def dispose(self) -> None:
        self.is_disposed = True


class FakeModel:
    """A model that remembers its sessions."""

    device: Device = "wasm"

    def __init__(
        self, logits: Logits = mixed_logits, outputs: Sequence[str] = ("logits", "next_token")
    ) -> None:
        self.logits = logits
        self.outputs = [SimpleNamespace(name=name) for name in outputs]
        self.sessions: list[FakeSession] = []

    def session(self, capacity: int) -> FakeSession:
        self.sessions.append(FakeSession(capacity, lambda tokens: self.logits(tokens)))
        return self.sessions[-1]


def write_files(folder: Path, **config: Any) -> Path:
    """Write the files of a language model."""
    for name, data in language_files(**config).items():
        (folder / name).write_bytes(data)
    return folder
