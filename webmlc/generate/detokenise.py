"""Turn tokens into text, one at a time, never split a character, and end at stop strings.

In: tokens, one by one. Out: the text that each token adds, which may be empty. A character may take
several tokens: an emoji is four bytes, and so up to four tokens. The last token adds the character.

    detokeniser = Detokeniser(tokenizer.decode)
    [detokeniser.add(token) for token in (9906, 98230, 232)]   # ["Hello", "", " 🙂"]

The text of a token depends on its neighbours, for example in tokenizers that mark the start of a
word. So the new text is the difference between two decodings. Both begin at tokens whose text has
been returned already (the method of vLLM's `detokenize_incrementally`).

Text that may be the beginning of a stop string is held back until the next piece decides:

    filter = StopStrings(("END",))
    [filter.add(piece) for piece in ("the E", "ast", " EN", "D.")]   # ["the ", "East", " ", ""]
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


class StopStrings:
    """The filter of one answer."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.is_found = False

    def add(self, piece: str) -> str:
        """Add a piece, and return the text that surely comes before any stop string."""
        text = self._held + piece
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.is_found, self._held = True, ""
            return text[: min(places)]
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        end = len(text) - held
        self._held = text[end:]
        return text[:end]

    def finish(self) -> str:
        """Return the text that was held back, because no more will come."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of the text that is a beginning of the stop string."""
    lengths = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((n for n in lengths if text.endswith(stop[:n])), 0)
