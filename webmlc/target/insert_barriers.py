"""Insert barriers where the threads of a workgroup must wait for each other's `shared` accesses.

Needs the lowered form of a GPU kernel. Guarantees a `Barrier` between a write of a shared buffer
and a later read or write of it, and between a read and a later write. The same holds around the
back edge of a loop. A thread's private element needs no barrier: it is the one indexed by the
variable of the only thread axis.

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
    walk_statements,
)


@dataclass(frozen=True, slots=True)
class _Access:
    """An access to a shared buffer. `owner` is the thread variable that is its index, where each
    thread accesses only an element that no other thread accesses.
    """

    buffer: str
    owner: Var | None


@dataclass(frozen=True, slots=True)
class _Pending:
    """The accesses that some thread may have performed since the last barrier."""

    reads: frozenset[_Access] = frozenset()
    writes: frozenset[_Access] = frozenset()

    def __or__(self, other: _Pending) -> _Pending:
        return _Pending(self.reads | other.reads, self.writes | other.writes)

    def conflicts(self, following: _Pending) -> bool:
        """True where `following` must wait for the pending accesses of all threads."""
        return _conflict(self.writes, following.reads | following.writes) or _conflict(
            self.reads, following.writes
        )


def _conflict(before: frozenset[_Access], after: frozenset[_Access]) -> bool:
    """True where two threads may access the same element."""
    return any(
        a.buffer == b.buffer and (a.owner is None or a.owner != b.owner)
        for a in before
        for b in after
    )


_NOTHING = _Pending()


def insert_barriers(function: LoopFunction) -> LoopFunction:
    """Return `function` with barriers, or unchanged where it has no shared buffer."""
    if all(buffer.scope != "shared" for buffer in function.allocations):
        return function
    body, _ = _order(function.body, _NOTHING, {})
    return replace(function, body=body)


Threads = Mapping[str, Var]
"""The variables of the thread axes, by the axes of the loops around a statement."""


def _order(stmt: Stmt, before: _Pending, threads: Threads) -> tuple[Stmt, _Pending]:
    """Return `stmt` with the barriers it needs inside, after `before`, and the accesses pending at
    its end.

    `threads` maps the thread axes of the loops around it to their variables. A loop over one of
    these axes again distributes its iterations over the threads. No barrier can stand in it, so it
    waits as a whole.
    """
    match stmt:
        case Seq(statements=statements):
            new_statements: list[Stmt] = []
            for child in statements:
                statement, before = _order(child, before, threads)
                new_statements.append(statement)
            return seq(*new_statements), before
        case For(thread=str() as thread) if thread in threads:
            return _with_barrier_before(stmt, before, _accesses(stmt, threads))
        case For(thread=str() as thread, body=body):
            inner_threads = {**threads, thread: stmt.var}
            accesses = _accesses(body, inner_threads)
            alone, _ = _order(body, _NOTHING, inner_threads)
            if not any(isinstance(s, Barrier) for s in walk_statements(alone)):
                return _with_barrier_before(stmt, before, accesses)
            inner, after = _order(body, before, inner_threads)
            return replace(stmt, body=inner), after
        case For(body=body):
            accesses = _accesses(body, threads)
            if not accesses.reads or not accesses.conflicts(accesses):
                return _with_barrier_before(stmt, before, accesses)  # iterations are independent
            # Accesses at the end of one iteration are pending at the start of the next.
            _, first_pass = _order(body, before, threads)
            inner, after = _order(body, before | first_pass, threads)
            return replace(stmt, body=inner), after
        case Let(body=body):
            inner, after = _order(body, before, threads)
            return replace(stmt, body=inner), after
        case Barrier():
            return stmt, _NOTHING
    return _with_barrier_before(stmt, before, _accesses(stmt, threads))


def _with_barrier_before(stmt: Stmt, before: _Pending, accesses: _Pending) -> tuple[Stmt, _Pending]:
    """Put a barrier before `stmt` if it must wait. None goes inside: control flow there may
    diverge.
    """
    if before.conflicts(accesses):
        return seq(Barrier(), stmt), accesses
    return stmt, before | accesses


def _accesses(stmt: Stmt, threads: Threads) -> _Pending:
    """The shared accesses of a statement."""
    thread_variables = [var for axis, var in threads.items() if axis.startswith("threadIdx")]

    def shared(accesses: Iterable[Load | Store]) -> frozenset[_Access]:
        return frozenset(
            _Access(access.buffer.name, _owner(thread_variables, access.indices))
            for access in accesses
            if access.buffer.scope == "shared"
        )

    return _Pending(shared(loads(stmt)), shared(stores(stmt)))


def _owner(threads: list[Var], indices: tuple[Expr, ...]) -> Var | None:
    """The thread variable, if there is one and it alone is the index."""
    return threads[0] if len(threads) == 1 and indices == (threads[0],) else None
