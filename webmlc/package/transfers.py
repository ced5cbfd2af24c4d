"""Which buffers cross between the CPU and the GPU, and when.

In: a program's steps in segments. Out: one `Stage` a segment: what to upload before it and download
after it. A buffer moves only where the newest copy is on the other side, and only through the host,
at a segment's border. A `Bind` moves nothing: what it reads was downloaded before. The twin is
`stages` in `runtime_js/memory_plan.js`.

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
    """A segment with its transfers: buffers the host writes before it runs, and reads after."""

    segment: Segment
    uploads: tuple[str, ...]
    downloads: tuple[str, ...]


def segments_of(
    body: Sequence[Step | Bind], module_base: int = 0, once: int = 0
) -> tuple[Segment, ...]:
    """Maximal runs of steps on one device, and binds between them; wasm steps are numbered from
    `module_base` inside the module. The first `once` steps belong to loading.
    """
    segments: list[Segment] = []
    module, number = module_base, 0
    for item in body:
        if isinstance(item, Bind):
            segments.append(item)
            continue
        wasm = int(item.device == "wasm")
        early = number < once
        match segments:
            case [*_, Run() as last] if (last.device, last.once) == (item.device, early):
                segments[-1] = replace(last, last=number + 1, module_last=last.module_last + wasm)
            case _:
                first = module if wasm else 0
                segments.append(Run(item.device, number, number + 1, first, first + wasm, early))
        module, number = module + wasm, number + 1
    return tuple(segments)


def stages(program: Program, outputs: Sequence[str], own: Device) -> tuple[Stage, ...]:
    """The segments of `program` with what crosses. `outputs` are the graph outputs' buffers, `own`
    the program's device.

    A constant that is itself an output is read back by a last stage of its own, which runs no step.
    """
    constants = {b.name for b in program.buffers if b.is_resident}
    uploads, needs, writes = _uploads(program, constants)
    # Backwards: who reads each buffer's present value later, the host (outputs, binds) included.
    readers: dict[str, set[str]] = {name: {"host"} for name in outputs}
    result: list[Stage] = []
    for index in reversed(range(len(program.segments))):
        segment = program.segments[index]
        downloads: tuple[str, ...] = ()
        match segment:
            case Bind(buffer=buffer):
                readers.setdefault(buffer, set()).add("host")
            case Run(device=device):
                later = {name: readers.pop(name, set()) for name in writes[index]}
                downloads = tuple(name for name, devices in later.items() if devices - {device})
                for name in needs[index]:
                    readers.setdefault(name, set()).add(device)
        result.append(Stage(segment, uploads[index], downloads))
    result.reverse()
    if fixed := tuple(dict.fromkeys(o for o in outputs if o in constants)):
        steps, end = len(program.steps), max((r.module_last for r in program.runs), default=0)
        result.append(Stage(Run(own, steps, steps, end, end), (), fixed))
    return tuple(result)


def _uploads(
    program: Program, constants: set[str]
) -> tuple[list[tuple[str, ...]], list[set[str]], list[dict[str, None]]]:
    """Per segment: what must be uploaded, what it needs from outside, and what it writes (in
    order).
    """
    valid: dict[str, set[str]] = {"wasm": set(), "webgpu": set()}
    written: set[str] = set()
    uploads: list[tuple[str, ...]] = []
    needs: list[set[str]] = []
    writes: list[dict[str, None]] = []
    for segment in program.segments:
        here: dict[str, None] = {}
        outside: dict[str, None] = {}
        if isinstance(segment, Run):
            for step in program.steps[segment.first : segment.last]:
                for name in step.arguments:
                    defined = name in here or (name in step.written and name not in written)
                    if not defined and name not in constants:
                        outside[name] = None
                here.update(dict.fromkeys(step.written))
            uploads.append(tuple(n for n in outside if n not in valid[segment.device]))
            valid[segment.device] |= outside.keys() | here.keys()
            valid["webgpu" if segment.device == "wasm" else "wasm"] -= here.keys()
        else:
            uploads.append(())
        needs.append(set(outside))
        writes.append(here)
        written |= here.keys()
    return uploads, needs, writes
