"""`reverse_compute_at`: a consumer moves under a loop of its producer, and reads one iteration's
results.

for i, j in T.grid(64, 8):                     for i in T.serial(64):
    with T.block("B"): B[i, j] = A[i, j] + 1       for j in T.serial(8):
for i, j in T.grid(64, 8):                ->           with T.block("B"): B[i, j] = A[i, j] + 1
    with T.block("C"): C[i, j] = B[i, j] * 2       for j_1 in T.serial(8):
                                                       with T.block("C"): C[i, j_1] = B[i, j_1] * 2
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from webmlc.core.bounds import Interval
from webmlc.core.expr import Expr, Var
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Block, For, LoopFunction, loads, seq, stores
from webmlc.schedule.coverage import covers, fills
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.legality import require_outermost
from webmlc.schedule.nest import Part, full, invert, nest_block
from webmlc.schedule.regions import Access, Scan, Span, disjoint, relax, scan, within
from webmlc.schedule.tree import (
    Path,
    depends_on,
    loops_of,
    outer_blocks,
    path_to_block,
    path_to_loop,
    ranges_along,
    replace_last,
    symbol_ranges,
    used_names,
)
from webmlc.schedule.update import with_body

_NAME = "reverse_compute_at"


def reverse_compute_at(function: LoopFunction, block: str, loop: str) -> LoopFunction:
    """Move `block` to the end of `loop`, over the region that the producers under `loop` write
    there.

    Raises `ScheduleError` if the producers of the block's operands are not under `loop` or do not
    write all of them, or if a reduction is not finished at `loop`. No block in between may write
    the block's operands or read its results.
    """
    block_path, consumer = path_to_block(function, _NAME, block)
    path, target = path_to_loop(function, _NAME, loop)
    require_outermost(_NAME, function, block_path, block)
    require_outermost(_NAME, function, path, loop)
    move = _Move(function, block_path, consumer, path, target)
    parts = move.parts()
    move.check_between()
    removed = with_body(function, replace_last(block_path, None))
    path, target = path_to_loop(removed, _NAME, loop)
    nest = nest_block(consumer, parts, used_names(removed), ranges_along(removed, path))
    new = For(target.var, target.extent, seq(target.body, nest), target.kind, target.thread)
    return with_body(function, replace_last(path, new))


@dataclass(frozen=True, slots=True)
class _Move:
    """A consumer, the path to it (`block_path`), and the loop that it moves under (`path` ends with
    `target`).
    """

    function: LoopFunction
    block_path: Path
    consumer: Block
    path: Path
    target: For

    def refuse(self, reason: str, *culprits: str) -> ScheduleError:
        return ScheduleError(_NAME, reason, self.function, *culprits)

    def parts(self) -> dict[Var, Part]:
        """The part of each axis of the consumer that one iteration of the target loop runs."""
        name, loop = self.consumer.name, self.target.var.name
        if any(outer is self.target for outer in loops_of(self.block_path)):
            raise self.refuse(f"block {name!r} is under loop {loop!r} already", name, loop)
        read = {load.buffer.name for load in loads(self.consumer)}
        inside = scan(self.target.body, ranges_along(self.function, self.path))
        writes_by_buffer = {
            n: [a for a in accesses if a.writes] for n, accesses in inside.by_buffer().items()
        }
        writes_by_buffer = {
            n: accesses for n, accesses in writes_by_buffer.items() if accesses and n in read
        }
        if not writes_by_buffer:
            raise self.refuse(f"no block under loop {loop!r} writes what it reads", name, loop)
        if self.updates():
            raise self.refuse(f"block {name!r} adds to what it wrote before", name)
        domains = self.domains(scan(_outermost(self.block_path), symbol_ranges(self.function)))
        everything = self.everything(inside)
        parts = {axis.var: Part(domains[axis.var]) for axis in self.consumer.axes}
        for buffer, writes in writes_by_buffer.items():
            self.check_finished(buffer)
            needed = self.needed(buffer, domains)
            if not fills(inside, writes):
                reason = f"one iteration of loop {loop!r} does not write a full box of {buffer!r}"
                raise self.refuse(reason, loop)
            if not covers(everything, writes, needed, everything.ranges):
                reason = (
                    f"block {name!r} reads more of {buffer!r} than the blocks under loop {loop!r} "
                    "certainly write"
                )
                raise self.refuse(reason, name, loop)
            region, total = inside.region(writes), everything.region(writes)
            for d, place in self.read_dimensions(buffer).items():
                span = region[d]
                assert span is not None  # `fills` knows every dimension
                if place is None:
                    self.check_anywhere(buffer, needed[d], span, inside)
                    continue
                axis, offset = place
                moved = _shift(span, -offset)
                exists = _within_shifted(total[d], offset, domains[axis], everything.ranges)
                part = Part(moved, None if exists else domains[axis])
                self.check_same(parts[axis], part, domains[axis], axis, buffer)
                parts[axis] = part
        return parts

    def updates(self) -> bool:
        """True for a block that reads its own output and does not begin by an init."""
        output_names = {store.buffer.name for store in stores(self.consumer)}
        reads = any(load.buffer.name in output_names for load in loads(self.consumer))
        return reads and self.consumer.init is None

    def everything(self, inside: Scan) -> Scan:
        """The scan in which all loops run through, including the target loop and the loops around
        it.
        """
        outer = {s.var: s.extent for s in self.path if isinstance(s, For)}
        return Scan(inner={**outer, **inside.inner}, ranges=inside.ranges)

    def check_anywhere(self, buffer: str, needed: Span, span: Span, inside: Scan) -> None:
        """Refuse indices along no axis of the consumer, unless every iteration writes these
        elements.
        """
        if not within(needed, span, inside.ranges):
            name, loop = self.consumer.name, self.target.var.name
            reason = (
                f"block {name!r} reads {buffer!r} where one iteration of loop {loop!r} may not "
                "write"
            )
            raise self.refuse(reason, name, loop)

    def check_same(self, old: Part, new: Part, domain: Span, axis: Var, buffer: str) -> None:
        """Refuse an axis that two reads restrict differently, or a reduce axis cut in parts."""
        name, loop = self.consumer.name, self.target.var.name
        if old != Part(domain) and old.span != new.span:
            reason = (
                f"block {name!r} reads {buffer!r} at more than one place along axis {axis.name!r}"
            )
            raise self.refuse(reason, name, loop)
        kind = next(a.kind for a in self.consumer.axes if a.var == axis)
        ranges = ranges_along(self.function, self.path)
        if kind == "reduce" and not within(domain, new.span, ranges):
            reason = (
                f"one iteration of loop {loop!r} writes a part of what axis {axis.name!r} reduces"
            )
            raise self.refuse(reason, name, loop)

    def domains(self, scan_result: Scan) -> dict[Var, Span]:
        """The values each axis of the consumer runs through now."""
        result: dict[Var, Span] = {}
        for axis, binding in zip(self.consumer.axes, self.consumer.bindings, strict=True):
            everything = full(axis.extent)
            span = relax(binding, scan_result)
            closed = None if span is None else scan_result.close(span)
            inside = closed is not None and within(closed, everything, scan_result.ranges)
            result[axis.var] = closed if inside and closed is not None else everything
        return result

    def check_finished(self, buffer: str) -> None:
        """Refuse if a reduction into `buffer` goes on after the target loop."""
        outer = {s.var.name for s in self.path if isinstance(s, For)}
        for producer in outer_blocks(self.target.body):
            if all(store.buffer.name != buffer for store in stores(producer)):
                continue
            for axis, binding in producer.bound_axes():
                if axis.kind == "reduce" and depends_on(binding, outer):
                    loop = self.target.var.name
                    reason = (
                        f"the reduction of block {producer.name!r} is not finished under loop "
                        f"{loop!r}"
                    )
                    raise self.refuse(reason, producer.name, loop)

    def read_dimensions(self, buffer: str) -> dict[int, tuple[Var, Expr] | None]:
        """Where each dimension is read: at an axis plus an offset, or (`None`) anywhere."""
        axes = frozenset(axis.var for axis in self.consumer.axes)
        places: dict[int, tuple[Var, Expr] | None] = {}
        for load in dict.fromkeys(loads(self.consumer)):
            if load.buffer.name == buffer:
                for dimension, index in enumerate(load.indices):
                    place = invert(index, axes)
                    if places.setdefault(dimension, place) != place:
                        places[dimension] = None
        return places

    def needed(self, buffer: str, domains: Mapping[Var, Span]) -> dict[int, Span]:
        """The box of `buffer` that the consumer reads in all."""
        buffers = (*self.function.params, *self.function.allocations)
        sizes = next(b.shape for b in buffers if b.name == buffer)
        return {
            d: full(sizes[d]) if place is None else _shift(domains[place[0]], place[1])
            for d, place in self.read_dimensions(buffer).items()
        }

    def check_between(self) -> None:
        """Refuse if a block between the two places writes elements that the consumer touches, or
        reads elements that the consumer writes.
        """
        everything = list(outer_blocks(self.function.body))
        inside = list(outer_blocks(self.target.body))
        start = max(i for i, b in enumerate(everything) if any(b is other for other in inside))
        end = next(i for i, b in enumerate(everything) if b is self.consumer)
        name, loop = self.consumer.name, self.target.var.name
        if end < start:
            raise self.refuse(f"block {name!r} runs before loop {loop!r} ends", name, loop)
        consumer_accesses = scan(
            _outermost(self.block_path), symbol_ranges(self.function)
        ).by_buffer()
        for other in everything[start + 1 : end]:
            path, _ = path_to_block(self.function, _NAME, other.name)
            scan_result = scan(_outermost(path), symbol_ranges(self.function))
            for buffer, accesses in scan_result.by_buffer().items():
                theirs = [a for a in accesses if a.block == other.name]
                mine = [a for a in consumer_accesses.get(buffer, []) if a.block == name]
                if not any(a.writes for a in theirs + mine) or not theirs or not mine:
                    continue
                if not self.apart(mine, theirs, scan_result):
                    reason = (
                        f"block {other.name!r}, in between, shares buffer {buffer!r} with block "
                        f"{name!r}"
                    )
                    raise self.refuse(reason, name, other.name)

    def apart(self, mine: list[Access], theirs: list[Access], scan_result: Scan) -> bool:
        """True if the two sets of accesses certainly touch different elements."""
        consumer_scan = scan(_outermost(self.block_path), symbol_ranges(self.function))
        return disjoint(
            consumer_scan.region(mine), scan_result.region(theirs), symbol_ranges(self.function)
        )


def _shift(span: Span, offset: Expr) -> Span:
    return Span(simplify(span.low + offset), span.width, span.exact, span.step)


def _within_shifted(
    span: Span | None, offset: Expr, domain: Span, ranges: Mapping[Var, Interval]
) -> bool:
    return span is not None and within(_shift(span, -offset), domain, ranges)


def _outermost(path: Path) -> For | Block:
    """The first loop or block of a path: with it, all loops of the block count as run through."""
    return next(s for s in path if isinstance(s, For | Block))
