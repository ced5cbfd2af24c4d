"""Which buffers cross between the CPU and the GPU, and when.

In: a program's steps in segments. Out: one `Stage` a segment: what to upload before it and download
after it. A buffer moves only where the newest copy is on the other side, and only through the host,
at a segment's border. The twin is `stages` in `runtime_js/memory_plan.js`.

    steps: a = f(x) on webgpu; b = g(a) on wasm; output b
    Stage(webgpu, uploads=(x,), downloads=(a,)), Stage(wasm, uploads=(a,), downloads=(b,))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from webmlc.package.manifest import Device, Program, Segment, Step


@dataclass(frozen=True, slots=True)
class Stage:
    """A segment with its transfers: buffers the host writes before it runs, and reads after."""

    segment: Segment
    uploads: tuple[str, ...]
    downloads: tuple[str, ...]


def segments_of(steps: Sequence[Step], module_base: int = 0) -> tuple[Segment, ...]:
    """Maximal runs of steps on one device; wasm steps are numbered from `module_base` inside the
    module.
    """
    segments: list[Segment] = []
    module = module_base
    first = 0
    for last in range(1, len(steps) + 1):
        if last < len(steps) and steps[last].device == steps[first].device:
            continue
        device = steps[first].device
        if device == "wasm":
            segments.append(Segment(device, first, last, module, module + last - first))
            module += last - first
        else:
            segments.append(Segment(device, first, last))
        first = last
    return tuple(segments)


def stages(program: Program, outputs: Sequence[str], own: Device) -> tuple[Stage, ...]:
    """The segments of `program` with what crosses. `outputs` are the graph outputs' buffers, `own`
    the program's device.

    A constant that is itself an output is read back by a last stage of its own, which runs no step.
    """
    constants = {b.name for b in program.buffers if b.kind == "constant"}
    uploads, needs, writes = _uploads(program, constants)
    result: list[Stage] = []
    for index, segment in enumerate(program.segments):
        downloads: list[str] = []
        for name in writes[index]:
            later = range(index + 1, len(program.segments))
            crossing = any(
                name in needs[i] and program.segments[i].device != segment.device for i in later
            )
            is_result = name in outputs and not any(name in writes[i] for i in later)
            if crossing or is_result:
                downloads.append(name)
        result.append(Stage(segment, uploads[index], tuple(downloads)))
    if fixed := tuple(dict.fromkeys(o for o in outputs if o in constants)):
        steps, end = len(program.steps), max((s.module_last for s in program.segments), default=0)
        result.append(Stage(Segment(own, steps, steps, end, end), (), fixed))
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
        for step in program.steps[segment.first : segment.last]:
            for name in step.arguments:
                defined = name in here or (name in step.written and name not in written)
                if not defined and name not in constants:
                    outside[name] = None
            here.update(dict.fromkeys(step.written))
        uploads.append(tuple(n for n in outside if n not in valid[segment.device]))
        needs.append(set(outside))
        writes.append(here)
        written |= here.keys()
        valid[segment.device] |= outside.keys() | here.keys()
        valid["webgpu" if segment.device == "wasm" else "wasm"] -= here.keys()
    return uploads, needs, writes
