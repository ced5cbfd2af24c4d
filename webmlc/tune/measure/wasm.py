"""Measure a trial through wasmtime, in this process.

A module that never ends blocks the process: `workers.ProcessWorker` runs this engine in another
process.
"""

from __future__ import annotations

from time import perf_counter

import wasmtime

from webmlc.core.control_area import CONTROL
from webmlc.host.wasm import SharedMemory, Worker, instantiate, write_words
from webmlc.target.wasm.assemble import engine_config
from webmlc.tune.measure.rounds import EngineError, Runner, measure
from webmlc.tune.measure.trial import POISON, Measurement, Trial, fill


def measure_wasm(trial: Trial) -> Measurement:
    """Measure a trial of `wasm`. Raises `EngineError` if the default does not run."""
    runner = _WasmRunner(trial)
    try:
        return measure(trial, runner)
    finally:
        runner.stop()


class _WasmRunner(Runner):
    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        engine = wasmtime.Engine(engine_config())
        try:
            module = wasmtime.Module(engine, trial.module)
            kind = wasmtime.MemoryType(wasmtime.Limits(trial.pages, trial.pages), shared=True)
            memory = SharedMemory(engine, kind)
        except wasmtime.WasmtimeError as error:
            raise EngineError(str(error)) from error
        self.memory = memory  # which `bytes` is a view of
        self.bytes = memory.bytes
        self.runs = [instantiate(engine, module, memory) for _ in range(trial.threads)]
        self.helpers = [Worker(tid) for tid in range(1, trial.threads)]
        for address, words in trial.words:
            write_words(self.bytes, address, words)
        for seed, buffer in enumerate(trial.buffers):
            if not buffer.is_output:
                data = fill(buffer, seed)
                self.bytes[buffer.offset : buffer.offset + len(data)] = data

    def outputs(self, candidate: int) -> list[bytes]:
        views = [
            self.bytes[b.offset : b.offset + b.size] for b in self.trial.buffers if b.is_output
        ]
        for view in views:
            view[:] = POISON
        self._run(candidate, 1)
        return [view.tobytes() for view in views]

    def sample(self, candidate: int, repeats: int) -> float:
        start = perf_counter()
        self._run(candidate, repeats)
        return (perf_counter() - start) * 1e3

    def overhead(self) -> float:
        return 0.0

    def stop(self) -> None:
        """End the helper threads."""
        for helper in self.helpers:
            helper.stop()

    def _run(self, candidate: int, repeats: int) -> None:
        trial = self.trial
        write_words(self.bytes, trial.repeats_address, (repeats,))
        first, last = trial.steps * candidate, trial.steps * (candidate + 1)
        write_words(self.bytes, CONTROL.running, (1,))
        calls = [
            helper.submit(run, (0, 0, helper.tid, trial.threads))
            for helper, run in zip(self.helpers, self.runs[1:], strict=True)
        ]
        try:
            self.runs[0](first, last, 0, trial.threads)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            raise EngineError(str(error).splitlines()[0]) from error
        finally:
            write_words(self.bytes, CONTROL.running, (0,))
            for call in calls:
                call.result()
