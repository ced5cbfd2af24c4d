"""Move conditions out of loops that do not change them, and merge neighbours with equal conditions.

Needs: no blocks. Guarantees: an equal function that tests the guard of a thread or of a whole tile
once. Without this pass, each of the statements that unrolling creates would test it.

before                                      after
    for i in range(64):                         if t < 100:
        if t < 100:                                 for i in range(64):
            C[t] = C[t] + A[t, i]                       C[t] = C[t] + A[t, i]
    if t < 100:                                     D[t] = C[t]
        D[t] = C[t]
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import and_

from webmlc.core.dtypes import DType
from webmlc.core.expr import Call, Expr
from webmlc.core.rewrite import variables
from webmlc.loops.ir import For, If, Let, LoopFunction, Seq, Stmt, map_statements, seq
from webmlc.target.insert_barriers import has_barrier, reads_memory


def merge_guards(function: LoopFunction) -> LoopFunction:
    """Hoist and merge the conditionals of `function`."""
    return replace(function, body=map_statements(function.body, _rule))


def _rule(stmt: Stmt) -> Stmt | None:
    match stmt:
        case If(
            condition=condition, then=If(condition=inner, then=then, otherwise=None), otherwise=None
        ):
            return _guarded([*_factors(condition), *_factors(inner)], then)
        case For(var=var, body=If(condition=condition, then=then, otherwise=None)):
            factors = _factors(condition)
            invariant = [f for f in factors if var not in variables(f) and not reads_memory(f)]
            variant = [f for f in factors if f not in invariant]
            if not invariant or stmt.kind == "parallel" or has_barrier(then):
                return None
            return _guarded(invariant, replace(stmt, body=_guarded(variant, then)))
        case Let(var=var, body=If(condition=condition, then=then, otherwise=None)):
            if var not in variables(condition) and not reads_memory(condition):
                return If(condition, replace(stmt, body=then))
        case Seq(statements=statements):
            return _merge(statements)
    return None


def _merge(statements: tuple[Stmt, ...]) -> Stmt | None:
    """Put neighbours whose conditions share factors under one test of the shared factors."""
    result: list[Stmt] = []
    for stmt in statements:
        previous = result[-1] if result else None
        match previous, stmt:
            case If(otherwise=None), If(otherwise=None):
                first, second = _factors(previous.condition), _factors(stmt.condition)
                shared_factors = [f for f in first if f in second and not reads_memory(f)]
                if shared_factors:
                    left = _guarded([f for f in first if f not in shared_factors], previous.then)
                    right = _guarded([f for f in second if f not in shared_factors], stmt.then)
                    combined = seq(left, right)
                    if isinstance(combined, Seq):
                        combined = _merge(combined.statements) or combined
                    result[-1] = _guarded(shared_factors, combined)
                    continue
        result.append(stmt)
    return None if len(result) == len(statements) else seq(*result)


def _factors(condition: Expr) -> list[Expr]:
    """The conjuncts of a condition."""
    match condition:
        case Call(op="bit_and", args=(a, b), dtype=DType.bool):
            return [*_factors(a), *_factors(b)]
    return [condition]


def _guarded(factors: list[Expr], body: Stmt) -> Stmt:
    """`body` under the conjunction of `factors`."""
    return If(reduce(and_, dict.fromkeys(factors)), body) if factors else body
