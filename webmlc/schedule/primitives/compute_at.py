"""Primitives that move a block next to the blocks that read its result, or that make its operands,
so that one iteration of a loop computes what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from webmlc.core.expr import Const, Expr, Var
from webmlc.core.simplify import prove_equal, simplify
from webmlc.loops.ir import Block, Buffer, For, Seq, Stmt, loads, seq, stores
from webmlc.schedule.coverage import covers, fills
from webmlc.schedule.edit import Edit
from webmlc.schedule.nest import Part, full, invert, nest_block
from webmlc.schedule.regions import Access, Scan, Span, disjoint, relax, scan, within
from webmlc.schedule.tree import Path, depends_on, loops_of, outer_blocks, reads, writes


def compute_at(edit: Edit, block: str, loop: str) -> None:
    """Move `block` under `loop`, before its first consumer there, over the region that the
    consumers under `loop` read.

    for i, j in T.grid(64, 8):                     for i in T.serial(64):
        with T.block("B"): B[i, j] = A[i, j] + 1       for j_1 in T.serial(8):
    for i, j in T.grid(64, 8):                ->           with T.block("B"): B[i, j_1] = ...
        with T.block("C"): C[i, j] = B[i, j] * 2       for j in T.serial(8):
                                                           with T.block("C"): C[i, j] = B[i, j] * 2

    Raises `ScheduleError` if the block writes an output, if a consumer lies outside `loop`, if
    another block writes the same buffer, or if the block's operands are overwritten before its new
    place.
    """
    block_path, producer = edit.block(block)
    loop_path, target = edit.loop(loop)
    edit.require_outermost(block_path, block)
    edit.require_outermost(loop_path, loop)
    buffer = edit.only_output(producer)
    _check_producer(edit, block_path, producer, target, buffer)
    edit.put(block_path, None)
    path, target = edit.loop(loop)
    ranges = edit.ranges(path)
    inside = scan(target.body, ranges, [buffer.name])
    if buffer.scope == "shared":  # all threads of the workgroup read the results of one thread
        inside.inner.update(_threads(path))
    accesses = [access for access in inside.accesses if not access.writes]
    nest = nest_block(edit, producer, _parts(producer, accesses, inside), ranges)
    edit.put(path, replace(target, body=_insert_before_reader(target.body, nest, buffer)))


def _check_producer(edit: Edit, path: Path, producer: Block, target: For, buffer: Buffer) -> None:
    name, loop = producer.name, target.var.name
    if any(outer is target for outer in loops_of(path)):
        edit.refuse(f"block {name!r} is under loop {loop!r} already", name, loop)
    if buffer in edit.function.output_params():
        reason = f"block {name!r} writes the output {buffer.name!r}, all of which is needed"
        edit.refuse(reason, name)
    inside = list(outer_blocks(target.body))
    order = edit.blocks()
    position = edit.position(producer)
    readers = [b for b in order if b is not producer and buffer.name in reads(b)]
    for other in order:
        if other is not producer and buffer.name in writes(other):
            edit.refuse(f"block {other.name!r} writes buffer {buffer.name!r} too", name, other.name)
    if not any(reader is other for reader in readers for other in inside):
        edit.refuse(f"no block under loop {loop!r} reads {buffer.name!r}", name, loop)
    for reader in readers:
        if not any(reader is other for other in inside):
            reason = f"its consumer {reader.name!r} is not under loop {loop!r}"
            edit.refuse(reason, reader.name, loop)
    if edit.position(inside[0]) < position:
        edit.refuse(f"loop {loop!r} runs before block {name!r}", name, loop)
    inputs = reads(producer) - {buffer.name}
    for other in order[position + 1 : edit.position(readers[0])]:
        if overwritten := ", ".join(sorted(writes(other) & inputs)):
            reason = f"block {other.name!r} overwrites {overwritten} before the new place"
            edit.refuse(reason, name, other.name)


def _threads(path: Path) -> dict[Var, Expr]:
    """The extents of the loops of `path` that run over a workgroup's threads."""
    return {
        stmt.var: stmt.extent
        for stmt in path
        if isinstance(stmt, For) and (stmt.thread or "").startswith("threadIdx")
    }


def _parts(producer: Block, accesses: list[Access], inside: Scan) -> dict[Var, Part]:
    """The part of each axis of `producer` that computes the elements that `accesses` read."""
    store = next(stores(producer.body))
    axes = frozenset(axis.var for axis in producer.axes)
    extents = {axis.var: axis.extent for axis in producer.axes}
    parts = {axis.var: Part(full(axis.extent)) for axis in producer.axes}
    is_guarded = any(access.guarded for access in accesses)
    region = inside.region(accesses)
    for index, span, size in zip(store.indices, region, store.buffer.shape, strict=True):
        place = invert(index, axes)
        if span is None or place is None:
            continue
        axis, offset = place
        moved = Span(simplify(span.low - offset, inside.ranges), span.width, span.exact)
        covered = offset == Const(0) and prove_equal(size, extents[axis], inside.ranges)
        is_sure = covered and span.exact and not is_guarded
        parts[axis] = Part(moved, None if is_sure else full(extents[axis]))
    return parts


def _insert_before_reader(body: Stmt, nest: Stmt, buffer: Buffer) -> Stmt:
    """`nest` before the first statement of `body` that reads `buffer`."""
    statements = body.statements if isinstance(body, Seq) else (body,)
    position = next(i for i, stmt in enumerate(statements) if buffer.name in reads(stmt))
    return seq(*statements[:position], nest, *statements[position:])


def reverse_compute_at(edit: Edit, block: str, loop: str) -> None:
    """Move `block` to the end of `loop`, over the region that the producers under `loop` write
    there.

    for i, j in T.grid(64, 8):                     for i in T.serial(64):
        with T.block("B"): B[i, j] = A[i, j] + 1       for j in T.serial(8):
    for i, j in T.grid(64, 8):                ->           with T.block("B"): B[i, j] = A[i, j] + 1
        with T.block("C"): C[i, j] = B[i, j] * 2       for j_1 in T.serial(8):
                                                           with T.block("C"): C[i, j_1] = ...

    Raises `ScheduleError` if the producers of the block's operands are not under `loop` or do not
    write all of them, or if a reduction is not finished at `loop`. No block in between may write
    the block's operands or read its results.
    """
    block_path, consumer = edit.block(block)
    path, target = edit.loop(loop)
    edit.require_outermost(block_path, block)
    edit.require_outermost(path, loop)
    move = _Move(edit, block_path, consumer, path, target)
    parts = move.parts()
    move.check_between()
    edit.put(block_path, None)
    path, target = edit.loop(loop)
    nest = nest_block(edit, consumer, parts, edit.ranges(path))
    edit.put(path, replace(target, body=seq(target.body, nest)))


@dataclass(frozen=True, slots=True)
class _Move:
    """A consumer, the path to it (`block_path`), and the loop that it moves under (`path` ends with
    `target`).
    """

    edit: Edit
    block_path: Path
    consumer: Block
    path: Path
    target: For

    def parts(self) -> dict[Var, Part]:
        """The part of each axis of the consumer that one iteration of the target loop runs."""
        edit, name, loop = self.edit, self.consumer.name, self.target.var.name
        if any(outer is self.target for outer in loops_of(self.block_path)):
            edit.refuse(f"block {name!r} is under loop {loop!r} already", name, loop)
        read = reads(self.consumer)
        inside = scan(self.target.body, edit.ranges(self.path))
        writes_by_buffer = {
            buffer: written
            for buffer, accesses in inside.by_buffer().items()
            if buffer in read and (written := [a for a in accesses if a.writes])
        }
        if not writes_by_buffer:
            edit.refuse(f"no block under loop {loop!r} writes what it reads", name, loop)
        if self.consumer.init is None and read & writes(self.consumer):
            edit.refuse(f"block {name!r} adds to what it wrote before", name)
        domains = self.domains()
        # All loops run through: the loops inside the target, the target, and the loops around it.
        outer = {s.var: s.extent for s in self.path if isinstance(s, For)}
        everything = Scan(inner={**outer, **inside.inner}, ranges=inside.ranges)
        parts = {axis.var: Part(domains[axis.var]) for axis in self.consumer.axes}
        for buffer, accesses in writes_by_buffer.items():
            self.check_finished(buffer)
            places, needed = self.read_dimensions(buffer), self.needed(buffer, domains)
            if not fills(inside, accesses):
                reason = f"one iteration of loop {loop!r} does not write a full box of {buffer!r}"
                edit.refuse(reason, loop)
            if not covers(everything, accesses, needed, everything.ranges):
                read_more = f"block {name!r} reads more of {buffer!r}"
                edit.refuse(
                    f"{read_more} than the blocks under loop {loop!r} certainly write", name, loop
                )
            region, total = inside.region(accesses), everything.region(accesses)
            for d, place in places.items():
                span, all_written = region[d], total[d]
                assert span is not None  # `fills` knows every dimension
                if place is None:
                    self.check_anywhere(buffer, needed[d], span, inside)
                    continue
                axis, offset = place
                exists = all_written is not None and within(
                    _shift(all_written, -offset), domains[axis], everything.ranges
                )
                part = Part(_shift(span, -offset), None if exists else domains[axis])
                self.check_same(parts[axis], part, domains[axis], axis, buffer)
                parts[axis] = part
        return parts

    def check_anywhere(self, buffer: str, needed: Span, span: Span, inside: Scan) -> None:
        """Refuse indices along no axis of the consumer, unless every iteration writes these
        elements.
        """
        if not within(needed, span, inside.ranges):
            name, loop = self.consumer.name, self.target.var.name
            where = f"where one iteration of loop {loop!r} may not write"
            self.edit.refuse(f"block {name!r} reads {buffer!r} {where}", name, loop)

    def check_same(self, old: Part, new: Part, domain: Span, axis: Var, buffer: str) -> None:
        """Refuse an axis that two reads restrict differently, or a reduce axis cut in parts."""
        name, loop = self.consumer.name, self.target.var.name
        if old != Part(domain) and old.span != new.span:
            place = f"at more than one place along axis {axis.name!r}"
            self.edit.refuse(f"block {name!r} reads {buffer!r} {place}", name, loop)
        kind = next(a.kind for a in self.consumer.axes if a.var == axis)
        if kind == "reduce" and not within(domain, new.span, self.edit.ranges(self.path)):
            part = f"a part of what axis {axis.name!r} reduces"
            self.edit.refuse(f"one iteration of loop {loop!r} writes {part}", name, loop)

    def domains(self) -> dict[Var, Span]:
        """The values each axis of the consumer runs through now."""
        scanned = self.scan(self.block_path)
        result: dict[Var, Span] = {}
        for axis, binding in self.consumer.bound_axes():
            everything = full(axis.extent)
            span = relax(binding, scanned)
            closed = None if span is None else scanned.close(span)
            is_inside = closed is not None and within(closed, everything, scanned.ranges)
            result[axis.var] = closed if is_inside and closed is not None else everything
        return result

    def scan(self, path: Path) -> Scan:
        """The accesses under the first loop or block of a path: all loops of its block count as run
        through.
        """
        outermost = next(s for s in path if isinstance(s, For | Block))
        return scan(outermost, self.edit.ranges())

    def check_finished(self, buffer: str) -> None:
        """Refuse if a reduction into `buffer` goes on after the target loop."""
        outer = {s.var.name for s in self.path if isinstance(s, For)}
        for producer in outer_blocks(self.target.body):
            if buffer not in writes(producer):
                continue
            for axis, binding in producer.bound_axes():
                if axis.kind == "reduce" and depends_on(binding, outer):
                    name, loop = producer.name, self.target.var.name
                    reason = f"the reduction of block {name!r} is not finished under loop {loop!r}"
                    self.edit.refuse(reason, name, loop)

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
        sizes = next(
            load.buffer.shape for load in loads(self.consumer) if load.buffer.name == buffer
        )
        return {
            d: full(sizes[d]) if place is None else _shift(domains[place[0]], place[1])
            for d, place in self.read_dimensions(buffer).items()
        }

    def check_between(self) -> None:
        """Refuse if a block between the two places writes elements that the consumer touches, or
        reads elements that the consumer writes.
        """
        order = self.edit.blocks()
        *_, last = outer_blocks(self.target.body)
        start, end = self.edit.position(last), self.edit.position(self.consumer)
        name, loop = self.consumer.name, self.target.var.name
        if end < start:
            self.edit.refuse(f"block {name!r} runs before loop {loop!r} ends", name, loop)
        block_scan = self.scan(self.block_path)
        block_accesses = block_scan.by_buffer()
        for other in order[start + 1 : end]:
            scanned = self.scan(self.edit.block(other.name)[0])
            for buffer, accesses in scanned.by_buffer().items():
                theirs = [a for a in accesses if a.block == other.name]
                mine = [a for a in block_accesses.get(buffer, []) if a.block == name]
                if not any(a.writes for a in theirs + mine) or not theirs or not mine:
                    continue
                regions = block_scan.region(mine), scanned.region(theirs)
                if not disjoint(*regions, self.edit.ranges()):
                    shared = f"shares buffer {buffer!r} with block {name!r}"
                    self.edit.refuse(
                        f"block {other.name!r}, in between, {shared}", name, other.name
                    )


def _shift(span: Span, offset: Expr) -> Span:
    return Span(simplify(span.low + offset), span.width, span.exact, span.step)
