"""The options of a search of schedules, written once for `webmlc.tune` and the command line.

This module imports nothing of the compiler: the command line shows its help at once.
"""

# ruff: noqa: RUF009  # `option` returns a field, as `dataclasses.field` does

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from webmlc.build_options import (
    CONSTANTS,
    OPERATORS,
    CommandOption,
    DeviceName,
    HasRow,
    option,
)
from webmlc.core.errors import UserError
from webmlc.host.check_options import DEVICE, SEED, SIZES, THREADS

if TYPE_CHECKING:
    from webmlc.frontend.bind_constants import Constants
    from webmlc.tune.search.search import Search

LOOPBACK = "127.0.0.1"
"""The address that only this machine reaches."""
Variant = Literal["relaxed", "simd128", "dot", "pairs"]
"""The WebAssembly variants whose kernels can be searched."""
Adapter = Literal["gpu", "software"]
"""The adapters that schedules are searched for (`core.machine.PLAIN_ADAPTERS`)."""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def duration(text: str) -> float:
    """The seconds of "90s", "10m" or "1h". Raises `UserError` for another form."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text)
    if parts is None:
        raise UserError(f"{text!r} is not a time: write 90s, 10m or 1h")
    return float(parts[1]) * _UNITS[parts[2] or "s"]


def address(text: str) -> tuple[str, int]:
    """The host and the port of "HOST:PORT" or "PORT". Raises `UserError` for another form."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal():
        raise UserError(f"--listen {text!r}: write HOST:PORT, for instance 0.0.0.0:8000")
    return host or LOOPBACK, int(port)


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The options of a search; `webmlc.tune.tune` says what they mean. `seed` is for strategies
    that draw at random. `on_listen` is called with the URL of the page by which devices join.
    """

    device: DeviceName = option("wasm", DEVICE)
    engine: str | None = option(
        None,
        CommandOption(
            "What measures: chromium, node, wasmtime or firefox (wasm); chromium or wgpu (webgpu).",
            shown="the first of them that is installed",
            kind=str | None,
        ),
    )
    variant: Variant = option(
        "relaxed",
        CommandOption("The WebAssembly variant whose kernels are searched (wasm).", kind=Variant),
    )
    adapter: str = option(
        "gpu",
        CommandOption(
            "Search shaders that are fast on GPUs, or on a software adapter such as SwiftShader.",
            kind=Adapter,
        ),
    )
    threads: int = option(1, THREADS)
    sizes: Mapping[str, int] | None = option(None, SIZES)
    constants: Constants | None = option(None, CONSTANTS)
    operators: Sequence[HasRow] = option((), OPERATORS)
    seconds: float = option(
        600.0,
        CommandOption(
            "Time to search, as 90s, 10m or 1h: from the first measurement to the last "
            "confirmed winner. Reading the model and starting the engine come before it, and one "
            "comparison of the whole model (wasm) after it.",
            flag="--budget",
            kind=str,
            default="10m",
            read=duration,
        ),
    )
    strategy: str = option(
        "auto",
        CommandOption(
            "How to search: auto, race, evolve (a genetic algorithm), tpe, model (a learned "
            "cost model) or random.",
            kind=str,
        ),
    )
    database: Path = option(
        Path("tuned.db"),
        CommandOption(
            "The file that keeps what was measured. With --list and --export also the records "
            "that come with webmlc.",
            kind=Path,
            metavar="FILE|shipped",
        ),
    )
    algorithms: bool = option(
        True,
        CommandOption(
            "Also search how layers become kernels: Winograd's and Strassen's algorithms, "
            "where to pad, how to split reductions."
        ),
    )
    resume: bool = option(
        False,
        CommandOption("Go on with what the database has of this model.", flag="--resume"),
    )
    seed: int = option(0, SEED)
    listen_at: tuple[str, int] | None = option(
        None,
        CommandOption(
            "Let other devices join by opening a page at this address.",
            flag="--listen",
            kind=str | None,
            metavar="HOST:PORT",
            read=address,
        ),
    )
    scheduler: str | None = option(
        None,
        CommandOption(
            "Measure on the `webmlc tune-worker`s of this Dask scheduler.",
            kind=str | None,
            metavar="tcp://HOST:PORT",
        ),
    )
    on_change: Callable[[Search], None] | None = None
    on_listen: Callable[[str], None] | None = None

    @property
    def has_guests(self) -> bool:
        """True if other workers also measure. They may join at any time, and their platforms may
        disagree, so the algorithms stay the defaults.
        """
        return self.listen_at is not None or self.scheduler is not None
