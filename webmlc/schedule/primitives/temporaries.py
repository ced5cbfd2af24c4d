"""Primitives that change the temporary that a block writes: its scope, its shape or its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from webmlc.core.bounds import Interval, bounds, iterations
from webmlc.core.expr import Const, Expr, Var, as_int
from webmlc.core.rewrite import substitute, variables
from webmlc.core.simplify import prove_equal, simplify
from webmlc.loops.ir import (
    Axis,
    Block,
    Buffer,
    For,
    Load,
    Scope,
    Seq,
    Stmt,
    Store,
    blocks,
    loads,
    map_accesses,
    map_expressions,
    map_statements,
    replace_buffers,
    stores,
)
from webmlc.schedule.analysis import axis_ranges
from webmlc.schedule.coverage import fills
from webmlc.schedule.edit import Edit, repeating_loops
from webmlc.schedule.regions import scan, within
from webmlc.schedule.tree import Path, loops_of, outer_blocks, uses, with_body


def set_scope(edit: Edit, block: str, scope: Scope) -> None:
    """Put the buffer that `block` writes, a temporary, into `scope`.

    Y = T.alloc_buffer((64, 8), "float32")
        -> Y = T.alloc_buffer((64, 8), "float32", scope="local")

    Raises `ScheduleError` for a parameter.
    """
    old = edit.only_temporary(edit.block(block)[1])
    edit.exchange(old, replace(old, scope=scope))


def reuse_buffer(edit: Edit, block: str, reader: str) -> None:
    """Let the temporary that `block` writes live in the buffer that `reader` writes, element by
    element (Exo's `reuse_buffer`). It needs no separate memory, whose size could be unknown.

    E = T.alloc_buffer((64, 8), "float32")
    for i in range(64):                                  for i in range(64):
        for j in range(8):                                   for j in range(8):
            with T.block("E"): E[i, j] = T.exp(A[i, j])          with T.block("E"):
        for k in range(8):                                           C[i, j] = T.exp(A[i, j])
            with T.block("S"): S[i] += E[i, k]        ->     for k in range(8):
        for j in range(8):                                       with T.block("S"): S[i] += C[i, k]
            with T.block("C"):                               for j in range(8):
                C[i, j] = E[i, j] / S[i]                         with T.block("C"):
                                                                     C[i, j] = C[i, j] / S[i]

    Raises `ScheduleError` if the buffers are not alike, or if other blocks use the reader's buffer.
    The reader must read the elements of the temporary that it writes, and no block may use the
    temporary after it. One iteration of the loops that all users share must not need more of the
    temporary than the reader writes there.
    """
    old = edit.only_output(edit.block(block)[1])
    path, last = edit.block(reader)
    new = edit.only_output(last)
    _check_buffers(edit, last, old, new)
    _check_elements(edit, path, last, old)
    _check_order(edit, path, last, old, new)
    function = edit.function
    allocations = tuple(b for b in function.allocations if b != old)
    edit.change(with_body(function, replace_buffers(function.body, {old: new}), allocations))


def _check_buffers(edit: Edit, last: Block, old: Buffer, new: Buffer) -> None:
    if old not in edit.function.allocations or old == new:
        edit.refuse(f"{old.name!r} is no temporary that {last.name!r} reads", last.name)
    ranges = edit.ranges()
    alike = (old.dtype, old.scope, len(old.shape)) == (new.dtype, new.scope, len(new.shape))
    if not alike or not all(
        prove_equal(a, b, ranges) for a, b in zip(old.shape, new.shape, strict=True)
    ):
        edit.refuse(f"{old.name!r} and {new.name!r} differ in type, shape or scope", last.name)
    for other in edit.blocks():
        if other is not last and new.name in uses(other):
            edit.refuse(f"block {other.name!r} uses {new.name!r}, too", last.name, other.name)


def _check_elements(edit: Edit, path: Path, last: Block, old: Buffer) -> None:
    """The reader writes every element once, and reads that one of the temporary alone."""
    match last.body:
        case Store(indices=indices) if last.init is None and last.predicate is None:
            axes = [axis.var for axis in last.axes]
            read = {load.indices for load in loads(last) if load.buffer == old}
            once = sorted(map(str, indices)) == sorted(map(str, axes))
            if once and read == {indices} and not repeating_loops(last, loops_of(path)):
                return
    reason = f"block {last.name!r} does not read {old.name!r} where it writes alone"
    edit.refuse(reason, last.name)


def _check_order(edit: Edit, path: Path, last: Block, old: Buffer, new: Buffer) -> None:
    """Nobody uses the temporary after the reader, or, in an iteration of the loops that all share,
    where the reader does not write.
    """
    around = _shared(path, sum(old.name in uses(b) for b in edit.blocks()), old)
    body = getattr(around[-1], "body", around[-1]) if around else edit.function.body
    statements = body.statements if isinstance(body, Seq) else (body,)
    start = next(i for i, s in enumerate(statements) if any(b is last for b in outer_blocks(s)))
    for statement in statements[start:]:
        for other in outer_blocks(statement):
            if other is not last and old.name in uses(other):
                beside = f"uses {old.name!r} beside or after {last.name!r}"
                edit.refuse(f"block {other.name!r} {beside}", last.name, other.name)
    scanned = scan(body, edit.ranges(around), [old.name, new.name])
    by_buffer = scanned.by_buffer()
    needed, written = (scanned.region(by_buffer[buffer.name]) for buffer in (old, new))
    is_inside = all(within(a, b, scanned.ranges) for a, b in zip(needed, written, strict=True))
    if None in written or not is_inside or not fills(scanned, by_buffer[new.name]):
        needs = f"the loops that the users of {old.name!r} share needs more of it"
        reason = f"an iteration of {needs} than {last.name!r} writes there"
        edit.refuse(reason, last.name)


def _shared(path: Path, users: int, buffer: Buffer) -> Path:
    """The path to the innermost statement around all users; empty for the function."""
    length = 0
    for place, stmt in enumerate(path[:-1], 1):
        if not isinstance(stmt, Seq):
            inside = sum(buffer.name in uses(b) for b in outer_blocks(stmt))
            length = place if inside == users else length
    return path[:length]


def split_dimension(edit: Edit, block: str, dimension: int, size: int) -> None:
    """Split `dimension` of the temporary that `block` writes into parts of `size` elements, and the
    block axes along it.

    for o in T.serial(12):                         for o in T.serial(12):
        with T.block("Y"):                             with T.block("Y"):
            vo = T.axis.spatial(12, o)        ->           vo_0 = T.axis.spatial(3, o // 4)
            Y[vo] = A[vo // 4]                             vo_1 = T.axis.spatial(4, o % 4)
                                                           Y[vo_0, vo_1] = A[vo_0]

    The loops stay as they are: `split` by the same size makes their bindings plain again. Raises
    `ScheduleError` if the buffer belongs to the caller, or if `size` does not divide the dimension.
    """
    old = edit.only_temporary(edit.block(block)[1])
    extent = as_int(old.shape[dimension]) if dimension < len(old.shape) else None
    if extent is None or size < 1 or extent % size:
        edit.refuse(f"{size} does not divide dimension {dimension} of {old.name!r}", block)
    parts = (Const(extent // size), Const(size))
    shape = (*old.shape[:dimension], *parts, *old.shape[dimension + 1 :])
    split = _Split(edit, old, replace(old, shape=shape), dimension, size)
    function = edit.function
    body = map_statements(function.body, split.block)
    allocations = tuple(split.new if b == old else b for b in function.allocations)
    edit.change(with_body(function, body, allocations))


@dataclass(frozen=True, slots=True)
class _Split:
    """One buffer's dimension."""

    edit: Edit
    old: Buffer
    new: Buffer
    dimension: int
    size: int

    def block(self, block: Stmt) -> Block | None:
        """The block with two axes for each axis along the dimension, using the new buffer."""
        if not isinstance(block, Block):
            return None
        used: tuple[Store | Load, ...] = (*stores(block), *loads(block))
        indices = {a.indices[self.dimension] for a in used if a.buffer == self.old}
        if not indices:
            return None
        axes: list[Axis] = []
        bindings: list[Expr] = []
        values: dict[Var, Expr] = {}
        for axis, binding in block.bound_axes():
            if axis.var not in indices or axis.extent != self.old.shape[self.dimension]:
                axes.append(axis)
                bindings.append(binding)
                continue
            outer, inner = (self.edit.var(f"{axis.var.name}_{i}") for i in range(2))
            count = self.new.shape[self.dimension]
            axes += [Axis(outer, count, axis.kind), Axis(inner, Const(self.size), axis.kind)]
            bindings += [binding // self.size, binding % self.size]
            values[axis.var] = outer * self.size + inner
        ranges = self.edit.ranges()
        inside = dict(ranges)
        inside.update({axis.var: iterations(axis.extent, inside) for axis in axes})
        return replace(
            block,
            axes=tuple(axes),
            bindings=tuple(simplify(b, ranges) for b in bindings),
            body=self.accesses(block.body, values, inside),
            init=block.init and self.accesses(block.init, values, inside),
        )

    def accesses(
        self, stmt: Stmt, values: Mapping[Var, Expr], ranges: Mapping[Var, Interval]
    ) -> Stmt:
        """The statement over the new axes and the new buffer."""

        def moved(buffer: Buffer, indices: tuple[Expr, ...]) -> Load | None:
            if buffer != self.old:
                return None
            d = self.dimension
            pair = (indices[d] // self.size, indices[d] % self.size)
            parts = (simplify(index, ranges) for index in pair)
            return Load(self.new, (*indices[:d], *parts, *indices[d + 1 :]))

        over = map_expressions(stmt, lambda e: simplify(substitute(e, values), ranges))
        return map_accesses(over, moved)


def round_up(edit: Edit, loop: str, size: int) -> None:
    """Let `loop` run to a multiple of `size`, past the end of its axis; no block reads the added
    elements.

    for j in T.serial(2):                          for j in T.serial(4):
        with T.block("Y"):                             with T.block("Y"):
            vj = T.axis.spatial(10, j + 8)    ->           vj = T.axis.spatial(12, j + 8)
            Y[vj] = B[vj // 8, vj % 8] * 2                 Y[vj] = B[vj // 8, vj % 8] * 2

    The temporary grows. So a remainder is computed in whole vectors where the operands are padded.
    Raises `ScheduleError` if the loop holds more than one block, or would read past the end of
    another buffer. The loop must end with a spatial axis that is a dimension of a temporary.
    """
    path, old = edit.serial_loop(loop)
    inside, extent = list(blocks(old.body)), as_int(old.extent)
    if extent is None or len(inside) != 1:
        edit.refuse(f"loop {loop!r} must have a constant extent and one block", loop)
    (block,) = inside
    buffer = edit.only_output(block)
    axis, dimension = _ending_axis(edit, old, block, buffer)
    more = -extent % size
    longer = Axis(axis.var, simplify(axis.extent + more), axis.kind)
    grown = replace(block, axes=tuple(longer if a == axis else a for a in block.axes))
    ranges = axis_ranges(grown)
    for load in loads(block):
        for index, length in zip(load.indices, load.buffer.shape, strict=True):
            past = bounds(simplify(index - length, ranges), ranges)
            if load.buffer != buffer and axis.var in variables(index) and past.high >= 0:
                reason = f"past its end, loop {loop!r} may read past that of {load.buffer.name!r}"
                edit.refuse(reason, loop, block.name)
    inner = map_statements(old.body, lambda s: grown if isinstance(s, Block) else None)
    edit.put(path, For(old.var, Const(extent + more), inner))
    shape = (*buffer.shape[:dimension], longer.extent, *buffer.shape[dimension + 1 :])
    edit.exchange(buffer, replace(buffer, shape=shape))


def _ending_axis(edit: Edit, loop: For, block: Block, buffer: Buffer) -> tuple[Axis, int]:
    """The axis that ends with the loop, and its dimension of the temporary."""
    places = {store.indices for store in stores(block)}
    along = [(axis, b) for axis, b in block.bound_axes() if loop.var in variables(b)]
    if len(places) == 1 and len(along) == 1 and block.predicate is None:
        ((axis, binding),), (indices,) = along, places
        ends = axis.kind == "spatial" and simplify(binding - loop.var) == simplify(
            axis.extent - loop.extent
        )
        used = [d for d, index in enumerate(indices) if axis.var in variables(index)]
        if (
            ends
            and buffer in edit.function.allocations
            and [indices[d] for d in used] == [axis.var]
        ):
            return axis, used[0]
    name = loop.var.name
    reason = f"loop {name!r} does not end with a dimension of a temporary of its block"
    raise edit.refusal(reason, name, block.name)
