"""Find the parts of a verified loop function that have no meaning, or could touch foreign memory.

In: a function that `loops.verify` accepts. Out: pairs of a part and a message. The checks:

- Every index of a buffer stays inside the buffer. The proof uses the extents of loops and axes, and
  the conditions around the access: `if i + 1 < n: B[i] = A[i + 1]` is inside.
- An axis is bound to values that it has.
- No two iterations of a loop that runs in any order write one element of a shared buffer, and no
  two values of a spatial axis do.
- An output is written before it is read: its first content is undefined.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from webmlc.core.bounds import SYMBOL, Interval, Ranges, bounds, iterations
from webmlc.core.expr import Call, Const, Expr, Var, as_int, const
from webmlc.core.rewrite import substitute, variables
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    Block,
    Buffer,
    For,
    If,
    Let,
    Load,
    LoopFunction,
    Stmt,
    Store,
    child_statements,
    expressions,
    loads_in,
    own_loads,
    walk_statements,
)

Problem = tuple[Stmt | Buffer | Var, str]
"""The part of a function that has no meaning, and why."""
_UNORDERED = ("parallel", "vectorized", "thread_binding")


@dataclass(frozen=True, slots=True)
class _Place:
    """What holds at a statement: the ranges of variables, their last values, the conditions, and
    the values of axes and lets by the loops around them.
    """

    ranges: Ranges
    last: Mapping[Var, Expr]
    conditions: tuple[Expr, ...] = ()
    meaning: Mapping[Var, Expr] = field(default_factory=dict)
    unordered: tuple[For, ...] = ()

    def with_variable(self, var: Var, extent: Expr) -> _Place:
        """The place inside a loop or a block axis of this extent."""
        last = substitute(extent, self.last) - 1
        return replace(
            self,
            ranges={**self.ranges, var: iterations(extent, self.ranges)},
            last={**self.last, var: last},
        )

    def with_condition(self, condition: Expr) -> _Place:
        return replace(self, conditions=(*self.conditions, *_conjuncts(condition)))


def check_program(function: LoopFunction) -> Iterator[Problem]:
    """Yield the problems of a function (see the module)."""
    if not function.outputs:
        yield function.params[-1], "no parameter is written, so the kernel has no output"
        return
    place = _Place({symbol: Interval(1, SYMBOL.high) for symbol in function.symbols}, {})
    yield from _check(function.body, place)
    yield from _reads_before_writes(function)


def _check(stmt: Stmt, place: _Place) -> Iterator[Problem]:
    for root in expressions(stmt) if not isinstance(stmt, Block) else ():
        yield from _check_loads(root, stmt, place)
    match stmt:
        case Store(buffer=buffer, indices=indices):
            yield from _check_access(buffer, indices, stmt, place)
            yield from _check_races(stmt, place)
        case For(var=var, extent=extent):
            inner = place.with_variable(var, extent)
            if stmt.kind in _UNORDERED:
                inner = replace(inner, unordered=(*inner.unordered, stmt))
            yield from _check(stmt.body, inner)
        case If(condition=condition, then=then, otherwise=otherwise):
            yield from _check(then, place.with_condition(condition))
            if otherwise is not None:
                yield from _check(otherwise, place.with_condition(_negated(condition)))
        case Let(var=var, value=value, body=body):
            ranges = {**place.ranges, var: bounds(value, place.ranges)}
            meaning = {**place.meaning, var: substitute(value, place.meaning)}
            yield from _check(body, replace(place, ranges=ranges, meaning=meaning))
        case Block():
            yield from _check_block(stmt, place)
        case _:
            for child in child_statements(stmt):
                yield from _check(child, place)


def _check_block(block: Block, place: _Place) -> Iterator[Problem]:
    guarded = place if block.predicate is None else place.with_condition(block.predicate)
    inner = guarded
    for axis, binding in zip(block.axes, block.bindings, strict=True):
        if not _is_inside(binding, axis.extent, guarded):
            yield (
                axis.var,
                f"{axis.var.name} has {axis.extent} values, and {binding} is not always below",
            )
        inner = inner.with_variable(axis.var, axis.extent)
        meaning = {**inner.meaning, axis.var: substitute(binding, place.meaning)}
        inner = replace(inner, meaning=meaning)
    written = [s for s in walk_statements(block.body) if isinstance(s, Store)]
    for axis in block.axes:
        users = {
            v
            for s in written
            for root in (*s.indices, *_let_values(block))
            for v in variables(root)
        }
        if (
            axis.kind == "spatial"
            and as_int(axis.extent) != 1
            and written
            and axis.var not in users
        ):
            yield (
                axis.var,
                f"{axis.var.name} is a spatial axis, and each of its values writes the same "
                f"elements of {written[0].buffer.name}. Make it a reduce axis",
            )
    if block.init is not None:
        yield from _check(block.init, inner)
    yield from _check(block.body, inner)


def _let_values(block: Block) -> list[Expr]:
    return [s.value for s in walk_statements(block.body) if isinstance(s, Let)]


# -- indices ---------------------------------------------------------------------------------------


def _check_loads(root: Expr, stmt: Stmt, place: _Place) -> Iterator[Problem]:
    """Check the loads of an expression. The operands of a `select` are under its condition."""
    if isinstance(root, Call) and root.op == "select":
        condition, then, otherwise = root.args
        yield from _check_loads(condition, stmt, place)
        yield from _check_loads(then, stmt, place.with_condition(condition))
        yield from _check_loads(otherwise, stmt, place.with_condition(_negated(condition)))
        return
    if isinstance(root, Load):
        yield from _check_access(root.buffer, root.indices, stmt, place)
    for child in root.children:
        if loads_in(child):
            yield from _check_loads(child, stmt, place)


def _check_access(
    buffer: Buffer, indices: tuple[Expr, ...], stmt: Stmt, place: _Place
) -> Iterator[Problem]:
    for dimension, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
        if not _is_inside(index, extent, place):
            text = f"{buffer.name}[{', '.join(map(str, indices))}]"
            low, high = bounds(index, place.ranges).low, bounds(index, place.ranges).high
            values = (
                f"from {low} to {high}" if abs(low) + abs(high) < float("inf") else "any number"
            )
            yield (
                stmt,
                f"{text} may be outside {buffer.name}: dimension {dimension} has {extent} "
                f"elements, and {index} is {values}",
            )


def _is_inside(index: Expr, extent: Expr, place: _Place) -> bool:
    """True if 0 ≤ index < extent follows from the ranges and the conditions."""
    return _is_below(index, extent, place) and _is_at_least_zero(index, place)


def _is_below(index: Expr, extent: Expr, place: _Place) -> bool:
    size = as_int(extent)
    if size is not None and bounds(index, place.ranges).high < size:
        return True
    index, extent = simplify(index), simplify(extent)
    last = substitute(index, place.last)
    if _rises(index) and _is_positive(extent - last, place):
        return True
    smaller = (pair for condition in place.conditions for pair in _smaller(condition))
    return any(
        (distance := as_int(simplify(index - left))) is not None
        and _is_positive(simplify(right - distance), place, extent)
        for left, right in smaller
    )


def _is_positive(value: Expr, place: _Place, at_most: Expr | None = None) -> bool:
    """True if `value` is above 0; with `at_most`, if `value` is at most that."""
    difference = simplify(value if at_most is None else at_most - value + 1)
    return bounds(difference, place.ranges).low > 0


def _is_at_least_zero(index: Expr, place: _Place) -> bool:
    if bounds(index, place.ranges).low >= 0:
        return True
    larger = (pair for condition in place.conditions for pair in _smaller(condition))
    return any(
        (distance := as_int(simplify(index - right))) is not None
        and bounds(simplify(left + 1 + distance), place.ranges).low >= 0
        for left, right in larger
    )


def _rises(index: Expr) -> bool:
    """True if the index grows with all its variables: it is made of sums and products of variables
    and of numbers that are not negative, and of differences from numbers.
    """
    match index:
        case Var():
            return True
        case Const(value=value):
            return value >= 0
        case Call(op="add" | "mul", args=(a, b)):
            return _rises(a) and _rises(b)
        case Call(op="sub", args=(a, Const())):
            return _rises(a)
    return False


def _conjuncts(condition: Expr) -> tuple[Expr, ...]:
    if isinstance(condition, Call) and condition.op == "bit_and":
        return tuple(part for argument in condition.args for part in _conjuncts(argument))
    return (condition,)


_OPPOSITES = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


def _negated(condition: Expr) -> Expr:
    """The condition of `else`, if it is one comparison; else a condition that says nothing."""
    match condition:
        case Call(op=op, args=args) if op in _OPPOSITES:
            return Call(_OPPOSITES[op], args, condition.dtype)
    return const(1)


def _smaller(condition: Expr) -> Iterator[tuple[Expr, Expr]]:
    """The pairs (a, b) with a < b that a condition says."""
    match condition:
        case Call(op="lt", args=(a, b)) | Call(op="gt", args=(b, a)):
            yield a, b
        case Call(op="le", args=(a, b)) | Call(op="ge", args=(b, a)):
            yield a, b + 1
        case Call(op="eq", args=(a, b)):
            yield a, b + 1
            yield b, a + 1


# -- order -----------------------------------------------------------------------------------------


def _check_races(store: Store, place: _Place) -> Iterator[Problem]:
    """Check that the iterations of unordered loops write different elements."""
    if store.buffer.scope == "local":
        return
    roots = [substitute(root, place.meaning) for root in (*store.indices, *place.conditions)]
    users = {v for root in roots for v in variables(root)}
    for loop in place.unordered:
        is_shared = store.buffer.scope == "shared" and (loop.thread or "").startswith("blockIdx")
        if loop.var not in users and as_int(loop.extent) != 1 and not is_shared:
            yield (
                store,
                f"all iterations of {loop.var.name}, which run in any order, write the same "
                f"elements of {store.buffer.name}",
            )


def _reads_before_writes(function: LoopFunction) -> Iterator[Problem]:
    """Check that the first access to each output and temporary is not a read."""
    inputs = function.params[: len(function.params) - function.outputs]
    written = set(inputs)
    for stmt in walk_statements(function.body):
        for load in own_loads(stmt):
            if load.buffer not in written:
                yield (
                    stmt,
                    f"{load.buffer.name} is read before it is written: its first content is "
                    "undefined. Give a reduction a T.init()",
                )
                return
        if isinstance(stmt, Store):
            written.add(stmt.buffer)
