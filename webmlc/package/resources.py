"""What a run of a program needs: memory by device, features, and the work of one token.

In: nothing. Out: records that a manifest holds, and that hosts check before they run a program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowWork:
    """The work of a run that appends one row to the states of a session: a token of a language
    model.

    `steps` counts the kernels, each of which is a dispatch on a GPU. They read and write at least
    `bytes` bytes, and `bytes_per_row` more for each row that the session holds.
    """

    steps: int
    bytes: int
    bytes_per_row: int


@dataclass(frozen=True, slots=True)
class Resources:
    """The exact resources of a run, in bytes, which the hosts assert.

    A resource that depends on symbols is `None`. `arena` is the memory of the activations per
    device, `memory` the whole WebAssembly memory with one thread, and `largest_binding` the largest
    buffer that a GPU binds. Models with states have `row`.
    """

    weights: int
    arena: Mapping[str, int | None]
    memory: int | None
    largest_binding: int | None
    scratch_per_thread: int = 0
    features: tuple[str, ...] = ()
    row: RowWork | None = None
