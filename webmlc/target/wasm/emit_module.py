"""Emit one WAT module from lowered kernels and the steps of a program.

In: kernels by name, in the lowered form, and the steps that call them. Out: a module that imports
one shared memory and exports two functions. Every thread calls the first with its own number:

    run(first: i32, last: i32, tid: i32, threads: i32)   ;; steps first ... last - 1
    warm(loop: i32, calls: i32) -> i32   ;; a parallel loop of no iterations; 0: there is none

Thread 0 runs the steps. The others help with the parallel loops until it has finished (see
`threads`). Some engines optimise a function after a number of calls. `warm` makes these calls, so
that a loop is optimised before the first run and not after dozens of runs.

The host fills in the memory:

    0..1023   the control area (`core.control_area`)
    1024...   slots of one i32: slot s, at 1024 + 4·s, holds the address of buffer s or the value
              of a symbol

The scratch memory of thread t starts at base + t·stride. The stride is at least
`Module.scratch_bytes`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest
from typing import Literal

from webmlc.core.control_area import CONTROL as AT
from webmlc.core.errors import InternalError
from webmlc.loops.ir import LoopFunction
from webmlc.target.line_stages import line_ranges
from webmlc.target.target import Alternatives
from webmlc.target.wasm.functions import FUNCTIONS
from webmlc.target.wasm.legalise import legalise_division
from webmlc.target.wasm.printer import Printed, print_kernel
from webmlc.target.wasm.reduce_strength import StrengthReduced, reduce_strength
from webmlc.target.wasm.share_offsets import share_offsets
from webmlc.target.wasm.share_values import share_values
from webmlc.target.wasm.threads import THREADS


@dataclass(frozen=True, slots=True)
class ModuleControl:
    """The decision of a step that calls no kernel (`package.manifest.Control`).

    `target` is a step of the module. `counter` is the slot of a loop's symbol, and the next slot
    holds its number of iterations. The argument of the step, if any, is the condition's slot.
    """

    kind: Literal["if", "else", "loop", "next"]
    target: int
    counter: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a kernel, with the slots of its buffers and then of its symbols; or a decision.

    `displacements` are byte offsets to add to the addresses in the first slots.
    """

    kernel: str
    arguments: tuple[int, ...]
    displacements: tuple[int, ...] = ()
    control: ModuleControl | None = None


@dataclass(frozen=True, slots=True)
class Module:
    """The WAT text of a module, and the bytes of scratch memory that each thread needs.

    `lines` are the lines of each kernel in the text, counted from 0: its comments, its function,
    and the functions of its parallel loops.
    """

    text: str
    scratch_bytes: int
    lines: Mapping[str, range]


def emit_module(
    kernels: Mapping[str, LoopFunction], steps: Sequence[Step], features: str
) -> Module:
    """Emit the module of `kernels`, without relaxed instructions where `features` is "simd128"."""
    printed = {name: print_function(kernel, features) for name, kernel in kernels.items()}
    return join_functions(printed, steps)


def join_functions(
    kernels: Mapping[str, Printed],
    steps: Sequence[Step],
    alternatives: Alternatives | None = None,
) -> Module:
    """Join printed kernels to a module. If a step's kernel has `alternatives`, the step calls the
    kernel for the machine's class.
    """
    functions: list[str] = []
    loops: list[str] = []
    for name, kernel in kernels.items():
        functions.append(kernel.named(name, len(loops)))
        loops += [f"{name}.{i}" for i in range(kernel.loops)]
    scratch = max((kernel.scratch_bytes for kernel in kernels.values()), default=0)
    constants, functions = share_constants(functions)
    head = [
        "(module",
        '(import "env" "memory" (memory 1 65536 shared))',
        *constants,
        THREADS,
        f"(table funcref (elem {' '.join(f'${loop}' for loop in loops)}))",
    ]
    helpers = [text for names, text in FUNCTIONS if any(n in f for n in names for f in functions)]
    program = _program(kernels, steps, alternatives or {})
    parts = [*head, *functions, *helpers, program, _RUN, _warm(len(loops))]
    lines = dict(zip(kernels, line_ranges(functions, "\n".join(head).count("\n") + 1), strict=True))
    return Module("\n".join(parts) + ")\n", scratch, lines)


def print_function(kernel: LoopFunction, features: str, *, shows_stages: bool = False) -> Printed:
    """The WAT of one kernel (see `print_kernel`)."""
    printed = print_kernel(_printable(kernel), features != "simd128", shows_stages=shows_stages)
    return replace(printed, origin=kernel.origin)  # equal kernels of other nodes share the form


@lru_cache(maxsize=1024)
def _printable(kernel: LoopFunction) -> StrengthReduced:
    """The form of a kernel that is printed. Cached: most kernels are the same in every variant."""
    reduced = legalise_division(share_offsets(reduce_strength(kernel)))
    return replace(reduced, function=share_values(reduced.function))


def _program(
    kernels: Mapping[str, Printed], steps: Sequence[Step], alternatives: Alternatives
) -> str:
    """The program: it jumps to the first step, and runs the steps until `last`."""
    head = "(func $program (param $first i32) (param $last i32)"
    if not steps:
        return head + ")"
    labels = " ".join(f"$s{i}" for i in range(len(steps)))
    has_jumps = any(step.control for step in steps)
    lines = [f"{head} (local $count i32) (local $going i32)" if has_jumps else head]
    if has_jumps:
        lines.append("(loop $again")
    lines += [f"block $s{i}" for i in reversed(range(len(steps)))]
    lines.append(f"local.get $first br_table {labels} end")
    for index, step in enumerate(steps):
        lines.append(f"  (if (i32.le_s (local.get $last) (i32.const {index})) (then (return)))")
        if step.control:
            lines += _decide(step, step.control)
        else:
            lines.append(_call(kernels, index, step, alternatives.get(step.kernel, {})))
        if index < len(steps) - 1:
            lines.append("end")
    return "\n".join(lines) + ("))" if has_jumps else ")")


def _call(
    kernels: Mapping[str, Printed], index: int, step: Step, alternatives: Mapping[int, str]
) -> str:
    """The line of a step that calls a kernel, or its alternative for the machine's class."""
    parameter_count = kernels[step.kernel].parameters
    if len(step.arguments) != parameter_count:
        raise InternalError(
            f"wasm: step {index} gives {len(step.arguments)} arguments to {step.kernel}, "
            f"which takes {parameter_count}"
        )
    slots = zip_longest(step.arguments, step.displacements, fillvalue=0)
    arguments = " ".join(_slot(*slot) for slot in slots)
    line = f"(call ${step.kernel} {arguments})"
    for number, name in alternatives.items():
        is_of_class = f"(i32.eq (i32.load offset={AT.machine} (i32.const 0)) (i32.const {number}))"
        line = f"(if {is_of_class} (then (call ${name} {arguments})) (else {line}))"
    return f"  {line}"


def _decide(step: Step, control: ModuleControl) -> list[str]:
    """The lines of a step that decides which step is next."""
    jump = (
        f"(if (i32.le_s (local.get $last) (i32.const {control.target})) (then (return))) "
        f"(local.set $first (i32.const {control.target})) (br $again)"
    )
    if control.kind == "else":
        return [f"  {jump}"]
    lines: list[str] = []
    condition = "(i32.const 1)"
    if step.arguments:
        lines = [f"  (local.set $going (i32.load8_u {_slot(step.arguments[0])}))"]
        condition = "(local.get $going)"
    if control.kind == "if":
        return [*lines, f"  (if (i32.eqz {condition}) (then {jump}))"]
    assert control.counter is not None
    counter = f"offset={AT.slots + 4 * control.counter} (i32.const 0)"
    iteration = "(i32.const 0)"
    if control.kind == "next":
        iteration = "(local.get $count)"
        next_iteration = f"(i32.add (i32.load {counter}) (i32.const 1))"
        lines.append(f"  (local.set $count {next_iteration})")
    lines.append(f"  (i32.store {counter} {iteration})")
    is_below = f"(i32.lt_s {iteration} {_slot(control.counter + 1)})"
    continues = f"(i32.and {is_below} {condition})"
    test = continues if control.kind == "next" else f"(i32.eqz {continues})"
    return [*lines, f"  (if {test} (then {jump}))"]


def _slot(slot: int, displacement: int = 0) -> str:
    """The value in a slot, plus a displacement."""
    value = f"(i32.load offset={AT.slots + 4 * slot} (i32.const 0))"
    return f"(i32.add {value} (i32.const {displacement}))" if displacement else value


_RUN = f"""(func $run (export "run")
    (param $first i32) (param $last i32) (param $tid i32) (param $threads i32)
  (global.set $tid (local.get $tid))
  (global.set $threads (local.get $threads))
  (if (local.get $tid) (then (call $help) (return)))
  (call $program (local.get $first) (local.get $last))
  (i32.atomic.store offset={AT.running} (i32.const 0) (i32.const 0)))"""


def _warm(loops: int) -> str:
    """The function that calls a parallel loop of the module with no iterations."""
    return f"""(func (export "warm") (param $loop i32) (param $calls i32) (result i32)
  (if (i32.ge_u (local.get $loop) (i32.const {loops})) (then (return (i32.const 0))))
  (loop $again
    (call_indirect (type $loop) (i32.const 0) (i32.const 0) (local.get $loop))
    (br_if $again (local.tee $calls (i32.sub (local.get $calls) (i32.const 1)))))
  (i32.const 1))"""


_LITERAL = re.compile(r"\(v128\.const \w+( [^ ()]+)+\)")
_ZEROS = re.compile(r"\(v128\.const \w+( 0)+\)")
_SET_BITS = re.compile(r"\(v128\.const i\w+( -1)+\)")


def share_constants(functions: Sequence[str]) -> tuple[list[str], list[str]]:
    """Shorten vector literals, which take 18 bytes each. Return the globals of repeated literals,
    in the order of their first use, and the functions that read them.

    Reading a global takes 2 or 3 bytes, and is a load. A vector of zeros becomes a splat of 4
    bytes, which engines compile to one instruction. A vector of set bits is also one instruction,
    and stays.

    before                                          after
        (f32x4.mul (...) (v128.const f32x4 4 4 4 4))    (f32x4.mul (...) (global.get $c0))
        (f32x4.max (...) (v128.const f32x4 0 0 0 0))   (f32x4.max (...) (i32x4.splat (i32.const 0)))
    """
    functions = [_ZEROS.sub("(i32x4.splat (i32.const 0))", f) for f in functions]
    counts = Counter(m.group() for f in functions for m in _LITERAL.finditer(f))
    repeated_literals = [c for c, n in counts.items() if n > 1 and not _SET_BITS.fullmatch(c)]
    names = {constant: f"$c{i}" for i, constant in enumerate(repeated_literals)}

    def name(match: re.Match[str]) -> str:
        constant = match.group()
        return f"(global.get {names[constant]})" if constant in names else constant

    globals_ = [f"(global {names[c]} v128 {c})" for c in repeated_literals]
    return globals_, [_LITERAL.sub(name, f) for f in functions]
