"""`cache_write`: a block writes to a buffer of a nearer scope, and a new block copies it out.

for i, j, k in T.grid(64, 8, 16):              for i, j, k in T.grid(64, 8, 16):
    with T.block("C"):                             with T.block("C"):
        C[i, j] += A[i, k] * B[k, j]      ->           C_local[i, j] += A[i, k] * B[k, j]
                                               for i_1, j_1 in T.grid(64, 8):
                                                   with T.block("C_write"):
                                                       C[i_1, j_1] = C_local[i_1, j_1]
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import substitute, variables
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    Axis,
    Block,
    Buffer,
    For,
    LoopFunction,
    Scope,
    Stmt,
    Store,
    loads,
    replace_buffers,
    seq,
    stores,
)
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.legality import only_output
from webmlc.schedule.nest import axis_variables, copy_spatial_loops
from webmlc.schedule.tree import (
    Path,
    block_names,
    fresh,
    loops_of,
    path_to_block,
    replace_last,
    used_names,
)
from webmlc.schedule.update import with_body


def cache_write(function: LoopFunction, block: str, scope: Scope) -> tuple[LoopFunction, str]:
    """Let `block` write a new buffer of `scope`, as large as the old buffer, and copy it to the old
    buffer after its outermost loop.

    If other blocks under this loop use the buffer, the copy stands further inside, before these
    blocks. Returns the function and the copy's name, `<block>_write`. Raises `ScheduleError` if the
    block reads elements that it did not write (after `decompose_reduction`), or if another block
    writes the same buffer in between.
    """
    path, writer = path_to_block(function, "cache_write", block)
    buffer = only_output("cache_write", function, writer)
    reads_own = any(load.buffer.name == buffer.name for load in loads(writer))
    if reads_own and writer.init is None:
        reason = (
            f"block {block!r} reads {buffer.name!r} before it writes it; cache_write before "
            "decompose_reduction"
        )
        raise ScheduleError("cache_write", reason, function, block)
    taken_names = used_names(function)
    cache = Buffer(fresh(f"{buffer.name}_{scope}", taken_names), buffer.shape, buffer.dtype, scope)
    root = _root(function, path, buffer)
    name = fresh(f"{block}_write", block_names(function))
    around = [
        loop for loop in loops_of(path) if any(loop is stmt for stmt in path[len(root) - 1 :])
    ]
    loops = [For(loop.var, loop.extent, loop.body) for loop in around]
    copies = copy_spatial_loops("cache_write", function, writer, loops, "write", taken_names)
    indices, stage = _indices(function, writer), next(stores(writer)).stage
    bindings = tuple(simplify(substitute(index, copies.mapping)) for index in indices)
    copy = _copy(name, bindings, cache, buffer, taken_names, stage)
    copy = replace(copy, predicate=copies.predicate)
    swapped = replace_buffers(root[-1], {buffer: cache})
    body = replace_last(root, seq(swapped, copies.around(copy)))
    return with_body(function, body, (*function.allocations, cache)), name


def _indices(function: LoopFunction, writer: Block) -> tuple[Expr, ...]:
    """Where the block writes, over loop variables."""
    places = {store.indices for store in stores(writer)}
    if len(places) != 1:
        reason = f"block {writer.name!r} writes at {len(places)} places; cache_write needs one"
        raise ScheduleError("cache_write", reason, function, writer.name)
    values = writer.axis_values()
    (indices,) = places
    if any(variables(index) - values.keys() - set(function.symbols) for index in indices):
        reason = f"block {writer.name!r} writes many elements at once; cache_write before blockize"
        raise ScheduleError("cache_write", reason, function, writer.name)
    return tuple(substitute(index, values) for index in indices)


def _root(function: LoopFunction, path: Path, buffer: Buffer) -> Path:
    """The path to the outermost loop around the block under which no other block uses `buffer`."""
    block = path[-1]
    best = len(path)
    assert isinstance(block, Block)
    reduce_loops = axis_variables(block, "reduce")
    for length in range(len(path) - 1, 0, -1):
        stmt = path[length - 1]
        if isinstance(stmt, Block):
            break
        if isinstance(stmt, For):
            if _count(stmt, buffer) != _count(block, buffer):
                if stmt.var in reduce_loops:
                    reason = (
                        f"another block under loop {stmt.var.name!r} uses {buffer.name!r} during "
                        "the reduction"
                    )
                    raise ScheduleError("cache_write", reason, function, stmt.var.name)
                if any(isinstance(s, For) and s.var in reduce_loops for s in path[:length]):
                    reason = f"another block uses {buffer.name!r} before the reduction ends"
                    raise ScheduleError("cache_write", reason, function, stmt.var.name)
                break
            best = length
    return path[:best]


def _count(stmt: Stmt, buffer: Buffer) -> int:
    read = sum(load.buffer.name == buffer.name for load in loads(stmt))
    return read + sum(store.buffer.name == buffer.name for store in stores(stmt))


def _copy(
    name: str,
    bindings: tuple[Expr, ...],
    source: Buffer,
    destination: Buffer,
    taken_names: set[str],
    stage: int,
) -> Block:
    """The block that copies one element of `source` to `destination`."""
    axes = tuple(
        Axis(Var(fresh(f"v{name}_{dimension}", taken_names)), size, "spatial")
        for dimension, size in enumerate(source.shape)
    )
    element = tuple(axis.var for axis in axes)
    store = Store(destination, element, source[element], stage)
    return Block(name, axes, bindings, store)
