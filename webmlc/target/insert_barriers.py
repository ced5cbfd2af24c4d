"""Insert barriers where the threads of a workgroup must wait for each other's `shared` accesses.

Needs the lowered form of a GPU kernel. Guarantees a `Barrier` between a write of a shared buffer
and a later read or write of it, and between a read and a later write. The same holds around the
back edge of a loop. Elements that one thread alone accesses need no barrier. These elements are
known where the thread's number alone decides the index. A barrier may stand in a conditional that
all threads decide alike. Any other conditional is split, and tested again after the barrier.

for k in range(8):                             for k in range(8):
    S[t] = A[k, t]                                 T.barrier()
    R[t] = R[t] + S[7 - t]            ->           S[t] = A[k, t]
                                                   T.barrier()
                                                   R[t] = R[t] + S[7 - t]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product

import numpy as np

from webmlc.core.errors import InternalError
from webmlc.core.expr import Expr, Ramp, Var, as_int
from webmlc.core.rewrite import evaluate, substitute, variables, walk
from webmlc.loops.ir import (
    Barrier,
    For,
    If,
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


def reads_memory(expr: Expr) -> bool:
    """True for an expression that contains a load."""
    return any(isinstance(node, Load) for node in walk(expr))


def differs(value: Expr, differing: Set[Var]) -> bool:
    """True for a value that may differ between threads, as all that memory holds may."""
    return reads_memory(value) or not variables(value).isdisjoint(differing)


def has_barrier(stmt: Stmt) -> bool:
    """True where threads wait for each other inside `stmt`."""
    return any(isinstance(s, Barrier) for s in walk_statements(stmt))


@dataclass(frozen=True, slots=True)
class _Access:
    """An access to a shared buffer. `index` is an expression of the thread's number along each
    axis, with variables named after the axes; `None` for any other index. `axes` are these axes,
    each with its number of threads.
    """

    buffer: str
    index: Expr | None = None
    axes: tuple[tuple[str, int], ...] = ()


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
    return any(a.buffer == b.buffer and _may_meet(a, b) for a in before for b in after)


def _may_meet(a: _Access, b: _Access) -> bool:
    """True where a thread may access an element by `a` that another thread accesses by `b`."""
    if a.index is None or b.index is None or [n for n, _ in a.axes] != [n for n, _ in b.axes]:
        return True
    of_a = _threads_by_element(a.index, a.axes)
    of_b = _threads_by_element(b.index, b.axes)
    return any(len(of_a[e] | of_b[e]) > 1 for e in of_a.keys() & of_b.keys())


@lru_cache(maxsize=1024)
def _threads_by_element(
    index: Expr, axes: tuple[tuple[str, int], ...]
) -> Mapping[int, Set[tuple[int, ...]]]:
    """The threads that access each element at an index."""
    base, lanes = (index.base, index.width) if isinstance(index, Ramp) else (index, 1)
    stride = int(evaluate(index.stride, {})) if isinstance(index, Ramp) else 1
    counts = [count for _, count in axes]
    coordinates = np.indices(counts).reshape(len(counts), -1)
    values = {name: row for (name, _), row in zip(axes, coordinates, strict=True)}
    starts = np.broadcast_to(evaluate(base, values), coordinates.shape[1:]).tolist()
    result: dict[int, set[tuple[int, ...]]] = {}
    for start, thread in zip(starts, product(*map(range, counts)), strict=True):
        for element in range(start, start + lanes * stride, stride):
            result.setdefault(element, set()).add(thread)
    return result


_NOTHING = _Pending()


def insert_barriers(function: LoopFunction) -> LoopFunction:
    """Return `function` with barriers, or unchanged where it has no shared buffer.

    Raises `InternalError` where only some threads would wait.
    """
    if all(buffer.scope != "shared" for buffer in function.allocations):
        return function
    body, _ = _order(function.body, _NOTHING, _Around())
    return replace(function, body=body)


Threads = Mapping[str, For]
"""The loops over thread axes around a statement, by their axes."""


@dataclass(frozen=True, slots=True)
class _Around:
    """The loops over thread axes around a statement, and the variables that may differ."""

    threads: Threads = field(default_factory=dict)
    differing: frozenset[Var] = frozenset()

    def binding(self, var: Var, value: Expr) -> _Around:
        """The same with a variable that depends on a value."""
        if not differs(value, self.differing):
            return self
        return replace(self, differing=self.differing | {var})

    def inside(self, loop: For) -> _Around:
        """The same in a loop over a thread axis."""
        assert loop.thread is not None
        threads = {**self.threads, loop.thread: loop}
        is_thread = loop.thread.startswith("threadIdx")
        differing = self.differing | {loop.var} if is_thread else self.differing
        return _Around(threads, differing)


def _order(stmt: Stmt, before: _Pending, around: _Around) -> tuple[Stmt, _Pending]:
    """Return `stmt` with the barriers it needs inside, after `before`, and the accesses pending at
    its end.

    A loop over a thread axis inside another over the same axis distributes its iterations over the
    threads. No barrier can stand in it, so it waits as a whole.
    """
    threads = around.threads
    match stmt:
        case Seq(statements=statements):
            new_statements: list[Stmt] = []
            for child in statements:
                statement, before = _order(child, before, around)
                new_statements.append(statement)
            return seq(*new_statements), before
        case For(thread=str() as thread) if thread in threads:
            return _with_barrier_before(stmt, before, _accesses(stmt, threads))
        case For(thread=str() as thread, body=body):
            within = around.inside(stmt)
            accesses = _accesses(body, within.threads)
            inner, after = _order(body, _NOTHING, within)
            if not has_barrier(inner):
                return _with_barrier_before(stmt, before, accesses)
            if before != _NOTHING:
                inner, after = _order(body, before, within)
            return replace(stmt, body=inner), after
        case For(var=var, extent=extent, body=body):
            accesses = _accesses(body, threads)
            if not accesses.reads or not accesses.conflicts(accesses):
                return _with_barrier_before(stmt, before, accesses)  # iterations are independent
            # Accesses at the end of one iteration are pending at the start of the next.
            within = around.binding(var, extent)
            inner, after = _order(body, before, within)
            if before | after != before:
                inner, after = _order(body, before | after, within)
            return replace(stmt, body=inner), after
        case Let(var=var, value=value, body=body):
            inner, after = _order(body, before, around.binding(var, value))
            return replace(stmt, body=inner), after
        case If(condition=condition) if not differs(condition, around.differing):
            return _order_branches(stmt, before, around)
        case If(then=then) if _accesses(then, threads).reads and has_barrier(
            _order(then, _NOTHING, around)[0]
        ):
            return _order(_tested_alone(stmt), before, around)
        case Barrier():
            return stmt, _NOTHING
    return _with_barrier_before(stmt, before, _accesses(stmt, threads))


def _order_branches(stmt: If, before: _Pending, around: _Around) -> tuple[Stmt, _Pending]:
    """Order the branches of a conditional that all threads decide alike. It waits as a whole unless
    a branch needs a barrier inside.
    """
    branches = [stmt.then, Seq(()) if stmt.otherwise is None else stmt.otherwise]
    if not any(has_barrier(_order(branch, _NOTHING, around)[0]) for branch in branches):
        return _with_barrier_before(stmt, before, _accesses(stmt, around.threads))
    (then, after), (otherwise, after_otherwise) = (
        _order(branch, before, around) for branch in branches
    )
    ordered = replace(stmt, then=then, otherwise=None if stmt.otherwise is None else otherwise)
    return ordered, after | after_otherwise


def _tested_alone(stmt: If) -> Stmt:
    """Split a conditional that only some threads enter into a conditional for each statement."""
    is_whole = stmt.otherwise is not None or reads_memory(stmt.condition)
    if is_whole or not isinstance(stmt.then, Seq):
        raise InternalError("threads would wait in a conditional that only some of them enter")
    return seq(*(replace(stmt, then=child) for child in stmt.then.statements))


def _with_barrier_before(stmt: Stmt, before: _Pending, accesses: _Pending) -> tuple[Stmt, _Pending]:
    """Put a barrier before `stmt` if it must wait. No barrier goes inside, because control flow
    there may diverge.
    """
    if before.conflicts(accesses):
        return seq(Barrier(), stmt), accesses
    return stmt, before | accesses


def _accesses(stmt: Stmt, threads: Threads) -> _Pending:
    """The shared accesses of a statement."""
    loops = tuple(
        (axis, loop.var, as_int(loop.extent))
        for axis, loop in sorted(threads.items())
        if axis.startswith("threadIdx")
    )

    def shared(accesses: Iterable[Load | Store]) -> frozenset[_Access]:
        return frozenset(
            _access(access.buffer.name, access.indices[0], loops)
            for access in accesses
            if access.buffer.scope == "shared"
        )

    return _Pending(shared(loads(stmt)), shared(stores(stmt)))


@lru_cache(maxsize=1 << 12)
def _access(name: str, index: Expr, loops: tuple[tuple[str, Var, int | None], ...]) -> _Access:
    """An access to the shared buffer `name` under loops over thread axes, each with its variable
    and its iterations. Cached: every loop around an access asks for it.
    """
    axes = tuple((axis, count) for axis, _, count in loops if count is not None)
    by_variable = {var: Var(axis) for axis, var, _ in loops}
    if not axes or len(axes) < len(loops) or not variables(index) <= by_variable.keys():
        return _Access(name)
    return _Access(name, substitute(index, by_variable), axes)
