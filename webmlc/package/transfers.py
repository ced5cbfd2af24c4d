"""Plan the transfers of buffers between the CPU and the GPU.

In: the steps of a program in segments. Out: one `Stage` per segment, with the uploads before it and
the downloads after it. A buffer moves only if its newest copy is on the other device. It moves
through the host, between segments. A `Bind` moves nothing: its buffer was downloaded before. The
twin of this module is `stages` in `runtime_js/memory_plan.js`.

    steps: a = f(x) on webgpu; b = g(a) on wasm; output b
    Stage(webgpu, uploads=(x,), downloads=(a,)), Stage(wasm, uploads=(a,), downloads=(b,))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from webmlc.core.machine import Device
from webmlc.package.manifest import Bind, Program, Run, Segment, Step


@dataclass(frozen=True, slots=True)
class Stage:
    """A segment with its transfers: buffers that the host writes before it, and reads after it."""

    segment: Segment
    uploads: tuple[str, ...]
    downloads: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """True if it runs no step and reads nothing."""
        run = self.segment
        return isinstance(run, Run) and run.first == run.last and not self.downloads


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
        wasm = int(item.device == "wasm")
        at_load = number < once
        match segments:
            case [*_, Run() as last] if (last.device, last.once) == (item.device, at_load):
                segments[-1] = replace(last, last=number + 1, module_last=last.module_last + wasm)
            case _:
                first = module if wasm else 0
                segments.append(Run(item.device, number, number + 1, first, first + wasm, at_load))
        module, number = module + wasm, number + 1
    return tuple(segments)


def stages(program: Program, outputs: Sequence[str], program_device: Device) -> tuple[Stage, ...]:
    """Plan the transfers of each segment of `program`. `outputs` are the buffers of the outputs.

    A constant that is itself an output is read back by an additional last stage without steps.
    """
    constants = {b.name for b in program.buffers if not b.is_activation}
    uploads, needs, writes = _uploads(program, constants)
    # Backwards: the later readers of each buffer's value, including the host (outputs, binds).
    readers: dict[str, set[str]] = {name: {"host"} for name in outputs}
    result: list[Stage] = []
    for index in reversed(range(len(program.segments))):
        segment = program.segments[index]
        downloads: tuple[str, ...] = ()
        match segment:
            case Bind(buffer=buffer):
                readers.setdefault(buffer, set()).add("host")
            case Run(device=device):
                later_readers = {name: readers.pop(name, set()) for name in writes[index]}
                downloads = tuple(
                    name for name, devices in later_readers.items() if devices - {device}
                )
                for name in needs[index]:
                    readers.setdefault(name, set()).add(device)
        result.append(Stage(segment, uploads[index], downloads))
    result.reverse()
    if constant_outputs := tuple(dict.fromkeys(o for o in outputs if o in constants)):
        steps, end = len(program.steps), max((r.module_last for r in program.runs), default=0)
        result.append(Stage(Run(program_device, steps, steps, end, end), (), constant_outputs))
    return tuple(result)


def select_stages(
    program: Program, outputs: Sequence[str], program_device: Device
) -> tuple[Stage, ...]:
    """Plan a run that returns only some outputs. The last steps of each segment are left out if
    only other outputs need them. The memory plan of the program stays valid.

    States are always needed. Steps before a needed one stay, so that a segment is one run. So do
    steps of control flow, up to their targets.

        steps: a = f(x); b = g(a); c = h(b); output b
        steps: a = f(x); b = g(a)
    """
    needed = {*outputs, *(b.name for b in program.buffers if b.kind == "state")}
    segments = list(program.segments)
    for index in reversed(range(len(segments))):
        match segments[index]:
            case Bind(buffer=buffer):
                needed.add(buffer)
            case Run() as run:
                run = run if run.once else _without_last_steps(program, run, needed)
                for step in program.steps[run.first : run.last]:
                    needed.update(step.arguments)
                segments[index] = run
    selected = stages(replace(program, segments=tuple(segments)), outputs, program_device)
    return tuple(s for s in selected if not s.is_empty)


def _without_last_steps(program: Program, run: Run, needed: set[str]) -> Run:
    """Cut off the last steps of a segment if none of the `needed` buffers is theirs."""
    steps = program.steps[run.first : run.last]
    count = len(steps)
    while (
        count and steps[count - 1].control is None and needed.isdisjoint(steps[count - 1].written)
    ):
        count -= 1
    targets = (step.control.target for step in steps if step.control is not None)
    last = max(run.first + count, *targets, run.first)
    module_last = run.module_first + last - run.first if run.device == "wasm" else run.module_last
    return replace(run, last=last, module_last=module_last)


def _uploads(
    program: Program, constants: set[str]
) -> tuple[list[tuple[str, ...]], list[set[str]], list[dict[str, None]]]:
    """For each segment, list the uploads, the buffers that it reads, and those that it writes.

    Buffers that the segment itself defines do not count as reads. Writes are in order.
    """
    valid: dict[str, set[str]] = {"wasm": set(), "webgpu": set()}
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
                    if not is_defined and name not in constants:
                        reads[name] = None
                defined_here.update(dict.fromkeys(step.written))
            uploads.append(tuple(n for n in reads if n not in valid[segment.device]))
            valid[segment.device] |= reads.keys() | defined_here.keys()
            valid["webgpu" if segment.device == "wasm" else "wasm"] -= defined_here.keys()
        else:
            uploads.append(())
        needs.append(set(reads))
        writes.append(defined_here)
        written |= defined_here.keys()
    return uploads, needs, writes
