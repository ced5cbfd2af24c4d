"""Turn messages and texts into tokens, and tokens into text.

In: the files of a language model's package. Out: a `TextCodec`, with the tokenizer and the chat
template. `runtime_js/language/prompt.js` is the twin.

    codec = TextCodec(model.file)
    codec.tokens_of([{"role": "user", "content": "Hello"}])   # [1, 9690, 198, ...]

The libraries `tokenizers` and `jinja2` do the work. The extra `chat` of webmlc installs them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webmlc.core.chat_template import template_environment
from webmlc.core.errors import InputError, PackageError, UserError
from webmlc.package.manifest import CHAT_TEMPLATE, GENERATION_CONFIG, TOKENIZER
from webmlc.package.tokenizer_file import unpack_tokenizer

Messages = Sequence[Mapping[str, Any]]
Prompt = str | Messages | Sequence[int] | NDArray[Any]


class TextCodec:
    """The tokenizer and the chat template of a model. If it has none, it continues the text of
    messages.
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
            return list(self._tokenizer.encode(prompt).ids)
        items: list[Any]
        items = prompt.ravel().tolist() if isinstance(prompt, np.ndarray) else list(prompt)
        if all(isinstance(item, int) for item in items):
            return items
        if all(isinstance(item, Mapping) and "role" in item for item in items):
            text = self.format(items, arguments or {})
            return list(self._tokenizer.encode(text, add_special_tokens=not self._template).ids)
        raise InputError(
            "the prompt is neither a text, nor tokens, nor messages like "
            '{"role": "user", "content": "Hello"}'
        )

    def format(self, messages: Messages, arguments: Mapping[str, Any]) -> str:
        """Format messages with the chat template, up to where the answer begins."""
        import jinja2

        if self._template is None:
            return "".join(str(message.get("content", "")) for message in messages)
        variables = {
            "messages": list(messages),
            "add_generation_prompt": True,
            "bos_token": self._token_text("bos_token_id"),
            "eos_token": self._token_text("eos_token_id"),
            **arguments,
        }
        try:
            return str(self._template.render(variables))
        except (jinja2.TemplateError, TypeError) as error:
            raise InputError(f"the chat template refuses these messages: {error}") from error

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special tokens."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def _token_text(self, key: str) -> str:
        """The text of a special token of the configuration, or an empty text."""
        token = self.config.get(key)
        token = token[0] if isinstance(token, list) else token
        return "" if token is None else self._tokenizer.id_to_token(token) or ""


def _compiled(source: str) -> Any:
    """Compile a chat template."""
    from jinja2 import TemplateError

    try:
        return template_environment().from_string(source)
    except TemplateError as error:
        raise PackageError(f"{CHAT_TEMPLATE}: {error}") from error
