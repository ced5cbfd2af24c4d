"""The interface of a device to `host.load`: it plans memory for symbols, and runs steps in it.

In: the bytes of uploaded buffers, and a `Run`. Out: the bytes of downloaded buffers. The two
implementations are `wasm.WasmExecutor` and `webgpu.WebGpuExecutor`; `runtime_js` has their twins.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from numpy.typing import NDArray

from webmlc.core.errors import InputError, SessionLostError, UserError
from webmlc.core.machine import Device
from webmlc.package.manifest import Control, Manifest, Program, Run
from webmlc.package.memory_plan import RED_ZONE, Layout
from webmlc.package.sizes import evaluate

Array = NDArray[Any]
Names = Sequence[str]
T = TypeVar("T")
CACHED_BINDINGS = 16
"""The number of bindings of symbols whose plans are cached. Chosen by hand."""
UNLIMITED = (1 << 31) - 1
"""The trip count of a loop that has no limit: the largest int32."""
GROWTH = 1.5
"""The smallest factor by which memory grows during a run, when a symbol that is bound needs more
bytes. The content is copied each time. A larger factor copies less often, but wastes more memory.
Chosen by hand.
"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The verified files of a package in memory, for an executor.

    `program_device` is the device of the program that runs; `tensors` holds the raw bytes of each
    constant that the program uses. `red_zones` says that buffers lie apart, and that the bytes
    between them are checked after each run. `machine` is the number of the CPU's class
    (`core.machine_class`).
    """

    manifest: Manifest
    program_device: Device
    tensors: Mapping[str, memoryview]
    module: bytes
    shaders: str
    red_zones: bool = False
    machine: int = 0

    @property
    def red_zone(self) -> int:
        """The bytes before and behind each buffer that are checked."""
        return RED_ZONE if self.red_zones else 0

    @property
    def program(self) -> Program:
        """The program that runs."""
        return self.manifest.programs[self.program_device]


def trip_count(loop: Control, values: Mapping[str, int]) -> int:
    """The largest number of iterations of a loop."""
    return UNLIMITED if loop.trips is None else evaluate(loop.trips, values)


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


@dataclass(eq=False, slots=True)
class States:
    """How many rows of a session's states are valid. The bytes are in the memory of the devices,
    which find them by this record.

    A state either grows or is replaced. A growing state has room for `capacity` rows, and each run
    appends rows; its first `length` rows are valid. A replaced state has one row, which is zero
    at first and which each run writes anew.

    `symbols` are the symbols of the last run or load; `None` if the session has not begun.
    `is_torn`: an exception stopped a call that replaces states, so that some states may be new and
    others old. `is_disposed`: the session has ended.
    """

    capacity: int
    length: int = 0
    symbols: Mapping[str, int] | None = None
    is_torn: bool = False
    is_disposed: bool = False

    def check_not_disposed(self) -> None:
        """Raise `UserError` if the session has ended."""
        if self.is_disposed:
            raise UserError("this session was disposed of; open another with model.session")

    def check_not_torn(self) -> None:
        """Raise `InputError` if an exception stopped a call that replaces states."""
        if self.is_torn:
            raise InputError(
                "a run of this session did not end, so some of its states may be new and others "
                "old; call reset, or load"
            )


@dataclass(frozen=True, slots=True)
class StatePlace:
    """The place of a state in the block of a session: `offset` and `row_bytes` are in bytes. A
    state that does not grow is replaced by each run, and has one row.
    """

    offset: int
    row_bytes: int
    grows: bool

    def bytes(self, states: States) -> int:
        """The bytes of the valid rows."""
        return self.row_bytes * (states.length if self.grows else 1)


StatePlaces = Mapping[str, StatePlace]
"""The places of the states of a session, by name."""


def state_places(layout: Layout, states: States) -> dict[str, StatePlace]:
    """The places of the states that are on a device."""
    places = {}
    for name, offset in layout.states.items():
        grows = name not in layout.replaced_states
        row_bytes = layout.sizes[name] // (states.capacity if grows else 1)
        places[name] = StatePlace(offset, row_bytes, grows)
    return places


def check_new(states: States) -> None:
    """Raise `SessionLostError` if the session has begun. A caller found no memory of its states, so
    the device that held them was lost and opened again.
    """
    if states.symbols is not None:
        raise SessionLostError("the session was lost with its device; open another session")


def check_places(places: StatePlaces, layout: Layout, states: States) -> None:
    """Raise `InputError` if the states of a session have other rows in this layout."""
    if places != state_places(layout, states):
        raise InputError("the session began with other sizes of the inputs; open another session")


class Executor(Protocol):
    """One device of a loaded model. One thread at a time calls its methods.

    `is_interruptible` says that the device is usable after any exception in the middle of a method,
    such as an exception of a signal handler. Otherwise, the model opens the device again.
    """

    is_interruptible: bool

    def adopt(self) -> None:
        """Make the device usable in a forked process, which has no copy of its threads. The states
        of sessions are lost.

        Raises `UserError` if the device cannot be used in such a process.
        """

    def bind(self, symbols: Mapping[str, int], states: States | None = None) -> None:
        """Prepare memory for these symbols; cheap if they are the same as before.

        During a run, further symbols may be bound. The contents of memory then stay. If the model
        has states, the symbol of their length is the largest length at which the run's rows still
        fit. Memory is therefore planned once for a session. Kernels see `states.length`.
        """

    def read_states(self, states: States) -> dict[str, Array]:
        """The bytes of the valid rows of each state that is on this device."""

    def write_states(self, states: States, rows: Mapping[str, Array]) -> None:
        """Write the bytes of rows to the start of each state that is on this device."""

    def release(self, states: States) -> None:
        """Free the states of a session."""

    def execute(self, run: Run, uploads: Mapping[str, Array]) -> dict[str, Array]:
        """Write `uploads` (bytes), run the steps, and return the bytes of the run's downloads."""

    def profile(self, run: Run, uploads: Mapping[str, Array]) -> list[float]:
        """Measure the seconds of each step."""

    def dispose(self) -> None:
        """Free the resources of the device. The executor cannot be used afterwards."""


def keep_forever(executors: Iterable[Executor]) -> None:
    """Add a reference that nobody removes to each executor, so that Python never deletes it or the
    device's objects that it holds. Deleting them would fail at the exit of the process, and would
    wait for threads of the parent in a forked process.
    """
    for executor in executors:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(executor))
