"""Run webgpu steps through wgpu-py.

In: a verified package (`Loaded`). Out: an `Executor`. All activations live in one arena buffer,
bound at 256-byte aligned offsets; bind groups are built once for a binding of symbols; a stage is
one encoder, one pass, one submission and one readback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import wgpu  # type: ignore[import-untyped]

from webmlc.core.errors import AdapterError, InternalError, UserError
from webmlc.core.rewrite import evaluate
from webmlc.host.executor import Array, Cache, Loaded, trip_count
from webmlc.package.manifest import Control, Step
from webmlc.package.memory_plan import ALIGNMENT, Layout, align, layout, place_constants
from webmlc.package.transfers import Stage

BINDING_MULTIPLE = 16  # kernels may read whole vec4<f32>; slots are 256-aligned
LIMITS = ("max-buffer-size", "max-storage-buffer-binding-size")


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A step ready to encode."""

    pipeline: Any
    bind_group: Any
    workgroups: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Binding:
    """The arena for one value of the symbols, and every dispatch by its step's number."""

    layout: Layout
    sizes: Mapping[str, int]
    dispatches: Mapping[int, Dispatch]
    symbols: Mapping[str, int]
    uniforms: Mapping[tuple[str, ...], Any]


class WebGpuExecutor:
    """The GPU: one arena, constants in as few buffers as limits allow, one pipeline a kernel."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.device = request_device(loaded)
        self.constants = self._upload_constants()
        self.layouts: dict[str, Any] = {}
        self.pipelines = self._pipelines()
        self.arena: Any = None
        self.staging: Any = None
        self.bindings: Cache[Binding] = Cache()
        self.bound: Binding | None = None

    def bind(self, symbols: Mapping[str, int]) -> None:
        """Plan the arena for `symbols` and build the bind groups; a new arena only where it must
        grow.
        """
        self.bound = self.bindings.get(symbols, partial(self._bind, symbols))

    def _bind(self, symbols: Mapping[str, int]) -> Binding:
        loaded = self.loaded
        plan = layout(loaded.manifest, loaded.own, "webgpu", symbols)
        expected = loaded.program.resources.arena.get("webgpu")
        if expected is not None and plan.arena != expected:
            raise InternalError(
                f"host: the arena takes {plan.arena} bytes, the manifest says {expected}"
            )
        sizes = {b.name: int(evaluate(b.bytes, symbols)) for b in loaded.program.buffers}
        if self.arena is None or plan.arena > self.arena.size:
            self._new_arena(plan.arena)
        self.bound = Binding(plan, sizes, {}, symbols, self._uniforms(symbols))
        return replace(self.bound, dispatches=self._dispatches(symbols))

    def execute(self, stage: Stage, uploads: Mapping[str, Array]) -> dict[str, Array]:
        """See `Executor.execute`."""
        self._write(uploads)
        encoder, compute = self._begin()
        index, count = stage.segment.first, dict[str, int]()
        while index < stage.segment.last:
            step = self.loaded.program.steps[index]
            if step.control is None:
                self._encode(compute, index)
                index += 1
                continue
            compute.end()
            going = True  # a condition that the steps before compute
            if step.arguments:
                going = bool(self._read(encoder, step.arguments)[step.arguments[0]][0])
            else:
                self.device.queue.submit([encoder.finish()])
            index = self._decide(step.control, index, going, count)
            encoder, compute = self._begin()
        compute.end()
        return self._read(encoder, stage.downloads)

    def _begin(self) -> tuple[Any, Any]:
        encoder = self.device.create_command_encoder()
        return encoder, encoder.begin_compute_pass()

    def _decide(self, control: Control, index: int, going: bool, count: dict[str, int]) -> int:
        """The step that follows a decision; `count` holds the loops' symbols."""
        match control.kind:
            case "else":
                return control.target
            case "if":
                return index + 1 if going else control.target
        count[control.symbol] = 0 if control.kind == "loop" else count[control.symbol] + 1
        follows = going and count[control.symbol] < trip_count(control, self._current.symbols)
        if follows:
            self._write_uniforms(control.symbol, {**self._current.symbols, **count})
        return control.target if follows == (control.kind == "next") else index + 1

    def profile(self, stage: Stage, uploads: Mapping[str, Array]) -> list[float]:
        """See `Executor.profile`: one pass a step, between two timestamps."""
        if "timestamp-query" not in self.device.features:
            raise UserError("this GPU adapter offers no timestamp-query, which profiling needs")
        self._write(uploads)
        count = 2 * (stage.segment.last - stage.segment.first)
        if count == 0:
            return []
        queries = self.device.create_query_set(type="timestamp", count=count)
        times = self._buffer(8 * count, wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC)
        encoder = self.device.create_command_encoder()
        for number, index in enumerate(range(stage.segment.first, stage.segment.last)):
            compute = encoder.begin_compute_pass(
                timestamp_writes={
                    "query_set": queries,
                    "beginning_of_pass_write_index": 2 * number,
                    "end_of_pass_write_index": 2 * number + 1,
                }
            )
            self._encode(compute, index)
            compute.end()
        encoder.resolve_query_set(queries, 0, count, times, 0)
        self.device.queue.submit([encoder.finish()])
        ticks = np.frombuffer(self.device.queue.read_buffer(times), np.uint64).astype(np.int64)
        times.destroy()
        return [float(t) * 1e-9 for t in ticks[1::2] - ticks[0::2]]

    def dispose(self) -> None:
        """Destroy every buffer."""
        buffers = {id(b): b for b, _ in self.constants.values()}
        for buffer in (*buffers.values(), self.arena, self.staging):
            if buffer is not None:
                buffer.destroy()
        self.constants, self.arena, self.staging, self.bound = {}, None, None, None
        self.bindings.items.clear()

    def _buffer(self, size: int, usage: int) -> Any:
        limit = self.device.limits["max-buffer-size"]
        if size > limit:
            raise AdapterError(f"the model needs a GPU buffer of {size} bytes, over {limit}")
        return self.device.create_buffer(size=max(align(size, BINDING_MULTIPLE), 16), usage=usage)

    def _new_arena(self, size: int) -> None:
        if self.arena is not None:
            self.arena.destroy()
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        self.arena = self._buffer(size, usage)
        self.bindings.items.clear()  # their bind groups point into the old arena

    def _upload_constants(self) -> dict[str, tuple[Any, int]]:
        """Each constant's GPU buffer and offset; tensors share buffers up to the largest
        allowed.
        """
        loaded = self.loaded
        addresses, total = place_constants(loaded.manifest, loaded.own, "webgpu", 0)
        limit = self.device.limits["max-buffer-size"] // ALIGNMENT["webgpu"] * ALIGNMENT["webgpu"]
        tensors = {b.name: b.tensor for b in loaded.program.buffers if b.tensor is not None}
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
        placed: dict[str, tuple[Any, int]] = {}
        base = end = 0
        buffer: Any = None
        for name, address in sorted(addresses.items(), key=lambda item: item[1]):
            data = loaded.tensors[tensors[name]]
            if buffer is None or address + max(len(data), 1) > end:
                base, end = address, min(total, address + limit)
                buffer = self._buffer(end - base, usage)
            padded = bytes(data) + bytes(-len(data) % 4)
            if padded:
                self.device.queue.write_buffer(buffer, address - base, padded)
            placed[name] = (buffer, address - base)
        return placed

    def _pipelines(self) -> dict[str, Any]:
        """A compute pipeline per kernel, with an explicit layout: constants read-only, then
        symbols.
        """
        steps: dict[str, Step] = {}
        for step in self.loaded.program.steps:
            if step.device == "webgpu" and step.control is None:
                steps.setdefault(step.kernel, step)
        if not steps:
            return {}
        module = self.device.create_shader_module(code=self.loaded.shaders)
        pipelines = {}
        for kernel, step in steps.items():
            types = [
                "read-only-storage" if a in self.constants else "storage" for a in step.arguments
            ]
            types += ["uniform"] if step.symbols else []
            entries = [
                {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": t}}
                for i, t in enumerate(types)
            ]
            group = self.device.create_bind_group_layout(entries=entries)
            self.layouts[kernel] = group
            pipelines[kernel] = self.device.create_compute_pipeline(
                label=kernel,
                layout=self.device.create_pipeline_layout(bind_group_layouts=[group]),
                compute={"module": module, "entry_point": kernel},
            )
        return pipelines

    def _dispatches(self, symbols: Mapping[str, int]) -> dict[int, Dispatch]:
        """Every webgpu step with its bind group, for these symbols."""
        dispatches = {}
        for index, step in enumerate(self.loaded.program.steps):
            if step.device != "webgpu" or step.control is not None:
                continue
            bindings = [self._binding(name) for name in step.arguments]
            if step.symbols:
                uniform = self._current.uniforms[step.symbols]
                bindings.append({"buffer": uniform, "offset": 0, "size": uniform.size})
            group = self.device.create_bind_group(
                layout=self.layouts[step.kernel],
                entries=[{"binding": i, "resource": b} for i, b in enumerate(bindings)],
            )
            if step.workgroups is None:
                raise InternalError(f"host: webgpu step {step.kernel} has no workgroups")
            x, y, z = (int(evaluate(w, symbols)) for w in step.workgroups)
            dispatches[index] = Dispatch(self.pipelines[step.kernel], group, (x, y, z))
        return dispatches

    def _uniforms(self, symbols: Mapping[str, int]) -> dict[tuple[str, ...], Any]:
        """One small uniform buffer per list of symbols that some step takes."""
        usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        return {
            names: self.device.create_buffer_with_data(data=_words(names, symbols), usage=usage)
            for names in dict.fromkeys(s.symbols for s in self.loaded.program.steps if s.symbols)
        }

    def _write_uniforms(self, symbol: str, symbols: Mapping[str, int]) -> None:
        """Give the steps that take `symbol` its new value."""
        for names, buffer in self._current.uniforms.items():
            if symbol in names:
                self.device.queue.write_buffer(buffer, 0, _words(names, symbols))

    def _place(self, name: str) -> tuple[Any, int]:
        if name in self.constants:
            return self.constants[name]
        return self.arena, self._current.layout.offsets[name]

    @property
    def _current(self) -> Binding:
        assert self.bound is not None
        return self.bound

    def _binding(self, name: str) -> dict[str, Any]:
        buffer, offset = self._place(name)
        size = align(max(self._current.sizes[name], 4), BINDING_MULTIPLE)
        limit = self.device.limits["max-storage-buffer-binding-size"]
        if size > limit:
            raise AdapterError(
                f"buffer {name!r} has {size} bytes; this adapter binds at most {limit} at once"
            )
        return {"buffer": buffer, "offset": offset, "size": size}

    def _encode(self, compute: Any, index: int) -> None:
        dispatch = self._current.dispatches.get(index)
        if dispatch is None or 0 in dispatch.workgroups:
            return
        compute.set_pipeline(dispatch.pipeline)
        compute.set_bind_group(0, dispatch.bind_group)
        compute.dispatch_workgroups(*dispatch.workgroups)

    def _write(self, uploads: Mapping[str, Array]) -> None:
        for name, data in uploads.items():
            buffer, offset = self._place(name)
            padded = data.tobytes() + bytes(-data.nbytes % 4)
            if padded:
                self.device.queue.write_buffer(buffer, offset, padded)

    def _read(self, encoder: Any, names: Sequence[str]) -> dict[str, Array]:
        """Submit `encoder` with copies of the named buffers appended; their bytes by one
        readback.
        """
        starts: dict[str, int] = {}
        total = 0
        for name in names:
            starts[name] = total
            total += align(self._current.sizes[name], ALIGNMENT["webgpu"])
        if self.staging is None or self.staging.size < total:
            usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
            self.staging = self._buffer(total, usage)
        staging = self.staging
        for name, start in starts.items():
            buffer, offset = self._place(name)
            if size := align(self._current.sizes[name], 4):
                encoder.copy_buffer_to_buffer(buffer, offset, staging, start, size)
        self.device.queue.submit([encoder.finish()])
        staging.map_sync(wgpu.MapMode.READ)
        data = np.frombuffer(staging.read_mapped(), np.uint8)
        results = {n: data[s : s + self._current.sizes[n]].copy() for n, s in starts.items()}
        staging.unmap()
        return results


def _words(names: Sequence[str], symbols: Mapping[str, int]) -> bytes:
    """The symbols' values; 0 of a loop's that is yet to start."""
    words = np.zeros(align(len(names), 4), np.int32)
    words[: len(names)] = [symbols.get(n, 0) for n in names]
    return words.tobytes()


def find_adapter() -> Any:
    """The adapter of this machine. Raises `AdapterError` where there is none."""
    advice = "no GPU adapter is usable here; run with device='wasm', or install a Vulkan driver"
    try:
        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    except Exception as error:  # what wgpu raises without a driver differs by platform
        raise AdapterError(f"{advice} ({error})") from error
    if adapter is None:
        raise AdapterError(advice)
    return adapter


def request_device(loaded: Loaded) -> Any:
    """A device with the adapter's own buffer limits and the features that the program needs."""
    adapter = find_adapter()
    resources = loaded.program.resources
    required = [f for f in resources.features if f in wgpu.FeatureName]
    if lacking := [f for f in required if f not in adapter.features]:
        raise AdapterError(f"this GPU adapter lacks {', '.join(lacking)}, which the package needs")
    limit = adapter.limits["max-storage-buffer-binding-size"]
    if (resources.largest_binding or 0) > limit:
        raise AdapterError(
            f"the model binds {resources.largest_binding} bytes at once; the adapter allows {limit}"
        )
    if "timestamp-query" in adapter.features:
        required.append("timestamp-query")
    return adapter.request_device_sync(
        required_features=required,
        required_limits={name: adapter.limits[name] for name in LIMITS},
    )
