"""Match loop nests against the descriptions of intrinsics.

In: a nest of a schedule, and the description of an intrinsic. Out: the place of each parameter of
the description in the buffers of the nest, or the reason why the nest means something else.

    C[vi * 4 + i1, vj * 4 + j1]  matches  C[i, j]  with  C -> the tile at (vi * 4, vj * 4)

Loops match in any order of equal extents, and operands of commutative operators in any order. A
parameter may be a tile with strides, or with the same elements in all iterations of a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TypeVar

from webmlc.core.affine import split_linear
from webmlc.core.bounds import iterations
from webmlc.core.expr import Bitcast, Call, Cast, Const, Expr, Var
from webmlc.core.instruction import Instruction, InstructionCall
from webmlc.core.rewrite import postorder, substitute, variables
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.core.simplify import prove_equal, simplify
from webmlc.loops.ir import For, Load, LoopFunction, Store, loads_in, substitute_statement
from webmlc.schedule.describe_instruction import added_term, nest
from webmlc.schedule.tree import Intervals


@dataclass(frozen=True, slots=True)
class Place:
    """A parameter's tile: the indices of its first element in a buffer, and for each of its
    dimensions the steps of these indices from one element to the next.
    """

    first: Load
    steps: tuple[tuple[Expr, ...], ...]

    def element(self, inner: Sequence[Expr]) -> Load:
        """The buffer's element that is the tile's element `inner`."""
        result = list(self.first.indices)
        for steps, index in zip(self.steps, inner, strict=True):
            for dimension, step in enumerate(steps):
                if step != Const(0):
                    result[dimension] = simplify(result[dimension] + index * step)
        return Load(self.first.buffer, tuple(result))

    @property
    def is_distinct(self) -> bool:
        """True if different elements of the tile are different elements of the buffer: each
        dimension of the tile is one dimension of the buffer.
        """
        used = [[d for d, step in enumerate(steps) if step != Const(0)] for steps in self.steps]
        flat = [dimension for dimensions in used for dimension in dimensions]
        return all(used) and len(set(flat)) == len(flat)

    @property
    def is_in_order(self) -> bool:
        """True if the dimensions of the tile are in the order of those of the buffer."""
        moving = [d for steps in self.steps for d, step in enumerate(steps) if step != Const(0)]
        return moving == sorted(moving)


Match = Mapping[str, Place]
B = TypeVar("B")
Leaf = Callable[[Expr, Expr, B], Iterator[B]]
"""Every extension of the bindings of a pattern by an expression and a leaf of the pattern."""
_NO_OPERANDS: Mapping[Var, Expr] = {}


def match_intrinsic(
    loops: Sequence[For], store: Store, semantics: LoopFunction, ranges: Intervals
) -> Match | None:
    """The places of the parameters under which `loops` around `store` mean the same as a
    description; `None` if there are none.
    """
    own_loops, body = nest(semantics.body)
    if len(loops) != len(own_loops):
        return None
    names: dict[Var, Expr] = {loop.var: Var(f"~{loop.var.name}") for loop in own_loops}
    pattern_loops = [(Var(f"~{loop.var.name}"), loop.extent) for loop in own_loops]
    pattern = substitute_statement(body, names)
    assert isinstance(pattern, Store)  # `nest_of` ensures it
    ranges = {**ranges, **{var: iterations(extent, {}) for var, extent in pattern_loops}}
    matches: list[Match] = []
    for order in permutations(pattern_loops):
        pairs = list(zip(loops, order, strict=True))
        if all(prove_equal(loop.extent, extent) for loop, (_, extent) in pairs):
            renamed: dict[Var, Expr] = {loop.var: var for loop, (var, _) in pairs}
            attempt = _Attempt([var for var, _ in order], renamed, ranges)
            matches += attempt.store(store, pattern)
    return max(matches, key=_places_in_order, default=None)


def _places_in_order(match: Match) -> int:
    """The number of tiles that are not transposed."""
    return sum(place.is_in_order for place in match.values())


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One assignment of loops: `renamed` maps the nest's loop variables to the pattern's."""

    inner: Sequence[Var]
    renamed: Mapping[Var, Expr]
    ranges: Intervals

    def store(self, store: Store, pattern: Store) -> Iterator[Match]:
        result, parameter = (Load(s.buffer, s.indices) for s in (store, pattern))
        for places in self.expr(result, parameter, {}):
            if places[pattern.buffer.name].is_distinct:
                yield from self.expr(store.value, pattern.value, places)

    def expr(self, expr: Expr, pattern: Expr, places: Match) -> Iterator[Match]:
        """Every extension of `places` under which `expr` is `pattern`."""
        return _matches(expr, pattern, places, self.leaf)

    def leaf(self, expr: Expr, pattern: Expr, places: Match) -> Iterator[Match]:
        """Match a load, a multiply-add, or a loop variable as a value."""
        match expr, pattern:
            case Load(), Load(buffer=parameter):
                place = self.place(expr, pattern)
                earlier = places.get(parameter.name, place)
                if place is not None and earlier == place:
                    yield {**places, parameter.name: place}
            case Call(op="fma", args=(a, b, c)), Call(op="add"):
                expanded = Call("add", (c, Call("mul", (a, b), a.dtype)), c.dtype)
                yield from self.expr(expanded, pattern, places)
            case _, Var():
                if simplify(substitute(expr, self.renamed), self.ranges) == pattern:
                    yield places

    def place(self, load: Load, pattern: Load) -> Place | None:
        """Where the pattern's parameter lies, so that both access the same elements."""
        if load.dtype != pattern.dtype:
            return None
        zeros: dict[Var, Expr] = {var: Const(0) for var in self.inner}
        first: list[Expr] = []
        steps: dict[Var, list[Expr]] = {var: [] for var in self.inner}
        for index in load.indices:
            renamed = substitute(index, self.renamed)
            first.append(simplify(substitute(renamed, zeros), self.ranges))
            remainder = simplify(renamed, self.ranges)
            for var in self.inner:
                split = split_linear(remainder, var)
                if split is None:
                    return None
                remainder, step = split
                if variables(step) & set(self.inner):
                    return None
                steps[var].append(simplify(step))
        zero = Const(0)
        for var, along in steps.items():
            if var not in pattern.indices and any(step != zero for step in along):
                return None
        tile_steps = (tuple(steps[i]) for i in pattern.indices if isinstance(i, Var))
        return Place(Load(load.buffer, tuple(first)), tuple(tile_steps))


def difference(loops: Sequence[For], store: Store, semantics: LoopFunction) -> str:
    """Say in what a nest differs from a description that does not match it."""
    own_loops, pattern = nest(semantics.body)
    assert isinstance(pattern, Store)  # `nest_of` ensures it
    extents, others = _extents(loops), _extents(own_loops)
    if sorted(extents) != sorted(others):
        return f"it has {_times(others)} iterations, not {_times(extents)}"
    if store.buffer.dtype != pattern.buffer.dtype:
        return f"it writes {pattern.buffer.dtype}, not {store.buffer.dtype}"
    types, other_types = _types(store), _types(pattern)
    if types != other_types:
        return f"it reads {' and '.join(other_types)}, not {' and '.join(types) or 'nothing'}"
    adds = [added_term(each) is not None for each in (pattern, store)]
    if adds == [True, False]:
        return f"it adds to {pattern.buffer.name}, and the block does not add to its element"
    if adds == [False, True]:
        return f"it sets {pattern.buffer.name}, and the block adds to its element"
    return f"it computes {pattern.value}, not {store.value}"


def _extents(loops: Sequence[For]) -> list[str]:
    return [str(loop.extent) for loop in loops]


def _times(extents: Sequence[str]) -> str:
    return " × ".join(extents) or "1"


def _types(store: Store) -> list[str]:
    """The types of the buffers that a store reads, without its own."""
    loads = loads_in(store.value)
    return sorted({str(load.dtype) for load in loads if load.buffer != store.buffer})


def call_instruction(value: Expr, instruction: Instruction) -> Expr:
    """The value with a call of the instruction in the place of each part that is its meaning; the
    value itself if no part is.
    """

    results: dict[Expr, Expr] = {}
    for node in postorder(value, _value_operands, results):
        children = tuple(results[child] for child in _value_operands(node))
        new = node.rebuild(children) if children and children != node.children else node
        operands = next(_matches(new, instruction.meaning, _NO_OPERANDS, _operands), None)
        if operands is not None:
            new = InstructionCall(instruction, tuple(operands[p] for p in instruction.parameters))
        results[node] = new
    return results[value]


def _value_operands(node: Expr) -> tuple[Expr, ...]:
    """The operands of a node that are values. The indices of a load are none."""
    return () if isinstance(node, Load) else node.children


def _operands(
    expr: Expr, pattern: Expr, operands: Mapping[Var, Expr]
) -> Iterator[Mapping[Var, Expr]]:
    """Extend `operands` by the operand that a variable of a meaning stands for."""
    if isinstance(pattern, Var) and operands.get(pattern, expr) == expr:
        yield {**operands, pattern: expr}


def _matches(expr: Expr, pattern: Expr, bindings: B, leaf: Leaf[B]) -> Iterator[B]:
    """Every extension of `bindings` under which `expr` is `pattern`. `leaf` extends them where a
    pattern is no operator that the expression has, too. Operands of commutative operators match in
    any order.
    """
    if expr.dtype != pattern.dtype:
        return
    match expr, pattern:
        case Const(), Const():
            if expr == pattern:
                yield bindings
        case Call(op=op, args=args), Call(op=other, args=patterns) if op == other:
            for order in permutations(args) if SCALAR_OPERATORS[op].commutative else [args]:
                yield from _all_match(order, patterns, bindings, leaf)
        case (Cast(value=value), Cast(value=inner)) | (Bitcast(value=value), Bitcast(value=inner)):
            yield from _matches(value, inner, bindings, leaf)
        case _:
            yield from leaf(expr, pattern, bindings)


def _all_match(
    exprs: Sequence[Expr], patterns: Sequence[Expr], bindings: B, leaf: Leaf[B]
) -> Iterator[B]:
    if not exprs:
        yield bindings
        return
    for extended in _matches(exprs[0], patterns[0], bindings, leaf):
        yield from _all_match(exprs[1:], patterns[1:], extended, leaf)
