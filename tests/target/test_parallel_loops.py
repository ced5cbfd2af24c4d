"""Test the functions of parallel loops: the outer values they read, and how threads share them.

Every test that runs a kernel checks their results (`test_lower`, `test_wasm_threads`).
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import wasmtime

from tests.target.conftest import PAGE, SharedMemory, engine
from tests.target.programs import PROGRAMS, gemm
from webmlc.core.control_area import CONTROL as AT
from webmlc.core.machine import RELAXED
from webmlc.loops.text import parse_function
from webmlc.target.targets import lower
from webmlc.target.wasm.emit_module import Step, emit_module, print_function
from webmlc.target.wasm.instructions import Instruction, Line, get_local, names_read, set_local

ROWS = 4096
LONG = """
@T.kernel
def long(A: T.Buffer((4096, 256), "float32"), B: T.Output((4096,), "float32")):
    for i in T.parallel(4096):
        B[i] = T.float32(0.0)
        for k in range(256):
            B[i] = B[i] + A[i, k]
"""


def test_a_loop_function_reads_the_outer_values_that_the_kernel_stores() -> None:
    printed = print_function(lower(gemm(480, 480, 480), RELAXED), "relaxed")
    loop, kernel = printed.named("gemm", table=7).split("(func $gemm ")
    assert printed.loops == 1
    assert "relaxed_madd" in loop
    assert "relaxed_madd" not in kernel
    for name in ("A", "B", "C"):
        address = loop.split(f"(local.set ${name} (i32.load offset=")[1].split()[0]
        assert f"(i32.store offset={address} (i32.const 0) (local.get ${name}))" in kernel
    assert kernel.count("(call $parallel (i32.const 7) ") == 1


def test_a_kernel_has_one_function_per_parallel_loop() -> None:
    printed = print_function(lower(PROGRAMS["two_phases"], RELAXED), "relaxed")
    assert printed.loops == 2
    text = printed.named("two")
    assert text.index("(call $parallel (i32.const 0)") < text.index("(call $parallel (i32.const 1)")


def test_a_line_reads_its_operands_before_it_sets_its_result() -> None:
    total = Instruction("i32.add", (get_local("base"), get_local("a")))
    values = {"a": total, "b": Instruction("i32.const 0"), "c": get_local("b")}
    lines = [Line(1, (set_local(name, value),)) for name, value in values.items()]
    assert names_read(lines) == ["base", "a"]


class Shared:
    """The module of `LONG` with a memory, and methods that run it on several threads."""

    def __init__(self) -> None:
        kernel = lower(parse_function(LONG), RELAXED)
        text = emit_module({"long": kernel}, [Step("long", (0, 1))], "relaxed").text
        self.module = wasmtime.Module(engine(), wasmtime.wat2wasm(text))
        self.ones = PAGE
        self.sums = PAGE + ROWS * 256 * 4
        pages = self.sums // PAGE + 2
        limits = wasmtime.Limits(pages, 65536)
        self.memory = SharedMemory(engine(), wasmtime.MemoryType(limits, shared=True))
        data = ctypes.cast(self.memory.data_ptr(), ctypes.POINTER(ctypes.c_uint8 * (pages * PAGE)))
        self.bytes = np.frombuffer(data.contents, np.uint8)
        self.words = self.bytes.view(np.int32)
        self.words[AT.slots // 4 : AT.slots // 4 + 2] = self.ones, self.sums
        self.bytes[self.ones : self.sums].view(np.float32)[:] = 1
        self.done = 0

    def export(self, name: str, module: wasmtime.Module | None = None) -> Callable[..., Any]:
        """A function of this module, or of another one on the same memory, in a new store."""
        store = wasmtime.Store(engine())
        instance = wasmtime.Instance(store, module or self.module, [self.memory])
        function: Any = instance.exports(store)[name]
        return partial(function, store)

    def call(self, tid: int, threads: int) -> None:
        """Call `run` on the calling thread."""
        self.export("run")(0, 1, tid, threads)

    def check(self) -> None:
        """Assert that all sums are right, and that the run has ended."""
        sums = self.bytes[self.sums : self.sums + ROWS * 4].view(np.float32)
        np.testing.assert_array_equal(sums, 256)
        sums[:] = np.nan
        assert self.words[AT.running // 4] == 0


@pytest.fixture
def shared() -> Shared:
    return Shared()


def test_the_leader_finishes_without_helpers(shared: Shared) -> None:
    shared.words[AT.running // 4] = 1
    shared.call(0, 4)
    shared.check()


def test_a_helper_that_arrives_after_the_run_returns(shared: Shared) -> None:
    shared.call(1, 2)


def test_helpers_take_chunks(shared: Shared) -> None:
    """Helpers take chunks of the leader's offer in at least one of many runs: in any run
    they may arrive late.
    """
    for _ in range(200):
        shared.words[AT.running // 4] = 1
        helpers = [threading.Thread(target=shared.call, args=(t, 3), daemon=True) for t in (1, 2)]
        for helper in helpers:
            helper.start()
        time.sleep(0.002)
        shared.call(0, 3)
        shared.check()
        for helper in helpers:
            helper.join(60)
            assert not helper.is_alive(), "a helper stays when the run is over"
        if shared.words[AT.done // 4] > 0:
            return
    pytest.fail("no helper ever took a chunk")


def test_warming_a_loop_writes_nothing(shared: Shared) -> None:
    warm = shared.export("warm")
    shared.bytes[shared.sums :] = 7
    before = shared.bytes.copy()
    assert warm(0, 1000) == 1
    np.testing.assert_array_equal(shared.bytes, before)
    assert warm(1, 1000) == 0, "the module has one loop"


THIEF = f"""(module (import "env" "memory" (memory 1 65536 shared))
  (func (export "steal") (local $offer i64)
    (loop $again
      (local.set $offer (i64.atomic.load offset={AT.offer} (i32.const 0)))
      (br_if $again (i64.eqz (i64.and (local.get $offer) (i64.const 0xffff))))
      (br_if $again (i64.ne (local.get $offer) (i64.atomic.rmw.cmpxchg offset={AT.offer}
        (i32.const 0) (local.get $offer) (i64.sub (local.get $offer) (i64.const 1))))))))"""
"""A module that takes a chunk as helpers do, and never runs it."""


@pytest.mark.parametrize("awake", [0, 1])
def test_the_leader_gives_up_when_a_helper_failed(shared: Shared, awake: int) -> None:
    """The host clears `RUNNING` while the leader waits for the helper's chunk."""
    shared.words[AT.awake // 4] = awake
    thief = wasmtime.Module(engine(), wasmtime.wat2wasm(THIEF))
    steal = shared.export("steal", thief)
    failures: list[str] = []

    def lead() -> None:
        try:
            while True:  # a helper may arrive late
                shared.words[AT.running // 4] = 1
                shared.call(0, 2)
        except wasmtime.Trap as error:
            failures.append(str(error))

    leader = threading.Thread(target=lead, daemon=True)
    leader.start()
    steal()
    time.sleep(0.2)
    assert leader.is_alive(), "the leader does not wait for a chunk that was taken"
    shared.words[AT.running // 4] = 0
    leader.join(60)
    assert "unreachable" in failures[0]
