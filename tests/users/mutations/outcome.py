"""The outcomes that a mutant may have, and the two that it should have.

>>> outcome_of_error(ModelError("the model has no graph")).kind
'refused'
>>> outcome_of_error(IndexError("list index out of range")).kind
'traceback'
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from webmlc.core.errors import InternalError, UserError, WebmlcError

Kind = Literal[
    "right",  # the package computes what the reference computes
    "refused",  # one typed error says why
    "unjudged",  # the package runs, and no reference does, or its results are random
    "wrong",  # the package computes something else
    "unclear",  # a typed error whose message nobody can read
    "internal",  # a bug that the compiler noticed
    "traceback",  # a bug that it did not notice
    "crash",  # the process ended
    "hang",  # the process computed longer than its limit
    "memory",  # the process needed more than its limit
]
ALLOWED: frozenset[Kind] = frozenset({"right", "refused", "unjudged"})

LONGEST_MESSAGE = 8_000
"""The characters from which nobody reads a message. Chosen by hand: a list of some eighty nodes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a mutant. `place` is where in `webmlc` an error arose. `reference` says what
    the reference did with a model that was refused: "runs it", "refuses it", or nothing.
    """

    kind: Kind
    message: str = ""
    place: str = ""
    reference: str = ""

    @property
    def is_allowed(self) -> bool:
        return self.kind in ALLOWED

    def with_reference(self, reference: str) -> Outcome:
        return replace(self, reference=reference)


def outcome_of_error(error: BaseException) -> Outcome:
    """The outcome of a build or of a run that ended with an error."""
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError):
        return Outcome("memory", message, _place(error))
    if isinstance(error, InternalError):
        return Outcome("internal", message, _place(error))
    if isinstance(error, UserError):
        return Outcome("refused" if _is_clear(str(error)) else "unclear", message, _place(error))
    kind: Kind = "internal" if isinstance(error, WebmlcError) else "traceback"
    return Outcome(kind, message, _place(error))


def _is_clear(message: str) -> bool:
    return (
        bool(message.strip())
        and len(message) <= LONGEST_MESSAGE
        and "Traceback" not in message
        and all(c.isprintable() or c == "\n" for c in message)
    )


def _place(error: BaseException) -> str:
    """The innermost line of `webmlc` in the error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if "/webmlc/" in f.filename]
    return places[-1] if places else ""
