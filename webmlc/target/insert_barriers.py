"""`insert_barriers`: the threads of a workgroup wait for one another's `shared` writes and reads.

Needs the lowered form of a GPU kernel. Guarantees a `Barrier` between a statement that writes a
shared buffer and a later one that reads or rewrites it, and between a read and a later write, also
around the back edge of a loop. Accesses by one statement and its own repetition are not told apart
by element: what a thread wrote itself is waited for as well.

for k in range(8):                             for k in range(8):
    S[t] = A[k, t]                                 T.barrier()
    R[t] = R[t] + S[7 - t]            ->           S[t] = A[k, t]
                                                   T.barrier()
                                                   R[t] = R[t] + S[7 - t]
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from webmlc.loops.ir import Barrier, For, Let, LoopFunction, Seq, Stmt, loads, seq, stores


@dataclass(frozen=True, slots=True)
class _Pending:
    """Shared buffers that some thread may have read, or written, since the last barrier."""

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()

    def __or__(self, other: _Pending) -> _Pending:
        return _Pending(self.reads | other.reads, self.writes | other.writes)

    def conflicts(self, following: _Pending) -> bool:
        """True where `following` must not start before everything pending is done."""
        return bool(
            self.writes & (following.reads | following.writes) or self.reads & following.writes
        )


_NOTHING = _Pending()


def insert_barriers(function: LoopFunction) -> LoopFunction:
    """`function` with barriers; itself where it has no shared buffer."""
    if all(buffer.scope != "shared" for buffer in function.allocations):
        return function
    body, _ = _order(function.body, _NOTHING, frozenset())
    return replace(function, body=body)


def _order(stmt: Stmt, before: _Pending, threads: frozenset[str]) -> tuple[Stmt, _Pending]:
    """`stmt` with the barriers it needs inside, after `before`; and what is pending at its end.

    `threads` are the thread axes of the loops around it. A loop bound to one of them again is work
    that the threads share out: no barrier can stand in it, it waits as a whole.
    """
    match stmt:
        case Seq(statements=statements):
            ordered: list[Stmt] = []
            for child in statements:
                first, before = _order(child, before, threads)
                ordered.append(first)
            return seq(*ordered), before
        case For(thread=str() as thread) if thread in threads:
            return _whole(stmt, before)
        case For(thread=str() as thread, body=body):
            inner, after = _order(body, before, threads | {thread})
            return replace(stmt, body=inner), after
        case For(body=body):
            if not _accesses(body).reads:
                return _whole(stmt, before)  # its iterations fill different elements
            # The end of one iteration comes before the start of the next.
            _, once = _order(body, before, threads)
            inner, after = _order(body, before | once, threads)
            return replace(stmt, body=inner), after
        case Let(body=body):
            inner, after = _order(body, before, threads)
            return replace(stmt, body=inner), after
        case Barrier():
            return stmt, _NOTHING
    return _whole(stmt, before)


def _whole(stmt: Stmt, before: _Pending) -> tuple[Stmt, _Pending]:
    """A barrier before `stmt` if it must wait; none inside (control flow there may diverge)."""
    accesses = _accesses(stmt)
    if before.conflicts(accesses):
        return seq(Barrier(), stmt), accesses
    return stmt, before | accesses


def _accesses(stmt: Stmt) -> _Pending:
    return _Pending(
        frozenset(load.buffer.name for load in loads(stmt) if load.buffer.scope == "shared"),
        frozenset(s.buffer.name for s in stores(stmt) if s.buffer.scope == "shared"),
    )
