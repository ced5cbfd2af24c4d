"""Compute the addresses of buffers in the memory of a device, for sizes that a run knows.

In: a manifest, whose plan (`Memory`) says which buffers a device holds and in which order, and the
value of each symbol. Out: the byte offsets of the activations inside the arena of the device, and
for wasm the addresses of everything in memory. `runtime_js/memory_plan.js` computes the same.

Linear memory consists of the control area, the slot table, the scratch of each thread, the
constants and the arena. A GPU has separate buffers for the constants of every run, for the
constants that only loading reads (freed afterwards), and for the derived values.
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
"""The alignment of constants, in bytes. Tensors in a weights file have the same alignment."""
LARGE = 1 << 18
"""Align weights of at least this many bytes to a page (`PAGE_BYTES`).

Every run reads large weights from memory, and hardware prefetchers stop at the end of a page.
Chosen by hand: smaller weights stay in the L2 cache.
"""
LARGEST_BUFFER = (1 << 32) - PAGE
"""The largest buffer, in bytes: a 32-bit memory without its first page."""
RED_ZONE = 64
"""Bytes that stay free before and behind each buffer of an arena that is checked for writes outside
buffers.
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """The addresses in the memory of one device.

    `constants` has the addresses of constants and derived buffers. `offsets` has the addresses of
    activations. `sizes` has the bytes of every buffer. A buffer whose size is not known yet has no
    address and no size.

    On wasm, `offsets` are addresses in linear memory, and `total` is the exact size of this memory.
    Loading needs `total - arena` bytes. On webgpu, `offsets` are relative to the arena; constants
    have separate buffers.

    `states` has offsets in the block of a session, which has `state_bytes` bytes. `total` does not
    include this block. `replaced_states` are the states that do not grow: each run replaces
    them as a whole.
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
    """The place of every buffer of a device's program in the memory of `device`. `symbols` has the
    values of all symbols, or of the symbols that are bound so far.

    With a `red_zone`, that many bytes before and behind each buffer stay free, and buffers share no
    bytes. A check can then find writes outside buffers.
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
    """The offset of each buffer in the arena, the end of the highest buffer, and the end of the
    highest buffer that holds the same bytes in every run. Loading needs the bytes up to that end.
    """
    offsets: dict[str, int] = {}
    ends: list[int] = []
    total = resident_end = 0
    for place in memory.arena:
        buffer = program.buffers[place.buffer]
        start = max((ends[i] for i in place.below), default=0)
        ends.append(start)  # `below` leaves out what lies below these: it keeps buffers above it
        if buffer.name not in sizes:
            continue
        size, alignment = max(sizes[buffer.name], 1), ALIGNMENT[device]
        if buffer.is_resident:
            alignment = weights_alignment(size, alignment)
        offset = align(total + red_zone if red_zone else start, alignment)
        ends[-1] = offset + (size if red_zone else align(size, alignment))
        offsets[buffer.name], total = offset, max(total, ends[-1])
        if buffer.is_resident:
            resident_end = max(resident_end, align(offset + size, ALIGNMENT[device]))
    return offsets, total + red_zone, resident_end


def buffer_bytes(
    program: Program, symbols: Mapping[str, int], *, is_checked: bool = True
) -> dict[str, int]:
    """The bytes of each buffer by name, if all symbols in its shape are bound. The size is 0 if
    symbols that are not checked yet make it negative.

    Raises `InputError` if memory cannot hold a buffer, if `is_checked`.
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
    """Place buffers one after another. Buffers of the same tensor, which follow each other, share
    one place.

    Returns the address of each buffer, and the end of the last buffer. A buffer whose size is not
    known yet has no place.
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
