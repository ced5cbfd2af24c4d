"""Find the parts of a verified loop function that have no meaning, or could touch foreign memory.

In: a function that `loops.verify` accepts. Out: pairs of a part and a message. The checks:

- Every index of a buffer stays inside the buffer. The proof uses the extents of loops and axes, and
  the conditions around the access: `if i + 1 < n: B[i] = A[i + 1]` is inside.
- An axis is bound to values that it has.
- The variable of a loop that runs in any order is part of an index or of a condition of each store
  to a buffer that others see, and a spatial axis is part of an index. Otherwise all iterations
  would write the same elements.
- The first access to an output or a temporary is not a read: its first content is undefined.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from webmlc.core.bounds import SYMBOL, Ranges, bounds, iterations
from webmlc.core.expr import Call, Const, Expr, Var, as_int, call
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
    stores,
    walk_statements,
)

Problem = tuple[Stmt | Buffer | Var, str]
"""The part of a function that has no meaning, and why."""
_UNORDERED = ("parallel", "vectorized", "thread_binding")


@dataclass(frozen=True, slots=True)
class _Place:
    """What holds at a statement.

    - `ranges`: the interval of each variable. `last`: the last value of a variable, as far as it
      grows with all variables in it.
    - `smaller`: pairs (a, b) with a < b, from the loops and the conditions around the statement.
    - `guards`: the loop variables in these conditions.
    - `meaning`: the values of axes and lets by the loops around them.
    - `unordered`: the loops that run in any order.
    """

    ranges: Ranges
    last: Mapping[Var, Expr] = field(default_factory=dict)
    smaller: tuple[tuple[Expr, Expr], ...] = ()
    guards: frozenset[Var] = frozenset()
    meaning: Mapping[Var, Expr] = field(default_factory=dict)
    unordered: tuple[For, ...] = ()

    def with_variable(self, var: Var, extent: Expr) -> _Place:
        """The place inside a loop or a block axis of this extent."""
        last = {var: substitute(extent, self.last) - 1} if _rises(extent, self) else {}
        return replace(
            self,
            ranges={**self.ranges, var: iterations(extent, self.ranges)},
            last={**self.last, **last},
            smaller=(*self.smaller, (var, extent)),
        )

    def with_condition(self, condition: Expr) -> _Place:
        """The place where a condition holds."""
        pairs = (pair for part in _conjuncts(condition) for pair in _smaller(part))
        guards = variables(substitute(condition, self.meaning))
        return replace(
            self, smaller=(*self.smaller, *pairs), guards=self.guards | frozenset(guards)
        )


def check_program(function: LoopFunction, updates: bool = False) -> Iterator[Problem]:
    """Yield the problems of a function (see the module). If it `updates`, its outputs have contents
    before it runs.
    """
    if not function.outputs:
        yield function.params[-1], "no parameter is written, so the kernel has no output"
        return
    place = _Place(dict.fromkeys(function.symbols, SYMBOL))
    yield from _check(function.body, place)
    if not updates:
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
    writes = list(stores(block.body))
    values = [s.value for s in walk_statements(block.body) if isinstance(s, Let)]
    users = {
        v for root in (*values, *(i for s in writes for i in s.indices)) for v in variables(root)
    }
    for axis in block.axes if writes else ():
        if axis.kind == "spatial" and as_int(axis.extent) != 1 and axis.var not in users:
            yield (
                axis.var,
                f"{axis.var.name} is a spatial axis, and each of its values writes the same "
                f"elements of {writes[0].buffer.name}. Make it a reduce axis",
            )
    if block.init is not None:
        yield from _check(block.init, inner)
    yield from _check(block.body, inner)


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
    return _is_not_negative(index, place) and _is_below(index, extent, place)


def _is_below(index: Expr, extent: Expr, place: _Place) -> bool:
    match index:
        case Call(op="min", args=(a, b)):
            return _is_below(a, extent, place) or _is_below(b, extent, place)
        case Call(op="max", args=(a, b)):
            return _is_below(a, extent, place) and _is_below(b, extent, place)
        case Call(op="select", args=(condition, a, b)):
            otherwise = place.with_condition(_negated(condition))
            return _is_below(a, extent, place.with_condition(condition)) and _is_below(
                b, extent, otherwise
            )
        case Call(op="floormod", args=(_, divisor)) if _is_positive(divisor, place):
            return _is_positive(extent - divisor + 1, place)
        case Call(op="floordiv", args=(a, divisor)) if _is_positive(divisor, place):
            return _is_below(a, extent * divisor, place)
    highest = substitute(index, place.last) if _rises(index, place) else index
    return _is_positive(extent - index, place) or _is_positive(extent - highest, place)


def _is_not_negative(index: Expr, place: _Place) -> bool:
    match index:
        case Call(op="min", args=(a, b)):
            return _is_not_negative(a, place) and _is_not_negative(b, place)
        case Call(op="max", args=(a, b)):
            return _is_not_negative(a, place) or _is_not_negative(b, place)
        case Call(op="select", args=(condition, a, b)):
            otherwise = place.with_condition(_negated(condition))
            return _is_not_negative(a, place.with_condition(condition)) and _is_not_negative(
                b, otherwise
            )
        case Call(op="floormod", args=(_, divisor)):
            return _is_positive(divisor, place)
        case Call(op="floordiv", args=(a, divisor)) if _is_positive(divisor, place):
            return _is_not_negative(a, place)
    return _is_positive(index + 1, place)


def _is_positive(value: Expr, place: _Place) -> bool:
    """True if value > 0 follows from the ranges, or from one pair a < b: then b - a ≥ 1, and it is
    enough that value ≥ b - a.
    """
    value = simplify(value)
    return bounds(value, place.ranges).low > 0 or any(
        bounds(simplify(value - (b - a)), place.ranges).low >= 0 for a, b in place.smaller
    )


def _rises(index: Expr, place: _Place) -> bool:
    """True if an expression never falls where a variable in it grows: it consists of variables and
    numbers that are not negative, of their sums and products, and of differences from numbers.
    """
    match simplify(index):
        case Var() as var:
            return place.ranges[var].low >= 0
        case Const(value=value):
            return value >= 0
        case Call(op="add" | "mul", args=(a, b)):
            return _rises(a, place) and _rises(b, place)
        case Call(op="sub", args=(a, Const())):
            return _rises(a, place)
    return False


def _conjuncts(condition: Expr) -> tuple[Expr, ...]:
    if isinstance(condition, Call) and condition.op == "bit_and":
        return tuple(part for argument in condition.args for part in _conjuncts(argument))
    return (condition,)


_OPPOSITES = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


def _negated(condition: Expr) -> Expr:
    """The condition of `else`. If it is no comparison, no pair follows from it."""
    match condition:
        case Call(op=op, args=args) if op in _OPPOSITES:
            return Call(_OPPOSITES[op], args, condition.dtype)
    return call("bit_not", condition)


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
    indices = (substitute(index, place.meaning) for index in store.indices)
    users = place.guards.union(*map(variables, indices))
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
    written = set(function.input_params())
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
