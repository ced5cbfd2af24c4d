"""A family of models: how one is damaged, and how the damaged one is judged."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.users.mutations.outcome import Outcome
from webmlc.core.machine import Device

Note = Callable[[str], None]
"""Tells the parent process which stage begins: "webmlc", or "reference". A process that ends within
the reference is no fault of ours.
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """The files of a damaged model. `title` names the base and the damage. The `main` file is the
    model. `extra` is what the family needs to judge it, such as arrays for its inputs.
    """

    title: str
    main: str
    files: Mapping[str, bytes]
    extra: Any = field(default=None, repr=False)

    def write(self, folder: Path) -> Path:
        """Write the files, and return the path of the model."""
        for name, data in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder / self.main


class Family(Protocol):
    """Models of one format."""

    def draw(self, rng: random.Random) -> Mutant:
        """Draw a mutant. Equal states of `rng` give equal mutants."""
        ...

    def judge(self, mutant: Mutant, folder: Path, device: Device, note: Note) -> Outcome:
        """Build and run a mutant for a device in an empty folder, and compare its results. Errors
        of the build and of the run may pass through.
        """
        ...

    def run_reference(self, mutant: Mutant, folder: Path) -> None:
        """Run a mutant by the references only, in an empty folder."""
        ...
