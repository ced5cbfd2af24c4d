"""Matching a loop nest against an intrinsic's semantics.

In: the loops and the store inside a block, and the semantics. Out: a `Match` (which buffer, and
which place in it, each parameter stands for), or `None`. Loops match in any order of equal extents,
operands of commutative operators in any order; a parameter may be a tile of a buffer of higher
rank:

    C[vi * 4 + i1, vj * 4 + j1]  matches  C[i, j]  with  C -> Place(C, (vi * 4, vj * 4), (0, 1))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from webmlc.core.bounds import iterations
from webmlc.core.expr import Call, Const, Expr, Var
from webmlc.core.rewrite import substitute, variables
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.core.simplify import prove_equal, simplify
from webmlc.loops.ir import Buffer, For, Load, LoopFunction, Stmt, Store, substitute_statement
from webmlc.schedule.tree import Intervals


@dataclass(frozen=True, slots=True)
class Place:
    """A parameter's tile: its start in `buffer`, and the dimension of the buffer for each of its
    dimensions.
    """

    buffer: Buffer
    start: tuple[Expr, ...]
    dimensions: tuple[int, ...]

    def indices(self, inner: Sequence[Expr]) -> tuple[Expr, ...]:
        """The buffer's indices of the tile's element `inner`."""
        result = list(self.start)
        for dimension, index in zip(self.dimensions, inner, strict=True):
            result[dimension] = simplify(result[dimension] + index)
        return tuple(result)


Match = Mapping[str, Place]


def match_intrinsic(
    loops: Sequence[For], store: Store, semantics: LoopFunction, ranges: Intervals
) -> Match | None:
    """The places of the semantics' parameters under which `loops` around `store` mean the same."""
    pattern_loops, pattern = _nest(semantics.body)
    ranges = {**ranges, **{loop.var: iterations(loop.extent, {}) for loop in pattern_loops}}
    if len(loops) != len(pattern_loops):
        return None
    for order in permutations(pattern_loops):
        if all(
            prove_equal(loop.extent, other.extent) for loop, other in zip(loops, order, strict=True)
        ):
            renamed: dict[Var, Expr] = {
                loop.var: other.var for loop, other in zip(loops, order, strict=True)
            }
            attempt = _Attempt({loop.var for loop in order}, renamed, ranges)
            for places in attempt.store(store, pattern):
                return places
    return None


def _nest(body: Stmt) -> tuple[list[For], Store]:
    """The loops and the store of the semantics, under names that no function uses."""
    loops: list[For] = []
    renamed: dict[Var, Expr] = {}
    while isinstance(body, For):
        var = Var(f"~{body.var.name}")
        renamed[body.var] = var
        loops.append(replace(body, var=var))
        body = body.body
    store = substitute_statement(body, renamed)
    assert isinstance(store, Store)  # INTRINSICS' semantics are perfect nests around one store
    return loops, store


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One assignment of loops: `renamed` maps the nest's loop variables to the pattern's."""

    inner: set[Var]
    renamed: Mapping[Var, Expr]
    ranges: Intervals

    def store(self, store: Store, pattern: Store) -> Iterator[Match]:
        own, other = Load(store.buffer, store.indices), Load(pattern.buffer, pattern.indices)
        for places in self.expr(own, other, {}):
            yield from self.expr(store.value, pattern.value, places)

    def expr(self, expr: Expr, pattern: Expr, places: Match) -> Iterator[Match]:
        """Every extension of `places` under which `expr` is `pattern`."""
        match expr, pattern:
            case Load(), Load(buffer=parameter):
                place = self.place(expr, pattern)
                earlier = places.get(parameter.name, place)
                if place is not None and earlier == place:
                    yield {**places, parameter.name: place}
            case Call(op="fma", args=(a, b, c)), Call(op="add"):
                expanded = Call("add", (c, Call("mul", (a, b), a.dtype)), c.dtype)
                yield from self.expr(expanded, pattern, places)
            case Call(op=op, args=args), Call(op=other, args=others) if op == other:
                for order in permutations(args) if SCALAR_OPERATORS[op].commutative else [args]:
                    yield from self.all(order, others, places)
            case Const(), Const() if expr == pattern:
                yield places

    def all(
        self, exprs: Sequence[Expr], patterns: Sequence[Expr], places: Match
    ) -> Iterator[Match]:
        if not exprs:
            yield places
            return
        for extended in self.expr(exprs[0], patterns[0], places):
            yield from self.all(exprs[1:], patterns[1:], extended)

    def place(self, load: Load, pattern: Load) -> Place | None:
        """Where the pattern's parameter lies, so that both access the same elements."""
        if load.dtype != pattern.dtype:
            return None
        indices = list(pattern.indices)
        start: list[Expr] = []
        dimensions: list[int] = []
        zeros: dict[Var, Expr] = {var: Const(0) for var in self.inner}
        for dimension, index in enumerate(load.indices):
            renamed = substitute(index, self.renamed)
            origin = simplify(substitute(renamed, zeros), self.ranges)
            start.append(origin)
            inside = simplify(renamed - origin, self.ranges)
            if inside == Const(0):
                continue
            if not indices or variables(inside) - self.inner or inside != simplify(indices.pop(0)):
                return None
            dimensions.append(dimension)
        return None if indices else Place(load.buffer, tuple(start), tuple(dimensions))
