"""Plan the memory of a program, by one deterministic algorithm.

`runtime_js/memory_plan.js` implements the same algorithm. In: a program, the value of each symbol,
and a device. Out: the byte offsets of the activations inside the arena of the device, and for wasm
the addresses of everything in memory.

Buffers whose lifetimes do not overlap share bytes (`placement.py`). If segments bind symbols during
a run, the buffers whose sizes depend on these symbols are placed after the bind, around the buffers
that are placed already. A buffer never moves.

Linear memory consists of the control area, the slot table, the scratch of each thread, the
constants and the arena. Constants that are used only at load, and the buffers derived from them,
are at the start of the arena. They are placed first, with their lifetimes, so that later derived
buffers and activations reuse the bytes of such a constant.

A GPU has buffers of their own for the constants of every run, for those that only loading reads
(freed afterwards), and for what is derived: one dispatch may not bind a buffer both for reading
only and for writing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from webmlc.core.errors import InputError
from webmlc.core.machine import PAGE_BYTES, Device
from webmlc.core.sizes import evaluate_size
from webmlc.package.manifest import Bind, Buffer, Manifest, Program
from webmlc.package.placement import Interval, Placing, align, place
from webmlc.package.transfers import Stage, stages

SLOT_TABLE = 1024
"""Address of the slot table; the control area lies below."""
SCRATCH_BASE = 256
"""Address of the i32 that holds the first thread's scratch address; the stride follows it."""
PAGE = 65536
"""The bytes of a page of WebAssembly memory, from the specification."""
ALIGNMENT: Mapping[Device, int] = {"wasm": 64, "webgpu": 256}
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


def used_on(program: Program, device: Device, program_device: Device) -> frozenset[str]:
    """The buffers that need a place on `device`.

    Its steps use them. If it is the device of the program, it also holds the unused buffers.
    """
    used = {a for step in program.steps if step.device == device for a in step.arguments}
    if device == program_device:
        used |= {b.name for b in program.buffers} - {a for s in program.steps for a in s.arguments}
    return frozenset(used)


def lifetimes(
    program: Program, stage_list: Sequence[Stage], device: Device, program_device: Device
) -> dict[str, tuple[int, int]]:
    """The first and last step during which each activation must keep its bytes on `device`."""
    spans: dict[str, tuple[int, int]] = {}
    placed = used_on(program, device, program_device)

    def keep(name: str, step: int) -> None:
        first, last = spans.get(name, (step, step))
        spans[name] = (min(first, step), max(last, step))

    for stage in stage_list:
        segment = stage.segment
        if isinstance(segment, Bind) or segment.device != device:
            continue
        for name in stage.uploads:
            keep(name, segment.first)
        for index in range(segment.first, segment.last):
            for name in program.steps[index].arguments:
                keep(name, index)
        for name in stage.downloads:
            keep(name, max(segment.last - 1, segment.first))
    crossing = {name for stage in stage_list for name in (*stage.uploads, *stage.downloads)}
    for first, last in loop_ranges(program):  # an iteration may read values of the previous one
        for name, (begin, end) in spans.items():
            inside = first <= begin and end <= last and name not in crossing
            if not inside and begin <= last and first <= end:
                spans[name] = (min(begin, first), max(end, last))
    for name in placed - spans.keys():  # an unused input still has a place
        spans[name] = (0, max(len(program.steps) - 1, 0))
    return {b.name: spans[b.name] for b in program.buffers if b.name in spans and b.is_activation}


def loop_ranges(program: Program) -> list[tuple[int, int]]:
    """The first and last step of each loop, inner loops first."""
    steps = enumerate(program.steps)
    ends = [(i, s.control.target - 1) for i, s in steps if s.control and s.control.kind == "next"]
    return [(first, last) for last, first in ends]


def layout(
    manifest: Manifest,
    program_device: Device,
    device: Device,
    symbols: Mapping[str, int],
    threads: int = 1,
    placing: Placing = place,
) -> Layout:
    """Where every buffer of a device's program lies in the memory of `device`, for these symbols:
    all, or those that are bound so far.
    """
    program = manifest.programs[program_device]
    groups = size_groups(program)
    sized_names = {b.name for b in program.buffers if b.symbols <= symbols.keys()}
    sizes = {b.name: _bytes(b, symbols) for b in program.buffers if b.name in sized_names}
    stage_list = stages(program, manifest.results, program_device)
    spans = lifetimes(program, stage_list, device, program_device)
    loading = load_lifetimes(manifest, program_device, device) if device == "wasm" else {}
    least = ALIGNMENT[device]
    intervals = {
        n: Interval(sizes[n], *span, weights_alignment(sizes[n], least), group=-1)
        for n, span in loading.items()
    }
    intervals |= {
        n: Interval(sizes[n], *span, least, groups[n])
        for n, span in spans.items()
        if n in sized_names
    }
    placement = placing(list(intervals.values()))
    offsets = dict(zip(intervals, placement.offsets, strict=True))
    states = place_states(program, device, sizes, manifest.length)
    if device == "webgpu":
        total = placement.total
        return Layout(offsets, sizes, total, {}, 0, total, *states)
    loaded = max((align(offsets[n] + sizes[n], least) for n in loading), default=0)
    symbols_count = len(manifest.symbols) + len(program.bound)
    slots = len(program.buffers) + symbols_count + 2 * len(program.loops)
    scratch = align(SLOT_TABLE + 4 * slots, CONSTANT_ALIGNMENT)
    base = align(
        scratch + threads * scratch_stride(program.resources.scratch_per_thread), CONSTANT_ALIGNMENT
    )
    constants, base = place_constants(manifest, program_device, device, base)
    base = align(base, max((interval.alignment for interval in intervals.values()), default=1))
    constants |= {name: base + offsets.pop(name) for name in loading}
    addresses = {name: base + offset for name, offset in offsets.items()}
    total = base + placement.total
    arena = placement.total - loaded
    return Layout(addresses, sizes, arena, constants, scratch, total, *states)


def place_states(
    program: Program, device: Device, sizes: Mapping[str, int], length: str
) -> tuple[dict[str, int], int, frozenset[str]]:
    """Place the states of a session that are on a device one after another. `sizes` hold for the
    session's capacity.

    Returns the offset of each, the bytes of all, and those that do not depend on the `length`.
    """
    used = {name for step in program.steps if step.device == device for name in step.arguments}
    states = [b for b in program.buffers if b.kind == "state" and b.name in used & sizes.keys()]
    offsets: dict[str, int] = {}
    end = 0
    for buffer in states:
        offsets[buffer.name] = end
        end = align(end + sizes[buffer.name], ALIGNMENT[device])
    return offsets, end, frozenset(b.name for b in states if length not in b.symbols)


def _bytes(buffer: Buffer, symbols: Mapping[str, int]) -> int:
    """The bytes of a buffer, or 0 if symbols that are not checked yet make them negative.

    Raises `InputError` if memory cannot hold them.
    """
    size = evaluate_size(buffer.bytes, symbols)
    if size <= LARGEST_BUFFER:
        return max(size, 0)
    raise InputError(
        f"with these inputs {buffer.name!r} takes {size} bytes: more than {LARGEST_BUFFER}"
    )


def size_groups(program: Program) -> dict[str, int]:
    """The group of each buffer: 0 if its size is known from the start, n after the n-th bind."""
    binds = (s for s in program.segments if isinstance(s, Bind))
    bound = {name: number for number, bind in enumerate(binds, 1) for name in bind.symbols}
    return {
        b.name: max((bound.get(name, 0) for name in b.symbols), default=0) for b in program.buffers
    }


def scratch_stride(scratch_bytes: int) -> int:
    """The distance between the scratch areas of two threads, in bytes.

    It is a multiple of the cache line, so that two threads never share a line.
    """
    return align(scratch_bytes, 64)


def load_lifetimes(
    manifest: Manifest, program_device: Device, device: Device
) -> dict[str, tuple[int, int]]:
    """The first and last step during which derived buffers must keep their bytes on `device`.

    The result includes the constants that only loading reads. Such a constant has one buffer, and
    is not an output.
    """
    program = manifest.programs[program_device]
    load_runs = [run for run in program.runs if run.once and run.device == device]
    once = {i for run in load_runs for i in range(run.first, run.last)}
    outputs = set(manifest.results)
    tensors = Counter(buffer.tensor for buffer in program.buffers)
    placed = used_on(program, device, program_device) if once else frozenset()
    end = len(program.steps)
    users: defaultdict[str, list[int]] = defaultdict(list)
    for i, step in enumerate(program.steps):
        for name in set(step.arguments):
            users[name].append(i)
    spans: dict[str, tuple[int, int]] = {}
    for buffer in program.buffers:
        name = buffer.name
        if not buffer.is_resident or name not in placed:
            continue
        uses = users[name]
        is_temporary = once.issuperset(uses) and bool(uses) and name not in outputs
        if buffer.kind == "derived":
            spans[name] = (uses[0], uses[-1] if is_temporary else end)
        elif is_temporary and tensors[buffer.tensor] == 1:
            spans[name] = (0, uses[-1])
    return spans


def place_constants(
    manifest: Manifest, program_device: Device, device: Device, base: int, at_load: bool = False
) -> tuple[dict[str, int], int]:
    """Place the constants that `device` needs in every run, in the order of the weights files; with
    `at_load`, those that only loading reads.

    Returns the address of each constant, and the end of the last one.
    """
    program = manifest.programs[program_device]
    loading = load_lifetimes(manifest, program_device, device).keys()
    names = loading if at_load else used_on(program, device, program_device) - loading
    owners: dict[str, list[str]] = {}
    for buffer in program.buffers:
        if buffer.tensor is not None and buffer.name in names:
            owners.setdefault(buffer.tensor, []).append(buffer.name)
    addresses: dict[str, int] = {}
    for file in manifest.weights:
        for tensor, (begin, end) in file.tensors.items():
            if tensor in owners:
                base = align(base, weights_alignment(end - begin, CONSTANT_ALIGNMENT))
                addresses.update(dict.fromkeys(owners[tensor], base))
                base = align(base + max(end - begin, 1), CONSTANT_ALIGNMENT)
    return addresses, base


def place_derived(manifest: Manifest, program_device: Device) -> tuple[dict[str, int], int]:
    """Place the derived buffers of a GPU one after another.

    Returns the address of each, and the end of the last one.
    """
    loading = load_lifetimes(manifest, program_device, "webgpu")
    addresses: dict[str, int] = {}
    end = 0
    for buffer in manifest.programs[program_device].buffers:
        if buffer.kind == "derived" and buffer.name in loading:
            addresses[buffer.name] = end
            end = align(end + max(evaluate_size(buffer.bytes, {}), 1), CONSTANT_ALIGNMENT)
    return addresses, end


def weights_alignment(size: int, least: int) -> int:
    """The alignment of weights of `size` bytes: a page if they are large, else `least`."""
    return PAGE_BYTES if size >= LARGE else least
