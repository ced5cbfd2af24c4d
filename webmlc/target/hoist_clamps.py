"""Decide before a loop nest whether its clamps change any index.

Needs: no blocks. Guarantees: an equal function. A nest of constant size whose indices are clamped
to a symbolic limit exists twice: without the clamps, for a run in which all indices are within the
limit, and with them. Without the clamps, the indices step evenly, so they become pointers. In
attention, for instance, only the last section of keys needs clamps.

before                                         after
    for j in range(48):                            if s * 48 + 47 <= last:
        C[j] = A[T.min(s * 48 + j, last)]              for j in range(48):
                                                           C[j] = A[s * 48 + j]
                                                   else:
                                                       for j_1 in range(48):
                                                           C[j_1] = A[T.min(s * 48 + j_1, last)]
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from functools import reduce
from operator import and_

from webmlc.core.affine import stride
from webmlc.core.dtypes import INDEX
from webmlc.core.expr import Call, Const, Expr, Var, as_int, call
from webmlc.core.rewrite import rewriter, substitute, variables, walk
from webmlc.loops.ir import (
    For,
    If,
    Let,
    LoopFunction,
    Stmt,
    child_statements,
    expressions,
    loads_in,
    map_expressions,
    map_statements,
    walk_statements,
)
from webmlc.target.scoped import Names, simplify_function
from webmlc.target.unroll_loops import rename_bound

LEAST_ITERATIONS = 1024
"""The least iterations of a nest that are worth a second copy of its code.

Unit: iterations of all loops around an innermost statement. Chosen by hand: loops that fetch the
keys of a section have fewer iterations, and loops that multiply the keys have more.
"""

Clamps = dict[Expr, tuple[Expr, Expr]]
"""The clamps of a nest. Each has the index that it limits, and the condition under which no
iteration's index is above the limit.
"""


def hoist_clamps(function: LoopFunction) -> LoopFunction:
    """Copy the outermost nests of constant size that have clamps to a symbolic limit."""
    nests: dict[int, Clamps] = {}
    stack = [function.body] if function.symbols else []
    while stack:
        stmt = stack.pop()
        clamps = _clamps(stmt) if isinstance(stmt, For) else {}
        if clamps:
            nests[id(stmt)] = clamps
        else:
            stack.extend(child_statements(stmt))
    if not nests:
        return function
    names = Names.of(function)

    def rule(stmt: Stmt) -> Stmt | None:
        return _copied(stmt, nests[id(stmt)], names) if id(stmt) in nests else None

    return simplify_function(replace(function, body=map_statements(function.body, rule)))


def _copied(nest: Stmt, clamps: Clamps, names: Names) -> Stmt:
    """The nest without its clamps where no index is above a limit, else as it is."""
    plain = map_expressions(
        nest, rewriter(lambda node: clamps[node][0] if node in clamps else None)
    )
    conditions = dict.fromkeys(condition for _, condition in clamps.values())
    return If(reduce(and_, conditions), plain, rename_bound(nest, names))


def _clamps(nest: For) -> Clamps:
    """The clamps of a nest; none if it is not to be copied."""
    if nest.kind == "parallel" or _iterations(nest) < LEAST_ITERATIONS:
        return {}
    statements = list(walk_statements(nest))
    extents = {s.var: as_int(s.extent) for s in statements if isinstance(s, For)}
    bound = extents.keys() | {s.var for s in statements if isinstance(s, Let)}
    clamps: Clamps = {}
    for node in (n for s in statements for e in expressions(s) for n in walk(e)):
        match node:
            case Call(op="min", args=(index, limit), dtype=dtype) if dtype is INDEX:
                if variables(index).isdisjoint(bound):
                    index, limit = limit, index
                largest = _largest(index, extents, bound)
                if largest is not None and _is_fixed(limit, bound):
                    clamps[node] = index, call("le", largest, limit)
    return clamps


def _largest(index: Expr, extents: Mapping[Var, int | None], bound: Set[Var]) -> Expr | None:
    """The largest value of an index in the loops of a nest; `None` if it is the same in all
    iterations, or does not step evenly.
    """
    inner = variables(index) & bound
    ends: dict[Var, Expr] = {}
    for var in inner:
        extent, step = extents.get(var), stride(index, var)
        step_size = None if step is None else as_int(step)
        if extent is None or step_size is None:
            return None
        ends[var] = Const(extent - 1 if step_size > 0 else 0)
    return substitute(index, ends) if inner else None


def _is_fixed(limit: Expr, bound: Set[Var]) -> bool:
    """True for a limit that symbols decide before a nest runs."""
    symbols = variables(limit)
    return bool(symbols) and symbols.isdisjoint(bound) and not loads_in(limit)


def _iterations(nest: Stmt) -> int:
    """The most iterations of a statement in a nest; 0 if an extent is symbolic."""
    inner = max(map(_iterations, child_statements(nest)), default=1)
    return inner * (as_int(nest.extent) or 0) if isinstance(nest, For) else inner
