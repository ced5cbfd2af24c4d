"""`reuse_buffer`: a temporary lies in the buffer that its last reader writes, element by element.

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

(Exo's `reuse_buffer`.) The temporary needs no separate memory, whose size could be unknown.
"""

from __future__ import annotations

from webmlc.core.simplify import prove_equal
from webmlc.loops.ir import (
    Block,
    Buffer,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    loads,
    replace_buffers,
    stores,
)
from webmlc.schedule.coverage import fills
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.legality import only_output, repeating_loops
from webmlc.schedule.regions import scan, within
from webmlc.schedule.tree import (
    Path,
    loops_of,
    outer_blocks,
    path_to_block,
    ranges_along,
    symbol_ranges,
)
from webmlc.schedule.update import with_body

_NAME = "reuse_buffer"


def reuse_buffer(function: LoopFunction, block: str, reader: str) -> LoopFunction:
    """Let the temporary that `block` writes live in the buffer that `reader` writes.

    Raises `ScheduleError` if the buffers are not alike, or if other blocks use the reader's buffer.
    The reader must read the elements of the temporary that it writes, and no block may use the
    temporary after it. One iteration of the loops that all users share must not need more of the
    temporary than the reader writes there.
    """
    old = only_output(_NAME, function, path_to_block(function, _NAME, block)[1])
    path, last = path_to_block(function, _NAME, reader)
    new = only_output(_NAME, function, last)
    _check_buffers(function, last, old, new)
    _check_elements(function, path, last, old)
    _check_order(function, path, last, old, new)
    allocations = tuple(b for b in function.allocations if b.name != old.name)
    return with_body(function, replace_buffers(function.body, {old: new}), allocations)


def _check_buffers(function: LoopFunction, last: Block, old: Buffer, new: Buffer) -> None:
    if all(old.name != buffer.name for buffer in function.allocations) or old.name == new.name:
        reason = f"{old.name!r} is no temporary that {last.name!r} reads"
        raise ScheduleError(_NAME, reason, function, last.name)
    ranges = symbol_ranges(function)
    alike = (old.dtype, old.scope, len(old.shape)) == (new.dtype, new.scope, len(new.shape))
    if not alike or not all(
        prove_equal(a, b, ranges) for a, b in zip(old.shape, new.shape, strict=True)
    ):
        reason = f"{old.name!r} and {new.name!r} differ in type, shape or scope"
        raise ScheduleError(_NAME, reason, function, last.name)
    for other in outer_blocks(function.body):
        if other is not last and _uses(other, new):
            reason = f"block {other.name!r} uses {new.name!r}, too"
            raise ScheduleError(_NAME, reason, function, last.name, other.name)


def _check_elements(function: LoopFunction, path: Path, last: Block, old: Buffer) -> None:
    """The reader writes every element once, and reads that one of the temporary alone."""
    match last.body:
        case Store(indices=indices) if last.init is None and last.predicate is None:
            axes = [axis.var for axis in last.axes]
            read = {load.indices for load in loads(last) if load.buffer.name == old.name}
            once = sorted(map(str, indices)) == sorted(map(str, axes))
            if once and read == {indices} and not repeating_loops(last, loops_of(path)):
                return
    reason = f"block {last.name!r} does not read {old.name!r} where it writes alone"
    raise ScheduleError(_NAME, reason, function, last.name)


def _check_order(function: LoopFunction, path: Path, last: Block, old: Buffer, new: Buffer) -> None:
    """Nobody uses the temporary after the reader, or, in an iteration of the loops that all share,
    where the reader does not write.
    """
    shared = _shared(path, sum(_uses(b, old) for b in outer_blocks(function.body)), old)
    body = getattr(path[shared], "body", path[shared]) if shared >= 0 else function.body
    statements = body.statements if isinstance(body, Seq) else (body,)
    enclosing_statement = next(s for s in statements if any(b is last for b in outer_blocks(s)))
    after = statements[next(i for i, s in enumerate(statements) if s is enclosing_statement) :]
    for statement in after:
        for other in outer_blocks(statement):
            if other is not last and _uses(other, old):
                reason = f"block {other.name!r} uses {old.name!r} beside or after {last.name!r}"
                raise ScheduleError(_NAME, reason, function, last.name, other.name)
    ranges = ranges_along(function, path[: shared + 1]) if shared >= 0 else symbol_ranges(function)
    scan_result = scan(body, ranges, [old.name, new.name])
    by_buffer = scan_result.by_buffer()
    needed, written = (
        scan_result.region(by_buffer[old.name]),
        scan_result.region(by_buffer[new.name]),
    )
    inside = all(within(a, b, scan_result.ranges) for a, b in zip(needed, written, strict=True))
    if None in written or not inside or not fills(scan_result, by_buffer[new.name]):
        reason = (
            f"an iteration of the loops that the users of {old.name!r} share needs more of it than "
            f"{last.name!r} writes there"
        )
        raise ScheduleError(_NAME, reason, function, last.name)


def _shared(path: Path, users: int, buffer: Buffer) -> int:
    """The place in the path of the innermost statement around all users; -1 for the function."""
    position = -1
    for place, stmt in enumerate(path[:-1]):
        if not isinstance(stmt, Seq) and sum(_uses(b, buffer) for b in outer_blocks(stmt)) == users:
            position = place
    return position


def _uses(stmt: Stmt, buffer: Buffer) -> bool:
    used = (*(load.buffer for load in loads(stmt)), *(store.buffer for store in stores(stmt)))
    return any(other.name == buffer.name for other in used)
