"""The interface of a device to `host.load`: it plans memory for symbols, and runs steps in it.

In: the bytes of uploaded buffers, and a `Run`. Out: the bytes of downloaded buffers. The two
implementations are `wasm.WasmExecutor` and `webgpu.WebGpuExecutor`; `runtime_js` has their twins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from numpy.typing import NDArray

from webmlc.core.machine import Device
from webmlc.core.sizes import evaluate_size
from webmlc.package.manifest import Control, Manifest, Program, Run
from webmlc.package.memory_plan import Placing, place, place_apart

Array = NDArray[Any]
Names = Sequence[str]
T = TypeVar("T")
CACHED_BINDINGS = 16
"""The number of bindings of symbols whose plans are cached. Chosen by hand."""
UNLIMITED = (1 << 31) - 1
"""The trip count of a loop without one: the largest int32."""
GROWTH = 1.5
"""The smallest factor by which memory grows during a run.

A larger factor copies less often, but wastes more memory. Chosen by hand.
"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A package's files in memory, verified: what an executor is made from.

    `program_device` is the device of the program that runs; `tensors` the raw bytes of each
    constant it uses. `red_zones` says that buffers lie apart, and that the bytes between them are
    checked after each run.
    """

    manifest: Manifest
    program_device: Device
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
        return self.manifest.programs[self.program_device]


def trip_count(loop: Control, symbols: Mapping[str, int]) -> int:
    """The largest number of iterations of a loop."""
    return UNLIMITED if loop.trips is None else evaluate_size(loop.trips, symbols)


class Cache(Generic[T]):
    """A cache of items for the latest bindings of symbols."""

    def __init__(self) -> None:
        self.items: dict[tuple[tuple[str, int], ...], T] = {}

    def get(self, symbols: Mapping[str, int], make: Callable[[], T]) -> T:
        """The item of these symbols. A missing item is made, and may evict the oldest one."""
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
        """Prepare memory for these symbols; cheap if they are the same as before.

        During a run, further symbols may be bound. The contents of memory then stay.
        """

    def execute(self, run: Run, downloads: Names, uploads: Mapping[str, Array]) -> dict[str, Array]:
        """Write `uploads` (bytes), run the steps, return the bytes of the buffers `downloads`."""

    def profile(self, run: Run, uploads: Mapping[str, Array]) -> list[float]:
        """Measure the seconds of each step."""

    def dispose(self) -> None:
        """Free the resources of the device. The executor cannot be used afterwards."""
