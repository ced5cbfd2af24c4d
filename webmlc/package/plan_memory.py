"""Plan the memory of a program at build: which buffers each device holds, and their order there.

In: a program with its segments, and the order of the tensors in the weights files. Out: a `Memory`
for each device, from which hosts compute addresses once they know the sizes (`memory_plan`). A
program whose run does not fit into 32-bit memory is refused (`check_total`).

Buffers whose lifetimes do not overlap share bytes (`placement`). The order is chosen for
`PLANNED_SIZE`, and holds for all sizes. If segments bind symbols during a run, the buffers whose
sizes depend on these symbols lie above all other buffers, which therefore never move.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Set

from webmlc.core.errors import InputError, UserError
from webmlc.core.machine import ADDRESSABLE_BYTES, DEVICES, Device
from webmlc.package.manifest import (
    Buffer,
    Jump,
    JumpUnless,
    Manifest,
    Memory,
    Place,
    Program,
    Run,
    Step,
    read_by_host,
    symbols_bound_by,
)
from webmlc.package.memory_plan import ALIGNMENT, buffer_bytes, weights_alignment
from webmlc.package.placement import Interval, place, stack

PLANNED_SIZE = 128
"""The value of every symbol for which the order of buffers is chosen. Chosen by hand: a usual
number of tokens, and a multiple of the usual strides of pictures.
"""
Spans = dict[str, tuple[int, int]]
"""The first and last step during which each buffer must keep its bytes on a device."""


def plan_memory(manifest: Manifest, program_device: Device) -> dict[Device, Memory]:
    """Plan the memory of each device that a program uses."""
    program = manifest.programs[program_device]
    devices: tuple[Device, ...] = ("wasm", "webgpu")
    return {
        device: _plan(manifest, program, program_device, device)
        for device in devices
        if used_on(program, device, program_device)
    }


def _plan(manifest: Manifest, program: Program, program_device: Device, device: Device) -> Memory:
    numbers = {b.name: number for number, b in enumerate(program.buffers)}
    order = {name: i for i, name in enumerate(t for f in manifest.weights for t in f.tensors)}
    read = (name for segment in program.segments for name in read_by_host(segment))
    results = {*manifest.results, *read}
    loading = load_lifetimes(program, results, program_device, device)
    used = used_on(program, device, program_device)

    def constants(names: Set[str]) -> tuple[int, ...]:
        """The constants among these buffers, in the order of the weights files."""
        stored = [(order[b.tensor], numbers[b.name]) for b in program.buffers
                  if b.name in names and b.tensor is not None]  # fmt: skip
        return tuple(number for _, number in sorted(stored))

    resident = loading if DEVICES[device].runs_steps else {}
    spans = resident | lifetimes(program, device, program_device)
    derived = (b.name for b in program.buffers if b.kind == "derived" and b.name in loading)
    states = (b.name for b in program.buffers if b.kind == "state" and b.name in used)
    return Memory(
        constants=constants(used - loading.keys()),
        temporary=() if DEVICES[device].runs_steps else constants(loading.keys()),
        derived=() if DEVICES[device].runs_steps else tuple(numbers[name] for name in derived),
        states=tuple(numbers[name] for name in states),
        arena=_arena(program, spans, device),
    )


def _arena(program: Program, spans: Spans, device: Device) -> tuple[Place, ...]:
    """The order of buffers in the arena.

    Derived buffers of every run lie at the bottom, below the buffers that only loading uses, whose
    bytes the activations use again.
    """
    sizes = planned_sizes(program)
    groups, least = size_groups(program), ALIGNMENT[device]
    numbers = [number for number, b in enumerate(program.buffers) if b.name in spans]
    intervals = []
    for buffer in (program.buffers[number] for number in numbers):
        first, last = spans[buffer.name]
        size, group = sizes[buffer.name], groups[buffer.name]
        if buffer.is_resident:
            group = -1 if last < len(program.steps) else -2
        alignment = weights_alignment(size, least) if buffer.is_resident else least
        intervals.append(Interval(size, first, last, alignment, group))
    ordered = stack(intervals, place(intervals).offsets)
    return tuple(Place(numbers[i], tuple(below)) for i, below in ordered)


def planned_sizes(program: Program) -> dict[str, int]:
    """The bytes of each buffer if every symbol is `PLANNED_SIZE`."""
    symbols = {name for buffer in program.buffers for name in program.symbols_of(buffer)}
    try:
        return buffer_bytes(program, dict.fromkeys(symbols, PLANNED_SIZE), is_checked=False)
    except InputError:  # a product of many symbols is too large to count
        return buffer_bytes(program, dict.fromkeys(symbols, 1), is_checked=False)


def used_on(program: Program, device: Device, program_device: Device) -> frozenset[str]:
    """The buffers that need a place on `device`.

    The steps on `device` use these buffers. The program's device also holds the unused buffers.
    """
    used = {a for step in program.steps if step.device == device for a in step.arguments}
    if device == program_device:
        used |= {b.name for b in program.buffers} - {a for s in program.steps for a in s.arguments}
    return frozenset(used)


def lifetimes(program: Program, device: Device, program_device: Device) -> Spans:
    """The first and last step during which each activation must keep its bytes on `device`."""
    spans: Spans = {}
    crossing: set[str] = set()

    def keep(name: str, step: int) -> None:
        first, last = spans.get(name, (step, step))
        spans[name] = (min(first, step), max(last, step))

    for run in program.runs:
        crossing |= {*run.uploads, *run.downloads}
        if run.device != device:
            continue
        for name in run.uploads:
            keep(name, run.first)
        for index in range(run.first, run.last):
            for name in program.steps[index].arguments:
                keep(name, index)
        for name in run.downloads:
            keep(name, max(run.last - 1, run.first))
    for first, last in loop_ranges(program):  # an iteration may read values of the previous one
        for name, (begin, end) in spans.items():
            inside = first <= begin and end <= last and name not in crossing
            if not inside and begin <= last and first <= end:
                spans[name] = (min(begin, first), max(end, last))
    for name in used_on(program, device, program_device) - spans.keys():  # an unused input
        spans[name] = (0, max(len(program.steps) - 1, 0))
    return {b.name: spans[b.name] for b in program.buffers if b.name in spans and b.is_activation}


def loop_ranges(program: Program) -> list[tuple[int, int]]:
    """The first and last step of each loop, inner loops first. The loops of a device are inside the
    loops of the host.
    """
    steps = enumerate(program.steps)
    ends = [(i, s.control.target - 1) for i, s in steps if s.control and s.control.kind == "next"]
    first_steps = [0]  # of each segment: the number of the next step
    for segment in program.segments:
        first_steps.append(segment.last if isinstance(segment, Run) else first_steps[-1])
    jumps = ((i, s) for i, s in enumerate(program.segments) if isinstance(s, Jump | JumpUnless))
    host = [(first_steps[s.target], first_steps[i] - 1) for i, s in jumps if s.target < i]
    return [(first, last) for last, first in ends] + host


def size_groups(program: Program) -> dict[str, int]:
    """The group of each buffer: 0 if its size is known from the start, n after the n-th segment
    that binds symbols.
    """
    binders = enumerate(filter(None, map(symbols_bound_by, program.segments)), 1)
    bound = {name: number for number, symbols in binders for name in symbols}
    return {
        b.name: max((bound.get(name, 0) for name in program.symbols_of(b)), default=0)
        for b in program.buffers
    }


def load_lifetimes(
    program: Program, results: Container[str], program_device: Device, device: Device
) -> Spans:
    """The first and last step during which derived buffers must keep their bytes on `device`.

    The spans include the constants that only loading reads. Such a constant has one buffer, and is
    not in `results`.
    """
    load_runs = [run for run in program.runs if run.once and run.device == device]
    once = {i for run in load_runs for i in range(run.first, run.last)}
    tensors = Counter(buffer.tensor for buffer in program.buffers)
    placed = used_on(program, device, program_device) if once else frozenset()
    end = len(program.steps)
    users: defaultdict[str, list[int]] = defaultdict(list)
    for i, step in enumerate(program.steps):
        for name in set(step.arguments):
            users[name].append(i)
    spans: Spans = {}
    for buffer in program.buffers:
        name = buffer.name
        if not buffer.is_resident or name not in placed:
            continue
        uses = users[name]
        is_temporary = once.issuperset(uses) and bool(uses) and name not in results
        if buffer.kind == "derived":
            spans[name] = (uses[0], uses[-1] if is_temporary else end)
        elif is_temporary and tensors[buffer.tensor] == 1:
            spans[name] = (0, uses[-1])
    return spans


def check_total(total: int, buffers: Iterable[Buffer], steps: Iterable[Step]) -> None:
    """Raise `UserError` if a run needs `total` bytes and memory cannot hold them."""
    if total <= ADDRESSABLE_BYTES:
        return
    largest = max(buffers, key=_bytes, default=None)
    reason = "" if largest is None else f" (the largest buffer: {_describe(largest, steps)})"
    raise UserError(
        f"the model cannot be built: a run needs {total:,} bytes{reason}, more than the 4 GiB that "
        "WebAssembly addresses; make the model's sizes smaller, or split it into two models"
    )


def _bytes(buffer: Buffer) -> int:
    """The bytes of a buffer, or 0 if they depend on a symbol."""
    return buffer.static_bytes or 0


def _describe(buffer: Buffer, steps: Iterable[Step]) -> str:
    shape = ", ".join(map(str, buffer.shape))
    text = f"{buffer.name!r}, {buffer.dtype}[{shape}] of {_bytes(buffer):,} bytes"
    origin = next((step.origin for step in steps if buffer.name in step.written), ())
    return f"{text}, made by node {', '.join(map(repr, origin))}" if origin else text
