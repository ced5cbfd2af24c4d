"""Run wasm steps through wasmtime.

In: a verified package (`Loaded`). Out: an `Executor`. The memory is shared, and exactly as large as
the plan needs. Each thread is a Python thread with a separate store and instance, because foreign
calls release the GIL. All threads call the module's `run(first, last, tid, threads)`.
`package.memory_plan` defines the layout of memory.
"""

from __future__ import annotations

import atexit
import ctypes
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any
from weakref import WeakSet

import numpy as np
import wasmtime
from numpy.typing import NDArray
from wasmtime import _ffi as ffi

from webmlc.core.control_area import CONTROL
from webmlc.core.errors import InputError, InternalError, PackageError, UserError
from webmlc.host.executor import (
    GROWTH,
    Array,
    Cache,
    Loaded,
    StatePlaces,
    States,
    check_new,
    check_places,
    keep_forever,
    state_places,
    trip_count,
)
from webmlc.host.red_zones import PATTERN, Zone, check_zones, zones
from webmlc.package.manifest import Run
from webmlc.package.memory_plan import (
    PAGE,
    Layout,
    layout,
    scratch_stride,
)
from webmlc.target.wasm.assemble import engine_config

Function = Callable[[int, int, int, int], None]
Job = tuple["Future[None]", Function, tuple[int, int, int, int]]
MAX_PAGES = 65536
"""The largest number of pages of a 32-bit memory, from the specification."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Memory for one value of the symbols: addresses, sizes, and the slot table's words.

    `state_slots` are the slots of states, with their offsets in the block of a session.
    `length_slot` is the slot of the session's length. `grows` says that the binding continues a
    run: memory holds the results of earlier steps. There are `zones` in the debug mode only.
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


@dataclass(eq=False, slots=True)
class Memory:
    """A memory of a model, and the functions that run the module in it, one per thread.

    - `bytes`: a view of `shared`, valid as long as `shared` is referenced.
    - `room`: the bytes that all runs share. The blocks of sessions follow these bytes.
    - `blocks`: the block of each session. `free` holds the blocks of sessions that have ended.
    """

    shared: SharedMemory
    bytes: NDArray[np.uint8]
    room: int
    blocks: dict[States, Block]
    free: list[Block]
    runs: Sequence[Function]

    def write_words(self, address: int, values: Sequence[int]) -> None:
        """Write 32-bit words, signed or unsigned."""
        write_words(self.bytes, address, values)

    def rows(self, block: Block, states: States) -> dict[str, NDArray[np.uint8]]:
        """Views of the valid rows of each state of a session in its block."""
        starts = {name: block.address + place.offset for name, place in block.places.items()}
        return {
            name: self.bytes[start : start + block.places[name].bytes(states)]
            for name, start in starts.items()
        }


class WasmExecutor:
    """The CPU: one shared memory, and one instance per thread.

    The thread that calls `execute` is the leader of the run. An exception between two statements,
    as by Ctrl-C, leaves a usable executor: a new memory is complete before `memory` names it, and
    `bound` is None while the words of a binding are written.
    """

    is_interruptible = True

    def __init__(self, loaded: Loaded, threads: int) -> None:
        if threads < 1:
            raise UserError(f"threads is {threads}: at least one is needed")
        self.loaded = loaded
        self.threads = threads
        self.engine = wasmtime.Engine(engine_config())
        self.module = self._compile(loaded.module)
        self.bindings: Cache[Binding] = Cache()
        self.adopt()
        _OPEN.add(self)

    def adopt(self) -> None:
        """See `Executor.adopt`."""
        self.helpers = [Worker(tid) for tid in range(1, self.threads)]
        self.memory: Memory | None = None
        self.bound: Binding | None = None

    def bind(self, symbols: Mapping[str, int], states: States | None = None) -> None:
        """Plan memory for `symbols`. Allocate a new memory only if the present one is too small."""
        binding = self.bindings.get(symbols, partial(self._plan, symbols))
        if binding is self.bound and states is None:
            return
        self.bound = None
        memory, grows = self.memory, binding.grows and self.memory is not None
        if states is not None and (memory is None or states not in memory.blocks):
            check_new(states)
        lacks_block = memory is None or not _has_block(memory, binding, states)
        if memory is None or lacks_block or binding.layout.total > memory.room:
            memory = self._new_memory(binding, grows, states)
        slots = binding.slots
        if states is not None:
            slots = list(slots)
            for slot, offset in binding.state_slots:
                slots[slot] = memory.blocks[states].address + offset
            if self.loaded.manifest.length:
                slots[binding.length_slot] = states.length
        memory.write_words(CONTROL.slots, slots)
        stride = scratch_stride(self.loaded.program.resources.scratch_per_thread)
        memory.write_words(CONTROL.scratch, [binding.layout.scratch, stride])
        memory.write_words(CONTROL.machine, [self.loaded.machine])
        for zone in binding.zones:
            memory.bytes[zone.first : zone.last] = PATTERN
        if memory is not self.memory and not grows:
            for run in self.loaded.program.runs:
                if run.once and run.device == "wasm":
                    self._run_checked(memory, binding, run)
        self.memory, self.bound = memory, binding

    def _plan(self, symbols: Mapping[str, int]) -> Binding:
        loaded, program = self.loaded, self.loaded.program
        plan = layout(
            loaded.manifest,
            loaded.program_device,
            "wasm",
            symbols,
            self.threads,
            red_zone=loaded.red_zone,
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
            slots += [0, trip_count(loop, program.values(values))]
        around = tuple(zones(program, plan, "wasm")) if loaded.red_zones else ()
        positions = {b.name: slot for slot, b in enumerate(program.buffers)}
        state_slots = tuple((positions[name], offset) for name, offset in plan.states.items())
        length = loaded.manifest.length
        length_slot = len(program.buffers) + names.index(length) if length else 0
        grows = any(name in symbols for name in program.bound)
        return Binding(plan, slots, state_slots, length_slot, grows, around)

    def read_states(self, states: States) -> dict[str, Array]:
        """See `Executor.read_states`."""
        return {name: view.copy() for name, view in self._rows(states).items()}

    def write_states(self, states: States, rows: Mapping[str, Array]) -> None:
        """See `Executor.write_states`."""
        for name, view in self._rows(states).items():
            view[:] = rows[name]

    def _rows(self, states: States) -> dict[str, NDArray[np.uint8]]:
        """Views of the valid rows of each state. The session has run, or has no block."""
        if self.memory is None or states not in self.memory.blocks:
            return {}
        return self.memory.rows(self.memory.blocks[states], states)

    def release(self, states: States) -> None:
        """See `Executor.release`."""
        if self.memory is not None and states in self.memory.blocks:
            self.memory.free.append(self.memory.blocks.pop(states))

    def execute(self, run: Run, uploads: Mapping[str, Array]) -> dict[str, Array]:
        """See `Executor.execute`."""
        memory, binding = self._current
        _upload(memory, binding, uploads)
        self._run_checked(memory, binding, run)
        return {name: _view(memory, binding, name).copy() for name in run.downloads}

    def profile(self, run: Run, uploads: Mapping[str, Array]) -> list[float]:
        """See `Executor.profile`."""
        memory, binding = self._current
        _upload(memory, binding, uploads)
        seconds = []
        for step in range(run.module_first, run.module_last):
            start = perf_counter()
            self._run(memory, step, step + 1)
            seconds.append(perf_counter() - start)
        return seconds

    @property
    def _current(self) -> tuple[Memory, Binding]:
        """The memory and the binding of the current run."""
        assert self.memory is not None and self.bound is not None
        return self.memory, self.bound

    def dispose(self) -> None:
        """Stop the threads and free the memory."""
        self.helpers, self.memory, self.bound = [], None, None

    def _new_memory(self, binding: Binding, grows: bool, states: States | None) -> Memory:
        """Allocate a memory that holds the constants, or the content of the old memory, and a block
        for each session. `states` may be a new session.

        At the start of a run, the memory has exactly the size that the plan needs. A memory that
        grows during a run gets a larger size, so that it need not grow again soon.
        """
        plan, old = binding.layout, self.memory
        blocks = dict(old.blocks) if old is not None else {}
        if states is not None and states not in blocks:
            blocks[states] = Block(0, plan.state_bytes, state_places(plan, states))
        room = max(plan.total, old.room) if old is not None and blocks else plan.total
        total = room + sum(block.bytes for block in blocks.values())
        pages = -(-total // PAGE)
        if pages > MAX_PAGES:
            needed = f"with these inputs the model needs {total} bytes"
            raise InputError(f"{needed}: more than 32-bit memory holds")
        if grows and old is not None:
            pages = max(pages, min(int(len(old.bytes) * GROWTH) // PAGE, MAX_PAGES))
        kind = wasmtime.MemoryType(wasmtime.Limits(pages, pages), shared=True)
        try:
            shared = SharedMemory(self.engine, kind)
        except wasmtime.WasmtimeError as error:
            raise UserError(f"cannot allocate {pages * PAGE} bytes for the model") from error
        room = pages * PAGE - sum(block.bytes for block in blocks.values())
        memory = Memory(shared, shared.bytes, room, {}, [], self._instances(shared))
        address = room
        for session, block in blocks.items():
            memory.blocks[session] = replace(block, address=address)
            if old is not None and session in old.blocks:
                content = old.bytes[block.address : block.address + block.bytes]
                memory.bytes[address : address + block.bytes] = content
            address += block.bytes
        if grows and old is not None:
            memory.bytes[: old.room] = old.bytes[: old.room]
            return memory
        for buffer in self.loaded.program.buffers:
            if buffer.tensor is not None and buffer.name in plan.constants:
                address, data = plan.constants[buffer.name], self.loaded.tensors[buffer.tensor]
                memory.bytes[address : address + len(data)] = np.frombuffer(data, np.uint8)
        return memory

    def _instances(self, memory: SharedMemory) -> list[Function]:
        """The function `run` of an instance for each thread; none if the program has no steps."""
        if self.module is None:
            return []
        return [instantiate(self.engine, self.module, memory) for _ in range(self.threads)]

    def _compile(self, code: bytes) -> wasmtime.Module | None:
        """Compile the module; `None` if the program has no steps."""
        if not code:
            return None
        try:
            return wasmtime.Module(self.engine, code)
        except wasmtime.WasmtimeError as error:
            raise PackageError(f"the package's WebAssembly module is invalid: {error}") from error

    def _run_checked(self, memory: Memory, binding: Binding, run: Run) -> None:
        """Run the steps; in the debug mode, check the red zones after them."""
        self._run(memory, run.module_first, run.module_last)
        if binding.zones:
            check_zones(self.loaded.program, run, binding.zones, memory.bytes)

    def _run(self, memory: Memory, first: int, last: int) -> None:
        """Run module steps `first..last-1`, with the helper threads.

        The leader waits for chunks that helpers took, and not for helpers. A sleeping helper may
        still be in the call of the last run; it then helps in this run.
        """
        if first == last:
            return
        calls: list[Future[None]] = []
        try:
            if self.helpers:
                memory.write_words(CONTROL.running, [1])
                calls = [
                    helper.submit(
                        partial(_help, memory, run), (first, last, helper.tid, self.threads)
                    )
                    for helper, run in zip(self.helpers, memory.runs[1:], strict=True)
                    if not helper.has_waiting_job
                ]
            memory.runs[0](first, last, 0, self.threads)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            failures = (call.exception() for call in calls if call.done())
            cause = next((failure for failure in failures if failure is not None), error)
            steps = f"{first}..{last - 1}"
            raise InternalError(f"host: a kernel of steps {steps} trapped: {cause}") from cause
        finally:
            if self.helpers:
                memory.write_words(CONTROL.running, [0])


_OPEN: WeakSet[WasmExecutor] = WeakSet()
"""The executors of this process."""


@atexit.register
def _keep_at_exit() -> None:
    """Let no object of wasmtime be deleted after Python has cleared wasmtime's modules, which print
    an error then: a model may outlive them if another module refers to it.
    """
    keep_forever(list(_OPEN))


def _help(memory: Memory, run: Function, *arguments: int) -> None:
    """Run a helper. If it traps, end the run: the leader would wait for its chunk."""
    try:
        run(*arguments)
    except BaseException:
        memory.write_words(CONTROL.running, [0])
        raise


def _has_block(memory: Memory, binding: Binding, states: States | None) -> bool:
    """Give a session a block of memory, if a free one is large enough."""
    if states is None:
        return True
    if states in memory.blocks:
        check_places(memory.blocks[states].places, binding.layout, states)
        return True
    size = binding.layout.state_bytes
    unused = next((block for block in memory.free if block.bytes >= size), None)
    if unused is None:
        return False
    block = replace(unused, places=state_places(binding.layout, states))
    for view in memory.rows(block, states).values():  # a new session: states that do not grow
        view[:] = 0
    memory.free.remove(unused)
    memory.blocks[states] = block
    return True


def _upload(memory: Memory, binding: Binding, uploads: Mapping[str, Array]) -> None:
    """Write the bytes of buffers, which may be shorter than the buffers planned for a session."""
    for name, data in uploads.items():
        _view(memory, binding, name)[: data.size] = data


def _view(memory: Memory, binding: Binding, name: str) -> NDArray[np.uint8]:
    """The bytes of a buffer."""
    plan = binding.layout
    address = plan.offsets[name] if name in plan.offsets else plan.constants[name]
    return memory.bytes[address : address + plan.sizes[name]]


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
    """A daemon thread that runs submitted jobs, until `stop` or until no one refers to the worker.

    It is a daemon because a process may end while a helper sleeps.
    """

    def __init__(self, tid: int) -> None:
        self.tid = tid
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        name = f"webmlc-{tid}"
        threading.Thread(target=_run_jobs, args=(self.jobs,), name=name, daemon=True).start()

    @property
    def has_waiting_job(self) -> bool:
        """True if a job waits until the thread has finished an earlier job."""
        return not self.jobs.empty()

    def submit(self, run: Function, arguments: tuple[int, int, int, int]) -> Future[None]:
        """Start `run(*arguments)` on this thread."""
        future: Future[None] = Future()
        self.jobs.put((future, run, arguments))
        return future

    def stop(self) -> None:
        """End the thread once it is idle."""
        self.jobs.put(None)

    def __del__(self) -> None:
        self.stop()


def _run_jobs(jobs: queue.SimpleQueue[Job | None]) -> None:
    """The loop of a worker's thread, which does not refer to the worker."""
    while (job := jobs.get()) is not None:
        future, run, arguments = job
        try:
            run(*arguments)
            future.set_result(None)
        except BaseException as error:
            future.set_exception(error)
        del job, future, run  # which refer to the memory of a model


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
