"""`compute_at`: a producer moves under a loop of its consumer, and computes one iteration's
operands.

for i, j in T.grid(64, 8):                     for i in T.serial(64):
    with T.block("B"): B[i, j] = A[i, j] + 1       for j_1 in T.serial(8):
for i, j in T.grid(64, 8):                ->           with T.block("B"): B[i, j_1] = A[i, j_1] + 1
    with T.block("C"): C[i, j] = B[i, j] * 2       for j in T.serial(8):
                                                       with T.block("C"): C[i, j] = B[i, j] * 2
"""

from __future__ import annotations

from collections.abc import Mapping

from webmlc.core.bounds import Interval
from webmlc.core.expr import Const, Expr, Var
from webmlc.core.simplify import prove_equal, simplify
from webmlc.loops.ir import (
    Block,
    Buffer,
    For,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    loads,
    seq,
    stores,
    walk_statements,
)
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.legality import only_output, require_outermost
from webmlc.schedule.nest import Part, full, invert, nest_block
from webmlc.schedule.regions import Access, Span, scan
from webmlc.schedule.tree import (
    Path,
    loops_of,
    outer_blocks,
    path_to_block,
    path_to_loop,
    ranges_along,
    replace_last,
    used_names,
)
from webmlc.schedule.update import with_body


def compute_at(function: LoopFunction, block: str, loop: str) -> LoopFunction:
    """Move `block` under `loop`, before its first consumer there, over the region that the
    consumers under `loop` read.

    Raises `ScheduleError` if the block writes an output, if a consumer lies outside `loop`, if
    another block writes the same buffer, or if the block's operands are overwritten before its new
    place.
    """
    block_path, producer = path_to_block(function, "compute_at", block)
    loop_path, target = path_to_loop(function, "compute_at", loop)
    require_outermost("compute_at", function, block_path, block)
    require_outermost("compute_at", function, loop_path, loop)
    buffer = only_output("compute_at", function, producer)
    _check(function, block_path, producer, target, buffer)
    taken_body = replace_last(block_path, None)
    removed = with_body(function, taken_body)
    path, target = path_to_loop(removed, "compute_at", loop)
    ranges = ranges_along(function, path)
    scan_result = scan(target.body, ranges, [buffer.name])
    if buffer.scope == "shared":  # all threads of the workgroup read the results of one thread
        scan_result.inner.update(_threads(path))
    reads = [access for access in scan_result.accesses if not access.writes]
    parts = _parts(function, producer, buffer, scan_result.region(reads), reads, scan_result.ranges)
    nest = nest_block(producer, parts, used_names(removed), ranges)
    body = _insert_before_reader(target.body, nest, buffer)
    new = For(target.var, target.extent, body, target.kind, target.thread)
    return with_body(function, replace_last(path, new))


def _check(
    function: LoopFunction, path: Path, producer: Block, target: For, buffer: Buffer
) -> None:
    name, loop = producer.name, target.var.name

    def refuse(reason: str, *culprits: str) -> ScheduleError:
        return ScheduleError("compute_at", reason, function, *culprits)

    if any(outer is target for outer in loops_of(path)):
        raise refuse(f"block {name!r} is under loop {loop!r} already", name, loop)
    outputs = function.output_params()
    if any(buffer.name == output.name for output in outputs):
        raise refuse(
            f"block {name!r} writes the output {buffer.name!r}, all of which is needed", name
        )
    inside = list(outer_blocks(target.body))
    everything = list(outer_blocks(function.body))
    position = next(i for i, other in enumerate(everything) if other is producer)
    readers = [b for b in everything if b is not producer and _reads(b, {buffer.name})]
    for other in everything:
        if other is not producer and any(s.buffer.name == buffer.name for s in stores(other)):
            raise refuse(
                f"block {other.name!r} writes buffer {buffer.name!r} too", name, other.name
            )
    if not any(reader is other for reader in readers for other in inside):
        raise refuse(f"no block under loop {loop!r} reads {buffer.name!r}", name, loop)
    for reader in readers:
        if not any(reader is other for other in inside):
            reason = f"its consumer {reader.name!r} is not under loop {loop!r}"
            raise refuse(reason, reader.name, loop)
    inputs = {load.buffer.name for load in loads(producer)} - {buffer.name}
    first = next(i for i, other in enumerate(everything) if other is readers[0])
    start = next(i for i, other in enumerate(everything) if other is inside[0])
    if start < position:
        raise refuse(f"loop {loop!r} runs before block {name!r}", name, loop)
    for other in everything[position + 1 : first]:
        written = {store.buffer.name for store in stores(other)} & inputs
        if written:
            reason = (
                f"block {other.name!r} overwrites {', '.join(sorted(written))} before the new place"
            )
            raise refuse(reason, name, other.name)


def _reads(block: Block, names: set[str]) -> bool:
    return any(load.buffer.name in names for load in loads(block))


def _threads(path: Path) -> dict[Var, Expr]:
    """The extents of the loops of `path` that run over a workgroup's threads."""
    return {
        stmt.var: stmt.extent
        for stmt in path
        if isinstance(stmt, For) and (stmt.thread or "").startswith("threadIdx")
    }


def _parts(
    function: LoopFunction,
    producer: Block,
    buffer: Buffer,
    region: tuple[Span | None, ...],
    reads: list[Access],
    ranges: Mapping[Var, Interval],
) -> dict[Var, Part]:
    """The part of each axis of `producer` that computes `region` of its buffer."""
    store = next(s for s in walk_statements(producer.body) if isinstance(s, Store))
    axes = frozenset(axis.var for axis in producer.axes)
    extents = {axis.var: axis.extent for axis in producer.axes}
    parts = {axis.var: Part(full(axis.extent)) for axis in producer.axes}
    guarded = any(access.guarded for access in reads)
    for index, span, size in zip(store.indices, region, buffer.shape, strict=True):
        place = invert(index, axes)
        if span is None or place is None:
            continue
        axis, offset = place
        moved = Span(simplify(span.low - offset, ranges), span.width, span.exact)
        covered = offset == Const(0) and prove_equal(size, extents[axis], ranges)
        sure = covered and span.exact and not guarded
        parts[axis] = Part(moved, None if sure else full(extents[axis]))
    return parts


def _insert_before_reader(body: Stmt, nest: Stmt, buffer: Buffer) -> Stmt:
    """`nest` before the first statement of `body` that reads `buffer`."""
    statements = body.statements if isinstance(body, Seq) else (body,)
    for position, statement in enumerate(statements):
        if any(load.buffer.name == buffer.name for load in loads(statement)):
            return seq(*statements[:position], nest, *statements[position:])
    raise AssertionError(f"nothing reads {buffer.name}")
