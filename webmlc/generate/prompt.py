"""Turn messages and texts into tokens, and tokens into text.

In: the files of a language model's package. Out: a `TextCodec`, with the tokenizer and the chat
template. `runtime_js/language/prompt.js` is the twin.

    codec = TextCodec(model.file)
    codec.tokens_of([{"role": "user", "content": "Hello"}])   # [1, 9690, 198, ...]

The libraries `tokenizers` and `jinja2` do the work. The extra `chat` of webmlc installs them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webmlc.core.chat_template import template_environment
from webmlc.core.errors import InputError, PackageError, UserError
from webmlc.core.package_files import CHAT_TEMPLATE, GENERATION_CONFIG, TOKENIZER
from webmlc.package.tokenizer_file import unpack_tokenizer

PROBE = "probe-of-parts"
"""The text of the message that tells whether a chat template understands parts."""
Messages = Sequence[Mapping[str, Any]]
Prompt = str | Messages | Sequence[int] | NDArray[Any]


class TextCodec:
    """The tokenizer and the chat template of a model. A model without a chat template continues the
    text of messages.
    """

    def __init__(self, read: Callable[[str], bytes], has_template: bool = True) -> None:
        """Read the files of a package with `read`. Raises `UserError` if a library is missing."""
        try:
            import jinja2  # noqa: F401
            from tokenizers import Tokenizer
        except ImportError as error:
            raise UserError(
                f"text needs the library {error.name!r}: pip install 'webmlc[chat]'"
            ) from error
        try:
            contents = unpack_tokenizer(read(TOKENIZER))
            self._tokenizer = Tokenizer.from_str(json.dumps(contents))
        except PackageError:
            raise
        except Exception as error:  # the library raises nothing more specific
            raise PackageError(f"{TOKENIZER}: {error}") from error
        self._template = _compiled(read(CHAT_TEMPLATE).decode()) if has_template else None
        self.config: dict[str, Any] = json.loads(read(GENERATION_CONFIG))
        ends = self.config.get("eos_token_id")
        self.end_tokens = frozenset(
            ends if isinstance(ends, list) else [] if ends is None else [ends]
        )

    def tokens_of(self, prompt: Prompt, arguments: Mapping[str, Any] | None = None) -> list[int]:
        """The tokens of a prompt: messages, which the chat template formats; a text; or tokens.

        Raises `InputError` if the prompt is none of these, or if the template refuses the messages.
        """
        if isinstance(prompt, str):
            return self._encode(prompt)
        items: list[Any] = [None]  # no prompt
        if isinstance(prompt, np.ndarray):
            items = prompt.ravel().tolist()
        elif isinstance(prompt, Sequence) and not isinstance(prompt, bytes | bytearray):
            items = list(prompt)
        if all(isinstance(item, Integral) and not isinstance(item, bool) for item in items):
            return [int(item) for item in items]
        if all(isinstance(item, Mapping) and isinstance(item.get("role"), str) for item in items):
            return self._encode(self.format(items, arguments or {}), is_text=not self._template)
        raise InputError(
            "the prompt is neither a text, nor tokens, nor messages like "
            '{"role": "user", "content": "Hello"}'
        )

    def format(self, messages: Messages, arguments: Mapping[str, Any]) -> str:
        """Format messages with the chat template, up to where the answer begins.

        The content of a message is a text, or a list of parts `{"type": "text", "text": "..."}`. If
        the template does not understand parts, it gets their texts as lines.
        """
        if not self._takes_parts:
            messages = [_with_text(message) for message in messages]
        if self._template is None:
            return "".join(str(message.get("content", "")) for message in messages)
        try:
            return self._render(messages, arguments)
        except Exception as error:  # the template may do anything
            raise InputError(f"the chat template refuses these messages: {error}") from error

    def _render(self, messages: Messages, arguments: Mapping[str, Any]) -> str:
        variables = {
            "messages": list(messages),
            "add_generation_prompt": True,
            "bos_token": self._token_text("bos_token_id"),
            "eos_token": self._token_text("eos_token_id"),
            **arguments,
        }
        return str(self._template.render(variables)) if self._template else ""

    @cached_property
    def _takes_parts(self) -> bool:
        """True if the template writes the text of a part, and not the whole list of parts."""
        part = {"type": "text", "text": PROBE}
        try:
            text = self._render([{"role": "user", "content": [part]}], {})
        except Exception:  # the template may do anything
            return False
        before, probe, _ = text.partition(PROBE)
        return bool(probe) and not re.search(r"""["']text["']: *["']$""", before)

    def _encode(self, text: str, *, is_text: bool = True) -> list[int]:
        """The tokens of a text, whose lone surrogates become replacement characters, as in
        JavaScript. If `is_text`, the tokenizer adds its start token.
        """
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return list(self._tokenizer.encode(whole, add_special_tokens=is_text).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special tokens."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def _token_text(self, key: str) -> str:
        """The text of a special token of the configuration, or an empty text."""
        token = self.config.get(key)
        token = token[0] if isinstance(token, list) else token
        return "" if token is None else self._tokenizer.id_to_token(token) or ""


def _with_text(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message whose content is a text instead of a list of parts. Raises `InputError` if a part
    is no text.
    """
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(
            'this model takes messages of text only: a part of a content is {"type": "text", '
            '"text": "..."}'
        )
    return {**message, "content": "\n".join(map(str, texts))}


def _compiled(source: str) -> Any:
    """Compile a chat template."""
    from jinja2 import TemplateError

    try:
        return template_environment().from_string(source)
    except TemplateError as error:
        raise PackageError(f"{CHAT_TEMPLATE}: {error}") from error
