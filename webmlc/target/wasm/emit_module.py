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
from webmlc.target.wasm.share_constants import share_constants

Features = Literal["dot", "relaxed", "simd128"]

SLOTS = 1024
"""Where the slot table starts."""

_PATIENCE = 1 << 25
"""Turns that a thread spins in barriers during a run, before it sleeps in them: some milliseconds,
more than another thread's time slice. Threads that sleep at every barrier look idle to the
operating system, which then runs all of them on one core; threads that never sleep wait in vain
where other programs keep the cores busy.
"""
_EARNED = 1 << 17
"""Turns that each barrier adds: the skew of threads that all run is less."""


@dataclass(frozen=True, slots=True)
class ModuleControl:
    """What a step decides that calls no kernel: see `package.manifest.Control`.

    `target` is a step of the module; `counter` the slot of a loop's symbol, which the slot of its
    number of iterations follows. The step's argument, where it has one, is the condition's slot.
    """

    kind: Literal["if", "else", "loop", "next"]
    target: int
    counter: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a kernel: the slots of its buffers, then of its symbols; or a decision."""

    kernel: str
    arguments: tuple[int, ...]
    control: ModuleControl | None = None


@dataclass(frozen=True, slots=True)
class Module:
    """WAT text, and the bytes of scratch memory that it needs a thread."""

    text: str
    scratch_bytes: int


def emit_module(
    kernels: Mapping[str, LoopFunction], steps: Sequence[Step], features: Features
) -> Module:
    """The module of `kernels`; no relaxed instructions where `features` is "simd128"."""
    functions: list[str] = []
    scratch = 0
    for name, kernel in kernels.items():
        text, needed = print_function(kernel, name, features)
        functions.append(text)
        scratch = max(scratch, needed)
    constants, functions = share_constants(functions)
    parts = [
        "(module",
        '(import "env" "memory" (memory 1 65536 shared))',
        *constants,
        _BARRIER,
        *functions,
        _run(kernels, steps),
        '(export "run" (func $run))',
    ]
    return Module("\n".join(parts) + ")\n", scratch)


def print_function(kernel: LoopFunction, name: str, features: Features) -> tuple[str, int]:
    """One kernel's WAT, under its origin as comment, and its scratch bytes."""
    reduced = legalise_division(reduce_strength(kernel))
    text, scratch = print_kernel(reduced, name, features != "simd128")
    comment = "".join(f";; {origin}\n" for origin in kernel.origin)
    return comment + text, scratch


def _run(kernels: Mapping[str, LoopFunction], steps: Sequence[Step]) -> str:
    """The program: a jump to the first step, then each falls into the next until `last`."""
    head = "(func $run (param $first i32) (param $last i32) (param $tid i32) (param $threads i32)"
    if not steps:
        return head + ")"
    labels = " ".join(f"$s{i}" for i in range(len(steps)))
    jumps = any(step.control for step in steps)
    lines = [f"{head} (local $count i32) (local $going i32)" if jumps else head]
    lines.append(f"(global.set $patience (i32.const {_PATIENCE}))")
    if jumps:
        lines.append("(loop $again")
    lines += [f"block $s{i}" for i in reversed(range(len(steps)))]
    lines.append(f"local.get $first br_table {labels} end")
    for index, step in enumerate(steps):
        lines.append(f"  (if (i32.le_s (local.get $last) (i32.const {index})) (then (return)))")
        lines += _decide(step, step.control) if step.control else _call(kernels, index, step)
        if index < len(steps) - 1:
            lines.append("end")
    return "\n".join(lines) + ("))" if jumps else ")")


def _call(kernels: Mapping[str, LoopFunction], index: int, step: Step) -> list[str]:
    """A kernel, on every thread; then they meet."""
    kernel = kernels[step.kernel]
    expected = len(kernel.params) + len(kernel.symbols)
    if len(step.arguments) != expected:
        raise InternalError(
            f"wasm: step {index} gives {len(step.arguments)} arguments to {step.kernel}, "
            f"which takes {expected}"
        )
    slots = " ".join(_slot(s) for s in step.arguments)
    return [
        f"  (call ${step.kernel} {slots} (local.get $tid) (local.get $threads))",
        "  (call $barrier (local.get $threads))",
    ]


def _decide(step: Step, control: ModuleControl) -> list[str]:
    """A decision, which every thread takes by itself, all on the same values: they meet before what
    follows may write over the condition.
    """
    jump = (
        f"(if (i32.le_s (local.get $last) (i32.const {control.target})) (then (return))) "
        f"(local.set $first (i32.const {control.target})) (br $again)"
    )
    if control.kind == "else":
        return [f"  {jump}"]
    lines: list[str] = []
    going = "(i32.const 1)"
    if step.arguments:
        lines = [f"  (local.set $going (i32.load8_u {_slot(step.arguments[0])}))"]
        going = "(local.get $going)"
    if control.kind == "if":
        lines.append("  (call $barrier (local.get $threads))")
        return [*lines, f"  (if (i32.eqz {going}) (then {jump}))"]
    assert control.counter is not None
    counter = f"offset={SLOTS + 4 * control.counter} (i32.const 0)"
    start = "(i32.const 0)"
    if control.kind == "next":
        start = "(local.get $count)"
        lines += [  # nobody counts before all have read
            f"  (local.set $count (i32.add (i32.load {counter}) (i32.const 1)))",
            "  (call $barrier (local.get $threads))",
        ]
    lines += [
        f"  (if (i32.eqz (local.get $tid)) (then (i32.store {counter} {start})))",
        "  (call $barrier (local.get $threads))",
    ]
    fewer = f"(i32.lt_s {start} {_slot(control.counter + 1)})"
    follows = f"(i32.and {fewer} {going})"
    test = follows if control.kind == "next" else f"(i32.eqz {follows})"
    return [*lines, f"  (if {test} (then {jump}))"]


def _slot(slot: int) -> str:
    """What a slot holds."""
    return f"(i32.load offset={SLOTS + 4 * slot} (i32.const 0))"


_BARRIER = f"""(global $patience (mut i32) (i32.const {_PATIENCE}))
(func $barrier (param $threads i32) (local $generation i32) (local $spins i32)
  (if (i32.le_u (local.get $threads) (i32.const 1)) (then (return)))
  (local.set $generation (i32.atomic.load offset=64 (i32.const 0)))
  (if (i32.eq (i32.atomic.rmw.add (i32.const 0) (i32.const 1))
              (i32.sub (local.get $threads) (i32.const 1)))
    (then
      (i32.atomic.store (i32.const 0) (i32.const 0))
      (drop (i32.atomic.rmw.add offset=64 (i32.const 0) (i32.const 1)))
      (drop (memory.atomic.notify offset=64 (i32.const 0) (i32.const -1)))
      (return)))
  (local.set $spins (global.get $patience))
  (block $met
    (loop $spin
      (br_if $met (i32.ne (i32.atomic.load offset=64 (i32.const 0)) (local.get $generation)))
      (br_if $spin (local.tee $spins (i32.sub (local.get $spins) (i32.const 1)))))
    (loop $sleep
      (drop (memory.atomic.wait32 offset=64 (i32.const 0) (local.get $generation) (i64.const -1)))
      (br_if $sleep (i32.eq (i32.atomic.load offset=64 (i32.const 0)) (local.get $generation)))))
  (local.set $spins (i32.add (local.get $spins) (i32.const {_EARNED})))
  (global.set $patience
    (select (local.get $spins) (i32.const {_PATIENCE})
            (i32.lt_u (local.get $spins) (i32.const {_PATIENCE})))))"""
