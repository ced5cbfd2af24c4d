"""Build the trials of candidates: of one kernel, of a whole model, or of a layer.

    trial = make_trial(task, [control, other], threads=1)
    trial = model_trial([defaults, winners], threads=1)

A kernel that is faster alone may not be faster beside others, and two algorithms of a layer have
different kernels. The candidates of a model's trial are therefore sets of kernels, each with a
schedule. Each candidate calls every kernel as often as a run of the model does. Each call reads its
own constants (`buffers_of`). Calls share inputs and outputs, but no call reads another call's
output: numbers that pass through many kernels may overflow. Results are not compared; each
candidate was checked in a trial of its kernel.

A `CandidateBuilder` builds candidates and trials for a search. A search without kernels, such as
the made-up search of a test or a benchmark, has its own builder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from webmlc.core.control_area import CONTROL
from webmlc.core.dtypes import DType
from webmlc.core.machine import DEVICES, PAGE_BYTES
from webmlc.core.sizes import evaluate_size
from webmlc.loops.count_work import buffer_bytes, count_work
from webmlc.package.memory_plan import LARGE, PAGE, scratch_stride
from webmlc.package.placement import align
from webmlc.target.wasm.assemble import assemble
from webmlc.target.wasm.emit_module import ModuleControl, Step, join_functions
from webmlc.target.wasm.printer import Printed
from webmlc.target.webgpu.emit_shaders import Shaders
from webmlc.tune.measure.candidates import KERNEL, Candidate, Refusal, is_exact, try_candidate
from webmlc.tune.measure.trial import PROTOCOL, Protocol, Trial, TrialBuffer, pattern_of
from webmlc.tune.tasks import Identity, Task

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
    """Add a module of all candidates."""
    symbols = [task.sizes[s.name] for s in candidates[0].kernel.symbols]
    slots = range(len(trial.buffers), len(trial.buffers) + len(symbols))
    kernels = {f"c{number}": item for number, item in enumerate(candidates)}
    calls = [[Step(name, (*call, *slots)) for call in trial.calls] for name in kernels]
    return _in_module(trial, kernels, calls, [b.offset for b in trial.buffers], symbols)


def _in_module(
    trial: Trial,
    kernels: Mapping[str, Candidate],
    calls: Sequence[Sequence[Step]],
    addresses: Sequence[int],
    symbols: Sequence[int],
) -> Trial:
    """Add a module in which each candidate of a trial is a loop of calls, and move the buffers
    behind the module's own area at the start of memory. The slots hold the addresses, then the
    symbols.
    """
    counter = len(addresses) + len(symbols)
    length = 2 + max(map(len, calls))
    steps = [step for n, c in enumerate(calls) for step in _loop(c, n * length, length, counter)]
    codes = {name: c.code for name, c in kernels.items() if isinstance(c.code, Printed)}
    module = join_functions(codes, steps)
    scratch = align(CONTROL.slots + 4 * (counter + 2), 64)
    stride = scratch_stride(module.scratch_bytes)
    start = align(scratch + stride * trial.threads, PAGE_BYTES)
    table = (*(start + address for address in addresses), *symbols, 0, 1)
    return replace(
        trial,
        buffers=tuple(replace(b, offset=start + b.offset) for b in trial.buffers),
        total_bytes=start + trial.total_bytes,
        module=assemble(module.text),
        pages=-(-(start + trial.total_bytes) // PAGE),
        steps=length,
        repeats_address=CONTROL.slots + 4 * (counter + 1),
        words=((CONTROL.slots, table), (CONTROL.scratch, (scratch, stride))),
    )


def _loop(calls: Sequence[Step], first: int, length: int, counter: int) -> list[Step]:
    """The steps of a candidate from step `first` on: a loop of calls, then jumps that do nothing,
    so that all candidates have equally many steps.
    """
    end = first + len(calls) + 2
    start = Step("", (), control=ModuleControl("loop", end, counter))
    repeat = Step("", (), control=ModuleControl("next", first + 1, counter))
    jumps = [Step("", (), control=ModuleControl("else", n + 1)) for n in range(end, first + length)]
    return [start, *calls, repeat, *jumps]


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


MODEL_PROTOCOL = replace(
    PROTOCOL, rounds=30, fewest=6, limit_ms=10_000.0, warmup_ms=100.0, hopeless=1e9
)
"""How sets of schedules are measured: as the last trial of a kernel."""
MOST_BYTES = 1 << 30
"""The memory of a trial's buffers, at most: browsers refuse much more."""

Scheduled = tuple[Task, Candidate]
"""A kernel of a set, and the schedule that the set has for it."""
_Region = DType | Literal["outputs", "constants"]
_Place = tuple[_Region, int]
"""Where an argument lies: a region, and its offset there."""


@dataclass(slots=True)
class _Memory:
    """Memory that calls share: a region for the inputs of each type, a region for the outputs, and
    a region for the constants, of which no two calls share one.
    """

    sizes: dict[_Region, int] = field(default_factory=dict)
    constants: list[TrialBuffer] = field(default_factory=list)

    def reserve(self, region: _Region, used: int, size: int) -> int:
        """The offset of a buffer in a region, of which the call uses `used` bytes already."""
        offset = align(used, PAGE_BYTES)
        self.sizes[region] = max(self.sizes.get(region, 0), offset + align(max(size, 4), 64))
        return offset

    def constant(self, buffer: TrialBuffer) -> int:
        """The offset of a constant."""
        offset = self.reserve("constants", self.sizes.get("constants", 0), buffer.size)
        self.constants.append(replace(buffer, offset=offset))
        return offset

    def starts(self) -> tuple[dict[_Region, int], int]:
        """The address of each region, and the end of all."""
        starts: dict[_Region, int] = {}
        end = 0
        for region, size in self.sizes.items():
            starts[region] = end
            end = align(end + size, PAGE_BYTES)
        return starts, end

    def filled(self, starts: Mapping[_Region, int]) -> Iterator[TrialBuffer]:
        """The buffers to fill: the regions of inputs, and the constants. The engine knows of no
        outputs, which it would compare.
        """
        for dtype, size in self.sizes.items():
            if isinstance(dtype, DType):
                yield TrialBuffer(starts[dtype], size, dtype, pattern_of(dtype))
        for constant in self.constants:
            yield replace(constant, offset=starts["constants"] + constant.offset)


def model_trial(
    sets: Sequence[Sequence[Scheduled]], threads: int, protocol: Protocol = MODEL_PROTOCOL
) -> Trial | None:
    """The trial of some sets of kernels; the first is the control. `None` if it needs too much
    memory.
    """
    memory = _Memory()
    every = {task.identity: (task, c.kernel) for scheduled in sets for task, c in scheduled}
    places = {key: _places(task, memory) for key, (task, _) in every.items()}
    starts, end = memory.starts()
    if end > MOST_BYTES:
        return None
    addresses: list[int] = []
    symbols: list[int] = []
    first_symbol = sum(len(call) for calls in places.values() for call in calls)
    slots: dict[Identity, list[tuple[int, ...]]] = {}
    for key, calls in places.items():
        task, kernel = every[key]
        values = [task.sizes[s.name] for s in kernel.symbols]
        symbol_slots = range(first_symbol + len(symbols), first_symbol + len(symbols) + len(values))
        symbols += values
        slots[key] = []
        for call in calls:
            slots[key].append((*range(len(addresses), len(addresses) + len(call)), *symbol_slots))
            addresses += [starts[region] + offset for region, offset in call]
    kernels: dict[str, Candidate] = {}
    steps = [_calls(scheduled, kernels, slots) for scheduled in sets]
    trial = Trial("wasm", tuple(memory.filled(starts)), ((),), end, threads, len(sets))
    return _in_module(replace(trial, protocol=protocol), kernels, steps, addresses, symbols)


def _places(task: Task, memory: _Memory) -> list[list[_Place]]:
    """Where the arguments of each call of a task's kernel lie."""
    trial = buffers_of(task)
    function = task.match.function
    inputs = function.input_params()
    constants: dict[int, int] = {}
    calls: list[list[_Place]] = []
    for call in trial.calls:
        used: dict[_Region, int] = {}
        calls.append([])
        for number, parameter in zip(call, function.params, strict=True):
            buffer = trial.buffers[number]
            if parameter.name in task.constants:
                if number not in constants:
                    constants[number] = memory.constant(buffer)
                calls[-1].append(("constants", constants[number]))
                continue
            region: _Region = parameter.dtype if parameter in inputs else "outputs"
            offset = memory.reserve(region, used.get(region, 0), buffer.size)
            used[region] = offset + buffer.size
            calls[-1].append((region, offset))
    return calls


def _calls(
    scheduled: Sequence[Scheduled],
    kernels: dict[str, Candidate],
    slots: Mapping[Identity, Sequence[tuple[int, ...]]],
) -> list[Step]:
    """The calls of a set: every kernel as often as the model calls it. The kernels are added under
    names. Sets share equal kernels, so that only different kernels make a difference.
    """
    names = {candidate.text: name for name, candidate in kernels.items()}
    steps = []
    for task, candidate in scheduled:
        name = names.setdefault(candidate.text, f"k{len(names)}")
        kernels.setdefault(name, candidate)
        calls = slots[task.identity]
        steps += [Step(name, calls[number % len(calls)]) for number in range(task.calls)]
    return steps


class CandidateBuilder:
    """Builds candidates in this process, or side by side in `processes`, which start at once.
    Kernels run with `threads` threads.
    """

    def __init__(self, threads: int = 1, processes: Executor | None = None) -> None:
        self.threads, self.processes = threads, processes
        self._started: list[Future[None]] = []
        if processes is not None:
            self._started = [processes.submit(_import) for _ in range(os.cpu_count() or 1)]

    def wait(self) -> None:
        """Return when all processes have started."""
        for started in self._started:
            started.result()

    def build(self, tasks: Iterable[Task], members: Iterable[Any]) -> Iterator[Candidate | Refusal]:
        """A member of each task's space as code, or the reason why it cannot be built."""
        build = map if self.processes is None else self.processes.map
        return iter(build(try_candidate, tasks, members))

    def trial(self, task: Task, candidates: Sequence[Candidate], protocol: Protocol) -> Trial:
        """The trial of some candidates; the first is the control."""
        return make_trial(task, candidates, self.threads, protocol)

    def model_trial(self, sets: Sequence[Sequence[Scheduled]]) -> Trial | None:
        """The trial of some sets of kernels; `None` if it needs too much memory."""
        return model_trial(sets, self.threads)


def _import() -> None:
    """Do nothing: a process that runs this function has imported the modules that build
    candidates.
    """
