"""Read inputs before the barriers that stand in front of their uses.

Needs: a lowered kernel with its barriers. Guarantees an equal kernel. A thread copies elements of
inputs to registers at the start of its workgroup's work, not behind a barrier, if the numbers of
the thread and of the workgroup decide the indices. The memory answers while the threads wait for
each other. No kernel writes its inputs, so the elements are the same.

for b in workgroups:                         for b in workgroups:
    for t in threads:                            for t_ahead in threads:
        S[t] = x[t] * x[t]                           W[()] = w[b, t_ahead]
    T.barrier()                                  for t in threads:
    for u in range(64):             ->               S[t] = x[t] * x[t]
        R[()] = R[()] + S[u]                     T.barrier()
    for t in threads:                            for u in range(64):
        W[()] = w[b, t]                              R[()] = R[()] + S[u]
        P[t] = W[()] * R[()]                     for t in threads:
                                                     P[t] = W[()] * R[()]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field, replace

from webmlc.core.expr import Cast, Expr, Var
from webmlc.core.rewrite import variables
from webmlc.loops.ir import (
    Barrier,
    For,
    Let,
    Load,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    map_children,
    seq,
    stores,
    substitute_statement,
)
from webmlc.target.webgpu.threads import map_sections

MOST_READS = 24
"""Vectors that a thread reads ahead, at most. Each takes four of the 128 to 255 registers of a
thread (chosen by hand: two products of three words each)."""


def read_ahead(function: LoopFunction) -> LoopFunction:
    """Return `function` with its reads of inputs before the first barrier of each section."""
    writes = Counter(store.buffer.name for store in stores(function.body))
    inputs = function.input_params()
    names = frozenset(buffer.name for buffer in inputs if buffer.name not in writes)
    once = frozenset(name for name, count in writes.items() if count == 1)

    def rewrite(body: Stmt, scope: frozenset[Var]) -> Stmt:
        section = _Section(names, once, scope)
        rewritten = section.after_barriers(body)
        return seq(*section.ahead, rewritten)

    return replace(function, body=map_sections(function, rewrite))


@dataclass(slots=True)
class _Section:
    """The work of a workgroup. The nests of `ahead` read its `inputs` into registers that the
    kernel writes `once`. The variables of `scope` have a value where the section starts.
    """

    inputs: Set[str]
    once: Set[str]
    scope: Set[Var]
    ahead: list[Stmt] = field(default_factory=list)
    count: int = 0
    """The statements that `ahead` holds."""
    waited: bool = False

    def after_barriers(self, stmt: Stmt) -> Stmt:
        """Take the reads out of the statements after the first barrier."""
        match stmt:
            case Seq() | Let():
                return map_children(stmt, self.after_barriers)
            case Barrier():
                self.waited = True
            case For(thread=str()) if self.waited:
                return self.in_threads(stmt, ())
        return stmt

    def in_threads(self, stmt: Stmt, loops: tuple[For, ...]) -> Stmt:
        """Take the reads out of a nest of loops over threads, which are around the statement."""
        match stmt:
            case Seq(statements=statements):
                reads = [child for child in statements if self.is_read(child, loops)]
                reads = reads[: MOST_READS - self.count]
                self.add(reads, loops)
                return seq(*[self.in_threads(s, loops) for s in statements if s not in reads])
            case Let(body=body):
                return replace(stmt, body=self.in_threads(body, loops))
            case For(thread=str(), body=body):
                return replace(stmt, body=self.in_threads(body, (*loops, stmt)))
        return stmt

    def is_read(self, stmt: Stmt, loops: tuple[For, ...]) -> bool:
        """True for a copy from an input to a register whose indices are known at the section's
        start.
        """
        if not isinstance(stmt, Store) or not loops:
            return False
        load: Expr = stmt.value
        while isinstance(load, Cast):
            load = load.value
        if not isinstance(load, Load) or load.buffer.name not in self.inputs:
            return False
        is_register = stmt.buffer.scope == "local" and stmt.buffer.name in self.once
        used = {var for index in load.indices for var in variables(index)}
        return is_register and used <= self.scope | {loop.var for loop in loops}

    def add(self, reads: list[Stmt], loops: tuple[For, ...]) -> None:
        """Put reads at the start of the section, in loops over the same threads."""
        if not reads:
            return
        self.count += len(reads)
        names: dict[Var, Expr] = {loop.var: Var(f"{loop.var.name}_ahead") for loop in loops}
        body = substitute_statement(seq(*reads), names)
        for loop in reversed(loops):
            var = names[loop.var]
            assert isinstance(var, Var)
            body = replace(loop, var=var, body=body)
        self.ahead.append(body)
