"""A trial of many kernels at once: the kernels of a whole model, or of a layer.

In: sets of kernels, each with a schedule. Out: a `Trial`, whose candidates are the sets. A kernel
that is faster alone may not be faster beside others, and two algorithms of a layer have different
kernels. This trial measures the gain of a build.

    trial = model_trial([defaults, winners], threads=1)

Each candidate calls every kernel as often as a run of the model does. Each call reads its own
constants (`candidates.buffers_of`). Calls share inputs and outputs, but no call reads another
call's output: numbers that pass through many kernels may overflow. Results are not compared; each
candidate was checked in a trial of its kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from webmlc.core.control_area import CONTROL
from webmlc.core.dtypes import DType
from webmlc.core.machine import PAGE_BYTES
from webmlc.package.memory_plan import PAGE, scratch_stride
from webmlc.package.placement import align
from webmlc.target.wasm.assemble import assemble
from webmlc.target.wasm.emit_module import ModuleControl, Step, join_functions
from webmlc.tune.candidates import Candidate, buffers_of, wasm_codes
from webmlc.tune.tasks import Task
from webmlc.tune.trial import PROTOCOL, Protocol, Trial, TrialBuffer, pattern_of

MODEL_PROTOCOL = replace(
    PROTOCOL, rounds=30, fewest=6, limit_ms=10_000.0, warmup_ms=100.0, hopeless=1e9
)
"""How sets of schedules are measured: as the last trial of a kernel."""
MOST_BYTES = 1 << 30
"""The memory of a trial, at most: browsers refuse much more."""


@dataclass(slots=True)
class _Memory:
    """Memory that calls share: a region for the inputs of each type, and a region for the outputs.
    The constants lie behind these regions. Offsets count from the start of the region, or from the
    first constant.
    """

    sizes: dict[DType | None, int] = field(default_factory=dict)
    constants: list[TrialBuffer] = field(default_factory=list)
    end: int = 0

    def reserve(self, region: DType | None, used: int, size: int) -> int:
        """The offset of a buffer in a region, if the call uses `used` bytes of the region
        already.
        """
        offset = align(used, PAGE_BYTES)
        self.sizes[region] = max(self.sizes.get(region, 0), offset + align(max(size, 4), 64))
        return offset

    def constant(self, buffer: TrialBuffer) -> int:
        """The offset of a constant."""
        offset = align(self.end, PAGE_BYTES)
        self.constants.append(replace(buffer, offset=offset))
        self.end = offset + align(max(buffer.size, 4), 64)
        return offset


Scheduled = tuple[Task, Candidate]
"""A kernel of a set, and the schedule that the set has for it."""
_Place = tuple[str, DType | None, int]
"""Where an argument lies: among the constants, the inputs of a type or the outputs; its offset."""


def model_trial(
    sets: Sequence[Sequence[Scheduled]], threads: int, protocol: Protocol = MODEL_PROTOCOL
) -> Trial | None:
    """The trial of some sets of kernels; the first is the control. `None` if it needs too much
    memory.
    """
    memory = _Memory()
    slots: list[_Place | int] = []
    arguments: dict[str, list[tuple[int, ...]]] = {}
    for task, candidate in (scheduled for kernels in sets for scheduled in kernels):
        if _identity(task) not in arguments:
            symbols = [task.sizes[s.name] for s in candidate.kernel.symbols]
            arguments[_identity(task)] = _slots(symbols, _places(task, memory), slots)
    counter = len(slots)
    kernels: dict[str, Candidate] = {}
    calls = [_calls(scheduled, kernels, arguments) for scheduled in sets]
    length = max(map(len, calls)) + 2
    steps = [step for n, c in enumerate(calls) for step in _loop(c, n * length, length, counter)]
    codes = wasm_codes({name: candidate.code for name, candidate in kernels.items()})
    module = join_functions(codes, steps)
    scratch = align(CONTROL.slots + 4 * (counter + 2), 64)
    stride = scratch_stride(module.scratch_bytes)
    starts, end = _regions(memory, align(scratch + stride * threads, PAGE_BYTES))
    if end > MOST_BYTES:
        return None
    table = [s if isinstance(s, int) else starts[s[0], s[1]] + s[2] for s in slots]
    return Trial(
        device="wasm",
        buffers=_filled(memory, starts),
        calls=((),),
        total_bytes=end,
        threads=threads,
        candidates=len(sets),
        protocol=protocol,
        module=assemble(module.text),
        pages=-(-end // PAGE),
        steps=length,
        repeats_address=CONTROL.slots + 4 * (counter + 1),
        words=((CONTROL.slots, (*table, 0, 1)), (CONTROL.scratch, (scratch, stride))),
    )


def _identity(task: Task) -> str:
    """The key that distinguishes the kernels of a trial."""
    return f"{task.key} {task.size_bucket}"


def _loop(calls: Sequence[Step], first: int, length: int, counter: int) -> list[Step]:
    """The steps of a set from step `first` on: a loop of calls, then jumps that do nothing, so that
    all sets have equally many steps.
    """
    end = first + len(calls) + 2
    start = Step("", (), control=ModuleControl("loop", end, counter))
    repeat = Step("", (), control=ModuleControl("next", first + 1, counter))
    jumps = [Step("", (), control=ModuleControl("else", n + 1)) for n in range(end, first + length)]
    return [start, *calls, repeat, *jumps]


def _places(task: Task, memory: _Memory) -> list[list[_Place]]:
    """Where the arguments of each call of a task's kernel lie."""
    trial = buffers_of(task)
    function = task.match.function
    inputs = function.input_params()
    constants = {
        number: memory.constant(trial.buffers[number])
        for call in trial.calls
        for number, parameter in zip(call, function.params, strict=True)
        if parameter.name in task.constants
    }
    calls: list[list[_Place]] = []
    for call in trial.calls:
        used: dict[DType | None, int] = {}
        places: list[_Place] = []
        for number, parameter in zip(call, function.params, strict=True):
            if number in constants:
                places.append(("constants", None, constants[number]))
                continue
            region = parameter.dtype if parameter in inputs else None
            size = trial.buffers[number].size
            offset = memory.reserve(region, used.get(region, 0), size)
            used[region] = offset + size
            places.append(("shared", region, offset))
        calls.append(places)
    return calls


def _slots(
    symbols: Sequence[int], calls: Sequence[Sequence[_Place]], slots: list[_Place | int]
) -> list[tuple[int, ...]]:
    """Add the slots of a kernel's calls, and return the slots of each call's arguments and
    symbols.
    """
    arguments = []
    for call in calls:
        first = len(slots)
        slots += [*call, *symbols]
        arguments.append(tuple(range(first, len(slots))))
    return arguments


def _calls(
    scheduled: Sequence[Scheduled],
    kernels: dict[str, Candidate],
    arguments: Mapping[str, Sequence[tuple[int, ...]]],
) -> list[Step]:
    """The calls of a set: every kernel as often as the model calls it. The kernels are added under
    names. Sets share equal kernels, so that only different kernels make a difference.
    """
    names = {candidate.text: name for name, candidate in kernels.items()}
    steps = []
    for task, candidate in scheduled:
        name = names.setdefault(candidate.text, f"k{len(names)}")
        kernels.setdefault(name, candidate)
        slots = arguments[_identity(task)]
        steps += [Step(name, slots[number % len(slots)]) for number in range(task.calls)]
    return steps


def _regions(memory: _Memory, start: int) -> tuple[Mapping[tuple[str, DType | None], int], int]:
    """The addresses of the regions and of the first constant, and the end of all."""
    starts: dict[tuple[str, DType | None], int] = {}
    for region, size in memory.sizes.items():
        starts["shared", region] = start
        start = align(start + size, PAGE_BYTES)
    starts["constants", None] = start
    return starts, align(start + memory.end, PAGE_BYTES)


def _filled(
    memory: _Memory, starts: Mapping[tuple[str, DType | None], int]
) -> tuple[TrialBuffer, ...]:
    """The buffers to fill: the regions of inputs, and the constants. The engine knows of no
    outputs, which it would compare.
    """
    regions = [
        TrialBuffer(starts["shared", dtype], size, dtype, pattern_of(dtype))
        for dtype, size in memory.sizes.items()
        if dtype is not None
    ]
    base = starts["constants", None]
    return (*regions, *(replace(c, offset=c.offset + base) for c in memory.constants))
