"""What a device offers to `host.load`: memory for a binding of symbols, and steps to run in it.

In: bytes of uploaded buffers and a `Run`. Out: bytes of the downloaded ones. `wasm.WasmExecutor`
and `webgpu.WebGpuExecutor` are the two; `runtime_js` has their twins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from numpy.typing import NDArray

from webmlc.core.sizes import evaluate_size
from webmlc.package.manifest import Control, Device, Manifest, Program, Run
from webmlc.package.memory_plan import Placing, place, place_apart

Array = NDArray[Any]
Names = Sequence[str]
T = TypeVar("T")
CACHED_BINDINGS = 16
UNLIMITED = (1 << 31) - 1
GROWTH = 1.5
"""Memory that must grow during a run grows by this much at least."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A package's files in memory, verified: what an executor is made from.

    `own` is the program's device; `tensors` the raw bytes of each constant it uses. `red_zones`
    says that buffers lie apart, and that the bytes between them are checked after each run.
    """

    manifest: Manifest
    own: Device
    tensors: Mapping[str, memoryview]
    module: bytes
    shaders: str
    red_zones: bool = False

    @property
    def placing(self) -> Placing:
        """How the memory plan places buffers."""
        return place_apart if self.red_zones else place

    @property
    def program(self) -> Program:
        """The program that runs."""
        return self.manifest.programs[self.own]


def trip_count(loop: Control, symbols: Mapping[str, int]) -> int:
    """How many iterations a loop has at most."""
    return UNLIMITED if loop.trips is None else evaluate_size(loop.trips, symbols)


class Cache(Generic[T]):
    """What was made for the latest few bindings of symbols."""

    def __init__(self) -> None:
        self.items: dict[tuple[tuple[str, int], ...], T] = {}

    def get(self, symbols: Mapping[str, int], make: Callable[[], T]) -> T:
        """The item of these symbols; made, and the oldest dropped, where there is none."""
        key = tuple(symbols.items())
        if key not in self.items:
            item = make()
            while len(self.items) >= CACHED_BINDINGS:
                del self.items[next(iter(self.items))]
            self.items[key] = item
        return self.items[key]


class Executor(Protocol):
    """One device of a loaded model."""

    def bind(self, symbols: Mapping[str, int]) -> None:
        """Make room for these sizes; cheap when they are the same as before.

        During a run more and more symbols are bound: what lies in memory stays as it is.
        """

    def execute(self, run: Run, downloads: Names, uploads: Mapping[str, Array]) -> dict[str, Array]:
        """Write `uploads` (bytes), run the steps, return the bytes of the buffers `downloads`."""

    def profile(self, run: Run, uploads: Mapping[str, Array]) -> list[float]:
        """Seconds of each step."""

    def dispose(self) -> None:
        """Free what the device holds; the executor cannot be used afterwards."""
