"""Run lowered kernels in wasmtime as the hosts do, with the memory layout of `emit_module`."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
import pytest
import wasmtime
from wasmtime import _ffi as ffi

from webmlc.core.control_area import CONTROL
from webmlc.core.machine import Features
from webmlc.loops.ir import LoopFunction
from webmlc.target.wasm.emit_module import Module, Step, emit_module

PAGE = 65536
"""The bytes of a page of WebAssembly memory. The arrays start at the second page."""
Array = np.ndarray
RunWasm = Callable[..., None]


class SharedMemory(wasmtime.SharedMemory):
    """A shared memory that can be imported: wasmtime 50 passes a pointer to a pointer here,
    and fails.
    """

    def _as_extern(self) -> ffi.wasmtime_extern_t:
        union = ffi.wasmtime_extern_union(sharedmemory=self.ptr())
        return ffi.wasmtime_extern_t(ffi.WASMTIME_EXTERN_SHAREDMEMORY, union)


@cache
def engine() -> wasmtime.Engine:
    """An engine with threads, shared memory and relaxed SIMD."""
    config = wasmtime.Config()
    config.wasm_threads = True
    config.wasm_relaxed_simd = True
    config.shared_memory = True
    return wasmtime.Engine(config)


def run_module(
    module: Module, arrays: Sequence[Array], symbols: Sequence[int], steps: int, threads: int
) -> None:
    """Lay out the memory, run all steps on `threads` threads, and copy the arrays back in place."""
    addresses: list[int] = []
    top = PAGE
    for array in arrays:
        addresses.append(top)
        top += (array.nbytes + 127) // 64 * 64
    scratch = top
    pages = (scratch + module.scratch_bytes * threads) // PAGE + 1
    limits = wasmtime.Limits(pages, 65536)
    memory = SharedMemory(engine(), wasmtime.MemoryType(limits, shared=True))
    data = ctypes.cast(memory.data_ptr(), ctypes.POINTER(ctypes.c_uint8 * (pages * PAGE)))
    view = np.frombuffer(data.contents, np.uint8)
    view[PAGE:] = 0xCD
    view[CONTROL.running : CONTROL.running + 4].view(np.int32)[:] = 1
    view[256:264].view(np.int32)[:] = scratch, module.scratch_bytes
    slots = [*addresses, *symbols]
    view[CONTROL.slots : CONTROL.slots + 4 * len(slots)].view(np.int32)[:] = slots
    for array, address in zip(arrays, addresses, strict=True):
        view[address : address + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    compiled = wasmtime.Module(engine(), wasmtime.wat2wasm(module.text))
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            store = wasmtime.Store(engine())
            instance = wasmtime.Instance(store, compiled, [memory])
            instance.exports(store)["run"](store, 0, steps, thread, threads)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(t,)) for t in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    for array, address in zip(arrays, addresses, strict=True):
        array[...] = view[address : address + array.nbytes].view(array.dtype).reshape(array.shape)


@pytest.fixture
def run_wasm() -> RunWasm:
    """A function `run(lowered, {name: array}, {symbol: value}, threads=1, features="relaxed")` that
    updates the arrays in place.
    """

    def run(
        lowered: LoopFunction,
        arrays: Mapping[str, Array],
        symbols: Mapping[str, int] | None = None,
        threads: int = 1,
        features: Features = "relaxed",
    ) -> None:
        count = len(lowered.params) + len(lowered.symbols)
        steps = [Step("kernel", tuple(range(count)))]
        module = emit_module({"kernel": lowered}, steps, features)
        values = [(symbols or {})[s.name] for s in lowered.symbols]
        ordered = [arrays[b.name] for b in lowered.params]
        run_module(module, ordered, values, 1, threads)

    return run
