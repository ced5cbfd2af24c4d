"""Finding and replacing statements of a loop function by the names of its loops and blocks.

A `Path` is the chain of statements from the function's body down to one statement; `replace_last`
rebuilds the chain. Loops and blocks are addressed by name, so that a schedule's trace is plain
data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, wraps
from itertools import chain
from operator import attrgetter
from typing import Concatenate, ParamSpec, TypeVar, cast

from webmlc.core.bounds import SYMBOL, Interval, iterations
from webmlc.core.dtypes import DType
from webmlc.core.expr import Call, Const, Expr, Var, call
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
    Seq,
    Stmt,
    Store,
    blocks,
    child_statements,
    loads,
    seq,
    stores,
    walk_statements,
)
from webmlc.schedule.errors import ScheduleError

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", For, Block)
Path = tuple[Stmt, ...]
Intervals = dict[Var, Interval]


def cached_by_identity(
    maxsize: int,
) -> Callable[
    [Callable[Concatenate[LoopFunction, P], R]], Callable[Concatenate[LoopFunction, P], R]
]:
    """`lru_cache` for functions of a loop function, which is equal only to itself here.

    Comparing or hashing a whole function takes longer than most steps. A rule that matches a kernel
    asks the same questions of the same functions as the schedule that it then builds.
    """

    def decorate(
        function: Callable[Concatenate[LoopFunction, P], R],
    ) -> Callable[Concatenate[LoopFunction, P], R]:
        @lru_cache(maxsize)
        def cached(same: _Same, *args: P.args, **kwargs: P.kwargs) -> R:
            return function(same.function, *args, **kwargs)

        @wraps(function)
        def lookup(subject: LoopFunction, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return cached(_Same(subject), *args, **kwargs)  # type: ignore[arg-type]

        lookup.cache_clear = cached.cache_clear  # type: ignore[attr-defined]
        return lookup

    return decorate


class _Same:
    """A function as the key of a cache: equal to no other, however similar."""

    __slots__ = ("function",)

    def __init__(self, function: LoopFunction) -> None:
        self.function = function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.function is other.function

    def __hash__(self) -> int:
        return id(self.function)


def find(root: Stmt, kind: type[S], is_wanted: Callable[[S], bool]) -> Path | None:
    """The path to the first loop or block, as `kind` says, that meets the condition, in program
    order.
    """
    stack: list[_Place] = [(root, None)]
    while stack:
        place = stack.pop()
        stmt = place[0]
        if isinstance(stmt, Store):
            continue
        if isinstance(stmt, kind) and is_wanted(stmt):
            return _path_to(place)
        if isinstance(stmt, For):  # most statements with children are loops
            stack.append((stmt.body, place))
            continue
        children = reversed(child_statements(stmt))
        stack += [(child, place) for child in children if not isinstance(child, Store)]
    return None


_Place = tuple[Stmt, "_Place | None"]
"""A statement, and the place of the statement around it."""


def _path_to(place: _Place | None) -> Path:
    """The path to a place."""
    path: list[Stmt] = []
    while place is not None:
        stmt, place = place
        path.append(stmt)
    return tuple(reversed(path))


def path_to_loop(function: LoopFunction, primitive: str, name: str) -> tuple[Path, For]:
    """The path to the loop `name`, and the loop. Raises `ScheduleError` if there is no such
    loop.
    """
    path = find(function.body, For, lambda loop: loop.var.name == name)
    if path is None:
        raise _unknown(primitive, "loop", name, function, loop_names(function))
    return path, cast(For, path[-1])


def path_to_block(function: LoopFunction, primitive: str, name: str) -> tuple[Path, Block]:
    """The path to the block `name`, and the block. Raises `ScheduleError` if there is no such
    block.
    """
    path = find(function.body, Block, lambda block: block.name == name)
    if path is None:
        names = [block.name for block in blocks(function.body)]
        raise _unknown(primitive, "block", name, function, names)
    return path, cast(Block, path[-1])


def _unknown(
    primitive: str, kind: str, name: str, function: LoopFunction, names: Sequence[str]
) -> ScheduleError:
    reason = f"there is no {kind} {name!r}; the {kind}s are {', '.join(names)}"
    return ScheduleError(primitive, reason, function)


def loop_names(function: LoopFunction) -> list[str]:
    """The names of the loops, in program order."""
    return [s.var.name for s in walk_statements(function.body) if isinstance(s, For)]


def loops_of(path: Path) -> tuple[For, ...]:
    """The loops around the last statement of `path`, up to the block that encloses it, outermost
    first.
    """
    loops: list[For] = []
    for stmt in reversed(path[:-1]):
        match stmt:
            case For():
                loops.append(stmt)
            case Block():
                break
    return tuple(reversed(loops))


def outer_blocks(root: Stmt) -> Iterator[Block]:
    """The blocks of `root` that no other block of `root` encloses, in program order."""
    stack = [root]
    while stack:
        stmt = stack.pop()
        if isinstance(stmt, Block):
            yield stmt
        else:
            stack.extend(reversed(child_statements(stmt)))


def replace_last(path: Path, new: Stmt | None) -> Stmt:
    """The root of `path` with its last statement replaced; `None` removes it and the loops it
    leaves empty.
    """
    old = path[-1]
    for parent in reversed(path[:-1]):
        match parent:
            case Seq(statements=statements):
                replacements = [new if s is old else s for s in statements]
                new_statements = [s for s in replacements if s is not None]
                new = seq(*new_statements) if new_statements else None
            case For(var=var, extent=extent, kind=kind, thread=thread):
                new = None if new is None else For(var, extent, new, kind, thread)
            case Let(var=var, value=value):
                new = None if new is None else Let(var, value, new)
            case If(then=then, otherwise=otherwise) if old is then:
                if new is not None or otherwise is not None:
                    new = replace(parent, then=Seq(()) if new is None else new)
            case If():
                new = replace(parent, otherwise=new)
            case Block(init=init) if old is init:
                new = replace(parent, init=new)
            case Block():
                new = replace(parent, body=Seq(()) if new is None else new)
        old = parent
    return Seq(()) if new is None else new


def with_body(
    function: LoopFunction, body: Stmt, allocations: tuple[Buffer, ...] | None = None
) -> LoopFunction:
    """`function` over another body, and other allocations if given."""
    return LoopFunction(
        function.name,
        function.params,
        function.outputs,
        function.symbols,
        function.allocations if allocations is None else allocations,
        body,
        function.origin,
        function.stages,
    )


def block_names(function: LoopFunction) -> set[str]:
    """The names of the blocks."""
    return {block.name for block in blocks(function.body)}


def fresh(base: str, taken_names: set[str]) -> str:
    """`base`, or `base_1`, `base_2`, ...: the first name that is free. It is added to the taken
    names.
    """
    name, count = base, 0
    while name in taken_names:
        count += 1
        name = f"{base}_{count}"
    taken_names.add(name)
    return name


def reads(stmt: Stmt) -> set[str]:
    """The names of the buffers that a statement loads from."""
    return {load.buffer.name for load in loads(stmt)}


def writes(stmt: Stmt) -> set[str]:
    """The names of the buffers that a statement stores to."""
    return {store.buffer.name for store in stores(stmt)}


def uses(stmt: Stmt) -> Counter[str]:
    """How often a statement loads from and stores to each buffer, by the buffer's name."""
    accesses: Iterable[Load | Store] = chain(loads(stmt), stores(stmt))
    return Counter(map(attrgetter("buffer.name"), accesses))


def ranges_along(function: LoopFunction, path: Path) -> Intervals:
    """The intervals of the symbols and of all loops and axes of `path`, its last statement's own
    included.
    """
    ranges: Intervals = dict.fromkeys(function.symbols, SYMBOL)
    for stmt in path:
        match stmt:
            case For(var=var, extent=extent):
                ranges[var] = iterations(extent, ranges)
            case Block(axes=axes):
                for axis in axes:
                    ranges[axis.var] = iterations(axis.extent, ranges)
    return ranges


def conjoin(a: Expr | None, b: Expr | None) -> Expr | None:
    """Both conditions; `None` is true."""
    if a is None or b is None:
        return a if b is None else b
    return a if a == b else call("bit_and", a, b)


def conjuncts(condition: Expr | None) -> tuple[Expr, ...]:
    """The conditions that `condition` is the conjunction of."""
    match condition:
        case None:
            return ()
        case Call(op="bit_and", args=(a, b), dtype=DType.bool):
            return (*conjuncts(a), *conjuncts(b))
    return (condition,)


def simplified_condition(condition: Expr | None, ranges: Mapping[Var, Interval]) -> Expr | None:
    """`condition` simplified; `None` if it always holds."""
    result: Expr | None = None
    for part in conjuncts(condition):
        new = simplify(part, ranges)
        if new != Const(True, DType.bool):
            result = conjoin(result, new)
    return result


def rebind(
    stmt: Stmt,
    mapping: Mapping[Var, Expr],
    ranges: Mapping[Var, Interval],
    guard: Expr | None = None,
) -> Stmt:
    """Replace loop variables by expressions, simplified, and add `guard` to the predicate of every
    block.

    A block isolates its body from the loops, so only bindings, predicates and statements outside
    blocks change.
    """

    def new(expr: Expr, inside: Mapping[Var, Interval]) -> Expr:
        changed = substitute(expr, mapping)
        return expr if changed == expr else simplify(changed, inside)

    def visit(node: Stmt, inside: Mapping[Var, Interval]) -> Stmt:
        match node:
            case Seq(statements=statements):
                return seq(*(visit(s, inside) for s in statements))
            case For(var=var):
                extent = new(node.extent, inside)
                body = visit(node.body, {**inside, var: iterations(extent, inside)})
                return For(var, extent, body, node.kind, node.thread)
            case Block(bindings=bindings, predicate=predicate):
                if predicate is not None:
                    substituted = substitute(predicate, mapping)
                    if substituted != predicate:
                        predicate = simplified_condition(substituted, inside)
                predicate = conjoin(predicate, guard)
                new_bindings = tuple(new(b, inside) for b in bindings)
                return Block(
                    node.name,
                    node.axes,
                    new_bindings,
                    node.body,
                    node.init,
                    predicate,
                    node.intrinsic,
                )
            case If(condition=condition, then=then, otherwise=otherwise):
                other = None if otherwise is None else visit(otherwise, inside)
                return If(new(condition, inside), visit(then, inside), other)
            case Let(var=var, value=value, body=body):
                return Let(var, new(value, inside), visit(body, inside))
            case Store(buffer=buffer, indices=indices, value=value, stage=stage):
                new_indices = tuple(new(i, inside) for i in indices)
                changed = Store(buffer, new_indices, new(value, inside), stage)
                return changed if guard is None else If(guard, changed)
        return node

    return visit(stmt, ranges)


def depends_on(expr: Expr, names: set[str] | frozenset[str]) -> bool:
    """True if `expr` uses one of the variables called `names`."""
    return any(var.name in names for var in variables(expr))
