"""Where every buffer lives: one deterministic algorithm, the same in Python and in
`runtime_js/memory_plan.js`.

In: a program, the value of each symbol, a device. Out: byte offsets of the activations inside that
device's arena, and for wasm the addresses of everything in memory. Buffers whose lifetimes do not
meet share bytes: largest first, each at the lowest offset that fits (Pisarchyk and Lee, "Efficient
Memory Management for Deep Neural Net Inference", 2020, greedy by size). Where that takes more than
what is alive at once somewhere, the buffer that ends highest is placed first instead, for some
rounds; the smallest arena is kept.

    >>> place([Interval(100, 0, 1, 64), Interval(100, 1, 2, 64), Interval(60, 2, 3, 64)])
    Placement(offsets=(0, 128, 0), total=256)

Where segments bind symbols during a run, the buffers whose sizes these tell are placed after that,
around those that are placed already: a buffer never moves.

Linear memory: control area, slot table, scratch of each thread, constants, arena. Constants that
are needed at load only, and what is made of them then, lie at the start of the arena: they are
placed first, each while it is alive, so that a constant gives its bytes to what is made after it,
and to activations.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from webmlc.core.errors import InputError
from webmlc.core.machine import PAGE_BYTES
from webmlc.core.sizes import evaluate_size
from webmlc.package.manifest import Bind, Buffer, Device, Manifest, Program
from webmlc.package.transfers import Stage, stages

SLOT_TABLE = 1024
"""Address of the slot table; the control area lies below."""
SCRATCH_BASE = 256
"""Address of the i32 that holds the first thread's scratch address; the stride follows it."""
PAGE = 65536
ALIGNMENT: Mapping[Device, int] = {"wasm": 64, "webgpu": 256}
CONSTANT_ALIGNMENT = 256
LARGE = 1 << 18
"""Bytes of weights that come from memory in every run: they start at a page."""
LARGEST_BUFFER = (1 << 32) - PAGE
"""Bytes: a 32-bit memory without its first page."""
ROUNDS = 16
"""Orders that are tried for a smaller arena."""
RED_ZONE = 64
"""Bytes that stay free before and behind each buffer where `place_apart` places them."""
BLOCK, LONG = 16, -1
"""Steps of a block of `first_fit`; the block of what is alive in more than two."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A buffer of `bytes` that is alive during the steps `first..last`, both included, at a
    multiple of `alignment`.

    Buffers of a lower `group` are placed before, and whatever else there is.
    """

    bytes: int
    first: int
    last: int
    alignment: int
    group: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Offsets in the order of the intervals, and the arena's size."""

    offsets: tuple[int, ...]
    total: int


Placing = Callable[[Sequence[Interval]], Placement]
"""How buffers are placed: `place`, or `place_apart` to find writes outside them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Addresses in one device's memory: `constants` and what is made of them, activations
    (`offsets`); `sizes` are the bytes of every buffer. What is not known yet has neither.

    On wasm, `offsets` are addresses in linear memory and `total` its exact bytes, of which loading
    needs all but `arena`. On webgpu, they are offsets in the arena buffer; constants have buffers
    of their own.
    """

    offsets: Mapping[str, int]
    sizes: Mapping[str, int]
    arena: int
    constants: Mapping[str, int]
    scratch: int
    total: int


def align(value: int, alignment: int) -> int:
    """`value` rounded up to a multiple of `alignment`."""
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
        for _ in range(ROUNDS):
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
    """Bytes that some step needs at once, so that no placement of `members` takes less."""
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
    """Offsets of `fixed`, and of those in `order`, each at the lowest that the ones before it
    leave.

    What is alive in one or two blocks of steps is compared with what is alive in these alone, and
    with what is alive in many: a chain of n steps takes time in proportion to n.
    """
    offsets = dict(fixed)
    placed = sorted(offsets, key=lambda i: (offsets[i], i))
    blocks: defaultdict[int, list[int]] = defaultdict(list)  # of what is placed, by steps

    def touched(i: int) -> Sequence[int]:
        """The blocks of steps during which a buffer is alive."""
        steps = range(intervals[i].first // BLOCK, intervals[i].last // BLOCK + 1)
        return steps if len(steps) <= 2 else (LONG,)

    for i in placed:
        for block in touched(i):
            blocks[block].append(i)
    for i in order:
        own = intervals[i]
        offset = 0
        near = {j for block in (*touched(i), LONG) for j in blocks[block]}
        few = LONG not in touched(i) and 2 * len(near) < len(placed)
        for j in sorted(near, key=offsets.__getitem__) if few else placed:
            other = intervals[j]
            if other.last < own.first or own.last < other.first:
                continue
            if offsets[j] >= offset + sizes[i]:
                break
            offset = max(offset, align(offsets[j] + sizes[j], own.alignment))
        offsets[i] = offset
        insort(placed, i, key=lambda j: offsets[j])
        for block in touched(i):
            blocks[block].append(i)
    return offsets


def used_on(program: Program, device: Device, own: Device) -> frozenset[str]:
    """Buffers that need a place on `device`: its steps use them, or no step does and it is the
    program's own device.
    """
    used = {a for step in program.steps if step.device == device for a in step.arguments}
    if device == own:
        used |= {b.name for b in program.buffers} - {a for s in program.steps for a in s.arguments}
    return frozenset(used)


def lifetimes(
    program: Program, stage_list: Sequence[Stage], device: Device, own: Device
) -> dict[str, tuple[int, int]]:
    """First and last step during which each activation must keep its bytes on `device`."""
    spans: dict[str, tuple[int, int]] = {}
    here = used_on(program, device, own)

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
    for first, last in loop_ranges(program):  # an iteration may need what the one before left
        for name, (begin, end) in spans.items():
            inside = first <= begin and end <= last and name not in crossing
            if not inside and begin <= last and first <= end:
                spans[name] = (min(begin, first), max(end, last))
    for name in here - spans.keys():  # an unused input still has a place
        spans[name] = (0, max(len(program.steps) - 1, 0))
    return {b.name: spans[b.name] for b in program.buffers if b.name in spans and not b.is_resident}


def loop_ranges(program: Program) -> list[tuple[int, int]]:
    """First and last step of each loop, inner ones first."""
    steps = enumerate(program.steps)
    ends = [(i, s.control.target - 1) for i, s in steps if s.control and s.control.kind == "next"]
    return [(first, last) for last, first in ends]


def layout(
    manifest: Manifest,
    own: Device,
    device: Device,
    symbols: Mapping[str, int],
    threads: int = 1,
    placing: Placing = place,
) -> Layout:
    """Where everything of program `own` lies in the memory of `device`, for these symbols: all, or
    those that are bound so far.
    """
    program = manifest.programs[own]
    groups = size_groups(program)
    known = {b.name for b in program.buffers if b.symbols <= symbols.keys()}
    sizes = {b.name: _bytes(b, symbols) for b in program.buffers if b.name in known}
    stage_list = stages(program, manifest.results, own)
    spans = lifetimes(program, stage_list, device, own)
    loading = load_lifetimes(manifest, own, device)
    least = ALIGNMENT[device]
    intervals = {
        n: Interval(sizes[n], *span, weights_alignment(sizes[n], least), group=-1)
        for n, span in loading.items()
    }
    intervals |= {
        n: Interval(sizes[n], *span, least, groups[n]) for n, span in spans.items() if n in known
    }
    placement = placing(list(intervals.values()))
    offsets = dict(zip(intervals, placement.offsets, strict=True))
    if device == "webgpu":
        return Layout(offsets, sizes, placement.total, {}, 0, placement.total)
    loaded = max((align(offsets[n] + sizes[n], least) for n in loading), default=0)
    symbols_count = len(manifest.symbols) + len(program.bound)
    slots = len(program.buffers) + symbols_count + 2 * len(program.loops)
    scratch = align(SLOT_TABLE + 4 * slots, CONSTANT_ALIGNMENT)
    base = align(
        scratch + threads * scratch_stride(program.resources.scratch_per_thread), CONSTANT_ALIGNMENT
    )
    constants, base = place_constants(manifest, own, device, base)
    base = align(base, max((interval.alignment for interval in intervals.values()), default=1))
    constants |= {name: base + offsets.pop(name) for name in loading}
    addresses = {name: base + offset for name, offset in offsets.items()}
    total = base + placement.total
    return Layout(addresses, sizes, placement.total - loaded, constants, scratch, total)


def _bytes(buffer: Buffer, symbols: Mapping[str, int]) -> int:
    """The bytes of a buffer; 0 where symbols that nobody has checked make them negative.

    Raises `InputError` where memory cannot hold them.
    """
    size = evaluate_size(buffer.bytes, symbols)
    if size <= LARGEST_BUFFER:
        return max(size, 0)
    raise InputError(
        f"with these inputs {buffer.name!r} takes {size} bytes: more than {LARGEST_BUFFER}"
    )


def size_groups(program: Program) -> dict[str, int]:
    """When each buffer's size is known: from the start (0), or after the n-th bind."""
    binds = (s for s in program.segments if isinstance(s, Bind))
    bound = {name: number for number, bind in enumerate(binds, 1) for name in bind.symbols}
    return {
        b.name: max((bound.get(name, 0) for name in b.symbols), default=0) for b in program.buffers
    }


def scratch_stride(scratch_bytes: int) -> int:
    """Distance between the scratch areas of two threads: whole cache lines, so that threads share
    none.
    """
    return align(scratch_bytes, 64)


def load_lifetimes(manifest: Manifest, own: Device, device: Device) -> dict[str, tuple[int, int]]:
    """First and last step during which what loading makes must keep its bytes on `device`, and the
    constants that nothing else reads: one buffer each, no output.
    """
    program = manifest.programs[own]
    once = {i for run in program.runs if run.once for i in range(run.first, run.last)}
    outputs = set(manifest.results)
    tensors = Counter(buffer.tensor for buffer in program.buffers)
    here = used_on(program, device, own) if once and device == "wasm" else frozenset()
    end = len(program.steps)
    users: defaultdict[str, list[int]] = defaultdict(list)
    for i, step in enumerate(program.steps):
        for name in set(step.arguments):
            users[name].append(i)
    spans: dict[str, tuple[int, int]] = {}
    for buffer in program.buffers:
        name = buffer.name
        if not buffer.is_resident or name not in here:
            continue
        uses = users[name]
        passing = once.issuperset(uses) and bool(uses) and name not in outputs
        if buffer.kind == "derived":
            spans[name] = (uses[0], uses[-1] if passing else end)
        elif passing and tensors[buffer.tensor] == 1:
            spans[name] = (0, uses[-1])
    return spans


def place_constants(
    manifest: Manifest, own: Device, device: Device, base: int
) -> tuple[dict[str, int], int]:
    """Address of each constant that `device` needs in every run, in the order of the weights
    files, and the end.
    """
    program = manifest.programs[own]
    here = used_on(program, device, own) - load_lifetimes(manifest, own, device).keys()
    owners: dict[str, list[str]] = {}
    for buffer in program.buffers:
        if buffer.tensor is not None and buffer.name in here:
            owners.setdefault(buffer.tensor, []).append(buffer.name)
    addresses: dict[str, int] = {}
    for file in manifest.weights:
        for tensor, (begin, end) in file.tensors.items():
            if tensor in owners:
                base = align(base, weights_alignment(end - begin, CONSTANT_ALIGNMENT))
                addresses.update(dict.fromkeys(owners[tensor], base))
                base = align(base + max(end - begin, 1), CONSTANT_ALIGNMENT)
    return addresses, base


def weights_alignment(size: int, least: int) -> int:
    """What the address of so many bytes of weights is a multiple of."""
    return PAGE_BYTES if size >= LARGE else least
