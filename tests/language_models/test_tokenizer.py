"""The files of the tokeniser: `tokenizers` loads them and finds the tokens of a reference."""

from __future__ import annotations

import json
import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.node import answer_once
from webmlc.core.errors import ModelError
from webmlc.frontend.gguf.file import GgufFile
from webmlc.frontend.gguf.tokenizer import PATTERNS, assets_of, tokenizer_json

SPLIT = Path(__file__).parent / "tokens_of_texts.mjs"
NORMAL, CONTROL, BYTE = 1, 3, 6
TEXTS = (
    "",
    " ",
    "Hello world 1234",
    "It's we'll THEY'RE 1,234.5 ½",
    "Hi é e\u0301 漢字 😀\n",
    "  def f(x):\n\treturn x**2  \n\n",
    "a  b   c\r\n\r\n d",
    "नमस्ते दुनिया",
    "<h1>if(a&&b){return;}</h1>",
    "<|im_start|>user\nhey<|im_end|>\n",
    "x<|im_end|><|im_end|> <|im_start|>",
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def file_of(**metadata: Any) -> GgufFile:
    """A file without tensors. A double underscore in a key stands for a dot."""
    keys = {f"tokenizer.{k.replace('__', '.')}": v for k, v in metadata.items()}
    return GgufFile(Path("model.gguf"), {"general.architecture": "llama", **keys}, {})


def converted(file: GgufFile) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer_json(file)))


def trained(*steps: Any) -> Tokenizer:
    """A byte-level BPE that has learnt from the texts and from this file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    lines = [*TEXTS, *Path(__file__).read_text("utf-8").splitlines(keepends=True)]
    tokenizer.train_from_iterator(lines * 2, trainer)
    return tokenizer


def split(pattern: str) -> Any:
    from tokenizers import Regex

    return pre_tokenizers.Split(Regex(pattern), "isolated")


WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@pytest.mark.parametrize(
    ("pre", "steps"),
    [
        (
            "smollm",
            (pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)),
        ),
        ("gpt-2", (pre_tokenizers.ByteLevel(False),)),
        (
            "default",
            (
                split(r"[\p{P}\$\+<=>\^~\|]+"),
                split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
                split(r"\p{N}+"),
                split("[0-9][0-9][0-9]"),
                pre_tokenizers.ByteLevel(False, use_regex=False),
            ),
        ),
        (
            "llama-bpe",
            (
                split(rf"{CONTRACTION}|{WORD}|\p{{N}}{{1,3}}|{REST}"),
                pre_tokenizers.ByteLevel(False, use_regex=False),
            ),
        ),
        (
            "qwen2",
            (
                split(rf"{CONTRACTION}|{WORD}|\p{{N}}|{REST}"),
                pre_tokenizers.ByteLevel(False, use_regex=False),
            ),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_byte_level(pre: str, steps: tuple[Any, ...]) -> None:
    expected = trained(*steps)
    expected.model.ignore_merges = pre == "llama-bpe"
    contents = json.loads(expected.to_str())["model"]
    tokens = sorted(contents["vocab"], key=contents["vocab"].__getitem__)
    tokenizer = converted(
        file_of(
            ggml__model="gpt2",
            ggml__pre=pre,
            ggml__tokens=tokens,
            ggml__token_type=[CONTROL] * len(SPECIAL) + [NORMAL] * (len(tokens) - len(SPECIAL)),
            ggml__merges=[" ".join(merge) for merge in contents["merges"]],
        )
    )
    for text in TEXTS:
        if pre == "qwen2":
            text = text.replace("e\u0301", "é")  # its normal form
        tokens_of_text = tokenizer.encode(text).ids
        assert tokens_of_text == expected.encode(text).ids, text
        assert tokenizer.decode(tokens_of_text, skip_special_tokens=False) == text


CATEGORIES = {"N": 5, "Z": 1, "C": 40, "L": 900, "M": 200, "P": 40, "S": 150}
"""Every how many characters of a category of Unicode are tested."""


def characters() -> list[str]:
    """Characters of all categories. The last ones of a category are its newest: libraries may not
    know them yet.
    """
    known = [c for c in map(chr, range(0x30000)) if unicodedata.category(c) not in ("Cn", "Cs")]
    groups = {key: [c for c in known if unicodedata.category(c)[0] == key] for key in CATEGORIES}
    return [c for key, stride in CATEGORIES.items() for c in groups[key][::stride]]


@pytest.mark.parametrize("pre", PATTERNS)
def test_words_are_the_same_in_javascript(pre: str) -> None:
    """Digits, letters and spaces of all scripts. Any two neighbours within a word are merged."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(a, b) for a in alphabet for b in alphabet]
    contents = tokenizer_json(
        file_of(
            ggml__model="gpt2",
            ggml__pre=pre,
            ggml__tokens=alphabet + [a + b for a, b in pairs],
            ggml__merges=[f"{a} {b}" for a, b in pairs],
        )
    )
    texts = [f"a{c}1{c}{c} {c}\n{c} ?{c}'s  {c}{c}12345" for c in characters()]
    tokenizer = Tokenizer.from_str(json.dumps(contents))
    expected = [tokenizer.encode(text).ids for text in texts]
    actual = answer_once(SPLIT, {"tokenizer": contents, "texts": texts})
    different = [
        hex(ord(text[1])) for text, a, b in zip(texts, expected, actual, strict=True) if a != b
    ]
    assert not different


def test_llama_3_takes_words_whole() -> None:
    letters = [*"helo", "hello", "he"]
    common = {"ggml__model": "gpt2", "ggml__tokens": letters, "ggml__merges": ["h e"]}
    assert converted(file_of(ggml__pre="llama-bpe", **common)).encode("hello").ids == [4]
    assert converted(file_of(ggml__pre="smollm", **common)).encode("hello").ids != [4]


PIECES = {
    "<unk>": 0.0, "<s>": 0.0, "</s>": 0.0, **{f"<0x{b:02X}>": 0.0 for b in range(256)},
    "▁t": -1.0, "he": -2.0, "▁the": -3.0, "▁▁": -4.0, "in": -5.0, "▁in": -6.0, "er": -7.0,
    **{letter: -100.0 - i for i, letter in enumerate("▁abcdefghinorstu.")},
}  # fmt: skip


def sentence_pieces(text: str) -> list[int]:
    """SentencePiece's algorithm: join the neighbours with the best score, again and again."""
    numbers = {piece: i for i, piece in enumerate(PIECES)}
    parts = list(("▁" + text).replace(" ", "▁")) if text else []
    while True:
        pairs = [(-PIECES[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in PIECES]
        if not pairs:
            break
        _, i = min(pairs)
        parts[i : i + 2] = ["".join(parts[i : i + 2])]
    known = [[p] if p in numbers else [f"<0x{b:02X}>" for b in p.encode()] for p in parts]
    return [numbers[p] for part in known for p in part]


def test_sentence_pieces() -> None:
    kinds = [2, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(PIECES) - 259)]
    file = file_of(
        ggml__model="llama",
        ggml__tokens=list(PIECES),
        ggml__scores=list(PIECES.values()),
        ggml__token_type=kinds,
        ggml__bos_token_id=1,
    )
    tokenizer = converted(file)
    for text in ("the hen is in the inn.", "  there", "the 漢 then é!", "a\nb", "tthhee  in"):
        encoding = tokenizer.encode(text)
        assert encoding.ids == [1, *sentence_pieces(text)]
        assert tokenizer.decode(encoding.ids) == text
    assert tokenizer.encode("</s>").ids[1:] == [2]


def test_other_tokenizers() -> None:
    with pytest.raises(ModelError, match="the tokeniser 'bert' is not supported"):
        tokenizer_json(file_of(ggml__model="bert"))
    with pytest.raises(ModelError, match="the pre-tokeniser 'falcon' is not supported"):
        tokenizer_json(file_of(ggml__model="gpt2", ggml__pre="falcon"))


def test_merge_without_a_token() -> None:
    file = file_of(ggml__model="gpt2", ggml__tokens=["a", "b"], ggml__merges=["a b"])
    with pytest.raises(ModelError, match="the merge 'a b' makes no token"):
        tokenizer_json(file)


def test_generation_stops_at_each_end_of_a_turn() -> None:
    file = file_of(
        ggml__tokens=[*SPECIAL, "<|eot_id|>", "a"],
        ggml__token_type=[CONTROL] * 3 + [NORMAL] * 2,
        ggml__bos_token_id=1,
        ggml__eos_token_id=2,
        chat_template="{{ x }}",
    )
    assets = assets_of(file, 512)
    assert assets["chat_template.jinja"] == b"{{ x }}"
    assert json.loads(assets["generation_config.json"]) == {
        "bos_token_id": 1,
        "eos_token_id": [2, 0],
        "max_length": 512,
    }
