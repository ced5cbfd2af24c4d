"""Write the files that turn text into tokens and back, from the metadata of a GGUF file.

In: a file. Out: files by name, in the formats of Hugging Face. Hugging Face's libraries read them
in Python and in the page:

- `tokenizer.json`: the tokeniser.
- `chat_template.jinja`: the template that makes a prompt of messages, if the file has a template.
- `generation_config.json`: the tokens that begin and end a text, and the longest context.

Two kinds of tokenisers can be read, by `tokenizer.ggml.model`:

- `gpt2`: byte-level BPE. A regular expression splits the text first (`PATTERNS`). The file lists
  the merges.
- `llama`: SentencePiece's BPE. Text is not split into words: a space becomes the character `▁`. The
  file lists a score of each token, and the merges follow from the scores. Unknown characters become
  bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from webmlc.core.chat_template import template_environment
from webmlc.frontend.gguf.file import GgufFile

Json = dict[str, Any]

UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6
"""Kinds of tokens in `tokenizer.ggml.token_type`. From llama.cpp."""

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
SPACE, NO_SPACE = r"\p{White_Space}", r"\P{White_Space}"
r"""White space, as Unicode defines it. The class `\s` differs in JavaScript."""
GPT_2 = (
    rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^{SPACE}\p{{L}}\p{{N}}]+|"
    rf"{SPACE}+(?!{NO_SPACE})|{SPACE}+"
)
"""The words of GPT-2: a word has a space before it."""
LLAMA_3 = (
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    rf" ?[^{SPACE}\p{{L}}\p{{N}}]+[\r\n]*|{SPACE}*[\r\n]+|{SPACE}+(?!{NO_SPACE})|{SPACE}+"
)
"""The words of Llama 3: a word has a space or a sign before it, or up to three digits."""


def _splits(*patterns: str) -> tuple[Json, ...]:
    """The steps that split a text at each pattern, then write bytes as characters. The matches of a
    pattern are words.
    """
    splits = (
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        for p in patterns
    )
    return (*splits, _bytes())


def _bytes() -> Json:
    """The step that writes bytes as characters, or characters as bytes."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }


PATTERNS: Mapping[str, tuple[Json, ...]] = {
    "default": _splits(r"[\p{P}$+<=>^~|]+", GPT_2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": _splits(GPT_2),
    "smollm": _splits(r"\p{N}", GPT_2),
    "llama-bpe": _splits(LLAMA_3),
    "qwen2": _splits(LLAMA_3.replace("{1,3}", "")),
}
"""The steps that split text into words, by `tokenizer.ggml.pre`. From `llama-vocab.cpp`. The
patterns have the same matches in Python and in JavaScript. They therefore do not fold case, and use
no class and no step that the two languages define differently, such as for digits.
"""
IGNORES_MERGES = frozenset({"llama-bpe"})
"""Tokenisers that apply no merges to a word that is itself a token."""
COMPOSES = frozenset({"qwen2"})
"""Tokenisers that bring text into Unicode's normal form C first."""


def tokenizer_json(file: GgufFile) -> Json:
    """The contents of `tokenizer.json`. Raises `ModelError` for another kind of tokeniser."""
    model = file.text("tokenizer.ggml.model")
    if model == "gpt2":
        return _byte_level(file)
    if model == "llama":
        return _sentence_piece(file)
    raise file.error(f"the tokeniser {model!r} is not supported. webmlc reads 'gpt2' and 'llama'.")


def _byte_level(file: GgufFile) -> Json:
    pre = file.text("tokenizer.ggml.pre", "default")
    if pre not in PATTERNS:
        raise file.error(
            f"the pre-tokeniser {pre!r} is not supported. webmlc reads {', '.join(PATTERNS)}."
        )
    steps = PATTERNS[pre]
    return _contents(
        file,
        model=_bpe(file, _listed_merges(file)) | {"ignore_merges": pre in IGNORES_MERGES},
        normalizer={"type": "NFC"} if pre in COMPOSES else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": list(steps)},
        decoder=_bytes(),
        adds_start=False,
    )


def _listed_merges(file: GgufFile) -> list[list[str]]:
    """The merges that the file lists, each as `left right`."""
    tokens = frozenset(file.tokens)
    merges = [merge.split(" ", 1) for merge in file.items("tokenizer.ggml.merges", str)]
    for parts in merges:
        if len(parts) != 2 or not tokens.issuperset((*parts, "".join(parts))):
            raise file.error(
                f"the merge {' '.join(parts)!r} makes no token. The file is malformed."
            )
    return merges


def _sentence_piece(file: GgufFile) -> Json:
    tokens, kinds = file.tokens, kinds_of(file)
    scores = file.items("tokenizer.ggml.scores", float)
    if len(scores) != len(tokens) or not all(map(isfinite, scores)):
        raise file.error(
            f"{len(tokens)} tokens have {len(scores)} scores. Each token needs one, "
            "which is finite."
        )
    unknown = tokens[file.token_number("unknown") or 0]
    starts_with_space = file.flag("tokenizer.ggml.add_space_prefix", True)
    replace_spaces: Json = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend: list[Json] = [{"type": "Prepend", "prepend": "▁"}] if starts_with_space else []
    strip: list[Json] = (
        [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if starts_with_space else []
    )
    return _contents(
        file,
        model=_bpe(file, _merges_by_score(tokens, kinds, scores))
        | {"unk_token": unknown, "fuse_unk": True, "byte_fallback": BYTE in kinds},
        normalizer={"type": "Sequence", "normalizers": [*prepend, replace_spaces]},
        pre_tokenizer=None,
        decoder={
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *strip,
            ],
        },
        adds_start=True,
    )


def _merges_by_score(
    tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float]
) -> list[list[str]]:
    """The merges of SentencePiece: each pair of tokens whose joined text is a token, best score
    first.
    """
    numbers = {t: i for i, (t, k) in enumerate(zip(tokens, kinds, strict=True)) if k not in (
        UNKNOWN, CONTROL, BYTE)}  # fmt: skip
    pairs = [
        (-scores[number], number, numbers[token[:cut]], token[:cut], token[cut:])
        for token, number in numbers.items()
        for cut in range(1, len(token))
        if token[:cut] in numbers and token[cut:] in numbers
    ]
    return [[left, right] for *_, left, right in sorted(pairs)]


def _bpe(file: GgufFile, merges: Sequence[Sequence[str]]) -> Json:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {token: number for number, token in enumerate(file.tokens)},
        "merges": [list(merge) for merge in merges],
    }


def _contents(
    file: GgufFile,
    *,
    model: Json,
    normalizer: Json | None,
    pre_tokenizer: Json | None,
    decoder: Json,
    adds_start: bool,
) -> Json:
    """The whole JSON. If the file does not say whether a text begins with the start token,
    `adds_start` decides.
    """
    tokens, kinds = file.tokens, kinds_of(file)
    added = [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != USER_DEFINED,
        }
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": _post_processor(file, tokens, adds_start),
        "decoder": decoder,
        "model": model,
    }


def _post_processor(file: GgufFile, tokens: Sequence[str], adds_start: bool) -> Json | None:
    """The step that adds the start and end tokens, or `None` if no token is added."""
    names = {"bos": adds_start, "eos": False}
    added: dict[str, tuple[str, int]] = {}
    for name, default in names.items():
        number = file.token_number(name)
        if file.flag(f"tokenizer.ggml.add_{name}_token", default) and number is not None:
            added[name] = (tokens[number], number)
    if not added:
        return None

    def template(sequence: str, kind: int) -> list[Json]:
        start, end = (
            [{"SpecialToken": {"id": added[n][0], "type_id": kind}}] if n in added else []
            for n in names
        )
        return [*start, {"Sequence": {"id": sequence, "type_id": kind}}, *end]

    return {
        "type": "TemplateProcessing",
        "single": template("A", 0),
        "pair": [*template("A", 0), *template("B", 1)],
        "special_tokens": {
            token: {"id": token, "ids": [number], "tokens": [token]}
            for token, number in added.values()
        },
    }


def kinds_of(file: GgufFile) -> Sequence[int]:
    """The kind of each token. A file without kinds has ordinary tokens only."""
    count = len(file.tokens)
    kinds = file.items("tokenizer.ggml.token_type", int, [1] * count)
    if len(kinds) != count:
        raise file.error(f"{count} tokens have {len(kinds)} kinds.")
    return kinds


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
        raise file.error(
            f"the chat template cannot be parsed: {error.message}, in line {error.lineno}."
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
