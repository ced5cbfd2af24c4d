"""Red zones: bytes around each buffer that no kernel may change, a debug mode of the memory plan.

In: a layout whose buffers lie apart (`memory_plan.layout`). Out: where the zones lie, and an
error that names the buffer and the steps beside which a zone was changed. `load(..., red_zones=
True)` switches them on: the executors fill the zones when they bind symbols, and check them after
each run.

    | zone | x: 100 bytes | zone | y: 8 bytes | zone |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from webmlc.core.errors import InternalError
from webmlc.core.machine import Device
from webmlc.package.manifest import Program, Run
from webmlc.package.memory_plan import RED_ZONE, Layout
from webmlc.package.placement import align

PATTERN = 0xFE
"""The value of each byte of a zone. Floats and integers of such bytes are large, so that a kernel
whose result depends on a read there is seen, too.
"""
WORD: Mapping[Device, int] = {"wasm": 1, "webgpu": 4}
"""Bytes that kernels write at once: a buffer ends with its last word."""


@dataclass(frozen=True, slots=True)
class Zone:
    """The bytes `first..last-1` of a device's memory, before or behind a buffer."""

    first: int
    last: int
    buffer: str
    side: str


def zones(program: Program, layout: Layout, device: Device) -> Iterator[Zone]:
    """The zones around everything that steps write, as far as it has a place."""
    derived = {b.name for b in program.buffers if b.kind == "derived"}
    places = {**layout.offsets, **{n: a for n, a in layout.constants.items() if n in derived}}
    for name, address in places.items():
        end = address + layout.sizes[name]
        yield Zone(address - RED_ZONE, address, name, "before")
        yield Zone(align(end, WORD[device]), (end + RED_ZONE) // 4 * 4, name, "behind")


def check_zones(
    program: Program, run: Run, places: tuple[Zone, ...], memory: NDArray[np.uint8]
) -> None:
    """Raise `InternalError`, with buffer and steps, where the run changed a zone."""
    changes = ((zone, np.flatnonzero(memory[zone.first : zone.last] != PATTERN)) for zone in places)
    changed = [(_distance(zone, at), zone, at.size) for zone, at in changes if at.size]
    if not changed:
        return
    distance, zone, count = min(changed, key=lambda change: change[0])
    steps = range(run.first, run.last)
    writers = [i for i in steps if zone.buffer in program.steps[i].written] or list(steps)
    names = ", ".join(f"{i} ({program.steps[i].kernel})" for i in writers)
    raise InternalError(
        f"host: {count} bytes {zone.side} buffer {zone.buffer!r} were written, the nearest "
        f"{distance} bytes from it. Steps beside it: {names}"
    )


def _distance(zone: Zone, changed: NDArray[np.intp]) -> int:
    """The distance in bytes from the buffer to the nearest changed byte."""
    if zone.side == "before":
        return zone.last - zone.first - int(changed[-1])
    return int(changed[0])
