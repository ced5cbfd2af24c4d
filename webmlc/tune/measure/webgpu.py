"""Measure a trial through wgpu-py, in this process."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import wgpu  # type: ignore[import-untyped]
from numpy.typing import NDArray

from webmlc.host.webgpu_adapter import (
    BINDING_MULTIPLE,
    DEFAULT_LIMITS,
    bind_group_layout,
    find_adapter,
)
from webmlc.package.placement import align
from webmlc.tune.measure.rounds import EngineError, Runner, measure
from webmlc.tune.measure.trial import POISON, Measurement, Trial, fill

OVERHEAD_PROBES = 5
"""Empty samples that are measured; the fastest counts."""


def measure_webgpu(trial: Trial) -> Measurement:
    """Measure a trial of `webgpu`. Raises `EngineError` if the default does not run, and
    `AdapterError` if there is no GPU.
    """
    runner = _GpuRunner(trial)
    try:
        return measure(trial, runner)
    finally:
        runner.device.destroy()


class _GpuRunner(Runner):
    """A buffer for all outputs, a buffer for the constants, and a pipeline per candidate."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        adapter = find_adapter()
        limits = {name: max(adapter.limits[name], low) for name, low in DEFAULT_LIMITS.items()}
        try:
            self.device = adapter.request_device_sync(required_limits=limits)
        except Exception as error:
            raise EngineError(str(error)) from error
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        size = align(trial.total_bytes, 256)
        self.memories = [self.device.create_buffer(size=size, usage=usage) for _ in range(2)]
        for call in trial.calls:
            for number, is_read_only in zip(call, trial.read_only, strict=True):
                buffer, memory = trial.buffers[number], self.memories[is_read_only]
                if not buffer.is_output:
                    self._write(memory, buffer.offset, fill(buffer, number))
        words = np.array(trial.uniform, np.int32).tobytes()
        self.uniform = words and self.device.create_buffer_with_data(
            data=words, usage=wgpu.BufferUsage.UNIFORM
        )
        self.layout = bind_group_layout(self.device, trial.read_only, bool(self.uniform))
        self.groups = [self._group(call) for call in trial.calls]
        self.pipelines: dict[int, Any] = {}

    def outputs(self, candidate: int) -> list[bytes]:
        written, _ = self.memories
        outputs = [b for b in self.trial.buffers if b.is_output]
        for buffer in outputs:
            self._write(written, buffer.offset, np.full(buffer.size, POISON, np.uint8))
        self._submit(candidate, 1)
        results = []
        for buffer in outputs:
            size = align(max(buffer.size, 4), 4)
            data = bytes(self.device.queue.read_buffer(written, buffer.offset, size))
            results.append(data[: buffer.size])
        return results

    def sample(self, candidate: int, repeats: int) -> float:
        start = perf_counter()
        self._submit(candidate, repeats)
        self.device.queue.read_buffer(self.memories[0], 0, 4)  # waits until the work is done
        return (perf_counter() - start) * 1e3

    def overhead(self) -> float:
        return min(self.sample(0, 0) for _ in range(OVERHEAD_PROBES))

    def _group(self, call: tuple[int, ...]) -> Any:
        """The bindings of one call."""
        entries = []
        for binding, number in enumerate(call):
            buffer = self.trial.buffers[number]
            memory = self.memories[self.trial.read_only[binding]]
            size = align(max(buffer.size, 4), BINDING_MULTIPLE)
            resource = {"buffer": memory, "offset": buffer.offset, "size": size}
            entries.append({"binding": binding, "resource": resource})
        if self.uniform:
            resource = {"buffer": self.uniform, "offset": 0, "size": self.uniform.size}
            entries.append({"binding": len(call), "resource": resource})
        return self.device.create_bind_group(layout=self.layout, entries=entries)

    def _pipeline(self, candidate: int) -> Any:
        if candidate not in self.pipelines:
            layout = self.device.create_pipeline_layout(bind_group_layouts=[self.layout])
            module = self.device.create_shader_module(code=self.trial.shaders[candidate])
            self.pipelines[candidate] = self.device.create_compute_pipeline(
                layout=layout,
                compute={"module": module, "entry_point": self.trial.entries[candidate]},
            )
        return self.pipelines[candidate]

    def _submit(self, candidate: int, repeats: int) -> None:
        try:
            pipeline = self._pipeline(candidate)
            encoder = self.device.create_command_encoder()
            compute = encoder.begin_compute_pass()
            compute.set_pipeline(pipeline)
            for _ in range(repeats):
                for group in self.groups:
                    compute.set_bind_group(0, group)
                    compute.dispatch_workgroups(*self.trial.workgroups[candidate])
            compute.end()
            self.device.queue.submit([encoder.finish()])
        except wgpu.GPUError as error:
            raise EngineError(str(error).splitlines()[0]) from error

    def _write(self, memory: Any, offset: int, data: NDArray[np.uint8]) -> None:
        if rest := -data.size % 4:
            data = np.pad(data, (0, rest))
        if data.size:
            self.device.queue.write_buffer(memory, offset, data)
