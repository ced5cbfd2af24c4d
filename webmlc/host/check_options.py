"""The options of a check, written once for `webmlc.check` and for the command line."""

# ruff: noqa: RUF009  # `option` returns a field, as `dataclasses.field` does

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webmlc.build_options import MODEL, CommandOption, DeviceName, dimensions, option

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEVICE = CommandOption("Where to run.", kind=DeviceName)
THREADS = CommandOption("CPU threads.", least=1, kind=int)
SEED = CommandOption("Seed of the random inputs.", kind=int)
SIZES = CommandOption(
    "Size of a symbolic dimension, as NAME=SIZE (repeatable). "
    "Default: 1, or the least power of 2 that the model accepts.",
    MODEL,
    "--dim",
    kind=list[str],
    default=[],
    read=dimensions,
)
"""Options of the commands that run a model."""
INPUTS = (
    "A .npz file of inputs. Inputs that it does not contain are random, with the sizes of those "
    "that it contains."
)
"""The help of --inputs."""


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read the file of --inputs. The library of arrays is imported only for a file."""
    from webmlc.host.try_model import read_arrays

    return read_arrays(path)


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How a model is run and compared.

    - `inputs`: arrays by name. Other inputs are random. Without `inputs`, batches of 1 and 2 are
      compared, too.
    - `examples`: as `inputs`, but batches are compared.
    - `dims`: the sizes of symbolic dimensions of random inputs.
    - `tolerance`: the largest error, relative to the largest expected element of the output.
    - `built_from`: the model that a package was built from. Without it, the programs of the package
      are compared with each other.
    """

    device: DeviceName = option("wasm", DEVICE)
    threads: int = option(1, THREADS)
    inputs: Mapping[str, NDArray[Any]] | None = option(
        None,
        CommandOption(INPUTS, flag="--inputs", kind=Path | None, read=_arrays),
    )
    dims: Mapping[str, int] | None = option(None, SIZES)
    seed: int = option(0, SEED)
    tolerance: float = option(
        1e-3,
        CommandOption(
            "Largest error to accept, relative to an output's largest magnitude.", kind=float
        ),
    )
    built_from: Path | None = option(
        None,
        CommandOption(
            "The model that a package was built from. Without it, the programs of the package "
            "are compared with each other.",
            flag="--model",
            shown=False,
            kind=Path | None,
        ),
    )
    examples: Mapping[str, NDArray[Any]] | None = None

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]] | None:
        """The inputs that are not random."""
        return self.inputs or self.examples
