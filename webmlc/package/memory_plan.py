"""Plan the memory of a program, by one deterministic algorithm.

`runtime_js/memory_plan.js` implements the same algorithm. In: a program, the value of each symbol,
and a device. Out: the byte offsets of the activations inside the arena of the device, and for wasm
the addresses of everything in memory.

Buffers whose lifetimes do not overlap share bytes. The largest buffer is placed first, and each one
at the lowest offset that fits (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
Inference", 2020, greedy by size). If the arena is larger than the largest live set, the buffer that
ends highest is placed first instead. This repeats for some rounds, and the smallest arena is used.

    >>> place([Interval(100, 0, 1, 64), Interval(100, 1, 2, 64), Interval(60, 2, 3, 64)])
    Placement(offsets=(0, 128, 0), total=256)

If segments bind symbols during a run, the buffers whose sizes depend on these symbols are placed
after the bind, around the buffers that are placed already. A buffer never moves.

Linear memory consists of the control area, the slot table, the scratch of each thread, the
constants and the arena. Constants that are used only at load, and the buffers derived from them,
are at the start of the arena. They are placed first, with their lifetimes, so that later derived
buffers and activations reuse the bytes of such a constant.

A GPU has buffers of their own for the constants of every run, for those that only loading reads
(freed afterwards), and for what is derived: one dispatch may not bind a buffer both for reading
only and for writing.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from webmlc.core.errors import InputError
from webmlc.core.machine import PAGE_BYTES, Device
from webmlc.core.sizes import evaluate_size
from webmlc.package.manifest import Bind, Buffer, Manifest, Program
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
ROUNDS, PAIRS = 16, 2_000_000
"""Orders that are tried for a smaller arena, and the pairs of buffers that all orders together may
compare: with more than 350 buffers, fewer orders are tried. Chosen by hand: Python compares so many
in a second, and the order of loading a language model of 30 layers has 700,000 pairs.
"""
RED_ZONE = 64
"""Bytes that stay free before and behind each buffer where `place_apart` places them."""
BLOCK, LONG = 16, -1
"""Steps of a block of `first_fit`; the block of what is alive in more than two."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A buffer of `bytes` that is alive during the steps `first..last`, both included.

    Its offset is a multiple of `alignment`. Buffers of a lower `group` are placed earlier,
    regardless of all other properties.
    """

    bytes: int
    first: int
    last: int
    alignment: int
    group: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """The offsets, in the order of the intervals, and the size of the arena."""

    offsets: tuple[int, ...]
    total: int


Placing = Callable[[Sequence[Interval]], Placement]
"""How buffers are placed: `place`, or `place_apart` to find writes outside them."""


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


def align(value: int, alignment: int) -> int:
    """Round `value` up to a multiple of `alignment`."""
    return -(-value // alignment) * alignment


def place(intervals: Sequence[Interval]) -> Placement:
    """Offsets for buffers such that no two that are alive together overlap."""
    sizes = [align(max(interval.bytes, 1), interval.alignment) for interval in intervals]
    offsets: dict[int, int] = {}
    total = 0
    for group in sorted({interval.group for interval in intervals}):
        members = [i for i, interval in enumerate(intervals) if interval.group == group]
        order = sorted(members, key=lambda i: (-intervals[i].bytes, i))
        floor = max(total, largest_live_set(intervals, sizes, [*offsets, *members]))
        best, least = offsets, -1
        for _ in range(max(2, min(ROUNDS, PAIRS // len(order) ** 2))):
            trial = first_fit(intervals, sizes, order, offsets)
            highest = max(order, key=lambda i: trial[i] + sizes[i])
            end = max(total, trial[highest] + sizes[highest])
            if least < 0 or end < least:
                best, least = trial, end
            if least <= floor:
                break
            order.remove(highest)
            order.insert(0, highest)
        offsets, total = best, least
    return Placement(tuple(offsets[i] for i in range(len(intervals))), total)


def place_apart(intervals: Sequence[Interval]) -> Placement:
    """Offsets for buffers that share no bytes, with a red zone before and behind each.

    What a kernel writes outside its buffers changes a red zone, and never another buffer's value
    unless it leaps over the zone (`host.red_zones` checks them).

        >>> place_apart([Interval(100, 0, 1, 64), Interval(100, 1, 2, 64)])
        Placement(offsets=(64, 256), total=420)
    """
    offsets = [0] * len(intervals)
    end = 0
    for i in sorted(range(len(intervals)), key=lambda i: intervals[i].group):
        offsets[i] = align(end + RED_ZONE, intervals[i].alignment)
        end = offsets[i] + max(intervals[i].bytes, 1)
    return Placement(tuple(offsets), end + RED_ZONE)


def largest_live_set(
    intervals: Sequence[Interval], sizes: Sequence[int], members: Sequence[int]
) -> int:
    """The bytes of `members` that are alive at one step: a lower bound of every placement."""
    changes: dict[int, int] = {}
    for i in members:
        first, last = intervals[i].first, intervals[i].last
        changes[first] = changes.get(first, 0) + sizes[i]
        changes[last + 1] = changes.get(last + 1, 0) - sizes[i]
    return max(accumulate(changes[step] for step in sorted(changes)))


def first_fit(
    intervals: Sequence[Interval],
    sizes: Sequence[int],
    order: Sequence[int],
    fixed: Mapping[int, int],
) -> dict[int, int]:
    """Place the buffers in `order`, each at the lowest free offset, around those in `fixed`.

    A buffer that is alive in one or two blocks of steps is compared only with the buffers of these
    blocks, and with those that are alive in many blocks. A chain of n steps therefore takes time in
    proportion to n.
    """
    offsets = dict(fixed)
    placed = sorted(offsets, key=lambda i: (offsets[i], i))
    blocks: defaultdict[int, list[int]] = defaultdict(list)  # the placed buffers by block of steps

    def touched(i: int) -> Sequence[int]:
        """The blocks of steps during which a buffer is alive."""
        steps = range(intervals[i].first // BLOCK, intervals[i].last // BLOCK + 1)
        return steps if len(steps) <= 2 else (LONG,)

    for i in placed:
        for block in touched(i):
            blocks[block].append(i)
    for i in order:
        interval = intervals[i]
        offset = 0
        near = {j for block in (*touched(i), LONG) for j in blocks[block]}
        is_short = LONG not in touched(i) and 2 * len(near) < len(placed)
        for j in sorted(near, key=offsets.__getitem__) if is_short else placed:
            other = intervals[j]
            if other.last < interval.first or interval.last < other.first:
                continue
            if offsets[j] >= offset + sizes[i]:
                break
            offset = max(offset, align(offsets[j] + sizes[j], interval.alignment))
        offsets[i] = offset
        insort(placed, i, key=lambda j: offsets[j])
        for block in touched(i):
            blocks[block].append(i)
    return offsets


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
