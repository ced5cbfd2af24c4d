"""The errors that webmlc raises. A user's mistake and a bug of the compiler never look alike.

A `UserError` is one clear message and a non-zero exit code. An `InternalError` is a bug of the
compiler, and says where its dump is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LONG_WORD = re.compile(r"(\S{200})\S{200,}")
"""A word of at least 400 characters. A message shows its first 200 characters."""


def printable(text: str, allowed: str = "") -> str:
    r"""Escape each character that is neither printable nor allowed.

    A model chooses the names of its values and nodes. They stand in messages, and in comments of
    emitted code, where a line break would turn the rest of a name into code.

    >>> printable("a\nb"), printable("größe")
    ('a\\nb', 'größe')
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in allowed else ascii(c)[1:-1] for c in text)


class WebmlcError(Exception):
    """Base of every error webmlc raises on purpose."""


class UserError(WebmlcError):
    """The model, the inputs or the environment cannot be used; the message says what to do.

    The message may quote names of any model. Characters that no terminal shows are escaped in it,
    and a word that nobody would read to its end is cut.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(_LONG_WORD.sub(r"\1...", printable(message, allowed="\n\t")))


class ModelError(UserError):
    """The model file is missing, malformed or unsafe."""


class ModelWarning(UserWarning):
    """The model can be compiled, but its author probably meant to export another model."""


class InputError(UserError):
    """A run-time input has the wrong name, dtype or shape."""


class SessionLostError(InputError):
    """The states of a session were lost with their device. Open another session."""


class PackageError(UserError):
    """A package file is missing, malformed or corrupted: its hash differs."""


class AdapterError(UserError):
    """There is no usable GPU adapter, or the adapter lacks a required limit or feature."""


class DeviceLostError(UserError):
    """The GPU device was lost (a reset, a new driver, power saving). Restore the model."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A node that cannot be compiled, with the reason and a remedy."""

    node: str
    operator: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operator} (node {self.node!r}): {self.reason}"


ADVICE = "`webmlc ops` lists what is supported; CONTRIBUTING.md shows how to add an operator."
"""The last line of an `UnsupportedError`, if the caller has no better advice."""


class UnsupportedError(UserError):
    """The model has unsupported nodes. The message lists all of them, then says what to do."""

    def __init__(self, nodes: tuple[Unsupported, ...], advice: str = ADVICE) -> None:
        self.nodes = nodes
        lines = "\n".join(f"  {node}" for node in nodes)
        count = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"
        super().__init__(f"{count} of this model cannot be compiled:\n{lines}\n{advice}")


class InternalError(WebmlcError):
    """An invariant of the compiler does not hold: a bug. The message names the stage and place."""
