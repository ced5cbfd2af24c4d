"""`cache_write`: a block writes to a buffer of a nearer scope, and a new block copies it out.

for i, j, k in T.grid(64, 8, 16):              for i, j, k in T.grid(64, 8, 16):
    with T.block("C"):                             with T.block("C"):
        C[i, j] += A[i, k] * B[k, j]      ->           C_local[i, j] += A[i, k] * B[k, j]
                                               for i_1, j_1 in T.grid(64, 8):
                                                   with T.block("C_write"):
                                                       C[i_1, j_1] = C_local[i_1, j_1]
"""

from __future__ import annotations

from webmlc.core.expr import Var
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
from webmlc.schedule.nest import Part, nest_block
from webmlc.schedule.regions import scan, whole
from webmlc.schedule.tree import (
    Path,
    block_names,
    fresh,
    path_to_block,
    ranges_along,
    replace_last,
    used_names,
)
from webmlc.schedule.update import with_body


def cache_write(function: LoopFunction, block: str, scope: Scope) -> tuple[LoopFunction, str]:
    """Let `block` write a buffer of `scope`, as large as the one it wrote, and copy that after its
    outermost loop.

    Where other blocks under that loop use the buffer the copy stands further inside, before them.
    Returns the function and the copy's name, `<block>_write`. Raises `ScheduleError` where the
    block reads elements that it did not write (after `decompose_reduction`), or another block
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
    taken = used_names(function)
    cache = Buffer(fresh(f"{buffer.name}_{scope}", taken), buffer.shape, buffer.dtype, scope)
    root = _root(function, path, buffer)
    ranges = ranges_along(function, root[:-1])
    found = scan(root[-1], ranges, [buffer.name])
    region = whole(buffer, found.region([access for access in found.accesses if access.writes]))
    guarded = any(access.guarded for access in found.accesses)
    name = fresh(f"{block}_write", block_names(function))
    copy = _copy(name, cache, buffer, taken)
    parts = {
        axis.var: Part(span, None if span.exact and not guarded else full_span)
        for axis, span, full_span in zip(
            copy.axes, region, whole(buffer, (None,) * len(region)), strict=True
        )
    }
    nest = nest_block(copy, parts, taken, ranges)
    swapped = replace_buffers(root[-1], {buffer: cache})
    body = replace_last(root, seq(swapped, nest))
    return with_body(function, body, (*function.allocations, cache)), name


def _root(function: LoopFunction, path: Path, buffer: Buffer) -> Path:
    """The path to the outermost loop around the block under which only it uses `buffer`."""
    block = path[-1]
    best = len(path)
    reduce_loops = _reduce_loops(block)
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


def _reduce_loops(block: Stmt) -> frozenset[Var]:
    from webmlc.core.expr import variables

    assert isinstance(block, Block)
    found: set[Var] = set()
    for axis, binding in zip(block.axes, block.bindings, strict=True):
        if axis.kind == "reduce":
            found |= variables(binding)
    return frozenset(found)


def _count(stmt: Stmt, buffer: Buffer) -> int:
    read = sum(load.buffer.name == buffer.name for load in loads(stmt))
    return read + sum(store.buffer.name == buffer.name for store in stores(stmt))


def _copy(name: str, source: Buffer, destination: Buffer, taken: set[str]) -> Block:
    """The block that copies `source` to `destination`; its axes are bound by `nest_block`."""
    axes = tuple(
        Axis(Var(fresh(f"v{name}_{d}", taken)), size, "spatial")
        for d, size in enumerate(source.shape)
    )
    indices = tuple(axis.var for axis in axes)
    return Block(name, axes, indices, Store(destination, indices, source[indices]))
