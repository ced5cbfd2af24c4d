"""Errors: what the user did wrong, and what we did wrong, never look alike.

A `UserError` is one clear message and a non-zero exit; an `InternalError` is a bug of ours and says
where its dump is.
"""

from __future__ import annotations

from dataclasses import dataclass


class WebmlcError(Exception):
    """Base of every error webmlc raises on purpose."""


class UserError(WebmlcError):
    """The model, the inputs or the environment cannot be used as they are; the message says what to
    do.
    """


class ModelError(UserError):
    """The model file is missing, malformed or unsafe."""


class ModelWarning(UserWarning):
    """The model can be compiled, and is probably not what its author meant to export."""


class InputError(UserError):
    """A run-time input has the wrong name, dtype or shape."""


class PackageError(UserError):
    """A package file is missing, malformed or corrupted (its hash differs)."""


class AdapterError(UserError):
    """No usable GPU adapter, or it lacks a required limit or feature."""


class DeviceLostError(UserError):
    """The GPU device was lost (a reset, a new driver, power saving): restore the model."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One node that cannot be compiled: which one, why, and what to do."""

    node: str
    operator: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operator} (node {self.node!r}): {self.reason}"


ADVICE = "`webmlc ops` lists what is supported; CONTRIBUTING.md shows how to add an operator."


class UnsupportedError(UserError):
    """The model uses what webmlc does not support; lists every such node at once, and then what to
    do.
    """

    def __init__(self, nodes: tuple[Unsupported, ...], advice: str = ADVICE) -> None:
        self.nodes = nodes
        lines = "\n".join(f"  {node}" for node in nodes)
        count = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"
        super().__init__(f"{count} of this model cannot be compiled:\n{lines}\n{advice}")


class InternalError(WebmlcError):
    """An invariant of the compiler does not hold: a bug of ours, with stage and place."""
