r"""Escape the characters of a name that no reader sees, or that would end a line.

A model chooses the names of its values and nodes. They stand in messages, and in comments of
emitted code, where a line break would turn the rest of a name into code.

>>> printable("a\nb"), printable("größe")
('a\\nb', 'größe')
"""

from __future__ import annotations


def printable(text: str, allowed: str = "") -> str:
    """The text with an escape sequence for each character that is neither printable nor allowed."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in allowed else ascii(c)[1:-1] for c in text)
