"""Shrink allocations to the part that is live at once.

Needs: no blocks; schedules leave intermediate buffers full-size. Guarantees: an allocation has rank
1. It covers the region used under the lowest common ancestor of its accesses, for one iteration of
the loops around that ancestor. The part of the index that only these outer loops decide is dropped.
A buffer is unchanged where an iteration may read an earlier iteration's value (`carried_values`).

before                                              after
    Y: local (56, 64)                                   Y: local (48,)
    for mo in range(9):                                 for mo in range(9):
        for mi, n in T.grid(6, 8):                          for mi, n in T.grid(6, 8):
            Y[mo * 6 + mi, n] = ...                             Y[mi * 8 + n] = ...
        for mi, n in T.grid(6, 8):                          for mi, n in T.grid(6, 8):
            C[mo * 6 + mi, n] = Y[mo * 6 + mi, n]               C[mo * 6 + mi, n] = Y[mi * 8 + n]

The region is computed on row-major offsets (`offset_digits`), so that fused loops
(`f // 56, f % 56`) shrink as well as separate loops. Workgroup memory is small: there the region
is computed on the indices if that makes it smaller. Rows in workgroup memory get a gap if all rows
would start in the same bank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from webmlc.core.affine import from_terms, terms
from webmlc.core.expr import Const, Expr, Var, as_int
from webmlc.core.machine import MAX_WORKGROUP_BYTES
from webmlc.core.rewrite import variables
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Buffer, For, Load, LoopFunction, loads_in, map_accesses
from webmlc.target import VECTOR_LANES
from webmlc.target.carried_values import carrying_variables
from webmlc.target.offset_digits import (
    Access,
    Digits,
    Region,
    collect_accesses,
    outer_terms,
    strides_of,
    term_variables,
)
from webmlc.target.share_memory import shared_bytes
from webmlc.target.thread_parts import in_one_loop, part_of_thread

BANKS = 32
"""The number of banks of workgroup memory. Threads read one word of each bank at the same time.

Source: NVIDIA's CUDA programming guide. AMD's guide for RDNA says 32 as well.
"""
VECTOR_GAP = 8
"""Words between rows of workgroup memory that threads read as vectors. Eight words are two vectors,
and the columns of a panel of weights (derived: four gaps of eight words span all banks)."""


_Compact = tuple[int, list[Expr]]
"""The number of elements of a buffer to keep, and the offset of each access among them."""


def compact_buffers(function: LoopFunction) -> LoopFunction:
    """Shrink every allocation of `function` that can be shrunk. If workgroup memory has no room for
    gaps between rows, there are none.
    """
    compact = _compacted(function, has_gaps=True)
    if shared_bytes(compact) > MAX_WORKGROUP_BYTES:
        return _compacted(function, has_gaps=False)
    return compact


def _compacted(function: LoopFunction, has_gaps: bool) -> LoopFunction:
    """Shrink every allocation of a function."""
    accesses_of = collect_accesses(function)
    symbols = frozenset(function.symbols)
    places: dict[Buffer, _Places] = {}
    for buffer in function.allocations:
        accesses = accesses_of.get(buffer, [])
        compact = _compact(buffer, accesses, symbols, has_gaps)
        if compact is not None:
            size, new_offsets = compact
            pairs = zip(accesses, new_offsets, strict=True)
            offsets = {access.indices: offset for access, offset in pairs}
            places[buffer] = _Places(replace(buffer, shape=(Const(size),)), offsets)
    indices = {index for place in places.values() for key in place.offsets for index in key}
    if any(map(loads_in, indices)):  # a load inside an index is rewritten later than the access
        for buffer, place in places.items():
            function = _rewrite(function, {buffer: place})
        return function
    return _rewrite(function, places) if places else function


def _compact(
    buffer: Buffer, accesses: list[Access], symbols: frozenset[Var], has_gaps: bool
) -> _Compact | None:
    """The elements of a buffer to keep; `None` to leave the buffer unchanged."""
    if _is_one_element(buffer, accesses, symbols):
        return 1, [Const(0)] * len(accesses)
    part = _part_of_thread(buffer, accesses, symbols)
    if part is not None:
        return part
    region = _region(buffer, accesses, symbols) or _joint_region(buffer, accesses, symbols)
    if buffer.scope == "shared":
        by_indices = [_by_indices(access) for access in accesses]
        other = _region(buffer, by_indices, symbols)
        if other is not None and (region is None or other.elements < region.elements):
            accesses, region = by_indices, other
    if region is None:
        return None
    if has_gaps and buffer.scope == "shared":
        region = _spread(region, accesses)
    offsets = [_compact_offset(access.offset, region) for access in accesses]
    return region.elements, offsets


@dataclass(frozen=True, slots=True)
class _Places:
    """A compact buffer, and the new offsets of accesses by their indices before."""

    buffer: Buffer
    offsets: Mapping[tuple[Expr, ...], Expr]


def _part_of_thread(
    buffer: Buffer, accesses: list[Access], symbols: frozenset[Var]
) -> _Compact | None:
    """The part of a local buffer in several loops over threads that one thread keeps."""
    if buffer.scope != "local" or not accesses or not buffer.shape:
        return None
    joined = in_one_loop(accesses)
    if joined is None:
        return None
    renamed, threads = joined
    region = _region(buffer, renamed, symbols.union(threads))
    return None if region is None else part_of_thread(renamed, region, threads)


def _is_one_element(buffer: Buffer, accesses: list[Access], symbols: frozenset[Var]) -> bool:
    """True where each thread uses a single element of its buffer. All accesses have the same index,
    and only the number of the thread and symbols decide it (quotients of symbols have no strides).
    """
    is_static = all(as_int(size) is not None for size in buffer.shape)
    if buffer.scope != "local" or not accesses or is_static:
        return False
    indices = accesses[0].indices
    threads = {f.var for f in accesses[0].loops() if f.kind == "thread_binding"}
    index_variables = {v for index in indices for v in variables(index)}
    return index_variables <= threads | symbols and all(
        access.indices == indices for access in accesses
    )


def _ancestor_depth(accesses: list[Access]) -> int:
    """The number of steps (a statement and its child) that the paths of accesses share."""
    first = accesses[0].path
    depth = len(first)
    for access in accesses[1:]:
        common_steps = 0
        for (a, i), (b, j) in zip(first[:depth], access.path, strict=False):
            if a is not b or i != j:
                break
            common_steps += 1
        depth = min(depth, common_steps)
    return depth


def _is_shared_axis(buffer: Buffer, loop: For) -> bool:
    """True for a loop whose iterations run at the same time and see the same copy of the buffer."""
    if buffer.scope == "local" or loop.kind != "thread_binding":
        return False
    return buffer.scope == "global" or (loop.thread or "").startswith("threadIdx")


def _is_private(buffer: Buffer, loop: For) -> bool:
    """True for a loop whose iterations each have a copy of the buffer: a thread, or a workgroup."""
    return (
        loop.kind == "thread_binding"
        and buffer.scope != "global"
        and not _is_shared_axis(buffer, loop)
    )


def _region(buffer: Buffer, accesses: list[Access], symbols: frozenset[Var]) -> Region | None:
    """The region to keep, or `None` to leave the buffer unchanged."""
    if not accesses or not buffer.shape:
        return None
    depth = _ancestor_depth(accesses)
    loops = [loop for loop in accesses[0].loops(depth) if loop.kind != "vectorized"]
    outer = symbols | {loop.var for loop in loops if not _is_shared_axis(buffer, loop)}
    common_loops = [loop for loop in loops if not _is_private(buffer, loop)]
    strides = strides_of(buffer)
    while True:
        clash = _clashing(accesses, strides, outer)
        if not clash:
            clash = outer
            for nearest in (True, False):
                region = _box(buffer, accesses, Digits(strides, outer, nearest))
                if region is not None:
                    carried = carrying_variables(accesses, common_loops, depth, region)
                    if not carried:
                        return region
                    clash = carried if clash is outer else clash
        if not outer & clash:
            return None
        outer -= clash


def _spread(region: Region, accesses: list[Access]) -> Region:
    """The region with a gap after each row, if all rows would start in the same bank of workgroup
    memory. Threads that read such rows side by side would wait for each other. If each thread reads
    the same vector of another row, an odd number of vectors per row is enough.
    """
    live = [dimension for dimension, extent in enumerate(region.extents) if extent > 1]
    if len(live) < 2:
        return region
    has_vectors = any(loop.kind == "vectorized" for a in accesses for loop in a.loops())
    gap = VECTOR_GAP if has_vectors else 1
    extents = list(region.extents)
    inner = live[1]
    unit = math.prod(extents[inner + 1 :])
    if unit == VECTOR_LANES and _threads_read_rows(region, accesses, inner):
        extents[inner] += 1 - extents[inner] % 2
    elif unit * extents[inner] % BANKS == 0 and gap % unit == 0:
        extents[inner] += gap // unit
    return replace(region, extents=tuple(extents))


def _threads_read_rows(region: Region, accesses: list[Access], inner: int) -> bool:
    """True if the number of a thread decides which rows it reads, but not which part of a row."""
    reads = [access for access in accesses if not access.is_store]
    for access in reads:
        threads = {f.var for f in access.loops() if (f.thread or "").startswith("threadIdx")}
        digits = region.digits.split(access.offset)
        by_thread = [not threads.isdisjoint(variables(digit)) for digit in digits]
        if not any(by_thread[:inner]) or any(by_thread[inner:]):
            return False
    return bool(reads)


def _joint_region(buffer: Buffer, accesses: list[Access], symbols: frozenset[Var]) -> Region | None:
    """The region to keep if the last two dimensions count as one dimension; `None` to leave the
    buffer unchanged. One fused loop may iterate over both dimensions, and two loops elsewhere.
    """
    if len(buffer.shape) < 2 or as_int(buffer.shape[-1]) is None:
        return None
    inner = buffer.shape[-1]
    shape = (*buffer.shape[:-2], simplify(buffer.shape[-2] * inner))
    joint = [
        replace(a, shape=shape, indices=(*a.indices[:-2], a.indices[-2] * inner + a.indices[-1]))
        for a in accesses
    ]
    return _region(replace(buffer, shape=shape), joint, symbols)


def _by_indices(access: Access) -> Access:
    """The access with an offset that keeps the quotients and remainders of its indices. In the
    simplified offset they cancel where the threads of a workgroup iterate over several rows, so
    that a digit spans rows.
    """
    offset: Expr = Const(0)
    for index, extent in zip(access.indices, access.shape, strict=True):
        offset = offset * extent + simplify(index, access.scope)
    return replace(access, offset=offset)


def _clashing(
    accesses: list[Access], strides: tuple[Expr, ...], outer: frozenset[Var]
) -> frozenset[Var]:
    """The outer variables that are in the outer terms of some accesses and not of others."""
    parts = [outer_terms(access.offset, outer, strides) for access in accesses]
    clash: set[Var] = set()
    for part in parts[1:]:
        for term, _ in part.items() ^ parts[0].items():
            clash |= term_variables(term)
    return frozenset(clash)


def _box(buffer: Buffer, accesses: list[Access], digits: Digits) -> Region | None:
    """The smallest box around the digits of all accesses: one interval per dimension. `None` where
    an interval is not finite, or where a digit may carry into the next dimension.
    """
    boxes = [digits.ranges(access) for access in accesses]
    lows: list[int] = []
    extents: list[int] = []
    for dimension in range(len(digits.strides)):
        low = min(box[dimension].low for box in boxes)
        high = max(box[dimension].high for box in boxes)
        if math.isinf(low) or math.isinf(high):
            return None
        lows.append(int(low))
        extents.append(int(high - low) + 1)
        full = as_int(buffer.shape[dimension])
        wraps = extents[-1] > (1 if full is None else full)
        moves = any(extent > 1 for extent in extents[:-1])
        if wraps and moves and not all(_is_by_index(a, digits) for a in accesses):
            return None
    return Region(digits, tuple(lows), tuple(extents))


def _is_by_index(access: Access, digits: Digits) -> bool:
    """True where the digits of the offset are the inner parts of the indices themselves. Indices
    lie within their dimensions, so such digits cannot carry.
    """
    parts = zip(digits.split(access.offset), access.indices, digits.strides, strict=True)
    for digit, index, stride in parts:
        simple_index = simplify(index, access.scope)
        outer_part = outer_terms(simple_index, digits.outer)
        inner_part = {
            term: factor for term, factor in terms(simple_index).items() if term not in outer_part
        }
        difference = simplify(from_terms(inner_part) - digit)
        if difference != Const(0) and (as_int(difference) is None or as_int(stride) is not None):
            return False  # a symbolic size times a stride is a literal index
    return True


def _rewrite(function: LoopFunction, places: Mapping[Buffer, _Places]) -> LoopFunction:
    """Replace buffers by their compact forms in every access."""

    def rule(buffer: Buffer, indices: tuple[Expr, ...]) -> Load | None:
        place = places.get(buffer)
        return None if place is None else Load(place.buffer, (place.offsets[indices],))

    body = map_accesses(function.body, rule)
    compact = {buffer: place.buffer for buffer, place in places.items()}
    allocations = tuple(compact.get(b, b) for b in function.allocations)
    return replace(function, body=body, allocations=allocations)


def _compact_offset(index: Expr, region: Region) -> Expr:
    """The offset of an access in the compact buffer."""
    digits = region.digits.split(index)
    result: Expr = Const(0)
    for digit, low, extent in zip(digits, region.lows, region.extents, strict=True):
        result = result * extent + (digit - low)
    return result
