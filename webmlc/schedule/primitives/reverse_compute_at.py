"""`reverse_compute_at`: a consumer moves under a loop of its producer, and takes what that
iteration made.

for i, j in T.grid(64, 8):                     for i in T.serial(64):
    with T.block("B"): B[i, j] = A[i, j] + 1       for j in T.serial(8):
for i, j in T.grid(64, 8):                ->           with T.block("B"): B[i, j] = A[i, j] + 1
    with T.block("C"): C[i, j] = B[i, j] * 2       for j_1 in T.serial(8):
                                                       with T.block("C"): C[i, j_1] = B[i, j_1] * 2
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from webmlc.core.expr import Expr, Var
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Block, For, LoopFunction, loads, seq, stores
from webmlc.schedule.errors import ScheduleError
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

    Raises `ScheduleError` where no block under `loop` writes what the block reads, the producers do
    not write all of what it reads, a reduction is not finished at `loop`, or a block in between
    writes what it reads or reads what it writes.
    """
    block_path, consumer = path_to_block(function, _NAME, block)
    path, target = path_to_loop(function, _NAME, loop)
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
    """A consumer, where it is (`block_path`) and the loop it moves under (`path` ends with
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
        made = {n: [a for a in found if a.writes] for n, found in inside.by_buffer().items()}
        made = {n: found for n, found in made.items() if found and n in read}
        if not made:
            raise self.refuse(f"no block under loop {loop!r} writes what it reads", name, loop)
        own = scan(_outermost(self.block_path), symbol_ranges(self.function))
        domains = self.domains(own)
        parts = {axis.var: Part(domains[axis.var]) for axis in self.consumer.axes}
        done: dict[Var, Span] = {}
        for buffer, writes in made.items():
            self.check_finished(buffer)
            self.restrict(buffer, writes, inside, domains, done)
        for axis, span in done.items():
            exists = within(self.total(span, inside), domains[axis], inside.ranges)
            parts[axis] = Part(span, None if exists else domains[axis])
        return parts

    def domains(self, own: Scan) -> dict[Var, Span]:
        """The values each axis of the consumer runs through now."""
        result: dict[Var, Span] = {}
        for axis, binding in zip(self.consumer.axes, self.consumer.bindings, strict=True):
            everything = full(axis.extent)
            span = relax(binding, own)
            closed = None if span is None else own.close(span)
            inside = closed is not None and within(closed, everything, own.ranges)
            result[axis.var] = closed if inside and closed is not None else everything
        return result

    def check_finished(self, buffer: str) -> None:
        """Refuse where a reduction into `buffer` goes on after the target loop."""
        outer = {s.var.name for s in self.path if isinstance(s, For)}
        for producer in outer_blocks(self.target.body):
            if all(store.buffer.name != buffer for store in stores(producer)):
                continue
            for axis, binding in zip(producer.axes, producer.bindings, strict=True):
                if axis.kind == "reduce" and depends_on(binding, outer):
                    loop = self.target.var.name
                    reason = (
                        f"the reduction of block {producer.name!r} is not finished under loop "
                        f"{loop!r}"
                    )
                    raise self.refuse(reason, producer.name, loop)

    def restrict(
        self,
        buffer: str,
        writes: list[Access],
        inside: Scan,
        domains: Mapping[Var, Span],
        done: dict[Var, Span],
    ) -> None:
        """Find the axes that the region written to `buffer` decides; all that is read must be in
        that region.
        """
        name, loop = self.consumer.name, self.target.var.name
        region = inside.region(writes)
        axes = frozenset(axis.var for axis in self.consumer.axes)
        for load in dict.fromkeys(loads(self.consumer)):
            if load.buffer.name != buffer:
                continue
            for index, span in zip(load.indices, region, strict=True):
                if span is None:
                    continue
                found = invert(index, axes)
                if found is None:
                    self.check_fixed(buffer, index, span, inside)
                    continue
                axis, offset = found
                moved = Span(simplify(span.low - offset, inside.ranges), span.width, span.exact)
                if done.setdefault(axis, moved) != moved:
                    reason = (
                        f"block {name!r} reads {buffer!r} at more than one place along axis "
                        f"{axis.name!r}"
                    )
                    raise self.refuse(reason, name, loop)
                if not within(domains[axis], self.total(moved, inside), inside.ranges):
                    reason = (
                        f"block {name!r} reads more of {buffer!r} than the blocks under loop "
                        f"{loop!r} write"
                    )
                    raise self.refuse(reason, name, loop)

    def check_fixed(self, buffer: str, index: Expr, span: Span, inside: Scan) -> None:
        """An index that is no axis of the consumer must stay in what every iteration of the target
        loop writes.
        """
        inner = {axis.var: axis.extent for axis in self.consumer.axes}
        read = Scan(inner=inner, ranges=inside.ranges)
        if not within(relax(index, read), span, inside.ranges):
            name, loop = self.consumer.name, self.target.var.name
            reason = (
                f"block {name!r} reads {buffer!r} at {index}, which one iteration of loop {loop!r} "
                "does not write"
            )
            raise self.refuse(reason, name, loop)

    def total(self, span: Span, inside: Scan) -> Span | None:
        """What a span covers over all iterations of the target loop and the loops around it."""
        outer = {s.var: s.extent for s in self.path if isinstance(s, For)}
        everything = Scan(inner=outer, ranges=inside.ranges)
        low = relax(span.low, everything)
        if low is None:
            return None
        width = simplify(low.width + span.width, inside.ranges)
        return Span(simplify(low.low, inside.ranges), width, low.exact and span.exact)

    def check_between(self) -> None:
        """Refuse where a block between the two places writes what the consumer touches, or reads
        what it writes.
        """
        everything = list(outer_blocks(self.function.body))
        inside = list(outer_blocks(self.target.body))
        start = max(i for i, b in enumerate(everything) if any(b is other for other in inside))
        end = next(i for i, b in enumerate(everything) if b is self.consumer)
        name, loop = self.consumer.name, self.target.var.name
        if end < start:
            raise self.refuse(f"block {name!r} runs before loop {loop!r} ends", name, loop)
        own = scan(_outermost(self.block_path), symbol_ranges(self.function)).by_buffer()
        for other in everything[start + 1 : end]:
            path, _ = path_to_block(self.function, _NAME, other.name)
            found = scan(_outermost(path), symbol_ranges(self.function))
            for buffer, accesses in found.by_buffer().items():
                theirs = [a for a in accesses if a.block == other.name]
                mine = [a for a in own.get(buffer, []) if a.block == name]
                if not any(a.writes for a in theirs + mine) or not theirs or not mine:
                    continue
                if not self.apart(mine, theirs, found):
                    reason = (
                        f"block {other.name!r}, in between, shares buffer {buffer!r} with block "
                        f"{name!r}"
                    )
                    raise self.refuse(reason, name, other.name)

    def apart(self, mine: list[Access], theirs: list[Access], found: Scan) -> bool:
        """True where the two sets of accesses certainly touch different elements."""
        own = scan(_outermost(self.block_path), symbol_ranges(self.function))
        return disjoint(own.region(mine), found.region(theirs), symbol_ranges(self.function))


def _outermost(path: Path) -> For | Block:
    """The first loop or block of a path: with it, all loops of the block count as run through."""
    return next(s for s in path if isinstance(s, For | Block))
