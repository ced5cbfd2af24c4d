"""Texts in pieces: characters of several tokens, and stop strings of several pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer, decoders, models

from tests.generate.fakes import TEMPLATE, language_files, reader, tokenizer
from webmlc.core.errors import InputError, PackageError
from webmlc.core.package_files import TOKENIZER
from webmlc.generate.detokenise import Detokeniser, StopStrings
from webmlc.generate.options import read_options
from webmlc.generate.prompt import TextCodec
from webmlc.package.tokenizer_file import pack_tokenizer


def test_a_character_comes_with_its_last_token() -> None:
    tokens = tokenizer()
    text = "hello 🙂 wörld 👩‍🚀"
    detokeniser = Detokeniser(tokens.decode)
    pieces = [detokeniser.add(token) for token in tokens.encode(text).ids]
    assert "".join(pieces) == text
    assert "🙂" in pieces
    assert pieces[0] == "hello"
    assert not any("\ufffd" in piece for piece in pieces)


def test_an_unfinished_character_comes_at_the_end() -> None:
    tokens = tokenizer()
    detokeniser = Detokeniser(tokens.decode)
    ids = tokens.encode("a🙂").ids[:-1]
    assert "".join(map(detokeniser.add, ids)) == "a"
    assert set(detokeniser.finish()) == {"\ufffd"}
    assert detokeniser.finish() == ""


def test_words_with_marks_and_byte_fallback() -> None:
    """A tokenizer as that of Llama 2: a word begins with ▁, and rare characters are bytes."""
    vocabulary = {"▁hello": 0, "▁world": 1, "<0xF0>": 2, "<0x9F>": 3, "<0x99>": 4, "<0x82>": 5}
    tokens = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokens.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    detokeniser = Detokeniser(tokens.decode)
    pieces = [detokeniser.add(token) for token in (0, 1, 2, 3, 4, 5, 1)]
    assert "".join(pieces) == tokens.decode([0, 1, 2, 3, 4, 5, 1])
    assert pieces[:2] == ["hello", " world"]


@pytest.mark.parametrize("size", [1, 2, 3, 50])
@pytest.mark.parametrize(
    ("stops", "text", "shown"),
    [
        (["END"], "an ENEND is no end", "an EN"),
        (["b", "aab"], "aaab", "a"),
        (["xyz"], "xy xx", "xy xx"),
        (["🙂"], "👍 🙂 👍", "👍 "),
        ([], "all", "all"),
    ],
)
def test_nothing_of_a_stop_string_is_shown(
    stops: list[str], text: str, shown: str, size: int
) -> None:
    strings = StopStrings(stops)
    result = ""
    for begin in range(0, len(text), size):
        result += strings.add(text[begin : begin + size])
        assert shown.startswith(result)
        if strings.is_found:
            break
    assert result + strings.finish() == shown
    assert strings.is_found == (shown != text)


def test_the_template_formats_messages() -> None:
    codec = TextCodec(reader(language_files()))
    text = codec.format([{"role": "user", "content": "<b>"}], {})
    assert text == "<|im_start|>user\n<b><|im_end|>\n<|im_start|>assistant\n"
    tokens = codec.tokens_of([{"role": "user", "content": "hello"}])
    assert codec.decode(tokens) == "user\nhello\nassistant\n"
    assert tokens[0] == tokenizer().token_to_id("<|im_start|>")


def test_templates_can_refuse_and_have_the_functions_of_transformers() -> None:
    files = language_files()
    files["chat_template.jinja"] = (
        b"{% if messages|length > 1 %}{{ raise_exception('one message only') }}{% endif %}\n"
        b"{{ bos_token }}{{ strftime_now('%Y') }}{{ messages[0]|tojson }}{{ mood }}"
    )
    codec = TextCodec(reader(files))
    message = {"role": "user", "content": "<é>"}
    text = codec.format([message], {"mood": "!"})
    assert text.startswith("<|begin|>20") and text.endswith('"content": "<é>"}!')
    with pytest.raises(InputError, match="refuses these messages: one message only"):
        codec.format([message, message], {})


@pytest.mark.parametrize(
    "attack",
    ["{{ messages.append(1) }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}"],
)
def test_templates_run_in_a_sandbox(attack: str) -> None:
    codec = TextCodec(reader(language_files() | {"chat_template.jinja": attack.encode()}))
    with pytest.raises(InputError, match="the chat template refuses"):
        codec.format([], {})


def test_bad_files_are_named() -> None:
    with pytest.raises(PackageError, match=r"tokenizer\.deflate"):
        TextCodec(reader(language_files() | {TOKENIZER: b"".join(pack_tokenizer(b"{}"))}))
    with pytest.raises(PackageError, match="the tokeniser of the package is malformed"):
        TextCodec(reader(language_files() | {TOKENIZER: b"12345"}))
    template = (TEMPLATE + "{% if %}").encode()
    with pytest.raises(PackageError, match=r"chat_template\.jinja"):
        TextCodec(reader(language_files() | {"chat_template.jinja": template}))


def test_without_a_template_messages_are_one_text() -> None:
    codec = TextCodec(reader(language_files()), has_template=False)
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": " world"}]
    assert codec.tokens_of(messages) == codec.tokens_of("hello world")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float32("nan")])
@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty", "top_k"])
def test_options_that_are_not_finite(name: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{name} is .*(nan|inf).*, expected a"):
        read_options({}, {name: value})


def test_options_of_numpy() -> None:
    options = read_options({}, {"temperature": np.float32(0.5), "top_k": np.int64(3)})
    assert (options.temperature, options.top_k, options.do_sample) == (0.5, 3, True)


@pytest.mark.parametrize("prompt", [5, 1.5, None, b"hello", {"role": "user"}, [True], [None]])
def test_prompts_of_other_types(prompt: Any) -> None:
    codec = TextCodec(reader(language_files()))
    with pytest.raises(InputError, match="neither a text, nor tokens, nor messages"):
        codec.tokens_of(prompt)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m['content'] + '!' }}{% endfor %}",
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endif %}{% endfor %}",
        "{% for m in messages %}{{ m.content | tojson }}{% endfor %}",
    ],
)
def test_a_template_without_parts_gets_their_texts(template: str) -> None:
    """One that understands them renders as in transformers: Jinja with the messages as they are."""
    codec = TextCodec(reader(language_files() | {"chat_template.jinja": template.encode()}))
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    actual = codec.format([{"role": "user", "content": parts}], {})
    content: Any = parts if "part in" in template else "one\ntwo"
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    assert actual == environment.from_string(template).render(messages=[{"content": content}])
