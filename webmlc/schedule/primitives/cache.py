"""Primitives that let a block read or write through a buffer of a nearer scope."""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.expr import Expr
from webmlc.core.rewrite import substitute, variables
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    NO_STAGE,
    Axis,
    Block,
    Buffer,
    For,
    Scope,
    Store,
    loads,
    replace_buffers,
    seq,
    stores,
)
from webmlc.schedule.edit import Edit
from webmlc.schedule.nest import Part, axis_variables, copy_spatial_loops, full, nest_block
from webmlc.schedule.regions import scan, whole
from webmlc.schedule.tree import Path, loops_of, reads, replace_last, uses, writes


def cache_read(edit: Edit, block: str, buffer: str, scope: Scope) -> str:
    """Let `block` read `buffer` through a copy of `scope`, made before the outermost loop around
    the block under which nothing writes the buffer.

    for i, j in T.grid(64, 8):                     for i_1, j_1 in T.grid(64, 8):
        with T.block("C"):                             with T.block("A_shared"):
            C[i, j] = A[i, j] * 2             ->           A_shared[i_1, j_1] = A[i_1, j_1]
                                                   for i, j in T.grid(64, 8):
                                                       with T.block("C"):
                                                           C[i, j] = A_shared[i, j] * 2

    The copy has the buffer's shape; only the region that the block reads is copied. Returns the
    copying block, `<buffer>_<scope>`. Raises `ScheduleError` if the block does not read the buffer,
    or writes it.
    """
    path, reader = edit.block(block)
    source = next((load.buffer for load in loads(reader) if load.buffer.name == buffer), None)
    if source is None:
        edit.refuse(f"block {block!r} does not read {buffer!r}", block)
    if buffer in writes(reader):
        edit.refuse(f"block {block!r} writes {buffer!r}", block)
    cache = _like(edit, source, scope)
    root = _unwritten_root(path, buffer)
    ranges = edit.ranges(root[:-1])
    scanned = scan(root[-1], ranges, [buffer])
    accesses = [a for a in scanned.accesses if a.block == block and not a.writes]
    is_guarded = any(access.guarded for access in accesses)
    copy = _copy(edit, edit.block_name(cache.name), source, cache)
    parts = {
        axis.var: Part(span, None if span.exact and not is_guarded else full(axis.extent))
        for axis, span in zip(copy.axes, whole(source, scanned.region(accesses)), strict=True)
    }
    nest = nest_block(edit, copy, parts, ranges)
    redirected = replace_buffers(reader, {source: cache})
    edit.put(root, seq(nest, replace_last(path[len(root) - 1 :], redirected)), cache)
    return copy.name


def _unwritten_root(path: Path, buffer: str) -> Path:
    """The path to the outermost loop around the block under which nothing writes `buffer`."""
    best = len(path)
    for length in range(len(path) - 1, 0, -1):
        stmt = path[length - 1]
        if isinstance(stmt, Block) or (isinstance(stmt, For) and buffer in writes(stmt)):
            break
        if isinstance(stmt, For):
            best = length
    return path[:best]


def cache_write(edit: Edit, block: str, scope: Scope) -> str:
    """Let `block` write a new buffer of `scope`, as large as the old buffer, and copy it to the old
    buffer after its outermost loop.

    for i, j, k in T.grid(64, 8, 16):              for i, j, k in T.grid(64, 8, 16):
        with T.block("C"):                             with T.block("C"):
            C[i, j] += A[i, k] * B[k, j]      ->           C_local[i, j] += A[i, k] * B[k, j]
                                                   for i_1, j_1 in T.grid(64, 8):
                                                       with T.block("C_write"):
                                                           C[i_1, j_1] = C_local[i_1, j_1]

    If other blocks under this loop use the buffer, the copy stands further inside, before these
    blocks. Returns the copying block, `<block>_write`. Raises `ScheduleError` if the block reads
    elements that it did not write (after `decompose_reduction`), or if another block writes the
    same buffer in between.
    """
    path, writer = edit.block(block)
    buffer = edit.only_output(writer)
    if buffer.name in reads(writer) and writer.init is None:
        reason = f"block {block!r} reads {buffer.name!r} before it writes it"
        edit.refuse(f"{reason}; cache_write before decompose_reduction", block)
    cache = _like(edit, buffer, scope)
    root = _unshared_root(edit, path, writer, buffer.name)
    name = edit.block_name(f"{block}_write")
    inside = path[len(root) - 1 :]
    around = [loop for loop in loops_of(path) if any(loop is stmt for stmt in inside)]
    loops = [For(loop.var, loop.extent, loop.body) for loop in around]
    copies = copy_spatial_loops(edit, writer, loops, "write")
    bindings = (simplify(substitute(i, copies.mapping)) for i in _indices(edit, writer))
    copy = _copy(edit, name, cache, buffer, next(stores(writer)).stage)
    copy = replace(copy, bindings=tuple(bindings), predicate=copies.predicate)
    redirected = replace_buffers(root[-1], {buffer: cache})
    edit.put(root, seq(redirected, copies.around(copy)), cache)
    return name


def _indices(edit: Edit, writer: Block) -> tuple[Expr, ...]:
    """Where the block writes, over loop variables."""
    name = writer.name
    places = {store.indices for store in stores(writer)}
    if len(places) != 1:
        edit.refuse(f"block {name!r} writes at {len(places)} places; cache_write needs one", name)
    values = writer.axis_values()
    (indices,) = places
    if any(variables(index) - values.keys() - set(edit.function.symbols) for index in indices):
        reason = f"block {name!r} writes many elements at once; cache_write before blockize"
        edit.refuse(reason, name)
    return tuple(substitute(index, values) for index in indices)


def _unshared_root(edit: Edit, path: Path, writer: Block, buffer: str) -> Path:
    """The path to the outermost loop around the block under which no other block uses `buffer`."""
    best = len(path)
    reduce_loops = axis_variables(writer, "reduce")
    for length in range(len(path) - 1, 0, -1):
        stmt = path[length - 1]
        if isinstance(stmt, Block):
            break
        if isinstance(stmt, For):
            if uses(stmt)[buffer] != uses(writer)[buffer]:
                name = stmt.var.name
                if stmt.var in reduce_loops:
                    other = f"another block under loop {name!r} uses {buffer!r}"
                    edit.refuse(f"{other} during the reduction", name)
                if any(isinstance(s, For) and s.var in reduce_loops for s in path[:length]):
                    edit.refuse(f"another block uses {buffer!r} before the reduction ends", name)
                break
            best = length
    return path[:best]


def _like(edit: Edit, buffer: Buffer, scope: Scope) -> Buffer:
    """A new buffer of another scope."""
    return Buffer(edit.name(f"{buffer.name}_{scope}"), buffer.shape, buffer.dtype, scope)


def _copy(
    edit: Edit, name: str, source: Buffer, destination: Buffer, stage: int = NO_STAGE
) -> Block:
    """A new block that copies `source`, element by element."""
    axes = tuple(
        Axis(edit.var(f"v{name}_{dimension}"), size, "spatial")
        for dimension, size in enumerate(source.shape)
    )
    element = tuple(axis.var for axis in axes)
    return Block(name, axes, element, Store(destination, element, source[element], stage))
