"""`insert_barriers`: the threads of a workgroup wait for one another's `shared` writes and reads.

Needs the lowered form of a GPU kernel. Guarantees a `Barrier` between a statement that writes a
shared buffer and a later one that reads or rewrites it, and between a read and a later write, also
around the back edge of a loop; none between accesses of a thread to an element of its own (indexed
by the variable of the only thread axis).

for k in range(8):                             for k in range(8):
    S[t] = A[k, t]                                 T.barrier()
    R[t] = R[t] + S[7 - t]            ->           S[t] = A[k, t]
                                                   T.barrier()
                                                   R[t] = R[t] + S[7 - t]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from webmlc.core.expr import Expr, Var
from webmlc.loops.ir import (
    Barrier,
    For,
    Let,
    Load,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    loads,
    seq,
    stores,
)


@dataclass(frozen=True, slots=True)
class _Access:
    """A shared buffer, and the thread variable that indexes it where each thread has an element of
    its own there.
    """

    buffer: str
    own: Var | None


@dataclass(frozen=True, slots=True)
class _Pending:
    """What some thread may have read, or written, since the last barrier."""

    reads: frozenset[_Access] = frozenset()
    writes: frozenset[_Access] = frozenset()

    def __or__(self, other: _Pending) -> _Pending:
        return _Pending(self.reads | other.reads, self.writes | other.writes)

    def conflicts(self, following: _Pending) -> bool:
        """True where `following` must not start before everything pending is done."""
        return _meet(self.writes, following.reads | following.writes) or _meet(
            self.reads, following.writes
        )


def _meet(before: frozenset[_Access], after: frozenset[_Access]) -> bool:
    return any(
        a.buffer == b.buffer and (a.own is None or a.own != b.own) for a in before for b in after
    )


_NOTHING = _Pending()


def insert_barriers(function: LoopFunction) -> LoopFunction:
    """`function` with barriers; itself where it has no shared buffer."""
    if all(buffer.scope != "shared" for buffer in function.allocations):
        return function
    body, _ = _order(function.body, _NOTHING, {})
    return replace(function, body=body)


Threads = Mapping[str, Var]


def _order(stmt: Stmt, before: _Pending, threads: Threads) -> tuple[Stmt, _Pending]:
    """`stmt` with the barriers it needs inside, after `before`; and what is pending at its end.

    `threads` are the thread axes of the loops around it, with their variables. A loop bound to one
    of them again is work that the threads share out: no barrier can stand in it, it waits as a
    whole.
    """
    match stmt:
        case Seq(statements=statements):
            ordered: list[Stmt] = []
            for child in statements:
                first, before = _order(child, before, threads)
                ordered.append(first)
            return seq(*ordered), before
        case For(thread=str() as thread) if thread in threads:
            return _whole(stmt, before, _accesses(stmt, threads))
        case For(thread=str() as thread, body=body):
            inside = {**threads, thread: stmt.var}
            accesses = _accesses(body, inside)
            if not accesses.conflicts(accesses):
                return _whole(stmt, before, accesses)
            inner, after = _order(body, before, inside)
            return replace(stmt, body=inner), after
        case For(body=body):
            accesses = _accesses(body, threads)
            if not accesses.reads or not accesses.conflicts(accesses):
                return _whole(stmt, before, accesses)  # no iteration waits for another
            # The end of one iteration comes before the start of the next.
            _, once = _order(body, before, threads)
            inner, after = _order(body, before | once, threads)
            return replace(stmt, body=inner), after
        case Let(body=body):
            inner, after = _order(body, before, threads)
            return replace(stmt, body=inner), after
        case Barrier():
            return stmt, _NOTHING
    return _whole(stmt, before, _accesses(stmt, threads))


def _whole(stmt: Stmt, before: _Pending, accesses: _Pending) -> tuple[Stmt, _Pending]:
    """A barrier before `stmt` if it must wait; none inside (control flow there may diverge)."""
    if before.conflicts(accesses):
        return seq(Barrier(), stmt), accesses
    return stmt, before | accesses


def _accesses(stmt: Stmt, threads: Threads) -> _Pending:
    mine = [var for axis, var in threads.items() if axis.startswith("threadIdx")]

    def accesses(found: Iterable[Load | Store]) -> frozenset[_Access]:
        return frozenset(
            _Access(access.buffer.name, _only(mine, access.indices))
            for access in found
            if access.buffer.scope == "shared"
        )

    return _Pending(accesses(loads(stmt)), accesses(stores(stmt)))


def _only(threads: list[Var], indices: tuple[Expr, ...]) -> Var | None:
    """The one thread variable, where it alone is the index."""
    return threads[0] if len(threads) == 1 and indices == (threads[0],) else None
