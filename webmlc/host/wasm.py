"""Run wasm steps through wasmtime.

In: a verified package (`Loaded`). Out: an `Executor`. The memory is shared, and exactly as large as
the plan needs. Each thread is a Python thread with a separate store and instance, because foreign
calls release the GIL. All threads call the module's `run(first, last, tid, threads)`.
`package.memory_plan` defines the layout of memory.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import wasmtime
from numpy.typing import NDArray
from wasmtime import _ffi as ffi

from webmlc.core.errors import InputError, InternalError, PackageError, UserError
from webmlc.host.executor import (
    GROWTH,
    Array,
    Cache,
    Loaded,
    Names,
    StatePlaces,
    States,
    check_new,
    check_places,
    state_places,
    trip_count,
)
from webmlc.host.red_zones import PATTERN, Zone, check_zones, zones
from webmlc.package.manifest import Run
from webmlc.package.memory_plan import (
    PAGE,
    SCRATCH_BASE,
    SLOT_TABLE,
    Layout,
    layout,
    scratch_stride,
)
from webmlc.target.wasm.assemble import engine_config
from webmlc.target.wasm.emit_module import MACHINE
from webmlc.target.wasm.threads import RUNNING

Function = Callable[[int, int, int, int], None]
MAX_PAGES = 65536
"""The largest number of pages of a 32-bit memory, from the specification."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Memory for one value of the symbols: addresses, sizes, and the slot table's words.

    `state_slots` are the slots of states, with their offsets in the block of a session.
    `length_slot` is the slot of the session's length. `grows` says that it continues a run: memory
    holds what earlier steps wrote. There are `zones` in the debug mode only.
    """

    layout: Layout
    slots: list[int]
    state_slots: tuple[tuple[int, int], ...]
    length_slot: int
    grows: bool
    zones: tuple[Zone, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """The bytes of memory that hold the states of a session.

    `places` gives the place of each state.
    """

    address: int
    bytes: int
    places: StatePlaces


class WasmExecutor:
    """The CPU: one shared memory, and one instance per thread.

    The blocks of sessions are at the end of memory, behind `room` bytes that all runs share.
    """

    def __init__(self, loaded: Loaded, threads: int) -> None:
        if threads < 1:
            raise UserError(f"threads is {threads}: at least one is needed")
        self.loaded = loaded
        self.threads = threads
        self.engine = wasmtime.Engine(engine_config())
        self.module = self._compile(loaded.module)
        self.workers = [Worker(tid) for tid in range(threads)] if threads > 1 else []
        self.bindings: Cache[Binding] = Cache()
        self.bound: Binding | None = None
        self.bytes: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.room = 0
        self.blocks: dict[States, Block] = {}
        self.free: list[Block] = []
        self.memory: SharedMemory | None = None
        self.runs: list[Function] = []

    def bind(self, symbols: Mapping[str, int], states: States | None = None) -> None:
        """Plan memory for `symbols`; a new memory only where the present one is too small."""
        binding = self.bindings.get(symbols, partial(self._plan, symbols))
        if binding is self.bound and states is None:
            return
        lacks_block = states is not None and not self._has_block(states, binding)
        fresh = binding.layout.total > self.room or lacks_block
        grows = binding.grows and self.memory is not None
        if fresh:
            self._new_memory(binding, grows, states)
        slots = binding.slots
        if states is not None:
            slots = list(slots)
            for slot, offset in binding.state_slots:
                slots[slot] = self.blocks[states].address + offset
            if self.loaded.manifest.length:
                slots[binding.length_slot] = states.length
        self._words(SLOT_TABLE, slots)
        stride = scratch_stride(self.loaded.program.resources.scratch_per_thread)
        self._words(SCRATCH_BASE, [binding.layout.scratch, stride])
        self._words(MACHINE, [self.loaded.machine])
        self.bound = binding
        for zone in binding.zones:
            self.bytes[zone.first : zone.last] = PATTERN
        if fresh and not grows:
            for run in self.loaded.program.runs:
                if run.once and run.device == "wasm":
                    self._run_checked(run)

    def _plan(self, symbols: Mapping[str, int]) -> Binding:
        loaded, program = self.loaded, self.loaded.program
        plan = layout(
            loaded.manifest, loaded.program_device, "wasm", symbols, self.threads, loaded.placing
        )
        expected = program.resources.arena.get("wasm")
        if expected is not None and plan.arena != expected and not loaded.red_zones:
            raise InternalError(
                f"host: the arena takes {plan.arena} bytes, the manifest says {expected}"
            )
        slots = [plan.offsets.get(b.name, plan.constants.get(b.name, 0)) for b in program.buffers]
        names = (*(s.name for s in loaded.manifest.symbols), *program.bound)
        values = {**dict.fromkeys(names, 0), **symbols}
        slots += values.values()
        for loop in program.loops:  # its symbol, which the module counts, and its iterations
            slots += [0, trip_count(loop, values)]
        around = tuple(zones(program, plan, "wasm")) if loaded.red_zones else ()
        positions = {b.name: slot for slot, b in enumerate(program.buffers)}
        state_slots = tuple((positions[name], offset) for name, offset in plan.states.items())
        length = loaded.manifest.length
        length_slot = len(program.buffers) + names.index(length) if length else 0
        grows = any(name in symbols for name in program.bound)
        return Binding(plan, slots, state_slots, length_slot, grows, around)

    def _has_block(self, states: States, binding: Binding) -> bool:
        """Give a session a block of memory, if a free one is large enough."""
        size = binding.layout.state_bytes
        if states in self.blocks:
            check_places(self.blocks[states].places, binding.layout, states)
        else:
            check_new(states)
            block = next((block for block in self.free if block.bytes >= size), None)
            if block is None:
                return False
            self.free.remove(block)
            self.blocks[states] = replace(block, places=state_places(binding.layout, states))
            for view in self._rows(states).values():  # of a new session: those that do not grow
                view[:] = 0
        return True

    def read_states(self, states: States) -> dict[str, Array]:
        """See `Executor.read_states`."""
        return {name: view.copy() for name, view in self._rows(states).items()}

    def write_states(self, states: States, rows: Mapping[str, Array]) -> None:
        """See `Executor.write_states`."""
        for name, view in self._rows(states).items():
            view[:] = rows[name]

    def _rows(self, states: States) -> dict[str, NDArray[np.uint8]]:
        """Views of the valid rows of each state. The session has run, or has no block."""
        if states not in self.blocks:
            return {}
        block, views = self.blocks[states], {}
        for name, place in block.places.items():
            start = block.address + place.offset
            views[name] = self.bytes[start : start + place.bytes(states)]
        return views

    def release(self, states: States) -> None:
        """See `Executor.release`."""
        if states in self.blocks:
            self.free.append(self.blocks.pop(states))

    def execute(self, run: Run, downloads: Names, uploads: Mapping[str, Array]) -> dict[str, Array]:
        """See `Executor.execute`."""
        self._upload(uploads)
        self._run_checked(run)
        return {name: self._view(name).copy() for name in downloads}

    def profile(self, run: Run, uploads: Mapping[str, Array]) -> list[float]:
        """See `Executor.profile`."""
        self._upload(uploads)
        seconds = []
        for step in range(run.module_first, run.module_last):
            start = perf_counter()
            self._run(step, step + 1)
            seconds.append(perf_counter() - start)
        return seconds

    def _upload(self, uploads: Mapping[str, Array]) -> None:
        """Write the bytes of buffers, which may be shorter than those planned for a session."""
        for name, data in uploads.items():
            self._view(name)[: data.size] = data

    def dispose(self) -> None:
        """Stop the threads and free the memory."""
        for worker in self.workers:
            worker.stop()
        self.workers, self.runs, self.memory = [], [], None
        self.bytes, self.bound = np.zeros(0, np.uint8), None
        self.room, self.blocks, self.free = 0, {}, []

    def _new_memory(self, binding: Binding, grows: bool, states: States | None) -> None:
        """Allocate a memory that holds the constants, or the content of the old memory, and a block
        for each session. `states` may be a new session.

        At the start of a run, its size is exactly what the plan needs. If it grows during a run, it
        is larger, so that it need not grow again soon.
        """
        plan, old, old_memory = binding.layout, self.bytes, self.memory
        blocks = dict(self.blocks)
        if states is not None and states not in blocks:
            blocks[states] = Block(0, plan.state_bytes, state_places(plan, states))
        needed_room = max(plan.total, self.room) if blocks else plan.total
        total = needed_room + sum(block.bytes for block in blocks.values())
        pages = -(-total // PAGE)
        if pages > MAX_PAGES:
            needed = f"with these inputs the model needs {total} bytes"
            raise InputError(f"{needed}: more than 32-bit memory holds")
        if grows:
            pages = max(pages, min(int(len(old) * GROWTH) // PAGE, MAX_PAGES))
        program = self.loaded.program
        kind = wasmtime.MemoryType(wasmtime.Limits(pages, pages), shared=True)
        try:
            self.memory = SharedMemory(self.engine, kind)
        except wasmtime.WasmtimeError as error:
            raise UserError(f"cannot allocate {pages * PAGE} bytes for the model") from error
        self.bytes = self.memory.bytes
        old_room, old_blocks = self.room, self.blocks
        self.room = len(self.bytes) - sum(block.bytes for block in blocks.values())
        self.blocks, self.free, address = {}, [], self.room
        for session, block in blocks.items():
            self.blocks[session] = replace(block, address=address)
            if session in old_blocks:
                content = old[block.address : block.address + block.bytes]
                self.bytes[address : address + block.bytes] = content
            address += block.bytes
        if self.module is not None:
            self.runs = [
                instantiate(self.engine, self.module, self.memory) for _ in range(self.threads)
            ]
        if grows:
            self.bytes[:old_room] = old[:old_room]
            del old, old_memory
            return
        for buffer in program.buffers:
            if buffer.tensor is not None and buffer.name in plan.constants:
                address, data = plan.constants[buffer.name], self.loaded.tensors[buffer.tensor]
                self.bytes[address : address + len(data)] = np.frombuffer(data, np.uint8)

    def _compile(self, code: bytes) -> wasmtime.Module | None:
        """Compile the module; `None` if the program has no steps."""
        if not code:
            return None
        try:
            return wasmtime.Module(self.engine, code)
        except wasmtime.WasmtimeError as error:
            raise PackageError(f"the package's WebAssembly module is invalid: {error}") from error

    def _run_checked(self, run: Run) -> None:
        """Run the steps; in the debug mode, check the red zones after them."""
        self._run(run.module_first, run.module_last)
        if self.bound is not None and self.bound.zones:
            check_zones(self.loaded.program, run, self.bound.zones, self.bytes)

    def _run(self, first: int, last: int) -> None:
        """Run module steps `first..last-1` on every thread."""
        if first == last:
            return
        try:
            if self.threads == 1:
                self.runs[0](first, last, 0, 1)
                return
            self._words(RUNNING, [1])
            calls = [
                worker.submit(run, (first, last, worker.tid, self.threads))
                for worker, run in zip(self.workers, self.runs, strict=True)
            ]
            done, _ = wait(calls, return_when=FIRST_EXCEPTION)
            for call in done:
                call.result()
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            steps = f"{first}..{last - 1}"
            raise InternalError(f"host: a kernel of steps {steps} trapped: {error}") from error
        finally:
            self._words(RUNNING, [0])

    def _view(self, name: str) -> NDArray[np.uint8]:
        assert self.bound is not None
        plan = self.bound.layout
        address = plan.offsets[name] if name in plan.offsets else plan.constants[name]
        return self.bytes[address : address + plan.sizes[name]]

    def _words(self, address: int, values: list[int]) -> None:
        write_words(self.bytes, address, values)


def write_words(memory: NDArray[np.uint8], address: int, values: Sequence[int]) -> None:
    """Write 32-bit words, signed or unsigned, to the bytes of a memory."""
    words = np.array(values, np.int64).astype(np.int32).view(np.uint8)
    memory[address : address + len(words)] = words


class SharedMemory(wasmtime.SharedMemory):
    """A shared memory that can be imported. (wasmtime-py 50 passes a pointer to the pointer.)"""

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """A view of the bytes, which is valid as long as the memory is referenced."""
        pointer = ctypes.cast(self.data_ptr(), ctypes.POINTER(ctypes.c_uint8))
        return np.ctypeslib.as_array(pointer, (self.data_len(),))

    def _as_extern(self) -> ffi.wasmtime_extern_t:
        union = ffi.wasmtime_extern_union(sharedmemory=self.ptr())
        return ffi.wasmtime_extern_t(ffi.WASMTIME_EXTERN_SHAREDMEMORY, union)


class Worker:
    """A daemon thread that runs submitted jobs.

    It is a daemon because the other threads of a kernel that trapped may wait forever.
    """

    def __init__(self, tid: int) -> None:
        self.tid = tid
        self.jobs: queue.SimpleQueue[tuple[Future[None], Function, tuple[int, ...]] | None]
        self.jobs = queue.SimpleQueue()
        threading.Thread(target=self._loop, name=f"webmlc-{tid}", daemon=True).start()

    def submit(self, run: Function, arguments: tuple[int, int, int, int]) -> Future[None]:
        """Start `run(*arguments)` on this thread."""
        future: Future[None] = Future()
        self.jobs.put((future, run, arguments))
        return future

    def stop(self) -> None:
        """End the thread once it is idle."""
        self.jobs.put(None)

    def _loop(self) -> None:
        while (job := self.jobs.get()) is not None:
            future, run, arguments = job
            try:
                run(*arguments)
                future.set_result(None)
            except BaseException as error:
                future.set_exception(error)


def instantiate(
    engine: wasmtime.Engine, module: wasmtime.Module, memory: wasmtime.SharedMemory
) -> Function:
    """Create an instance in a separate store, as each thread needs, and return its `run`.

    Raises `PackageError` if the module exports none.
    """
    store = wasmtime.Store(engine)
    imports: list[Any] = [memory for _ in module.imports]
    run = wasmtime.Instance(store, module, imports).exports(store)["run"]
    if not isinstance(run, wasmtime.Func):
        raise PackageError("the package's WebAssembly module exports no function `run`")
    return lambda *arguments: run(store, *arguments)
