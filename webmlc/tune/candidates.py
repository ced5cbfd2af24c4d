"""Candidates: schedules of a task as code, and the trial that measures several candidates.

    control = candidate(task, task.match.default())
    other = candidate(task, task.match.space().random(Random(0)))
    trial = make_trial(task, [control, other], threads=1)

Two candidates with the same `text` are the same code, so only one is measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webmlc.core.combination import Combination
from webmlc.core.control_area import CONTROL
from webmlc.core.errors import InternalError, WebmlcError
from webmlc.core.expr import Call, Const
from webmlc.core.machine import DEVICES, PAGE_BYTES
from webmlc.core.rewrite import walk
from webmlc.core.sizes import evaluate_size
from webmlc.loops.count_work import buffer_bytes, count_work
from webmlc.loops.ir import LoopFunction, expressions, walk_statements
from webmlc.package.memory_plan import (
    LARGE,
    PAGE,
    scratch_stride,
)
from webmlc.package.placement import align
from webmlc.target.wasm.assemble import assemble
from webmlc.target.wasm.emit_module import ModuleControl, Step, join_functions, print_function
from webmlc.target.wasm.printer import Printed
from webmlc.target.webgpu.emit_shaders import Shaders, emit_shaders
from webmlc.tune.features import features
from webmlc.tune.tasks import Task
from webmlc.tune.trial import PROTOCOL, Protocol, Trial, TrialBuffer, pattern_of

CONSTANT_BYTES = 32 << 20
"""Copies of a kernel's constants take at most this many bytes: more than most caches hold."""
MAX_COPIES = 8
"""Calls that read different copies of the constants, at most. Each call is code of the trial."""
REUSE = 64
"""A kernel with more operations than this for each byte of its constants has one copy of the
constants: at 10 operations and 2 bytes per ns, reading constants from memory takes at most an
eighth of its time."""
INEXACT_TOLERANCE = 1e-4
"""The share of an output's magnitude that orders of rounding may change: ten times the change of
sums of a few thousand float32 values."""
KERNEL = "kernel"
"""The name of the kernel in the shaders of a candidate."""
FRACTION = 2**-10
"""Small multiples of this are exact in any order of sums and products."""
_EXACT = {"add", "sub", "mul", "fma", "min", "max", "relaxed_max", "neg", "abs", "sign", "floor",
          "ceil", "trunc", "round", "select"}  # fmt: skip
"""Operators that give small multiples of a power of two for small multiples of a power of two."""


Code = Printed | Shaders
"""A kernel in a WebAssembly module or as a shader."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member of a task's space, its lowered kernel, its code, which trials take as it is, and its
    features for the cost model.
    """

    member: Any
    kernel: LoopFunction
    code: Code
    features: NDArray[np.float32]

    @property
    def text(self) -> str:
        """The text of the code: candidates with the same text are the same."""
        return self.code.text


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a member of a space, with or without its proofs, cannot be built."""

    reason: str


def candidate(task: Task, member: Any) -> Candidate:
    """Build a member of the task's space. Raises `InternalError` if a primitive refuses it."""
    kernel = task.lower(member)
    return Candidate(member, kernel, code_of(task, kernel), features(kernel, task.all_sizes))


def code_of(task: Task, kernel: LoopFunction) -> Code:
    """The code of a lowered kernel of a task."""
    if DEVICES[task.device].runs_steps:
        return print_function(kernel, task.machine)
    return emit_shaders({KERNEL: kernel}, {KERNEL: task.constants})


def try_candidate(task: Task, member: Any) -> Candidate | Refusal:
    """Build a member of the task's space, or say why that is not possible."""
    try:
        return candidate(task, member)
    except InternalError as error:
        reason = error.__cause__ or error  # the step that a primitive refused
    except Exception as error:  # a bug of a rule costs one member, not the search
        reason = error
    name = "" if isinstance(reason, WebmlcError) else f"{type(reason).__name__}: "
    return Refusal(name + (str(reason).splitlines() or [""])[0])


def make_trial(
    task: Task, candidates: Sequence[Candidate], threads: int, protocol: Protocol = PROTOCOL
) -> Trial:
    """The trial of some candidates; the first is the control."""
    trial = replace(
        buffers_of(task),
        threads=threads,
        candidates=len(candidates),
        tolerance=0.0 if is_exact(task.match.function) else INEXACT_TOLERANCE,
        protocol=protocol,
    )
    with_code = _with_module if DEVICES[task.device].runs_steps else _with_shaders
    return with_code(trial, task, candidates)


def is_exact(function: LoopFunction) -> bool:
    """True if small integers make every float of a kernel exact, in any order of operations."""
    for stmt in walk_statements(function.body):
        for root in expressions(stmt):
            for node in walk(root):
                if not node.dtype.is_float:
                    continue
                match node:
                    case Call(op=op) if op not in _EXACT:
                        return False
                    case Const(value=value) if math.isfinite(value) and value % FRACTION:
                        return False
                    case Combination(matrix=matrix) if any(
                        c % FRACTION for row in matrix for c in row
                    ):
                        return False
    return True


def buffers_of(task: Task) -> Trial:
    """A trial without candidates: a buffer for each parameter of the task's kernel, and several for
    each constant. The buffers are placed from byte 0 on.
    """
    function, sizes = task.match.function, task.all_sizes
    bytes_of = {parameter: buffer_bytes(parameter, sizes) for parameter in function.params}
    inputs = function.input_params()
    constant_bytes = sum(size for b, size in bytes_of.items() if b.name in task.constants)
    copies = _copies(task, constant_bytes)
    buffers: list[TrialBuffer] = []
    calls: list[list[int]] = [[] for _ in range(copies)]
    end = 0
    for parameter in function.params:
        is_constant = parameter.name in task.constants
        for number, call in enumerate(calls):
            if number == 0 or is_constant:
                size = bytes_of[parameter]
                is_large = DEVICES[task.device].runs_steps and size >= LARGE
                offset = align(end, PAGE_BYTES if is_large else DEVICES[task.device].alignment)
                pattern = pattern_of(parameter.dtype) if parameter in inputs else b""
                buffers.append(TrialBuffer(offset, size, parameter.dtype, pattern))
                end = offset + align(max(size, 4), 64)
            call.append(len(buffers) - 1)
    return Trial(task.device, tuple(buffers), tuple(map(tuple, calls)), total_bytes=end)


def _copies(task: Task, constant_bytes: int) -> int:
    """The copies of a task's constants in a trial."""
    is_reused = count_work(task.match.function, task.all_sizes).flops > REUSE * constant_bytes
    if is_reused or not constant_bytes:
        return 1
    room = min(task.constant_bytes, CONSTANT_BYTES)
    return max(1, min(MAX_COPIES, room // constant_bytes))


def _with_module(trial: Trial, task: Task, candidates: Sequence[Candidate]) -> Trial:
    """Add a module of all candidates, each a loop of calls, and move the buffers behind the
    module's own area at the start of memory.
    """
    symbols = [task.sizes[s.name] for s in candidates[0].kernel.symbols]
    symbol_slots = range(len(trial.buffers), len(trial.buffers) + len(symbols))
    counter = symbol_slots.stop
    length = 2 + len(trial.calls)
    kernels = wasm_codes({f"c{number}": item.code for number, item in enumerate(candidates)})
    steps: list[Step] = []
    for number, name in enumerate(kernels):
        first = number * length
        steps.append(Step("", (), control=ModuleControl("loop", first + length, counter)))
        steps += [Step(name, (*call, *symbol_slots)) for call in trial.calls]
        steps.append(Step("", (), control=ModuleControl("next", first + 1, counter)))
    module = join_functions(kernels, steps)

    scratch = align(CONTROL.slots + 4 * (counter + 2), 64)
    stride = scratch_stride(module.scratch_bytes)
    start = align(scratch + stride * trial.threads, PAGE_BYTES)
    buffers = tuple(replace(b, offset=b.offset + start) for b in trial.buffers)
    table = (*(b.offset for b in buffers), *symbols, 0, 1)
    return replace(
        trial,
        buffers=buffers,
        total_bytes=start + trial.total_bytes,
        module=assemble(module.text),
        pages=-(-(start + trial.total_bytes) // PAGE),
        steps=length,
        repeats_address=CONTROL.slots + 4 * (counter + 1),
        words=((CONTROL.slots, table), (CONTROL.scratch, (scratch, stride))),
    )


def wasm_codes(codes: Mapping[str, Code]) -> dict[str, Printed]:
    """The code of WebAssembly candidates by name."""
    return {name: code for name, code in codes.items() if isinstance(code, Printed)}


def _with_shaders(trial: Trial, task: Task, candidates: Sequence[Candidate]) -> Trial:
    """Add a shader for each candidate."""
    emitted = [c.code for c in candidates if isinstance(c.code, Shaders)]
    entries = [shaders.entries[KERNEL] for shaders in emitted]
    words = [task.sizes[name] for name in entries[0].symbols]
    workgroups = []
    for entry in entries:
        x, y, z = (evaluate_size(w, task.sizes) for w in entry.workgroups)
        workgroups.append((x, y, z))
    return replace(
        trial,
        shaders=tuple(shaders.text for shaders in emitted),
        entries=tuple(entry.name for entry in entries),
        read_only=tuple(b.name in task.constants for b in task.match.function.params),
        workgroups=tuple(workgroups),
        uniform=tuple(words + [0] * (-len(words) % 4)),
    )
