"""Divide a program into segments, and plan the transfers of buffers between the CPU and the GPU.

In: steps and binds in order. Out: the segments of a program, with the uploads before each run and
the downloads after it. A buffer moves only if its newest copy is on the other device. It moves
through the host, between segments. A `Bind` moves nothing: its buffer was downloaded before.

    steps: a = f(x) on webgpu; b = g(a) on wasm; output b
    Run(webgpu, uploads=(x,), downloads=(a,)), Run(wasm, uploads=(a,), downloads=(b,))

No transfer depends on a symbol, so the manifest holds all transfers. If a run returns only some
outputs, a host leaves out the steps and transfers that these outputs do not need
(`select_segments`, twin: `runtime_js/transfers.js`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from webmlc.core.machine import DEVICES, Device
from webmlc.package.manifest import Bind, Program, Run, Segment, Step


def segments_of(
    body: Sequence[Step | Bind], module_base: int = 0, once: int = 0
) -> tuple[Segment, ...]:
    """Divide a program into maximal runs of steps on one device, with the binds between them.

    `module_base` is the number of the first wasm step inside the module. The first `once` steps
    run at load.
    """
    segments: list[Segment] = []
    module, number = module_base, 0
    for item in body:
        if isinstance(item, Bind):
            segments.append(item)
            continue
        is_wasm, at_load = DEVICES[item.device].runs_steps, number < once
        match segments:
            case [*_, Run() as last] if (last.device, last.once) == (item.device, at_load):
                segments[-1] = replace(last, last=number + 1)
            case _:
                first = module if is_wasm else 0
                segments.append(Run(item.device, number, number + 1, first, at_load))
        module, number = module + is_wasm, number + 1
    return tuple(segments)


def with_transfers(
    program: Program, results: Sequence[str], program_device: Device
) -> tuple[Segment, ...]:
    """Plan the transfers of each segment of `program`. `results` are the buffers that the host
    reads after a run.

    A constant or a state that is itself a result is read back by an additional run without steps,
    on the device that holds it.
    """
    residents = {b.name for b in program.buffers if not b.is_activation}
    uploads, needs, writes = _uploads(program, residents)
    # Backwards: the later readers of each buffer's value, including the host (results, binds).
    readers: dict[str, set[str]] = {name: {"host"} for name in results}
    segments = list(program.segments)
    for index in reversed(range(len(segments))):
        match segments[index]:
            case Bind(buffer=buffer):
                readers.setdefault(buffer, set()).add("host")
            case Run(device=device) as run:
                later_readers = {name: readers.pop(name, set()) for name in writes[index]}
                downloads = tuple(n for n, devices in later_readers.items() if devices - {device})
                segments[index] = replace(run, uploads=uploads[index], downloads=downloads)
                for name in needs[index]:
                    readers.setdefault(name, set()).add(device)
    unwritten: dict[Device, dict[str, None]] = {}
    for name in (name for name in results if name in residents):
        users = {step.device: None for step in program.steps if name in step.arguments}
        device = next(iter(users)) if users and program_device not in users else program_device
        unwritten.setdefault(device, {})[name] = None
    steps = len(program.steps)
    segments += [Run(d, steps, steps, downloads=tuple(names)) for d, names in unwritten.items()]
    return tuple(segments)


def _uploads(
    program: Program, residents: set[str]
) -> tuple[list[tuple[str, ...]], list[set[str]], list[dict[str, None]]]:
    """For each segment, list its uploads, the buffers that it reads, and the buffers it writes.

    Buffers that the segment itself defines do not count as reads. Writes are in order.
    """
    valid: dict[Device, set[str]] = {device: set() for device in DEVICES}
    written: set[str] = set()
    uploads: list[tuple[str, ...]] = []
    needs: list[set[str]] = []
    writes: list[dict[str, None]] = []
    for segment in program.segments:
        defined_here: dict[str, None] = {}
        reads: dict[str, None] = {}
        if isinstance(segment, Run):
            for step in program.steps[segment.first : segment.last]:
                for name in step.arguments:
                    is_defined = name in defined_here or (
                        name in step.written and name not in written
                    )
                    if not is_defined and name not in residents:
                        reads[name] = None
                defined_here.update(dict.fromkeys(step.written))
            uploads.append(tuple(n for n in reads if n not in valid[segment.device]))
            valid[segment.device] |= reads.keys() | defined_here.keys()
            for device in valid.keys() - {segment.device}:
                valid[device] -= defined_here.keys()
        else:
            uploads.append(())
        needs.append(set(reads))
        writes.append(defined_here)
        written |= defined_here.keys()
    return uploads, needs, writes


def select_segments(program: Program, results: Collection[str]) -> tuple[Segment, ...]:
    """Plan a run that returns only some results. The last steps of each run are left out if only
    other results need them, and so are whole runs at the end. The memory plan stays valid.

        steps: a = f(x); b = g(a); c = h(b); result b
        steps: a = f(x); b = g(a)

    States are always needed. Steps before a needed step stay, so that a segment is one run. Steps
    of control flow stay, too, together with all steps up to their targets.
    """
    moved = set(results)  # the buffers that the host reads, or that later runs upload
    needed = {b.name for b in program.buffers if b.kind == "state"}
    devices: set[Device] = set()  # of later runs
    selected: list[Segment] = []
    for segment in reversed(program.segments):
        if isinstance(segment, Bind):
            moved.add(segment.buffer)
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
