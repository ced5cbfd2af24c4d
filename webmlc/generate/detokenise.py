"""Turn tokens into text, one at a time, and never split a character.

In: tokens, one by one. Out: the text that each token adds, which may be empty. A character may take
several tokens: an emoji is four bytes, and so up to four tokens. The last token adds the character.

    detokeniser = Detokeniser(tokenizer.decode)
    [detokeniser.add(token) for token in (9906, 98230, 232)]   # ["Hello", "", " 🙂"]

The text of a token depends on its neighbours, for example in tokenizers that mark the start of a
word. So the new text is the difference between two decodings. Both begin at tokens whose text has
been returned already (the method of vLLM's `detokenize_incrementally`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

INCOMPLETE = "\ufffd"
"""The replacement character, with which decoders end a text that ends within a character."""


class Detokeniser:
    """The decoder of one answer."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._shown: list[int] = []
        self._waiting: list[int] = []

    def add(self, token: int) -> str:
        """Add a token, and return the text that is now complete."""
        self._waiting.append(token)
        before = self._decode(self._shown)
        text = self._decode([*self._shown, *self._waiting])
        if text.endswith(INCOMPLETE) or len(text) <= len(before):
            return ""
        self._shown, self._waiting = self._waiting, []
        return text[len(before) :]

    def finish(self) -> str:
        """Return the text of tokens that still wait, with replacement characters."""
        before = self._decode(self._shown)
        text = self._decode([*self._shown, *self._waiting])
        self._shown, self._waiting = self._waiting, []
        return text[len(before) :]
