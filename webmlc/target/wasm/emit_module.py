"""Lowered kernels and the steps of a program become one WAT module.

In: kernels by name, in the lowered form, and the steps that call them. Out: a module that imports
one shared memory and exports one function, which every thread calls with its own number:

    run(first: i32, last: i32, tid: i32, threads: i32)   ;; steps first ... last - 1

Memory, which the host fills in:

    0..1023   control: barrier arrivals i32 at 0, generation i32 at 64;
              scratch base i32 at 256, bytes of scratch a thread i32 at 260
    1024...   slots, i32 each: slot s, at 1024 + 4·s, holds the address of
              buffer s or the value of a symbol

Scratch memory of thread t starts at base + t·stride; the stride is at least `Module.scratch_bytes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from webmlc.core.errors import InternalError
from webmlc.loops.ir import LoopFunction
from webmlc.target.wasm.legalise_division import legalise_division
from webmlc.target.wasm.printer import print_kernel
from webmlc.target.wasm.reduce_strength import reduce_strength

Features = Literal["relaxed", "simd128"]

SLOTS = 1024
"""Where the slot table starts."""

_SPINS = 2000
"""Turns of the spin before a thread sleeps: longer than the skew of two threads that are both
awake.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a kernel: the slots of its buffers, then of its symbols."""

    kernel: str
    arguments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Module:
    """WAT text, and the bytes of scratch memory that it needs a thread."""

    text: str
    scratch_bytes: int


def emit_module(
    kernels: Mapping[str, LoopFunction], steps: Sequence[Step], features: Features
) -> Module:
    """The module of `kernels`; relaxed instructions only where `features` is "relaxed"."""
    functions: list[str] = []
    scratch = 0
    for name, kernel in kernels.items():
        text, needed = print_function(kernel, name, features)
        functions.append(text)
        scratch = max(scratch, needed)
    parts = [
        "(module",
        '(import "env" "memory" (memory 1 65536 shared))',
        _BARRIER,
        *functions,
        _run(kernels, steps),
        '(export "run" (func $run))',
    ]
    return Module("\n".join(parts) + ")\n", scratch)


def print_function(kernel: LoopFunction, name: str, features: Features) -> tuple[str, int]:
    """One kernel's WAT, under its origin as comment, and its scratch bytes."""
    reduced = legalise_division(reduce_strength(kernel))
    text, scratch = print_kernel(reduced, name, features == "relaxed")
    comment = "".join(f";; {origin}\n" for origin in kernel.origin)
    return comment + text, scratch


def _run(kernels: Mapping[str, LoopFunction], steps: Sequence[Step]) -> str:
    """The program: a jump to the first step, then each falls into the next until `last`."""
    head = "(func $run (param $first i32) (param $last i32) (param $tid i32) (param $threads i32)"
    if not steps:
        return head + ")"
    labels = " ".join(f"$s{i}" for i in range(len(steps)))
    lines = [head, *(f"block $s{i}" for i in reversed(range(len(steps))))]
    lines.append(f"local.get $first br_table {labels} end")
    for index, step in enumerate(steps):
        kernel = kernels[step.kernel]
        expected = len(kernel.params) + len(kernel.symbols)
        if len(step.arguments) != expected:
            raise InternalError(
                f"wasm: step {index} gives {len(step.arguments)} arguments to {step.kernel}, "
                f"which takes {expected}"
            )
        lines.append(f"  (if (i32.le_s (local.get $last) (i32.const {index})) (then (return)))")
        slots = " ".join(f"(i32.load offset={SLOTS + 4 * s} (i32.const 0))" for s in step.arguments)
        lines.append(f"  (call ${step.kernel} {slots} (local.get $tid) (local.get $threads))")
        lines.append("  (call $barrier (local.get $threads))")
        if index < len(steps) - 1:
            lines.append("end")
    return "\n".join(lines) + ")"


_BARRIER = f"""(func $barrier (param $threads i32) (local $generation i32) (local $spins i32)
  (if (i32.le_u (local.get $threads) (i32.const 1)) (then (return)))
  (local.set $generation (i32.atomic.load offset=64 (i32.const 0)))
  (if (i32.eq (i32.atomic.rmw.add (i32.const 0) (i32.const 1))
              (i32.sub (local.get $threads) (i32.const 1)))
    (then
      (i32.atomic.store (i32.const 0) (i32.const 0))
      (drop (i32.atomic.rmw.add offset=64 (i32.const 0) (i32.const 1)))
      (drop (memory.atomic.notify offset=64 (i32.const 0) (i32.const -1)))
      (return)))
  (local.set $spins (i32.const {_SPINS}))
  (loop $spin
    (if (i32.ne (i32.atomic.load offset=64 (i32.const 0)) (local.get $generation)) (then (return)))
    (br_if $spin (local.tee $spins (i32.sub (local.get $spins) (i32.const 1)))))
  (loop $sleep
    (drop (memory.atomic.wait32 offset=64 (i32.const 0) (local.get $generation) (i64.const -1)))
    (br_if $sleep (i32.eq (i32.atomic.load offset=64 (i32.const 0)) (local.get $generation)))))"""
