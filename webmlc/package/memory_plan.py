"""Compute the addresses of buffers in the memory of a device, for sizes that a run knows.

In: a manifest, whose plan (`Memory`) says which buffers a device holds and in which order, and the
value of each symbol. Out: the byte offsets of the activations inside the arena of the device, and
for wasm the addresses of everything in memory. `runtime_js/memory_plan.js` computes the same.

Linear memory consists of the control area, the slot table, the scratch of each thread, the
constants and the arena. A GPU has buffers of their own for the constants of every run, for those
that only loading reads (freed afterwards), and for what is derived.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from webmlc.core.control_area import CONTROL
from webmlc.core.errors import InputError
from webmlc.core.machine import DEVICES, PAGE_BYTES, Device
from webmlc.package.manifest import Manifest, Memory, Program
from webmlc.package.placement import align
from webmlc.package.sizes import evaluate

PAGE = 65536
"""The bytes of a page of WebAssembly memory, from the specification."""
ALIGNMENT: Mapping[Device, int] = {device: f.alignment for device, f in DEVICES.items()}
"""The alignment of buffers in the arena, in bytes.

Derived from the cache line, and from WebGPU's default `minStorageBufferOffsetAlignment`.
"""
CONSTANT_ALIGNMENT = 256
"""The alignment of constants, in bytes: that of the tensors in a weights file."""
LARGE = 1 << 18
"""Align weights of at least this many bytes to a page (`PAGE_BYTES`).

Every run reads them from memory, and hardware prefetchers stop at the end of a page. Chosen by
hand: less than that stays in the L2 cache.
"""
LARGEST_BUFFER = (1 << 32) - PAGE
"""Bytes: a 32-bit memory without its first page."""
RED_ZONE = 64
"""Bytes that stay free before and behind each buffer of an arena that is checked for writes outside
buffers.
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """The addresses in the memory of one device.

    `constants` includes derived buffers, and `offsets` are the activations. `sizes` are the bytes
    of every buffer. A buffer whose size is not known yet has neither.

    On wasm, `offsets` are addresses in linear memory, and `total` is its exact size. Loading needs
    all of it but `arena`. On webgpu, `offsets` are relative to the arena; constants have separate
    buffers.

    `states` are relative to the block of a session, whose bytes are `state_bytes`. `total` does not
    include it. `replaced_states` are those that do not grow.
    """

    offsets: Mapping[str, int]
    sizes: Mapping[str, int]
    arena: int
    constants: Mapping[str, int]
    scratch: int
    total: int
    states: Mapping[str, int] = field(default_factory=dict)
    state_bytes: int = 0
    replaced_states: frozenset[str] = frozenset()


def layout(
    manifest: Manifest,
    program_device: Device,
    device: Device,
    symbols: Mapping[str, int],
    threads: int = 1,
    red_zone: int = 0,
) -> Layout:
    """Where every buffer of a device's program lies in the memory of `device`, for these symbols:
    all, or those that are bound so far.

    With a `red_zone` of some bytes before and behind each, buffers share no bytes, to find writes
    outside them.
    """
    program = manifest.programs[program_device]
    memory = program.memory.get(device, Memory())
    sizes = buffer_bytes(program, symbols)
    states, state_bytes = place_in_order(program, memory.states, sizes, ALIGNMENT[device])
    length = manifest.length
    replaced = frozenset(
        b.name
        for b in (program.buffers[number] for number in memory.states)
        if length not in program.symbols_of(b)
    )
    plan = (states, state_bytes, replaced)
    places, total, resident_end = _places(program, memory, device, sizes, red_zone)
    if not DEVICES[device].runs_steps:
        return Layout(places, sizes, total, {}, 0, total, *plan)
    symbols_count = len(manifest.symbols) + len(program.bound)
    slots = len(program.buffers) + symbols_count + 2 * len(program.loops)
    scratch = align(CONTROL.slots + 4 * slots, CONSTANT_ALIGNMENT)
    stride = scratch_stride(program.resources.scratch_per_thread)
    base = align(scratch + threads * stride, CONSTANT_ALIGNMENT)
    constants, base = place_in_order(program, memory.constants, sizes, base=base)
    residents = {b.name for b in program.buffers if b.is_resident}
    largest = max((sizes[name] for name in places if name in residents), default=0)
    base = align(base, weights_alignment(largest, ALIGNMENT[device]))
    addresses = {name: base + offset for name, offset in places.items()}
    constants |= {name: addresses.pop(name) for name in places if name in residents}
    arena = total - resident_end
    return Layout(addresses, sizes, arena, constants, scratch, base + total, *plan)


def _places(
    program: Program, memory: Memory, device: Device, sizes: Mapping[str, int], red_zone: int
) -> tuple[dict[str, int], int, int]:
    """The offset of each buffer in the arena, the end of the last one, and that of the last buffer
    that keeps its bytes, which loading needs.
    """
    offsets: dict[str, int] = {}
    ends: list[int] = []
    total = resident_end = 0
    for place in memory.arena:
        buffer = program.buffers[place.buffer]
        ends.append(0)
        if buffer.name not in sizes:
            continue
        size, alignment = max(sizes[buffer.name], 1), ALIGNMENT[device]
        if buffer.is_resident:
            alignment = weights_alignment(size, alignment)
        start = max((ends[i] for i in place.below), default=0)
        offset = align(total + red_zone if red_zone else start, alignment)
        ends[-1] = offset + (size if red_zone else align(size, alignment))
        offsets[buffer.name], total = offset, max(total, ends[-1])
        if buffer.is_resident:
            resident_end = max(resident_end, align(offset + size, ALIGNMENT[device]))
    return offsets, total + red_zone, resident_end


def buffer_bytes(
    program: Program, symbols: Mapping[str, int], *, is_checked: bool = True
) -> dict[str, int]:
    """The bytes of each buffer by name, if all symbols in its shape are bound. They are 0 if
    symbols that are not checked yet make them negative.

    Raises `InputError` if memory cannot hold them, unless this is not to be checked.
    """
    values = program.values(symbols)
    sizes: dict[str, int] = {}
    for buffer in program.buffers:
        size = buffer.dtype.bytes
        try:
            for dimension in buffer.shape:
                size *= evaluate(dimension, values)
        except KeyError:
            continue
        if is_checked and size > LARGEST_BUFFER:
            raise InputError(
                f"with these inputs {buffer.name!r} takes {size} bytes: more than {LARGEST_BUFFER}"
            )
        sizes[buffer.name] = max(size, 0)
    return sizes


def place_in_order(
    program: Program,
    numbers: Iterable[int],
    sizes: Mapping[str, int],
    alignment: int = CONSTANT_ALIGNMENT,
    base: int = 0,
) -> tuple[dict[str, int], int]:
    """Place buffers one after another. Those of the same tensor, which follow each other, share it.

    Returns the address of each, and the end of the last one. A buffer whose size is not known yet
    has no place.
    """
    addresses: dict[str, int] = {}
    tensor, start = None, base
    for buffer in (program.buffers[number] for number in numbers):
        if buffer.name not in sizes:
            continue
        if buffer.tensor is None or buffer.tensor != tensor:
            size = sizes[buffer.name]
            start = align(base, weights_alignment(size, alignment) if buffer.is_resident else 1)
            base = align(start + max(size, buffer.is_resident), alignment)
        addresses[buffer.name], tensor = start, buffer.tensor
    return addresses, base


def scratch_stride(scratch_bytes: int) -> int:
    """The distance between the scratch areas of two threads, in bytes.

    It is a multiple of the cache line, so that two threads never share a line.
    """
    return align(scratch_bytes, 64)


def weights_alignment(size: int, least: int) -> int:
    """The alignment of weights of `size` bytes: a page if they are large, else `least`."""
    return PAGE_BYTES if size >= LARGE else least
