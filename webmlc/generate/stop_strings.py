"""Find stop strings in a text that arrives in pieces.

In: pieces of text. Out: the text before the first stop string. Text that may be the beginning of a
stop string is held back until the next piece decides.

    filter = StopStrings(("END",))
    filter.add("the E")   # "the "
    filter.add("ast")     # "East"
    filter.add(" EN")     # " "
    filter.add("D.")      # "", and filter.is_found
"""

from __future__ import annotations

from collections.abc import Sequence


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
