"""Kernels that share their work out: several threads of one module write what one thread does."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest
import wasmtime
from numpy.typing import NDArray

from tests.schedule.rules import kernels as k
from webmlc.core.control_area import CONTROL
from webmlc.core.machine import RELAXED
from webmlc.host.wasm import SharedMemory
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.rules import schedule_kernel
from webmlc.target.targets import lower
from webmlc.target.wasm.emit_module import Step, emit_module

CASES: dict[str, tuple[LoopFunction, dict[str, int]]] = {
    "matmul": (k.matmul(100, 96, 64), {}),
    "matmul, symbolic": (k.matmul(k.S, 96, 384), {"s": 19}),
    "matmul, sigmoid": (k.matmul_sigmoid(100, 96, 64), {}),
    "matmul, sigmoid, a tile and a rest": (k.matmul_sigmoid(6, 20, 4000), {}),
    "matvec": (k.matmul(1, 500, 256), {}),
    "attention": (k.attention_scores(12, k.S, k.S, 32), {"s": 19}),
    "attention, three heads": (k.attention_scores(3, 61, 197, 64), {}),
    "conv 1x1, blocked": (k.convolution(56, 55, 64, 16, 1), {}),
    "conv 3x3": (k.convolution(14, 14, 32, 32, 3), {}),
    "conv 3x3, symbolic batch": (k.convolution(14, 14, 32, 32, 3, batch=k.S), {"s": 3}),
    "conv 1x1, groups": (k.grouped_convolution(28, 4, 34, 34, kernel=1), {}),
    "depthwise": (k.depthwise(28, 28, 32, 3), {}),
    "depthwise, symbolic image": (k.depthwise(k.S, k.Var("width"), 32, 3), {"s": 9, "width": 7}),
    "max pool": (k.pool(28, 64, 3, "relaxed_max"), {}),
    "global average": (k.global_average(40, 64), {}),
    "softmax": (k.softmax(64, 129), {}),
    "softmax, symbolic": (k.softmax(k.Var("b"), 12, k.S, k.S), {"b": 2, "s": 19}),
    "softmax over channels": (k.softmax(2, 50, 30, 8, axis=1), {}),
    "layer norm, symbolic": (k.layer_norm(k.Var("rows"), k.S, 384), {"rows": 3, "s": 7}),
    "row sums": (k.total(500, 129, keep=1), {}),
    "add": (k.add(100, 100, 30), {}),
}
_HEAD = 1 << 16


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_three_threads_write_what_one_does(case: tuple[LoopFunction, dict[str, int]]) -> None:
    function, symbols = case
    lowered = lower(schedule_kernel(function, RELAXED).function, RELAXED)
    slots = len(function.params) + len(function.symbols)
    module = emit_module({"k": lowered}, [Step("k", tuple(range(slots)))], "relaxed")
    assert "(call $parallel " in module.text, "nothing is shared"
    binary = bytes(wasmtime.wat2wasm(module.text))
    (one, three) = (
        _run(binary, module.scratch_bytes, function, symbols, threads) for threads in (1, 3)
    )
    np.testing.assert_array_equal(one, three)
    for want in k.outputs_of(function, symbols):
        np.testing.assert_allclose(one.view(want.dtype)[: want.size], want.ravel(), 1e-4, 1e-4)


def _run(
    binary: bytes, scratch: int, function: LoopFunction, symbols: dict[str, int], threads: int
) -> NDArray[Any]:
    """The bytes of the output after `threads` threads ran the one step of a module."""
    config = wasmtime.Config()
    config.wasm_threads = config.shared_memory = config.wasm_relaxed_simd = True
    engine = wasmtime.Engine(config)
    arrays = k.arguments(function, symbols)
    places, end = [], _HEAD
    for buffer in function.params:
        places.append(end)
        end += -(-arrays[buffer.name].nbytes // 64) * 64 + 64
    stride = -(-scratch // 64) * 64
    pages = (end + stride * threads) // _HEAD + 1
    memory = SharedMemory(engine, wasmtime.MemoryType(wasmtime.Limits(pages, pages), shared=True))
    start = ctypes.addressof(memory.data_ptr().contents)
    data = np.frombuffer((ctypes.c_uint8 * (pages * _HEAD)).from_address(start), np.uint8)
    words = data.view(np.int32)
    words[CONTROL.running // 4] = 1
    words[64:66] = end, stride
    words[256 : 256 + len(places)] = places
    for position, var in enumerate(function.symbols):
        words[256 + len(places) + position] = symbols[var.name]
    for place, buffer in zip(places, function.params, strict=True):
        array = np.ascontiguousarray(arrays[buffer.name])
        data[place : place + array.nbytes] = array.view(np.uint8).reshape(-1)
    module = wasmtime.Module(engine, binary)

    def work(thread: int) -> None:
        store = wasmtime.Store(engine)
        run: Any = wasmtime.Instance(store, module, [memory]).exports(store)["run"]
        run(store, 0, 1, thread, threads)

    workers = [threading.Thread(target=work, args=(t,), daemon=True) for t in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive(), "a thread waits for ever"
    size = arrays[function.params[-1].name].nbytes
    return data[places[-1] : places[-1] + size].copy()
