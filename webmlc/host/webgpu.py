"""Run webgpu steps through wgpu-py.

In: a verified package (`Loaded`). Out: an `Executor`. All activations are in one arena buffer,
bound at 256-byte aligned offsets. Bind groups are built once per binding of symbols. A run of steps
is one encoder, one pass, one submission and one readback.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import wgpu  # type: ignore[import-untyped]

from webmlc.core.errors import AdapterError, DeviceLostError, InternalError, UserError
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
from webmlc.host.webgpu_adapter import (
    BINDING_MULTIPLE,
    Timestamps,
    request_device,
)
from webmlc.host.webgpu_kernels import Kernels
from webmlc.package.manifest import Control, Memory, Run, Step
from webmlc.package.memory_plan import ALIGNMENT, Layout, buffer_bytes, layout, place_in_order
from webmlc.package.placement import align
from webmlc.package.sizes import evaluate


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A step that is ready to encode."""

    step: Step
    bind_group: Any


@dataclass(frozen=True, slots=True)
class Binding:
    """The arena for one value of the symbols, and the uniforms and dispatches by step, which are
    made when they are first needed.

    `grows` says that the binding continues a run: the arena holds the results of earlier steps.
    There are `zones` in the debug mode only.
    """

    symbols: Mapping[str, int]
    layout: Layout
    grows: bool
    uniforms: dict[tuple[tuple[str, ...], tuple[int, ...]], Any]
    dispatches: dict[int, Dispatch]
    zones: tuple[Zone, ...]


@contextmanager
def _typed_errors() -> Iterator[None]:
    """Convert errors of wgpu to `DeviceLostError` or `InternalError`."""
    try:
        yield
    except wgpu.GPUOutOfMemoryError as error:
        raise UserError(f"the GPU has not enough memory for the model: {error}") from error
    except wgpu.GPUError as error:
        if "device is lost" in str(error):
            raise DeviceLostError(
                "the GPU device was lost; call model.restore(), or load it again"
            ) from error
        raise InternalError(f"WebGPU: {error}") from error


@dataclass(frozen=True, slots=True)
class Block:
    """The GPU buffer that holds the states of a session.

    `places` gives the place of each state. `bindings` are the session's own bindings, because their
    bind groups contain its buffer.
    """

    buffer: Any
    places: StatePlaces
    bindings: Cache[Binding] = field(default_factory=Cache)


class WebGpuExecutor:
    """The GPU: one arena, constants in as few buffers as possible, and the kernels.

    An exception in the middle of a call of wgpu-py may leave a buffer mapped or a pass open.
    """

    is_interruptible = False

    @_typed_errors()
    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.device = request_device(loaded)
        _OPEN.add(self)
        memory = loaded.program.memory.get("webgpu", Memory())
        temporary = self._upload_constants(memory.temporary)
        self.constants = self._upload_constants(memory.constants) | temporary
        self.constants |= self._new_buffers(memory.derived)
        self.kernels = Kernels(self.device, loaded)
        self.arena: Any = None
        self.staging: Any = None
        self.bindings: Cache[Binding] = Cache()
        self.blocks: dict[States, Block] = {}
        self.bound: Binding | None = None
        self.states: States | None = None
        self.count: dict[str, int] = {}
        self.values: Mapping[str, int] = {}
        self._derive()
        for name in temporary:
            self.constants.pop(name)[0].destroy()

    def adopt(self) -> None:
        """See `Executor.adopt`."""
        raise UserError(
            "a process that was forked cannot use the GPU of its parent; load the model in a "
            "process that was started by multiprocessing's method 'spawn', or on the CPU"
        )

    def _derive(self) -> None:
        """Compute the derived buffers."""
        runs = [run for run in self.loaded.program.runs if run.once and run.device == "webgpu"]
        if not runs:
            return
        self.bound = self._plan({})
        encoder, compute = self._begin()
        for index in (i for run in runs for i in range(run.first, run.last)):
            self._encode(compute, index)
        compute.end()
        self.device.queue.submit([encoder.finish()])
        self.bound = None

    @_typed_errors()
    def bind(self, symbols: Mapping[str, int], states: States | None = None) -> None:
        """Plan the arena for `symbols`; a new arena only where it must grow."""
        plan = partial(self._plan, dict(symbols))
        bindings = self.bindings
        if states is not None:
            if states not in self.blocks:
                check_new(states)
                self.blocks[states] = self._new_block(plan().layout, states)
            bindings = self.blocks[states].bindings
        binding = bindings.get(symbols, plan)
        if states is not None:
            check_places(self.blocks[states].places, binding.layout, states)
        if self.arena is None or binding.layout.arena > self.arena.size:
            self._new_arena(binding)
        if binding is not self.bound:
            for zone in binding.zones:
                size = zone.last - zone.first
                self.device.queue.write_buffer(self.arena, zone.first, bytes([PATTERN]) * size)
        self.bound, self.states = binding, states
        self._evaluate()
        if states is not None and self.loaded.manifest.length:
            self._write_uniforms(self.loaded.manifest.length)

    def _new_block(self, plan: Layout, states: States) -> Block:
        """Allocate the states of a session."""
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        return Block(self._buffer(plan.state_bytes, usage), state_places(plan, states))

    @_typed_errors()
    def read_states(self, states: States) -> dict[str, Array]:
        """See `Executor.read_states`."""
        if states not in self.blocks:
            return {}
        block = self.blocks[states]
        memory = np.frombuffer(self.device.queue.read_buffer(block.buffer), np.uint8)
        return {
            name: memory[place.offset : place.offset + place.bytes(states)].copy()
            for name, place in block.places.items()
        }

    @_typed_errors()
    def write_states(self, states: States, rows: Mapping[str, Array]) -> None:
        """See `Executor.write_states`."""
        for name, place in self.blocks[states].places.items():
            self._write_bytes(self.blocks[states].buffer, place.offset, rows[name])

    def release(self, states: States) -> None:
        """See `Executor.release`."""
        if (block := self.blocks.pop(states, None)) is not None:
            block.buffer.destroy()
        if self.states is states:
            self.states, self.bound = None, None

    def _plan(self, symbols: Mapping[str, int]) -> Binding:
        loaded = self.loaded
        plan = layout(
            loaded.manifest, loaded.program_device, "webgpu", symbols, red_zone=loaded.red_zone
        )
        expected = loaded.program.resources.arena.get("webgpu")
        if expected is not None and plan.arena != expected and not loaded.red_zones:
            raise InternalError(
                f"host: the arena takes {plan.arena} bytes, the manifest says {expected}"
            )
        grows = any(name in symbols for name in loaded.program.bound)
        around = tuple(zones(loaded.program, plan, "webgpu")) if loaded.red_zones else ()
        return Binding(symbols, plan, grows, {}, {}, around)

    @_typed_errors()
    def execute(self, run: Run, uploads: Mapping[str, Array]) -> dict[str, Array]:
        """See `Executor.execute`."""
        self._write(uploads)
        self.count = {}
        self._evaluate()
        encoder, compute = self._begin()
        index = run.first
        while index < run.last:
            step = self.loaded.program.steps[index]
            if step.control is None:
                self._encode(compute, index)
                index += 1
                continue
            compute.end()
            condition = True
            if step.arguments:  # earlier steps computed the condition
                condition = bool(self._read(encoder, step.arguments)[step.arguments[0]][0])
            else:
                self.device.queue.submit([encoder.finish()])
            index = self._decide(step.control, index, condition)
            encoder, compute = self._begin()
        compute.end()
        results = self._read(encoder, run.downloads)
        if self._current.zones:
            memory = np.frombuffer(self.device.queue.read_buffer(self.arena), np.uint8)
            check_zones(self.loaded.program, run, self._current.zones, memory)
        return results

    def _begin(self) -> tuple[Any, Any]:
        encoder = self.device.create_command_encoder()
        return encoder, encoder.begin_compute_pass()

    def _decide(self, control: Control, index: int, condition: bool) -> int:
        """The step after a control step. `count` holds the symbols of the loops."""
        count = self.count
        match control.kind:
            case "else":
                return control.target
            case "if":
                return index + 1 if condition else control.target
        count[control.symbol] = 0 if control.kind == "loop" else count[control.symbol] + 1
        follows = condition and count[control.symbol] < trip_count(control, self.values)
        self._evaluate()
        if follows:
            self._write_uniforms(control.symbol)
        return control.target if follows == (control.kind == "next") else index + 1

    @_typed_errors()
    def profile(self, run: Run, uploads: Mapping[str, Array]) -> list[float]:
        """See `Executor.profile`. Each step is one pass between two timestamps."""
        self._write(uploads)
        if run.first == run.last:
            return []
        times = Timestamps(self.device, run.last - run.first)
        encoder = self.device.create_command_encoder()
        for number, index in enumerate(range(run.first, run.last)):
            compute = times.begin_pass(encoder, number)
            self._encode(compute, index)
            compute.end()
        return times.submit(encoder)

    @_typed_errors()
    def time_runs(self, runs: Sequence[Run], count: int, before: int = 0) -> float:
        """Measure the seconds of the steps of `runs` on the GPU, `count` times in one pass, on the
        data that the last run left in the arena. The result includes the time between dispatches.
        The GPU first runs the steps `before` times, without a pause: an idle GPU has a lower clock.

        Raises `UserError` where the adapter offers no timestamps.
        """
        times = Timestamps(self.device, 1)
        encoder = self.device.create_command_encoder()
        steps = [i for run in runs for i in range(run.first, run.last)]
        warm = encoder.begin_compute_pass()
        for index in steps * before:
            self._encode(warm, index)
        warm.end()
        compute = times.begin_pass(encoder)
        for index in steps * count:
            self._encode(compute, index)
        compute.end()
        return times.submit(encoder)[0]

    def dispose(self) -> None:
        """Destroy every buffer."""
        buffers = {id(b): b for b, _ in self.constants.values()}
        blocks = (block.buffer for block in self.blocks.values())
        for buffer in (*buffers.values(), *blocks, self.arena, self.staging):
            if buffer is not None:
                buffer.destroy()
        self.constants, self.arena, self.staging, self.bound = {}, None, None, None
        self.blocks = {}
        self.bindings.items.clear()

    def _buffer(self, size: int, usage: int) -> Any:
        limit = self.device.limits["max-buffer-size"]
        if size > limit:
            raise AdapterError(f"the model needs a GPU buffer of {size} bytes, over {limit}")
        return self.device.create_buffer(size=max(align(size, BINDING_MULTIPLE), 16), usage=usage)

    def _new_arena(self, binding: Binding) -> None:
        """Allocate an arena.

        At the start of a run, the arena has exactly the size that the plan needs. An arena that
        grows during a run gets a larger size, and keeps the content of the old arena.
        """
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        old, size = self.arena, binding.layout.arena
        if old is not None and binding.grows:
            limit = self.device.limits["max-buffer-size"] // BINDING_MULTIPLE * BINDING_MULTIPLE
            size = max(size, min(int(old.size * GROWTH), limit))
        arena = self._buffer(size, usage)
        if old is not None and binding.grows:
            encoder = self.device.create_command_encoder()
            encoder.copy_buffer_to_buffer(old, 0, arena, 0, old.size)
            self.device.queue.submit([encoder.finish()])
        for bindings in (self.bindings, *(block.bindings for block in self.blocks.values())):
            for other in bindings.items.values():
                other.dispatches.clear()  # their bind groups refer to the old arena
        self.arena = arena
        if old is not None:
            old.destroy()

    def _upload_constants(self, numbers: Sequence[int]) -> dict[str, tuple[Any, int]]:
        """Upload constants, and return the GPU buffer and offset of each."""
        places = self._new_buffers(numbers)
        for buffer in (self.loaded.program.buffers[number] for number in numbers):
            assert buffer.tensor is not None
            content = self.loaded.tensors[buffer.tensor]
            self._write_bytes(*places[buffer.name], np.frombuffer(content, np.uint8))
        return places

    def _new_buffers(self, numbers: Sequence[int]) -> dict[str, tuple[Any, int]]:
        """Allocate resident buffers, which share GPU buffers of the largest permitted size. Return
        the GPU buffer and offset of each.
        """
        program = self.loaded.program
        sizes = buffer_bytes(program, {})
        addresses, total = place_in_order(program, numbers, sizes)
        limit = self.device.limits["max-buffer-size"] // ALIGNMENT["webgpu"] * ALIGNMENT["webgpu"]
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
        places: dict[str, tuple[Any, int]] = {}
        base = end = 0
        buffer: Any = None
        for name, address in addresses.items():
            if buffer is None or address + max(sizes[name], 1) > end:
                base, end = address, min(total, address + limit)
                buffer = self._buffer(end - base, usage)
            places[name] = (buffer, address - base)
        return places

    def _dispatch(self, index: int) -> Dispatch:
        """A webgpu step with its bind group, for the current symbols."""
        binding, step = self._current, self.loaded.program.steps[index]
        if index not in binding.dispatches:
            bindings = [self._binding(name) for name in step.arguments]
            if step.symbols or step.launch.integers:
                uniform = self._uniform(step.symbols, step.launch.integers)
                bindings.append({"buffer": uniform, "offset": 0, "size": uniform.size})
            group = self.device.create_bind_group(
                layout=self.kernels.layout(step),
                entries=[{"binding": i, "resource": b} for i, b in enumerate(bindings)],
            )
            binding.dispatches[index] = Dispatch(step, group)
        return binding.dispatches[index]

    def _uniform(self, names: tuple[str, ...], integers: tuple[int, ...]) -> Any:
        """A small uniform buffer with the current values of these symbols, and the integers."""
        uniforms = self._current.uniforms
        if (names, integers) not in uniforms:
            usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
            uniforms[names, integers] = self.device.create_buffer_with_data(
                data=_words(names, integers, self.values), usage=usage
            )
        return uniforms[names, integers]

    def _write_uniforms(self, symbol: str) -> None:
        """Write the new value of a symbol to the uniforms that contain it."""
        for (names, integers), buffer in self._current.uniforms.items():
            if symbol in names:
                self.device.queue.write_buffer(buffer, 0, _words(names, integers, self.values))

    def _place(self, name: str) -> tuple[Any, int]:
        if name in self.constants:
            return self.constants[name]
        if self.states is not None and name in self._current.layout.states:
            return self.blocks[self.states].buffer, self._current.layout.states[name]
        return self.arena, self._current.layout.offsets[name]

    def _evaluate(self) -> None:
        """Compute the values that kernels see, and the sizes that depend on them."""
        symbols = {**self._current.symbols, **self.count}
        if self.states is not None:
            symbols[self.loaded.manifest.length] = self.states.length
        self.values = self.loaded.program.values(symbols)

    @property
    def _current(self) -> Binding:
        assert self.bound is not None
        return self.bound

    def _binding(self, name: str) -> dict[str, Any]:
        buffer, offset = self._place(name)
        size = align(max(self._current.layout.sizes[name], 4), BINDING_MULTIPLE)
        limit = self.device.limits["max-storage-buffer-binding-size"]
        if size > limit:
            raise AdapterError(
                f"buffer {name!r} has {size} bytes; this adapter binds at most {limit} at once"
            )
        return {"buffer": buffer, "offset": offset, "size": size}

    def _encode(self, compute: Any, index: int) -> None:
        if self.loaded.program.steps[index].control is not None:
            return
        dispatch = self._dispatch(index)
        workgroups = [evaluate(size, self.values) for size in dispatch.step.launch.workgroups]
        if 0 in workgroups:
            return
        compute.set_pipeline(self.kernels.pipeline(dispatch.step, self.values))
        compute.set_bind_group(0, dispatch.bind_group)
        compute.dispatch_workgroups(*workgroups)

    def _write(self, uploads: Mapping[str, Array]) -> None:
        for name, data in uploads.items():
            self._write_bytes(*self._place(name), data)

    def _write_bytes(self, buffer: Any, offset: int, data: Array) -> None:
        """Write whole words."""
        padded = data.tobytes() + bytes(-data.nbytes % 4)
        if padded:
            self.device.queue.write_buffer(buffer, offset, padded)

    def _read(self, encoder: Any, names: Sequence[str]) -> dict[str, Array]:
        """Submit `encoder` with copies of the named buffers, and read their bytes back at once."""
        starts: dict[str, int] = {}
        total = 0
        for name in names:
            starts[name] = total
            total += align(self._current.layout.sizes[name], ALIGNMENT["webgpu"])
        if self.staging is None or self.staging.size < total:
            usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
            self.staging = self._buffer(total, usage)
        staging = self.staging
        for name, start in starts.items():
            buffer, offset = self._place(name)
            if count := align(self._current.layout.sizes[name], 4):
                encoder.copy_buffer_to_buffer(buffer, offset, staging, start, count)
        self.device.queue.submit([encoder.finish()])
        size = max(total, BINDING_MULTIPLE)  # a readback of nothing still waits for the device
        staging.map_sync(wgpu.MapMode.READ, 0, size)
        data = np.frombuffer(staging.read_mapped(0, size), np.uint8)
        sizes = self._current.layout.sizes
        results = {n: data[s : s + sizes[n]].copy() for n, s in starts.items()}
        staging.unmap()
        return results


_OPEN: WeakSet[WebGpuExecutor] = WeakSet()
"""The executors of this process."""


def _keep_in_child() -> None:
    """Let a forked process never release the GPU objects of its parent: the driver would wait for
    threads that the process does not have.
    """
    keep_forever(list(_OPEN))


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_keep_in_child)


def _words(names: Sequence[str], integers: Sequence[int], symbols: Mapping[str, int]) -> bytes:
    """The values of the symbols, then the integers; 0 for the symbol of a loop that has not
    started.
    """
    values = [*(symbols.get(name, 0) for name in names), *integers]
    words = np.zeros(align(len(values), 4), np.int32)
    words[: len(values)] = values
    return words.tobytes()
