"""Divide a program into segments, and plan the transfers of buffers between the CPU and the GPU.

In: steps and segments of the host in order. Out: the segments of a program, with the uploads before
each run and the downloads after it. A buffer moves only if its newest copy is elsewhere. It moves
through the host, between segments. Segments of the host move nothing: the buffers that they read
were downloaded before.

    steps: a = f(x) on webgpu; b = g(a) on wasm; output b
    Run(webgpu, uploads=(x,), downloads=(a,)), Run(wasm, uploads=(a,), downloads=(b,))

No transfer depends on a symbol, so the manifest holds all transfers. If a run returns only some
outputs, a host leaves out the steps and transfers that these outputs do not need
(`select_segments`, twin: `runtime_js/transfers.js`).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

from msgspec.structs import replace

from webmlc.core.machine import DEVICES, Device
from webmlc.package.manifest import (
    BeginList,
    Bind,
    Collect,
    Jump,
    JumpUnless,
    Measure,
    Move,
    Program,
    Run,
    Segment,
    Stack,
    Step,
    read_by_host,
    written_by_host,
)

Place = Literal["host", "wasm", "webgpu"]
PLACES: tuple[Place, ...] = ("host", *DEVICES)
"""Where values are: on the host, or on a device."""
HostSegment = Bind | Measure | Move | BeginList | Collect | Stack | Jump | JumpUnless
"""A segment that the host executes itself."""


def segments_of(
    body: Sequence[Step | HostSegment], module_base: int = 0, once: int = 0
) -> tuple[Segment, ...]:
    """Divide a program into maximal runs of steps on one device, with the binds between them.

    `module_base` is the number of the first wasm step inside the module. The first `once` steps
    run at load. The target of a `Jump` in `body` is an item of `body`; no run contains it and the
    item before.
    """
    segments: list[Segment] = []
    numbers: list[int] = []  # by item: its segment
    targets = {item.target for item in body if isinstance(item, Jump | JumpUnless)}
    module, number = module_base, 0
    for position, item in enumerate(body):
        numbers.append(len(segments))
        if not isinstance(item, Step):
            segments.append(item)
            continue
        is_wasm, at_load = DEVICES[item.device].runs_steps, number < once
        match segments:
            case [*_, Run() as last] if (last.device, last.once) == (
                item.device,
                at_load,
            ) and position not in targets:
                segments[-1] = replace(last, last=number + 1)
            case _:
                first = module if is_wasm else 0
                segments.append(Run(item.device, number, number + 1, first, at_load))
        module, number = module + is_wasm, number + 1
    numbers.append(len(segments))
    return tuple(
        replace(s, target=numbers[s.target]) if isinstance(s, Jump | JumpUnless) else s
        for s in segments
    )


def with_transfers(
    program: Program, results: Sequence[str], program_device: Device
) -> tuple[Segment, ...]:
    """Plan the transfers of each segment of `program`. `results` are the buffers that the host
    reads after a run.

    A constant or a state that the host reads is read back by an additional run without steps, on
    the device that holds it.
    """
    residents = {b.name for b in program.buffers if not b.is_activation}
    segments = _with_reads_of_residents(program, residents, program_device)
    flow = _Flow(program, segments, residents)
    valid, readers = flow.valid_at(), flow.readers_after(results)
    planned: list[Segment] = []
    for index, segment in enumerate(segments):
        if isinstance(segment, Run):
            device = segment.device
            uploads = tuple(n for n in flow.reads[index] if n not in valid[index][device])
            later_readers = {n: readers[index].get(n, set()) for n in flow.writes[index]}
            downloads = tuple(n for n, places in later_readers.items() if places - {device})
            segment = replace(segment, uploads=uploads, downloads=(*segment.downloads, *downloads))
        planned.append(segment)
    steps, names = len(program.steps), [name for name in results if name in residents]
    return (*planned, *_reads_of(program, names, program_device, steps))


def _reads_of(
    program: Program, names: Iterable[str], program_device: Device, step: int
) -> Iterator[Run]:
    """Runs without steps, before a step, that read residents back from the devices that hold
    them.
    """
    by_device: dict[Device, dict[str, None]] = {}
    for name in names:
        users = {s.device: None for s in program.steps if name in s.arguments}
        device = next(iter(users)) if users and program_device not in users else program_device
        by_device.setdefault(device, {})[name] = None
    for device, group in by_device.items():
        yield Run(device, step, step, downloads=tuple(group))


def _with_reads_of_residents(
    program: Program, residents: Container[str], program_device: Device
) -> list[Segment]:
    """The segments. Before a segment of the host that reads residents, a run reads them back."""
    segments: list[Segment] = []
    numbers: list[int] = []  # by old number of a segment: its new number
    step = 0
    for segment in program.segments:
        numbers.append(len(segments))
        if isinstance(segment, Run):
            step = segment.last
        else:
            names = [name for name in read_by_host(segment) if name in residents]
            segments += _reads_of(program, names, program_device, step)
        segments.append(segment)
    numbers.append(len(segments))
    return [
        replace(s, target=numbers[s.target]) if isinstance(s, Jump | JumpUnless) else s
        for s in segments
    ]


def _next(index: int, segment: Segment) -> set[int]:
    """The segments that may follow the segment of this index."""
    match segment:
        case Jump(target=target):
            return {target}
        case JumpUnless(target=target):
            return {target, index + 1}
    return {index + 1}


Validity = Mapping[Place, AbstractSet[str]]
"""The buffers whose newest value is at each place."""
Readers = Mapping[str, AbstractSet[Place]]
"""By buffer, the places that read its value before it is written again."""


class _Flow:
    """The flow of values between segments, which jumps connect.

    - `places`: where each segment runs: on a device, or on the host.
    - `reads`: the buffers that a segment reads, but for those that it writes before.
    - `writes`: the buffers that a segment writes. Both are in order.
    - `next`: the segments that may follow each segment.
    """

    def __init__(
        self, program: Program, segments: Sequence[Segment], residents: Container[str]
    ) -> None:
        self.places: list[Place] = [s.device if isinstance(s, Run) else "host" for s in segments]
        self.reads: list[dict[str, None]] = []
        self.writes: list[dict[str, None]] = []
        written: set[str] = set()
        for segment in segments:
            reads = dict.fromkeys(n for n in read_by_host(segment) if n not in residents)
            writes = dict.fromkeys(written_by_host(segment))
            steps = program.steps[segment.first : segment.last] if isinstance(segment, Run) else ()
            for step in steps:
                for name in step.arguments:
                    is_first = name in step.written and name not in written
                    if name not in writes and not is_first and name not in residents:
                        reads[name] = None
                writes.update(dict.fromkeys(step.written))
            self.reads.append(reads)
            self.writes.append(writes)
            written |= writes.keys()
        self.next = [_next(index, segment) for index, segment in enumerate(segments)]

    def valid_at(self) -> list[Validity]:
        """The buffers that are valid at each place before each segment, whatever ran before."""
        end = len(self.places)
        before: list[dict[Place, set[str]] | None] = [None] * (end + 1)
        before[0] = {place: set() for place in PLACES}
        pending = [0]
        while pending:
            index = pending.pop()
            valid = before[index]
            if index == end or valid is None:
                continue
            place, writes = self.places[index], self.writes[index].keys()
            after = {p: valid[p] - writes for p in PLACES}
            after[place] |= self.reads[index].keys() | writes
            for following in self.next[index]:
                earlier = before[following]
                both = after if earlier is None else {p: earlier[p] & after[p] for p in PLACES}
                if both != earlier:
                    before[following] = both
                    pending.append(following)
        return [valid or {place: set() for place in PLACES} for valid in before]

    def readers_after(self, results: Sequence[str]) -> Sequence[Readers]:
        """The readers of the buffers after each segment. The host reads the results at the end."""
        end = len(self.places)
        before: list[dict[str, set[Place]]] = [{} for _ in range(end)]
        before.append({name: {"host"} for name in results})
        after: list[dict[str, set[Place]]] = [{} for _ in range(end)]
        is_changed = True
        while is_changed:
            is_changed = False
            for index in reversed(range(end)):
                after[index] = {}
                for following in self.next[index]:
                    for name, places in before[following].items():
                        after[index].setdefault(name, set()).update(places)
                written = self.writes[index]
                here = {n: set(places) for n, places in after[index].items() if n not in written}
                for name in self.reads[index]:
                    here.setdefault(name, set()).add(self.places[index])
                is_changed |= here != before[index]
                before[index] = here
        return after


def select_segments(program: Program, results: Collection[str]) -> tuple[Segment, ...]:
    """Plan a run that returns only some results. The last steps of each run are left out if only
    other results need them, and so are whole runs at the end. The memory plan stays valid.

        steps: a = f(x); b = g(a); c = h(b); result b
        steps: a = f(x); b = g(a)

    A program with jumps runs as a whole. States are always needed. Steps before a needed step stay,
    so that a segment is one run. Steps of control flow stay, too, together with all steps up to
    their targets.
    """
    if program.has_jumps:
        return program.segments
    moved = set(results)  # the buffers that the host reads, or that later runs upload
    needed = {b.name for b in program.buffers if b.kind == "state"}
    devices: set[Device] = set()  # of later runs
    selected: list[Segment] = []
    for segment in reversed(program.segments):
        if not isinstance(segment, Run):
            moved.update(read_by_host(segment))
            selected.append(segment)
            continue
        last = segment.last if segment.once else _last_needed(program, segment, moved | needed)
        downloads = tuple(name for name in segment.downloads if name in moved)
        if last == segment.first and not downloads and segment.device not in devices:
            continue
        devices.add(segment.device)
        moved.update(segment.uploads)
        for step in program.steps[segment.first : last]:
            needed.update(step.arguments)
        selected.append(replace(segment, last=last, downloads=downloads))
    return tuple(reversed(selected))


def _last_needed(program: Program, run: Run, needed: set[str]) -> int:
    """The end of the last step of a run that writes a `needed` buffer or that a jump reaches."""
    steps = program.steps[run.first : run.last]
    count = len(steps)
    while (
        count and steps[count - 1].control is None and needed.isdisjoint(steps[count - 1].written)
    ):
        count -= 1
    targets = (step.control.target for step in steps if step.control is not None)
    return max(run.first + count, *targets, run.first)
